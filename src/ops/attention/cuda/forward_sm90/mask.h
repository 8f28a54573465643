// The mask of a consumer warp's 16 rows against one tile of keys after the other.
#pragma once

#include "gpu/wgmma.h"
#include "ops/attention/cuda/forward_sm90/segment_slots.h"
#include "ops/attention/cuda/load.h"
#include "ops/attention/cuda/mask.h"

namespace robocache::attention_op {
namespace {

#if ROBOCACHE_HAS_WGMMA

// Ranks and flags of keys are loaded one tile ahead: prefetch_keys() loads those of the next tile, advance() makes them the
// current ones. With segmented keys, key numbers here are slots.
template <int keys, bool segmented>
struct MaskTile {
  static constexpr int words = keys / warp_size;
  QueryMask queries[2];                           // of this thread's two rows
  int all_visible_from = 0, all_visible_end = 0;  // keys that all rows of the warp see by their position
  int any_visible_from = 0, any_visible_end = 0;  // keys that any row of the warpgroup sees by its position
  std::int32_t lowest_query_rank = most_rank;     // of the rows of the warp
  std::int32_t highest_query_rank = most_rank;    // of the rows of the block
  int keys_end = 0;                               // where fully masked keys end (see load_queries)
  int block_from = 0;                             // segmented: the first slot that any row of the block sees
  KeyMask next[words];                            // of the next tile's keys lane, lane + 32 ...
  std::int32_t current[words] = {};               // of this tile's
  const std::int32_t* ranks = nullptr;            // of the sequence's keys
  const std::uint8_t* valid = nullptr;            // of the sequence's keys
  const std::int32_t* own_rank_at[2] = {};        // where the ranks of this thread's two rows are, if they exist
  const std::int32_t* block_rank_at[2] = {};      // of rows lane and lane + 32 of the block

  // Finds addresses. It reads no data, so it runs before wait_on_dependent_grids().
  __device__ void prepare(const Plan& plan, const Rows& rows, int block_rows, int warp_row) {
    const Sequence& s = rows.s;
    const auto lane = static_cast<int>(threadIdx.x % warp_size);
    ranks = static_cast<const std::int32_t*>(plan.key_ranks.data);
    valid = static_cast<const std::uint8_t*>(plan.key_valid.data);
    if (valid != nullptr) valid += s.number * plan.key_valid.batch + s.first_key * plan.key_valid.row;
    if (ranks == nullptr) return;
    ranks += s.number * plan.key_ranks.batch + s.first_key * plan.key_ranks.row;
    const auto* const of_queries = static_cast<const std::int32_t*>(plan.query_ranks.data) +
                                   s.number * plan.query_ranks.batch + s.first_query * plan.query_ranks.row;
    const auto at = [&](int row) {
      return rows.exists(row) ? of_queries + rows.query(row) * plan.query_ranks.row : nullptr;
    };
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      own_rank_at[k] = at(warp_row + lane / 4 + 8 * k);
      block_rank_at[k] = lane + k * warp_size < block_rows ? at(lane + k * warp_size) : nullptr;
    }
  }

  // Loads what is known of the rows. `end`: of this block's keys.
  __device__ void load_queries(const Plan& plan, const Rows& rows, int block_rows, int warp_row, int end) {
    const auto lane = static_cast<int>(threadIdx.x % warp_size);
    all_visible_end = any_visible_end = queries[0].end = queries[1].end = end;
    // Behind the last key of an array TMA writes zeros, which need no zeroing. Behind a cache's length, or a packed
    // sequence, there may be anything.
    keys_end = plan.is_packed() || plan.lengths.data != nullptr ? end + keys : static_cast<int>(rows.s.keys);
    if (plan.query_ranks.data != nullptr) load_query_ranks(plan, rows, block_rows, lane);
    if (plan.left >= unbounded && plan.right >= unbounded) return;
    find_windows(plan, rows, warp_row, lane, end);
  }

  __device__ void prefetch_keys(const Plan& plan, const Sequence& s, int first, int end) {
    const auto lane = static_cast<int>(threadIdx.x % warp_size);
    int padded_before = 0;
    if constexpr (segmented) {
      const SegmentSlots<keys> slots = segment_at_slot<keys>(plan, s, first);
      padded_before = slots.begin - slots.first;
      end = min(end, slots.end());
    }
#pragma unroll
    for (int k = 0; k < words; ++k) {
      const int slot = first + lane + k * warp_size;
      const int j = slot - padded_before;
      next[k] = KeyMask();
      if (slot >= end || (segmented && slot < block_from)) continue;
      next[k].valid = valid == nullptr ? 1 : valid[j * plan.key_valid.row];
      if (ranks != nullptr) next[k].rank = ranks[j * plan.key_ranks.row];
    }
  }
  __device__ void advance() {
#pragma unroll
    for (int k = 0; k < words; ++k) current[k] = next[k].rank_or_hidden();
  }

  // Bits of the keys of this tile that no row of the block sees by ranks and flags.
  __device__ void find_fully_masked(const Plan& plan, const Sequence& s, unsigned (&fully_masked)[words],
                                    int first) const {
    const auto lane = static_cast<int>(threadIdx.x % warp_size);
    int last = keys_end;
    if constexpr (segmented) {
      const SegmentSlots<keys> slots = segment_at_slot<keys>(plan, s, first);
      if (slots.segment > 0 || plan.lengths.data == nullptr) last = slots.end();
    }
#pragma unroll
    for (int k = 0; k < words; ++k) {
      fully_masked[k] = __ballot_sync(
          whole_warp, is_fully_masked(current[k], highest_query_rank, first + lane + k * warp_size, last));
    }
  }

