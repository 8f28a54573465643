// What the backward kernels of all dtypes share: delta, the grid, and the keys of a block.
#pragma once

#include "ops/attention/cuda/exp2.h"
#include "ops/attention/cuda/launch.h"
#include "ops/attention/cuda/work_tile.h"

namespace robocache::attention_op {
namespace {

struct BackwardCall {
  BackwardPlan plan;
  FaultBox* box = nullptr;
  BackwardScratch scratch;
  TileScheduler row_scheduler, key_scheduler;
  unsigned row_blocks = 0, key_blocks = 0;
  int padded_head_dim = 0;
  bool aligned = false;
};

constexpr int delta_threads = 128;

// delta = sum of d_out * out of each row, less d_lse. One warp for each row. The delta of a row that sees no key is never used.
template <class T>
__global__ void __launch_bounds__(delta_threads) attention_delta_kernel(const __grid_constant__ BackwardCall call) {
  const Plan& plan = call.plan.forward;
  wait_on_dependent_grids();
  launch_dependent_grids();
  check_data(plan, call.box);
  const std::int64_t number =
      (static_cast<std::int64_t>(blockIdx.x) * delta_threads + threadIdx.x) / warp_size;  // of the row
  const std::int64_t n = number % plan.queries;
  const std::int64_t h = number / plan.queries % plan.heads;
  const std::int64_t b = number / plan.queries / plan.heads;
  if (b >= plan.arrays()) return;
  const T* const out = static_cast<const T*>(plan.out.data) + offset_of(plan.out, b, h, n);
  const T* const d_out = static_cast<const T*>(call.plan.d_out.data) + offset_of(call.plan.d_out, b, h, n);
  float sum = 0;
  for (unsigned d = threadIdx.x % warp_size; d < plan.head_dim; d += warp_size) {
    sum = fmaf(widen(out[d]), widen(d_out[d]), sum);
  }
#pragma unroll
  for (int step = warp_size / 2; step > 0; step /= 2) sum += __shfl_xor_sync(whole_warp, sum, step);
  if (threadIdx.x % warp_size != 0) return;
  const std::int64_t place = b * plan.lse_batch + h * plan.lse_head + n;
  call.scratch.delta[place] = call.plan.d_lse != nullptr ? sum - call.plan.d_lse[place] : sum;
}

template <class T>
BackwardCall begin_backward(const BackwardPlan& plan, const BackwardScratch& scratch, FaultBox* box, int device,
                            cudaStream_t stream) {
  BackwardCall call;
  call.plan = plan;
  call.box = box;
  call.scratch = scratch;
  const Plan& forward = plan.forward;
  const std::int64_t rows = forward.queries * forward.heads * forward.arrays();
  launch<&attention_delta_kernel<T>>(divide_up(rows * warp_size, delta_threads), delta_threads, 0, call, device,
                                     stream);
  return call;
}

bool wants(const Vectors (&gradients)[max_attention_segments]) {
  bool any = false;
  for (const Vectors& gradient : gradients) any = any || gradient.data != nullptr;
  return any;
}

// Cuts rows and keys into tiles of `size`. passes: blocks for each tile of keys. Returns the number of blocks; those of rows
// come first.
std::int64_t set_grid(BackwardCall& call, int size, int passes) {
  const Plan& plan = call.plan.forward;
  const std::int64_t row_count = row_tiles(plan, size);
  const std::int64_t key_count = tiles_of(plan, plan.keys, size);
  call.row_scheduler = TileScheduler(plan, row_count, 1);
  call.key_scheduler = TileScheduler(plan, key_count, call.scratch.key_split);
  const std::int64_t row_blocks = call.plan.d_q.data != nullptr ? work_tiles_of(plan, row_count) : 0;
  const std::int64_t key_blocks = work_tiles_of(plan, key_count) * call.scratch.key_split;
  call.row_blocks = static_cast<unsigned>(row_blocks);  // launch() refuses what does not fit
  call.key_blocks = static_cast<unsigned>(key_blocks);
  return row_blocks + passes * key_blocks;
}

// The keys of a block, and the rows that may see one of them by their position.
struct KeyBlock {
  Sequence s;
  Rows rows;
  int first_key = 0;
  int first_row = 0, end_row = 0;
  int rank = 0;  // among the blocks that share the keys
};

// Finds the keys of a block. False: it has none; then it has zeroed the places of both gradients that no sequence has.
template <class T>
__device__ bool set_keys(const BackwardCall& call, int block_keys, std::uint32_t number, KeyBlock& block) {
  const Plan& plan = call.plan.forward;
  const WorkTile tile = find_work_tile(
      plan, call.key_scheduler, block_keys, [](const Sequence& s) { return s.keys; }, number);
  if (tile.sequence < 0) {
    for (const Vectors* written : {call.plan.d_keys, call.plan.d_values}) {
      zero_packed_gaps<T>(plan, written[0], tile.kv_head, 1, plan.key_offsets, plan.keys, nullptr);
    }
    return false;
  }
  block.rank = tile.rank;
  block.s = sequence_of(plan, tile.sequence);
  block.first_key = tile.tile * block_keys;
  Rows& rows = block.rows;
  rows.s = block.s;
  rows.kv_head = tile.kv_head;
  rows.group = call.key_scheduler.group;
  rows.by_group = call.key_scheduler.by_group;
  rows.count = static_cast<int>(block.s.queries) * rows.group;
  // Query i sees key j where j - right <= i + keys - queries <= j + left.
  const std::int64_t shift = block.s.queries - block.s.keys;
  const std::int64_t last_key = block.first_key + block_keys - 1;
  const std::int64_t first = clamp_to(block.first_key - plan.right + shift, 0, block.s.queries);
  const std::int64_t end = clamp_to(last_key + plan.left + shift + 1, first, block.s.queries);
  block.first_row = static_cast<int>(first) * rows.group;
  block.end_row = static_cast<int>(end) * rows.group;
  return true;
}

// Where the gradient of key j goes; nullptr: there is no such key, or its gradient is not wanted. Behind a cache's length the
// gradient is 0.
template <class T>
__device__ T* key_row(const Plan& plan, const Vectors* written, const KeyBlock& block, std::int64_t j) {
  if (j >= (plan.key_offsets.data != nullptr ? block.s.keys : plan.keys)) return nullptr;
  const Place place = plan.lengths.data != nullptr ? Place{0, j} : place_of(plan, block.s, j);
  const Vectors& vectors = written[place.segment];
  if (vectors.data == nullptr) return nullptr;
  return static_cast<T*>(vectors.data) + offset_of(vectors, block.s.number, block.rows.kv_head, place.n);
}

}  // namespace
}  // namespace robocache::attention_op
