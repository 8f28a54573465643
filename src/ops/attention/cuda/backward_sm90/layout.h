// The argument, the shared memory and the work tile of an sm90 backward block.
#pragma once

#include "gpu/mbarrier.h"
#include "ops/attention/cuda/backward/common.h"
#include "ops/attention/cuda/backward_sm90/call.h"
#include "ops/attention/cuda/tiles.h"

namespace robocache::attention_op {
namespace {

constexpr int sm90_rows = sm90_backward::rows;  // of a tile, and of a consumer warpgroup
// Threads of a block. With one consumer warpgroup, a thread of it is the producer; with more, one more warpgroup produces and gives
// up its registers.
constexpr int sm90_threads(int groups) { return (groups == 1 ? 4 : (groups + 1) * 4) * warp_size; }

constexpr int sm90_unbounded = 1 << 28;

struct Sm90BackwardCall {
  BackwardCall call;
  BackwardTensorMaps maps;
  float* lse = nullptr;  // as delta in the scratch, padded to whole tiles (attention_row_statistics_kernel)
  // Query i sees key j where -left <= j - i - shift <= right: both at most sm90_unbounded. Each
  // query sees a key, and each key is seen.
  int left = 0, right = 0, shift = 0;
  int query_tiles = 0, key_tiles = 0;    // of sm90_rows, of one head
  int query_blocks = 0, key_blocks = 0;  // of one head
  unsigned all_key_blocks = 0;           // they come first in the grid: they take longest
};

// In this order: kept tiles, stages of two streamed tiles, lse and delta of each stage's rows, mbarriers.
template <int D, int consumers>
struct Sm90Layout {
  static constexpr int groups = consumers;
  using Tile = SwizzledTile<D, sm90_rows>;
  static constexpr int stages = sm90_backward::stages;
  static constexpr int tile = Tile::blocks * Tile::block_bytes;
  static constexpr int streamed = 2 * groups * tile;
  static constexpr int statistics = streamed + 2 * stages * tile;
  static constexpr int barriers = statistics + 2 * stages * sm90_rows * 4;
  static constexpr int bytes = barriers + (2 + 3 * stages) * 8;

  std::uint32_t shared;

  __device__ Tile kept(int group, bool second) const { return {shared + (2 * group + second) * tile}; }
  __device__ Tile stream(int stage, bool second) const { return {shared + streamed + (2 * stage + second) * tile}; }
  __device__ std::uint32_t lse(int stage) const { return shared + statistics + 2 * stage * sm90_rows * 4; }
  __device__ std::uint32_t delta(int stage) const { return lse(stage) + sm90_rows * 4; }
  __device__ Mbarrier kept_full(bool second) const { return {shared + barriers + second * 8}; }
  __device__ Mbarrier full(int stage, bool second) const { return {shared + barriers + (2 + 2 * stage + second) * 8}; }
  __device__ Mbarrier empty(int stage) const { return {shared + barriers + (2 + 2 * stages + stage) * 8}; }
};

// The kept rows of a block, and the tiles that it streams.
struct Sm90WorkTile {
  bool of_keys;
  int sequence, head, kv_head;  // head: of a query block
  int first, rows;              // the kept rows
  int first_tile, tiles;        // the streamed tiles of one head that the window may see
  int begin, end;               // the block's part of these tiles; of a key block, of those of all heads of its group
  int rank = 0;                 // among the key blocks that share keys

  __device__ Sm90WorkTile(const Sm90BackwardCall& all, int block_rows) {
    const Plan& plan = all.call.plan.forward;
    const auto group = static_cast<unsigned>(plan.group());
    of_keys = blockIdx.x < all.all_key_blocks;
    unsigned number = blockIdx.x;
    if (of_keys) {
      const auto split = static_cast<unsigned>(all.call.scratch.key_split);
      rank = static_cast<int>(number % split);
      number /= split;
      first = static_cast<int>(number % static_cast<unsigned>(all.key_blocks)) * block_rows;
      number /= static_cast<unsigned>(all.key_blocks);
      kv_head = static_cast<int>(number % static_cast<unsigned>(plan.kv_heads));
      head = kv_head * static_cast<int>(group);
      sequence = static_cast<int>(number / static_cast<unsigned>(plan.kv_heads));
      rows = min(static_cast<int>(plan.keys) - first, block_rows);
      first_tile = max(first - all.right - all.shift, 0) / sm90_rows;
      tiles = min((first + rows - 1 + all.left - all.shift) / sm90_rows + 1, all.query_tiles) - first_tile;
      const int count = static_cast<int>(group) * tiles;
      const int share = (count + static_cast<int>(split) - 1) / static_cast<int>(split);
      begin = min(rank * share, count);
      end = min(begin + share, count);
    } else {
      number -= all.all_key_blocks;
      // The last rows first: with a causal mask they take longest.
      first = (all.query_blocks - 1 - static_cast<int>(number % static_cast<unsigned>(all.query_blocks))) * block_rows;
      number /= static_cast<unsigned>(all.query_blocks);
      head = static_cast<int>(number % static_cast<unsigned>(plan.heads));
      kv_head = head / static_cast<int>(group);
      sequence = static_cast<int>(number / static_cast<unsigned>(plan.heads));
      rows = min(static_cast<int>(plan.queries) - first, block_rows);
      first_tile = max(first + all.shift - all.left, 0) / sm90_rows;
      tiles = min((first + rows - 1 + all.shift + all.right) / sm90_rows + 1, all.key_tiles) - first_tile;
      begin = 0;
      end = tiles;
    }
  }
  __device__ int active_groups() const { return (rows + sm90_rows - 1) / sm90_rows; }
};

}  // namespace
}  // namespace robocache::attention_op
