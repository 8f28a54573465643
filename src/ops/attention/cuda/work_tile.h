// The tile scheduler: which rows, or keys, of which sequence and key head a block works on.
#pragma once

#include "core/division.h"
#include "gpu/warp.h"
#include "ops/attention/check.h"
#include "ops/attention/cuda/call.h"
#include "ops/attention/cuda/exp2.h"
#include "ops/attention/math.h"

namespace robocache::attention_op {
namespace {

// Turns a block's number into its work tile. The blocks of a sequence follow each other, and in it those of a key head.
struct TileScheduler {
  int tiles = 0;  // of a sequence; packed: an upper bound of all sequences' tiles, and one more (tiles_of)
  int split = 1;  // blocks that share a tile (split-K)
  int group = 1;  // query heads of a key head
  Division by_tiles, by_heads, by_split, by_group;

  TileScheduler() = default;
  TileScheduler(const Plan& plan, std::int64_t tile_count, int split_into)
      : tiles(static_cast<int>(tile_count)),
        split(split_into),
        group(static_cast<int>(plan.group())),
        by_tiles(at_least_one(tile_count)),
        by_heads(at_least_one(plan.kv_heads)),
        by_split(at_least_one(split_into)),
        by_group(at_least_one(plan.group())) {}

 private:
  // A division by 0 is never done: without tiles or heads there are no blocks.
  static std::uint32_t at_least_one(std::int64_t count) { return static_cast<std::uint32_t>(count < 1 ? 1 : count); }
};
struct WorkTile {
  std::int64_t sequence = -1;  // -1: no sequence has this tile
  int kv_head = 0;
  int tile = 0;
  int rank = 0;  // among the blocks that share it
};

// The slow path of packed sequences: finds the sequence that a tile lies in. Not inlined, so that other calls stay short.
// per_sequence(s): the rows or keys of a sequence, whichever is cut into tiles.
template <class PerSequence>
__device__ __noinline__ WorkTile find_packed_tile(const Plan& plan, WorkTile found, int tile_size,
                                                  PerSequence per_sequence) {
  found.sequence = -1;
  const auto lane = static_cast<int>(threadIdx.x % warp_size);
  int before = 0;  // tiles of all earlier sequences
  for (std::int64_t base = 0; base < plan.batch; base += warp_size) {
    int mine = 0;
    if (base + lane < plan.batch) {
      mine = static_cast<int>(divide_up(per_sequence(sequence_of(plan, base + lane)), tile_size));
    }
    const int sum = warp_inclusive_sum(mine);
    const unsigned past = __ballot_sync(whole_warp, before + sum > found.tile);
    if (past != 0) {
      const int owner = __ffs(static_cast<int>(past)) - 1;
      found.sequence = base + owner;
      found.tile -= before + __shfl_sync(whole_warp, sum - mine, owner);
      return found;
    }
    before += __shfl_sync(whole_warp, sum, warp_size - 1);
  }
  return found;
}
template <class PerSequence>
__device__ WorkTile find_work_tile(const Plan& plan, const TileScheduler& scheduler, int tile_size,
                                   PerSequence per_sequence, std::uint32_t block = blockIdx.x) {
  WorkTile found;
  std::uint32_t number = scheduler.by_split.divide(block);
  found.rank = static_cast<int>(block - number * static_cast<std::uint32_t>(scheduler.split));
  const std::uint32_t rest = scheduler.by_tiles.divide(number);
  found.tile = static_cast<int>(number - rest * static_cast<std::uint32_t>(scheduler.tiles));
  number = scheduler.by_heads.divide(rest);
  found.kv_head = static_cast<int>(rest - number * static_cast<std::uint32_t>(plan.kv_heads));
  found.sequence = number;
  return plan.is_packed() ? find_packed_tile(plan, found, tile_size, per_sequence) : found;
}

// The rows of a block: the queries of all heads that share a key head, query by query with the heads of a query together.
struct Rows {
  Sequence s;
  int kv_head = 0;
  int first = 0;  // the block's first row, counted in the sequence
  int count = 0;  // rows of the sequence, of all blocks
  int group = 1;
  Division by_group;
  int rank = 0;  // of the block, among those with the same rows

