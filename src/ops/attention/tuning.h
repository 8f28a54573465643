// The numbers that the CUDA kernels are tuned with, and why each is what it is.
#pragma once

namespace robocache::attention_op::tuning {

// Keys that a warp scores at once. 64 are eight products of the tensor cores, which hide each other's latency, and 32
// registers of scores; where a row's sums alone take 96 registers or more, and fragments of keys as well, half of them.
// wide: a warpgroup multiplies as one, without fragments of keys.
constexpr int keys(int head_dim, bool wide) { return head_dim > 128 && !wide ? 32 : 64; }
// And so many of long sequences, where warpgroups have registers for that: half as much is scaled to a new greatest score and
// half as often waited, but the first is done later (4,096 keys of head dim 128 on an H200: 428 us, by 64 keys 569; 290: 8.5
// and 7.7).
inline constexpr int long_keys = 128;
constexpr bool has_long_tiles(int head_dim) { return head_dim == 128; }

// Stages of keys and values in shared memory: one is used while the others are under way.
constexpr int stages(int head_dim) { return head_dim > 64 ? 2 : 3; }
// Of warpgroups, as many as there is room for up to here: 12 were no faster, also where keys come from memory without end.
inline constexpr int most_stages = 8;

// Warps of a block, so that each thread has the registers that the sums of its rows need.
constexpr int max_warps(int head_dim) { return head_dim > 64 ? 8 : 12; }

// Warpgroups of a block beside the one that fetches, and the registers that their threads have: sums, scores and weights need
// so many, and all of them together are what a processor has.
constexpr int warpgroups(int head_dim, bool narrow = false) { return head_dim <= 96 && !narrow ? 3 : 2; }
constexpr int warpgroup_registers(int head_dim, bool narrow) { return narrow ? 200 : (head_dim <= 96 ? 152 : 232); }
constexpr int fetching_registers(int head_dim, bool narrow) { return narrow ? 104 : (head_dim <= 96 ? 56 : 40); }
// narrow: the warps beside the one that fetches have a few rows of their own, where blocks of a cluster share them. 67 rows and
// 4,374 keys in 32 heads take 14.4 us so and 16.6 in two tiles of 64 rows; 1,024 keys 8.6 and 9.2. Six such warps, or four, take
// longer than three, and so do 12 stages.
constexpr bool has_narrow(int head_dim) { return head_dim <= 64; }
// Whether these hold a warpgroup's queries, too. Products of 64 columns whose operands both lie in shared memory take all that
// it can be read with (ACT's encoder: 15.1 us so, 14.4 with queries in registers).
constexpr bool keep_queries(int head_dim, int keys) { return head_dim <= 128 && keys == 64; }

// Whether sums are so many that they had better be sent than be read by those who merge them.
constexpr bool exchanges(int head_dim) { return head_dim > 128; }

// What a way to cut a call into blocks costs, in microseconds, fitted to a sweep of all cuts of the bench's twelve shapes on an
// H200: a block has to begin and to end, each stage of keys takes as long as the latencies in it, which more warps on a
// processor hide only in part, merging takes as long as a thread has elements to merge, and blocks begin one by one. A cut is
// chosen by it, not timed. What it chooses took at most a twentieth longer than the best of that sweep. Up to head dim 64
// warpgroups have a fit of their own, of the day when shares of keys were first merged within a block.
constexpr double block_us(int head_dim, bool wide, int keys = 64, bool narrow = false) {
  if (!wide) return 3.45 + 0.012 * head_dim;
  return (head_dim <= 64 ? 1.91 : 1.75) + 0.023 * head_dim + (keys == long_keys ? 1.25 : 0.0) + (narrow ? 0.91 : 0.0);
}
constexpr double stage_us(int head_dim, bool wide, double warps, int keys = 64) {
  const int more = head_dim <= 64 ? 0 : head_dim - 64;
  if (wide && more == 0) return 0.573 * (0.78 + 0.055 * warps);
  if (wide) return (0.575 + 0.0041 * more) * (0.58 + 0.105 * warps) * (keys == long_keys ? 1.6 : 1.0);
  return (1.0 + 0.0075 * more) * (head_dim > 128 ? 0.8 : 1.0) * (1 + 0.04 * warps);
}
constexpr double merge_us(int head_dim, bool wide, int key_warps, int split) {
  if (wide && head_dim <= 64) return (key_warps > 1 ? 0.03 : 0) + (split > 1 ? 0.05 + 0.053 * split : 0);
  return (key_warps > 1 ? 0.16 + 0.005 * head_dim : 0) +
         (split > 1 ? 0.65 + 0.0024 * head_dim + 0.045 * key_warps * split : 0);
}
inline constexpr double start_us = 0.001;  // of each warp
// Registers of a thread when a block begins: what decides how many blocks share a processor.
constexpr int registers(int head_dim, bool wide, bool narrow) {
  return wide ? (head_dim > 96 || narrow ? 168 : 128) : (head_dim > 64 ? 240 : 168);
}

// Of the backward pass.
inline constexpr int backward_rows = 64;  // of a block: queries, or keys
// Each 16 of them and half of a chunk's columns: four warps waited for each other's latencies, and in one launch the blocks of all
// three gradients fill a GPU that each alone does not (ACT's encoder, forward and backward: 384 us before, 99 now).
inline constexpr int backward_warps = 8;
constexpr int backward_chunk(int head_dim) { return head_dim > 128 ? 32 : 64; }
// d_keys and d_values in one pass over the rows, where a thread has registers for the sums of both.
constexpr bool backward_together(int head_dim) { return head_dim <= 128; }
// Blocks for each processor that the rows of few keys are cut into (pi0's prefix, one key head: 2,135 us before, 254 now).
inline constexpr int backward_blocks = 3;

}  // namespace robocache::attention_op::tuning
