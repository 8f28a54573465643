// The forward pass of a tile: online softmax over blocks of keys.
#pragma once

#include "ops/attention/cpu/exponential.h"
#include "ops/attention/cpu/layout.h"

namespace robocache::attention_op {
inline namespace ROBOCACHE_SIMD_TARGET {
namespace {

// The state of each row: the maximum, the sum of exponentials, and the factor that rescales the sums so far to the new maximum.
struct Softmax {
  float largest[most_rows], sum[most_rows], rescale[most_rows];
};

// Turns scores into weights, and updates the row maxima and sums.
void online_softmax(const Tile& tile, const Block& block, float* scores, Softmax& softmax) {
  const Floats d;
  const Vector scale = hn::Set(d, static_cast<float>(tile.plan.scale));
  const Vector hidden = hn::Set(d, nothing_seen);
  float here[most_rows] = {};
  for (std::int64_t r = 0; r < tile.count; ++r) {
    Vector most = hidden;
    for (std::int64_t j = 0; j < block.columns(); j += lanes) {
      const Vector score = hn::Mul(hn::LoadU(d, scores + r * block_keys + j), scale);
      most = hn::Max(most, block.whole ? score : where_seen(block.rows[r], j, score, hidden));
    }
    here[r] = hn::GetLane(hn::MaxOfLanes(d, most));
  }
  float shifts[most_rows];
  for (std::int64_t r = 0; r < tile.count; r += lanes) {
    const Vector before = hn::LoadU(d, softmax.largest + r);
    const Vector largest = hn::Max(before, hn::LoadU(d, here + r));
    // Where a row has seen nothing, the exponentials of -inf must be 0, not NaN.
    const Vector shift = hn::IfThenZeroElse(hn::Eq(largest, hidden), largest);
    hn::StoreU(largest, d, softmax.largest + r);
    hn::StoreU(shift, d, shifts + r);
    hn::StoreU(exponential(hn::Sub(before, shift)), d, softmax.rescale + r);
  }
  for (std::int64_t r = 0; r < tile.count; ++r) {
    float* const row = scores + r * block_keys;
    const Vector shift = hn::Set(d, shifts[r]);
    Vector sum = hn::Zero(d);
    for (std::int64_t j = 0; j < block.columns(); j += lanes) {
      Vector weight = exponential(hn::MulSub(hn::LoadU(d, row + j), scale, shift));
      if (!block.whole) weight = where_seen(block.rows[r], j, weight, hn::Zero(d));
      hn::StoreU(weight, d, row + j);
      sum = hn::Add(sum, weight);
    }
    softmax.sum[r] = softmax.sum[r] * softmax.rescale[r] + hn::GetLane(hn::SumOfLanes(d, sum));
  }
}

template <class T>
void store_output(const Tile& tile, std::int64_t r, const float* sums, float largest, float sum) {
  const Plan& plan = tile.plan;
  T* const out = tile.vector<T>(plan.out, r);
  const float divisor = largest == nothing_seen ? 1.0F : sum;
  over_channels<float>(plan.head_dim, [=](auto d, std::int64_t k) HWY_ATTR {
    store(d, hn::Div(hn::LoadU(d, sums + k), hn::Set(d, divisor)), out + k);
  });
  if (plan.lse != nullptr) plan.lse[tile.in_lse(r)] = largest == nothing_seen ? largest : largest + ::logf(sum);
}

// Attends to keys [first, end) of a tile. partial: where a split's result goes; nullptr: the tile is not split.
template <class T>
void attend_tile(const Tile& tile, const KeyRange& keys, const Buffers& buffers, float* partial) {
  const Plan& plan = tile.plan;
  Softmax softmax;
  for (std::int64_t r = 0; r < most_rows; ++r) {
    softmax.largest[r] = nothing_seen;
    softmax.sum[r] = 0;
  }
  for (std::int64_t k = 0; k < tile.count * buffers.width; ++k) buffers.sums[k] = 0;
  if (keys.first < keys.end) load_rows<T>(tile, plan.q, buffers.queries, buffers.width);
  Block block;
  for (std::int64_t j = keys.first; j < keys.end; j += block_keys) {
    find_visible_keys(tile, j, clamp_to(keys.end - j, 0, block_keys), block);
    if (block.seen == 0) continue;
    load_block<T>(tile, block, &Segment::keys, buffers.keys, buffers.width);
    transpose(buffers.keys, block.columns(), tile.plan.head_dim, buffers.width, buffers.keys_across);
    compute_scores(tile, block, buffers.queries, buffers.keys_across, buffers.width, buffers.scores);
    online_softmax(tile, block, buffers.scores, softmax);
    load_block<T>(tile, block, &Segment::values, buffers.values, buffers.width);
    add_weighted_rows(tile, block, buffers.scores, buffers.values, buffers.width, softmax.rescale, buffers.sums);
  }
  for (std::int64_t r = 0; r < tile.count; ++r) {
    const float* const sums = buffers.sums + r * buffers.width;
    if (partial == nullptr) {
      store_output<T>(tile, r, sums, softmax.largest[r], softmax.sum[r]);
      continue;
    }
    float* const row = partial + r * partial_row(plan);
    for (std::int64_t k = 0; k < padded(plan.head_dim); ++k) row[k] = sums[k];
    row[padded(plan.head_dim)] = softmax.largest[r];
    row[padded(plan.head_dim) + 1] = softmax.sum[r];
  }
}

// Merges the splits of a row, in their order.
template <class T>
void merge_row(const Tile& tile, std::int64_t r, const float* partial, std::int64_t splits, std::int64_t step,
               float* sums) {
  const Floats d;
  const std::int64_t width = padded(tile.plan.head_dim);
  float largest = nothing_seen;
  for (std::int64_t s = 0; s < splits; ++s) {
    const float here = partial[s * step + width];
    largest = here > largest ? here : largest;
  }
  for (std::int64_t k = 0; k < width; ++k) sums[k] = 0;
  float sum = 0;
  for (std::int64_t s = 0; s < splits; ++s) {
    const float* const row = partial + s * step;
    const float weight = exponential(row[width] - (largest == nothing_seen ? 0.0F : largest));
    sum += weight * row[width + 1];
    for (std::int64_t k = 0; k < width; k += lanes) {
      hn::StoreU(hn::MulAdd(hn::Set(d, weight), hn::LoadU(d, row + k), hn::LoadU(d, sums + k)), d, sums + k);
    }
  }
  store_output<T>(tile, r, sums, largest, sum);
}

}  // namespace
}  // namespace ROBOCACHE_SIMD_TARGET
}  // namespace robocache::attention_op
