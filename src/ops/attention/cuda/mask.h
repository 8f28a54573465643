// Which query sees which key, on the device.
#pragma once

#include "gpu/warp.h"
#include "ops/attention/cuda/work_tile.h"

namespace robocache::attention_op {
namespace {

// What decides which keys a query sees, but for a dense mask.
struct QueryMask {
  int first = 0, end = 0;  // the keys in its window
  std::int32_t rank = most_rank;
};
__device__ QueryMask query_mask(const Plan& plan, const Rows& rows, int row) {
  QueryMask mask;
  if (!rows.exists(row)) return mask;
  const int i = rows.query(row);
  const KeyRange range = keys_in_window(plan, rows.s, i);
  mask.first = static_cast<int>(range.first);
  mask.end = static_cast<int>(range.end);
  if (plan.query_ranks.data != nullptr) mask.rank = rank_at(plan.query_ranks, rows.s.number, rows.s.first_query + i);
  return mask;
}
// The highest rank of the rows of a block. All lanes of a warp call it.
__device__ std::int32_t highest_query_rank(const Plan& plan, const Rows& rows, int block_rows) {
  if (plan.query_ranks.data == nullptr) return most_rank;
  std::int32_t most = least_rank;
#pragma unroll 1
  for (int row = static_cast<int>(threadIdx.x % warp_size); row < block_rows; row += warp_size) {
    if (rows.exists(row)) most = max(most, query_mask(plan, rows, row).rank);
  }
  return __reduce_max_sync(whole_warp, most);
}

struct KeyMask {
  std::int32_t rank = least_rank;
  std::uint32_t valid = 0;  // as it was loaded: nothing waits for the load before rank_or_hidden() does

  KeyMask() = default;
  // The mask of key j. Keys from `end` on are hidden.
  __device__ KeyMask(const Plan& plan, const Sequence& s, int j, int end) : valid(j < end ? 1 : 0) {
    if (j >= end) return;
    if (plan.key_ranks.data != nullptr) {
      rank = static_cast<const std::int32_t*>(
          plan.key_ranks.data)[s.number * plan.key_ranks.batch + (s.first_key + j) * plan.key_ranks.row];
    }
    if (plan.key_valid.data != nullptr) {
      valid = static_cast<const std::uint8_t*>(
          plan.key_valid.data)[s.number * plan.key_valid.batch + (s.first_key + j) * plan.key_valid.row];
    }
  }
  // A query sees the key if its own rank is not below this. No query has a rank of most_rank + 1.
  __device__ std::int32_t rank_or_hidden() const { return valid != 0 ? min(rank, most_rank) : most_rank + 1; }
};

// Loads the masks of this lane's keys, first + lane, first + lane + 32 and so on.
template <int words>
__device__ __forceinline__ void prefetch_keys(KeyMask (&next)[words], const Plan& plan, const Sequence& s, int first,
                                              int end) {
#pragma unroll
  for (int k = 0; k < words; ++k) {
    next[k] = KeyMask(plan, s, first + static_cast<int>(threadIdx.x % warp_size) + k * warp_size, end);
  }
}

// Whether a query sees key j, but for a dense mask. `key`: the key's rank_or_hidden().
__device__ bool sees(const QueryMask& query, std::int32_t key, int j) {
  return key <= query.rank && j >= query.first && j < query.end;
}
// Whether no row of a block sees key j by ranks and flags: then its values must be zeroed, since they may be NaN. Keys from
// `end` on need no zeroing. The sm90 kernel's consumers zero the values, and its tail rows wait for that: if the two sides
// found different tiles, the barrier would deadlock, so both ask this function. For calls with tail rows both pass the same
// `end`, the number of keys (select.cu gives packed calls and calls with lengths no tail rows).
__device__ __forceinline__ bool is_fully_masked(std::int32_t key, std::int32_t highest_query_rank, int j, int end) {
  return key > highest_query_rank && j < end;
}

// Whether a dense mask, where there is one, lets a row see key j.
__device__ bool is_allowed(const Plan& plan, const Rows& rows, int row, int j) {
  return plan.dense == nullptr || plan.dense[rows.s.number * plan.dense_batch + rows.head(row) * plan.dense_head +
                                             rows.query(row) * plan.dense_query + j * plan.dense_key] != 0;
}

// Narrows [begin, end) to the keys that any row of the block sees by its position.
__device__ __forceinline__ void set_visible_keys(const Plan& plan, const Rows& rows, int block_rows, int& begin,
                                                 int& end) {
  const KeyRange range = keys_for(plan, rows, block_rows);
  begin = static_cast<int>(range.first);
  end = static_cast<int>(range.end);
}

// Hides the scores of keys from `end` on in a tile that begins at `first`.
template <int count>
__device__ void hide_keys_behind(float (&scores)[count][4], int first, int end) {
  const auto lane = static_cast<int>(threadIdx.x % warp_size);
#pragma unroll
  for (int n = 0; n < count; ++n) {
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      if (first + n * 8 + lane % 4 * 2 + k % 2 >= end) scores[n][k] = minus_infinity();
    }
  }
}

// Two bits as two halves of a word, all ones or all zeros.
__device__ std::uint32_t half_masks(std::uint32_t bits) {
  return (bits & 1u ? 0xffffu : 0u) | (bits & 2u ? 0xffff0000u : 0u);
}

// The bits, one for each of a thread's columns, that are set for any row of the warp.
__device__ std::uint32_t any_row_bits(std::uint32_t bits) {
#pragma unroll
  for (int step = 4; step < warp_size; step *= 2) bits |= __shfl_xor_sync(whole_warp, bits, step);
  return bits;
}

}  // namespace
}  // namespace robocache::attention_op