  __device__ bool exists(int row) const { return first + row < count; }
  __device__ int query(int row) const {
    return static_cast<int>(by_group.divide(static_cast<std::uint32_t>(first + row)));
  }
  __device__ int head(int row) const { return kv_head * group + first + row - query(row) * group; }
  // The offset of a row is base() + within(): base() is the same for all rows.
  __device__ std::int64_t base(const Vectors& vectors) const {
    return offset_of(vectors, s.number, static_cast<std::int64_t>(kv_head) * group, s.first_query);
  }
  __device__ std::int64_t within(const Vectors& vectors, int row) const {
    const int i = query(row);
    return i * vectors.row + (first + row - i * group) * vectors.head;
  }
  __device__ std::int64_t offset(const Vectors& vectors, int row) const { return base(vectors) + within(vectors, row); }
  __device__ std::int64_t lse_offset(const Plan& plan, int row) const {
    return s.number * plan.lse_batch + head(row) * plan.lse_head + s.first_query + query(row);
  }
};

// The keys that any row of a block sees by its position.
__device__ KeyRange keys_for(const Plan& plan, const Rows& rows, int block_rows) {
  const int last_row = min(block_rows, rows.count - rows.first) - 1;
  return {keys_in_window(plan, rows.s, rows.query(0)).first, keys_in_window(plan, rows.s, rows.query(last_row)).end};
}

// Split-K: reduces keys [begin, end) to those of the block with this rank, in multiples of `least` keys. Returns how many
// blocks have any.
__device__ int split_keys(const TileScheduler& scheduler, int rank, int least, int& begin, int& end) {
  const int all = max(end - begin, 0);
  if (scheduler.split == 1 || all == 0) return 1;
  const auto part = static_cast<int>(scheduler.by_split.divide(static_cast<std::uint32_t>(all + scheduler.split - 1)));
  const int rounded = (part + least - 1) / least * least;
  begin += rank * rounded;
  end = min(end, begin + rounded);
  return (all + rounded - 1) / rounded;
}

// Zeroes the places of a packed array that no sequence has: before the first offset and from the last one on. Their lse, if
// wanted, becomes -inf. Not inlined: only the one block past all tiles calls it.
template <class T>
__device__ __noinline__ void zero_packed_gaps(const Plan& plan, const Vectors& vectors, std::int64_t first_head,
                                              std::int64_t heads, const Integers& offsets, std::int64_t places,
                                              float* lse) {
  if (vectors.data == nullptr) return;
  const std::int64_t begin = clamp_to(integer(offsets, 0), 0, places);
  const std::int64_t end = clamp_to(integer(offsets, plan.batch), begin, places);
  const std::int64_t count = (begin + places - end) * heads * plan.head_dim;
  for (std::int64_t k = threadIdx.x; k < count; k += blockDim.x) {
    const std::int64_t d = k % plan.head_dim;
    const std::int64_t head = first_head + k / plan.head_dim % heads;
    std::int64_t n = k / plan.head_dim / heads;
    if (n >= begin) n += end - begin;
    static_cast<T*>(vectors.data)[offset_of(vectors, 0, head, n) + d] = T{};
    if (lse != nullptr && d == 0) lse[head * plan.lse_head + n] = minus_infinity();
  }
}

// Finds the rows of this block. False: it has none; then it has zeroed the places of `written` that no sequence has.
template <class T>
__device__ bool set_rows(const Plan& plan, const TileScheduler& scheduler, const Vectors& written, float* lse,
                         int block_rows, Rows& rows) {
  rows.group = scheduler.group;
  rows.by_group = scheduler.by_group;
  const WorkTile tile = find_work_tile(plan, scheduler, block_rows,
                                       [group = scheduler.group](const Sequence& s) { return s.queries * group; });
  rows.rank = tile.rank;
  rows.kv_head = tile.kv_head;
  if (tile.sequence < 0) {
    zero_packed_gaps<T>(plan, written, static_cast<std::int64_t>(rows.kv_head) * rows.group, rows.group,
                        plan.query_offsets, plan.queries, lse);
    return false;
  }
  rows.s = sequence_of(plan, tile.sequence);
  rows.first = tile.tile * block_rows;
  rows.count = static_cast<int>(rows.s.queries) * rows.group;
  return true;
}

}  // namespace
}  // namespace robocache::attention_op