  // Hides masked scores of this tile. A fully visible tile is left as it is.
  __device__ void apply(float (&scores)[keys / 8][4], int first) const {
    const auto lane = static_cast<int>(threadIdx.x % warp_size);
    bool all = first >= all_visible_from && first + keys <= all_visible_end;
#pragma unroll
    for (int word = 0; word < words; ++word) all = all && current[word] <= lowest_query_rank;
    if (__all_sync(whole_warp, all)) return;
    // Bits for 32 keys each, of which bit 8 * n + k is this thread's column k of eight.
    const int shift = lane % 4 * 2;
    std::uint32_t seen[2][words];
#pragma unroll
    for (int word = 0; word < words; ++word) {
      seen[0][word] = seen[1][word] = __ballot_sync(whole_warp, current[word] <= lowest_query_rank) >> shift;
      const bool by_row = current[word] > lowest_query_rank && current[word] <= highest_query_rank;
      if (__any_sync(whole_warp, by_row)) {
#pragma unroll
        for (int n = 0; n < 4; ++n) {
#pragma unroll
          for (int k = 0; k < 2; ++k) {
            const std::int32_t key = __shfl_sync(whole_warp, current[word], n * 8 + shift + k);
#pragma unroll
            for (int half = 0; half < 2; ++half) {
              seen[half][word] |= (key <= queries[half].rank ? 1u : 0u) << (n * 8 + k);
            }
          }
        }
      }
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int word = 0; word < words; ++word) {
        const int column = first + word * warp_size + shift;
        const std::uint32_t bits =
            seen[half][word] & bits_below(queries[half].end - column) & ~bits_below(queries[half].first - column);
#pragma unroll
        for (int n = 0; n < 4; ++n) {
#pragma unroll
          for (int k = 0; k < 2; ++k) {
            if ((bits >> (n * 8 + k) & 1u) == 0) scores[4 * word + n][2 * half + k] = minus_infinity();
          }
        }
      }
    }
  }

 private:
  // All loads are issued before any of their results is used.
  __device__ void load_query_ranks(const Plan& plan, const Rows& rows, int block_rows, int lane) {
    std::int32_t first_ranks[2];
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      queries[k].rank = own_rank_at[k] == nullptr ? most_rank : min(*own_rank_at[k], most_rank);
      first_ranks[k] = block_rank_at[k] == nullptr ? least_rank : min(*block_rank_at[k], most_rank);
    }
    highest_query_rank = least_rank;
#pragma unroll 1
    for (int row = lane + 2 * warp_size; row < block_rows; row += warp_size) {
      if (rows.exists(row)) highest_query_rank = max(highest_query_rank, query_mask(plan, rows, row).rank);
    }
    highest_query_rank = max(highest_query_rank, max(first_ranks[0], first_ranks[1]));
    lowest_query_rank = __reduce_min_sync(whole_warp, min(queries[0].rank, queries[1].rank));
    highest_query_rank = __reduce_max_sync(whole_warp, highest_query_rank);
  }
  __device__ void find_windows(const Plan& plan, const Rows& rows, int warp_row, int lane, int end) {
    Rows own = rows;
    own.first += warp_row / 64 * 64;
    const KeyRange range = own.exists(0) ? keys_for(plan, own, 64) : KeyRange{};
    any_visible_from = warp_uniform(static_cast<int>(range.first));
    any_visible_end = warp_uniform(static_cast<int>(range.end));
    if constexpr (segmented) to_slots<keys>(plan, rows.s, any_visible_from, any_visible_end);
    any_visible_end = min(any_visible_end, end);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = warp_row + lane / 4 + 8 * half;
      queries[half] = query_mask(plan, rows, row);
      if constexpr (segmented) to_slots<keys>(plan, rows.s, queries[half].first, queries[half].end);
      queries[half].end = min(queries[half].end, end);
      if (!rows.exists(row)) continue;
      all_visible_from = max(all_visible_from, queries[half].first);
      all_visible_end = min(all_visible_end, queries[half].end);
    }
    all_visible_from = __reduce_max_sync(whole_warp, all_visible_from);
    all_visible_end = __reduce_min_sync(whole_warp, all_visible_end);
  }
  // The lowest `count` bits: none where it is below 1, all where it is 32 or more.
  static __device__ std::uint32_t bits_below(int count) { return ~__funnelshift_lc(0u, ~0u, max(count, 0)); }
};

// Zeroes the values of fully masked keys in shared memory. `warps` warps share it, eight rows each at a time.
template <int D, int keys>
__device__ void zero_masked_values(const SwizzledTile<D, keys>& values,
                                   const unsigned (&fully_masked)[keys / warp_size], int warp, int warps) {
  const CopyThread<D> copier(static_cast<int>(threadIdx.x % warp_size), warp_size);
  const std::uint32_t to = values.address(copier.first, copier.column);
#pragma unroll 1
  for (int first = warp * 8; first < keys; first += warps * 8) {
    unsigned rows = fully_masked[0];
#pragma unroll
    for (int word = 1; word < keys / warp_size; ++word) rows = first < word * warp_size ? rows : fully_masked[word];
    rows >>= first % warp_size + copier.first;
    if (copier.column >= D) continue;
#pragma unroll
    for (int row = 0; row < 8; row += CopyThread<D>::rows) {
      if ((rows >> row & 1u) != 0) st_shared_zero_16((to ^ row * 16) + (first + row) * 128);
    }
  }
}
#endif

}  // namespace
}  // namespace robocache::attention_op
