// Loads rows, keys and values as float32, and the products of a tile and a block that are made of them.
#pragma once

#include "ops/attention/cpu/mask.h"

namespace robocache::attention_op {
inline namespace ROBOCACHE_SIMD_TARGET {
namespace {

template <class T>
HWY_INLINE void load_row(const T* from, float* to, std::int64_t size, std::int64_t width) {
  over_channels<float>(size, [=](auto d, std::int64_t k) HWY_ATTR { hn::StoreU(load(d, from + k), d, to + k); });
  for (std::int64_t k = size; k < width; ++k) to[k] = 0;
}

template <class T>
void load_rows(const Tile& tile, const Vectors& vectors, float* to, std::int64_t width) {
  for (std::int64_t r = 0; r < tile.count; ++r) {
    load_row(tile.vector<const T>(vectors, r), to + r * width, tile.plan.head_dim, width);
  }
}

// Loads the keys or values of a block. A key that no row sees becomes zeros and is not read.
template <class T>
void load_block(const Tile& tile, const Block& block, Vectors Segment::*part, float* to, std::int64_t width) {
  const Plan& plan = tile.plan;
  for (std::int64_t j = 0; j < block.columns(); ++j) {
    if ((block.seen >> j & 1) == 0) {
      for (std::int64_t k = 0; k < width; ++k) to[j * width + k] = 0;
      continue;
    }
    const Place place = place_of(plan, tile.sequence, block.first + j);
    load_row(vector_at<const T>(plan.segments[place.segment].*part, tile.sequence.number, tile.g, place.n),
             to + j * width, plan.head_dim, width);
  }
}

// Transposes a block: its vectors become columns. The inner loop writes whole cache lines.
void transpose(const float* from, std::int64_t count, std::int64_t size, std::int64_t width, float* to) {
  const hn::CappedTag<float, 4> d;
  const hn::Repartition<double, decltype(d)> pairs;
  const auto lower = [&](auto a, auto b) HWY_ATTR {
    return hn::BitCast(d, hn::InterleaveLower(pairs, hn::BitCast(pairs, a), hn::BitCast(pairs, b)));
  };
  const auto upper = [&](auto a, auto b) HWY_ATTR {
    return hn::BitCast(d, hn::InterleaveUpper(pairs, hn::BitCast(pairs, a), hn::BitCast(pairs, b)));
  };
  for (std::int64_t k = 0; k < size; k += 4) {
    for (std::int64_t j = 0; j < count; j += 4) {
      const float* const corner = from + j * width + k;
      const auto a = hn::LoadU(d, corner);
      const auto b = hn::LoadU(d, corner + width);
      const auto e = hn::LoadU(d, corner + 2 * width);
      const auto f = hn::LoadU(d, corner + 3 * width);
      const auto ab_low = hn::InterleaveLower(d, a, b);
      const auto ab_high = hn::InterleaveUpper(d, a, b);
      const auto ef_low = hn::InterleaveLower(d, e, f);
      const auto ef_high = hn::InterleaveUpper(d, e, f);
      float* const turned = to + k * block_keys + j;
      hn::StoreU(lower(ab_low, ef_low), d, turned);
      hn::StoreU(upper(ab_low, ef_low), d, turned + block_keys);
      hn::StoreU(lower(ab_high, ef_high), d, turned + 2 * block_keys);
      hn::StoreU(upper(ab_high, ef_high), d, turned + 3 * block_keys);
    }
  }
}

bool is_finite(const float* data, std::int64_t size) {
  const Floats d;
  Vector any = hn::Zero(d);
  for (std::int64_t k = 0; k < size; k += lanes) any = hn::MulAdd(hn::LoadU(d, data + k), hn::Zero(d), any);
  return hn::AllTrue(d, hn::Eq(any, hn::Zero(d)));
}

// scores = rows columns, for a tile and a block. In parts of 32 columns of D, so that the chains of roundings stay short.
void compute_scores(const Tile& tile, const Block& block, const float* rows, const float* columns, std::int64_t width,
                    float* scores) {
  constexpr std::int64_t most_depth = 32;
  for (std::int64_t k = 0; k < tile.plan.head_dim; k += most_depth) {
    const std::int64_t depth = clamp_to(tile.plan.head_dim - k, 0, most_depth);
    const Matrix part{rows + k, width, 1};
    const float* const across = columns + k * block_keys;
    if (k == 0) {
      Product<false>{part, tile.count, depth, across, block_keys, scores, block_keys, nullptr}.multiply(
          block.columns());
    } else {
      Product<true>{part, tile.count, depth, across, block_keys, scores, block_keys, nullptr}.multiply(block.columns());
    }
  }
}

// sums = rescale sums + weights vectors. Where a vector is not finite, a weight of 0 would carry it to rows that do not see it, so
// each row then adds only the vectors that it sees.
void add_weighted_rows(const Tile& tile, const Block& block, const float* weights, const float* vectors,
                       std::int64_t width, const float* rescale, float* sums) {
  if (block.whole || is_finite(vectors, block.count * width)) {
    return Product<true>{{weights, block_keys, 1}, tile.count, block.count, vectors, width, sums, width, rescale}
        .multiply(padded(tile.plan.head_dim));
  }
  const Floats d;
  for (std::int64_t r = 0; r < tile.count; ++r) {
    const Vector factor = hn::Set(d, rescale == nullptr ? 1.0F : rescale[r]);
    for (std::int64_t k = 0; k < width; k += lanes) {
      Vector sum = hn::Mul(hn::LoadU(d, sums + r * width + k), factor);
      for (std::uint64_t left = block.rows[r]; left != 0; left &= left - 1) {
        const std::int64_t j = __builtin_ctzll(left);
        sum = hn::MulAdd(hn::Set(d, weights[r * block_keys + j]), hn::LoadU(d, vectors + j * width + k), sum);
      }
      hn::StoreU(sum, d, sums + r * width + k);
    }
  }
}

}  // namespace
}  // namespace ROBOCACHE_SIMD_TARGET
}  // namespace robocache::attention_op
