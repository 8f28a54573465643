// The gradients of a tile of queries, and of a block of keys.
#pragma once

#include "ops/attention/cpu/exponential.h"
#include "ops/attention/cpu/layout.h"

namespace robocache::attention_op {
inline namespace ROBOCACHE_SIMD_TARGET {
namespace {

// lse and delta of the rows of a tile.
struct RowStatistics {
  float lse[most_rows], delta[most_rows];
};

template <class T>
void load_row_statistics(const BackwardPlan& backward, const Tile& tile, const Buffers& buffers,
                         RowStatistics& statistics) {
  const Plan& plan = tile.plan;
  load_rows<T>(tile, plan.q, buffers.queries, buffers.width);
  load_rows<T>(tile, backward.d_out, buffers.d_out, buffers.width);
  for (std::int64_t r = 0; r < tile.count; ++r) {
    const T* const out = tile.vector<const T>(plan.out, r);
    float* const d_out = buffers.d_out + r * buffers.width;
    statistics.lse[r] = plan.lse[tile.in_lse(r)];
    if (statistics.lse[r] == nothing_seen) {  // the row may hold NaN, and 0 times NaN would reach keys
      for (std::int64_t k = 0; k < buffers.width; ++k) buffers.queries[r * buffers.width + k] = d_out[k] = 0;
    }
    float delta = 0;
    over_channels<float>(plan.head_dim, [&](auto d, std::int64_t k) HWY_ATTR {
      delta += hn::GetLane(hn::SumOfLanes(d, hn::Mul(load(d, out + k), hn::LoadU(d, d_out + k))));
    });
    statistics.delta[r] = backward.d_lse == nullptr ? delta : delta - backward.d_lse[tile.in_lse(r)];
  }
}

// Computes the weights and the gradients of the scores of a tile and a block, from transposed keys and values.
void differentiate_scores(const Tile& tile, const Block& block, const Buffers& buffers,
                          const RowStatistics& statistics) {
  const Floats d;
  const auto scale = static_cast<float>(tile.plan.scale);
  compute_scores(tile, block, buffers.queries, buffers.keys_across, buffers.width, buffers.scores);
  compute_scores(tile, block, buffers.d_out, buffers.values_across, buffers.width, buffers.d_scores);
  for (std::int64_t r = 0; r < tile.count; ++r) {
    float* const weights = buffers.scores + r * block_keys;
    float* const d_scores = buffers.d_scores + r * block_keys;
    const std::uint64_t bits = statistics.lse[r] == nothing_seen ? 0 : block.rows[r];
    for (std::int64_t j = 0; j < block.columns(); j += lanes) {
      const Vector score = hn::Mul(hn::LoadU(d, weights + j), hn::Set(d, scale));
      const Vector weight =
          where_seen(bits, j, exponential(hn::Sub(score, hn::Set(d, statistics.lse[r]))), hn::Zero(d));
      const Vector slope = hn::Sub(hn::LoadU(d, d_scores + j), hn::Set(d, statistics.delta[r]));
      hn::StoreU(weight, d, weights + j);
      hn::StoreU(where_seen(bits, j, hn::Mul(hn::Set(d, scale), hn::Mul(weight, slope)), hn::Zero(d)), d, d_scores + j);
    }
  }
}

template <class T>
void load_keys_and_values(const Tile& tile, const Block& block, const Buffers& buffers) {
  load_block<T>(tile, block, &Segment::keys, buffers.keys, buffers.width);
  transpose(buffers.keys, block.columns(), tile.plan.head_dim, buffers.width, buffers.keys_across);
  load_block<T>(tile, block, &Segment::values, buffers.values, buffers.width);
  transpose(buffers.values, block.columns(), tile.plan.head_dim, buffers.width, buffers.values_across);
}

template <class T>
void write_row(const float* from, T* to, std::int64_t size) {
  over_channels<float>(size, [=](auto d, std::int64_t k) HWY_ATTR { store(d, hn::LoadU(d, from + k), to + k); });
}

template <class T>
void differentiate_tile(const BackwardPlan& backward, const Tile& tile, const Buffers& buffers) {
  RowStatistics statistics;
  load_row_statistics<T>(backward, tile, buffers, statistics);
  for (std::int64_t k = 0; k < tile.count * buffers.width; ++k) buffers.sums[k] = 0;
  Block block;
  const KeyRange keys = tile.keys();
  for (std::int64_t j = keys.first; j < keys.end; j += block_keys) {
    find_visible_keys(tile, j, clamp_to(keys.end - j, 0, block_keys), block);
    if (block.seen == 0) continue;
    load_keys_and_values<T>(tile, block, buffers);
    differentiate_scores(tile, block, buffers, statistics);
    add_weighted_rows(tile, block, buffers.d_scores, buffers.keys, buffers.width, nullptr, buffers.sums);
  }
  for (std::int64_t r = 0; r < tile.count; ++r) {
    write_row(buffers.sums + r * buffers.width, tile.vector<T>(backward.d_q, r), tile.plan.head_dim);
  }
}

// The gradients of a block's keys and values, over all tiles of queries.
template <class T>
void differentiate_block(const BackwardPlan& backward, const Tiling& tiling, const Sequence& sequence, std::int64_t g,
                         std::int64_t first, const Buffers& buffers) {
  const Plan& plan = backward.forward;
  const std::int64_t count = clamp_to(sequence.keys - first, 0, block_keys);
  for (std::int64_t k = 0; k < block_keys * buffers.width; ++k) buffers.d_keys[k] = buffers.d_values[k] = 0;
  Block block;
  RowStatistics statistics;
  for (std::int64_t t = 0; t < tiling.tiles; ++t) {
    const Tile tile = tile_of(plan, tiling, sequence.number, g, t);
    if (tile.count == 0) break;
    find_visible_keys(tile, first, count, block);
    if (block.seen == 0) continue;
    load_keys_and_values<T>(tile, block, buffers);
    load_row_statistics<T>(backward, tile, buffers, statistics);
    differentiate_scores(tile, block, buffers, statistics);
    const auto add = [&](const float* weights, const float* vectors, float* sums) {
      Product<true>{{weights, 1, block_keys}, count, tile.count, vectors, buffers.width, sums, buffers.width, nullptr}
          .multiply(padded(plan.head_dim));
    };
    add(buffers.d_scores, buffers.queries, buffers.d_keys);
    add(buffers.scores, buffers.d_out, buffers.d_values);
  }
  for (std::int64_t j = 0; j < count; ++j) {
    const Place place = place_of(plan, sequence, first + j);
    const auto write = [&](const Vectors& to, const float* from) {
      if (to.data == nullptr) return;
      write_row(from + j * buffers.width, vector_at<T>(to, sequence.number, g, place.n), plan.head_dim);
    };
    write(backward.d_keys[place.segment], buffers.d_keys);
    write(backward.d_values[place.segment], buffers.d_values);
  }
}

}  // namespace
}  // namespace ROBOCACHE_SIMD_TARGET
}  // namespace robocache::attention_op
