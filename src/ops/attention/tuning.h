// The numbers that the CUDA kernels are tuned with, and why each is what it is.
#pragma once

namespace robocache::attention_op::tuning {

// Keys that a warp scores at once. 64 are eight products of the tensor cores, which hide each other's latency, and 32
// registers of scores; where a row's sums alone take 96 registers or more, and fragments of keys as well, half of them.
// wide: a warpgroup multiplies as one, without fragments of keys.
constexpr int keys(int head_dim, bool wide) { return head_dim > 128 && !wide ? 32 : 64; }

// Stages of keys and values in shared memory: one is used while the others are under way.
constexpr int stages(int head_dim) { return head_dim > 64 ? 2 : 3; }

// Warps of a block, so that each thread has the registers that the sums of its rows need.
constexpr int max_warps(int head_dim) { return head_dim > 64 ? 8 : 12; }

// What a way to cut a call into blocks costs, in microseconds, roughly as a sweep of all cuts of the bench's twelve shapes said
// on an H200: a block has to begin and to end, each stage of keys takes as long as the latencies in it, which more warps on a
// processor hide only in part, and merging costs what it costs. A cut is chosen by it, not timed. What it chooses took up to a
// fifth longer than the best of that sweep: pi0's suffix 12.8 for 11.1 us, GR00T's cross 8.6 for 7.2, a diffusion policy's 5.1
// for 4.4.
constexpr double block_us(int head_dim) { return 2.5 + 0.012 * head_dim; }
constexpr double stage_us(int head_dim, bool wide, double warps) {
  const double one = head_dim <= 64 ? 1.0 : 1.0 + 0.0075 * (head_dim - 64);
  return one * (wide ? (head_dim > 96 ? 0.8 : 0.93) : (head_dim > 128 ? 0.8 : 1.0)) * (1 + 0.04 * warps);
}
inline constexpr double start_us = 0.008, cluster_us = 0.05;  // of each block, each cluster: they begin one by one
constexpr double merge_us(int key_warps, int split) {
  return (key_warps > 1 ? 0.3 + 0.1 * key_warps : 0) + (split > 1 ? 0.9 + 0.06 * split : 0);
}
// Registers of a thread, about: what decides how many blocks share a processor.
constexpr int registers(int head_dim) { return head_dim > 64 ? 240 : 168; }

// Of the backward pass.
inline constexpr int backward_rows = 64;  // of a block: queries, or keys
// Each 16 of them and half of a chunk's columns: four warps waited for each other's latencies, and in one launch the blocks of all
// three gradients fill a GPU that each alone does not (ACT's encoder, forward and backward: 384 us before, 103 now).
inline constexpr int backward_warps = 8;
constexpr int backward_chunk(int head_dim) { return head_dim > 128 ? 32 : 64; }
// d_keys and d_values in one pass over the rows, where a thread has registers for the sums of both.
constexpr bool backward_together(int head_dim) { return head_dim <= 128; }
// Blocks for each processor that the rows of few keys are cut into (pi0's prefix, one key head: 2,135 us before, 277 now).
inline constexpr int backward_blocks = 3;

}  // namespace robocache::attention_op::tuning
