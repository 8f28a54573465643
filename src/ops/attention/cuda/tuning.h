// The numbers that the CUDA kernels are tuned with, and why each is what it is. Their sweeps were run by hand on one H200;
// the repository has no program that repeats them yet.
#pragma once

namespace robocache::attention_op::tuning {

// Keys of a tile. 64 keys are eight mma.sync, which hide each other's latency, and 32 registers of scores. 32 keys where the
// accumulators of a row alone take 96 registers or more and fragments of keys come on top. sm90: wgmma reads keys from shared
// memory and needs no fragments of them.
constexpr int keys(int head_dim, bool sm90) { return head_dim > 128 && !sm90 ? 32 : 64; }
// Keys of a long tile, where a warpgroup has registers for them: it rescales and waits half as often, but its first tile ends
// later (head dim 128 on an H200: 4,096 keys take 428 us, 569 with tiles of 64; 290 keys take 8.5 us, 7.7 with tiles of 64).
inline constexpr int long_keys = 128;
constexpr bool has_long_tiles(int head_dim) { return head_dim == 128; }

// Stages of keys and values of the sm80 kernel.
constexpr int stages(int head_dim) { return head_dim > 64 ? 2 : 3; }
// Most stages of the sm90 pipeline; it has as many as fit. 12 were no faster, not even where keys come from memory.
inline constexpr int most_stages = 8;

// Most warps of an sm80 block, so that each thread has the registers that its accumulators need.
constexpr int max_warps(int head_dim) { return head_dim > 64 ? 8 : 12; }

// Consumer warpgroups of an sm90 block, and the registers of a thread of a consumer and of the producer's warpgroup. Together
// they are all registers of a multiprocessor.
constexpr int warpgroups(int head_dim, bool has_tail = false) { return head_dim <= 96 && !has_tail ? 3 : 2; }
constexpr int consumer_registers(int head_dim, bool has_tail) { return has_tail ? 200 : (head_dim <= 96 ? 152 : 232); }
constexpr int producer_registers(int head_dim, bool has_tail) { return has_tail ? 104 : (head_dim <= 96 ? 56 : 40); }
// Whether a kernel with tail rows exists. It pays where a cluster shares the rows: 67 rows and 4,374 keys in 32 heads take 14.4
// us, and 16.6 as two tiles of 64 rows; with 1,024 keys 8.6 and 9.2. Four or six warps for the tail rows take longer than three,
// and so do 12 stages.
constexpr bool has_tail_rows(int head_dim) { return head_dim <= 64; }
// Whether a consumer keeps its queries in registers. With 64 keys a tile, a wgmma that reads both operands from shared memory is
// bound by that memory (ACT's encoder: 15.1 us, and 14.4 with queries in registers).
constexpr bool keep_queries(int head_dim, int keys) { return head_dim <= 128 && keys == 64; }

// Whether a cluster pushes partial results (forward_sm90/cluster_reduction.h). For small ones reading them is faster.
constexpr bool pushes_partials(int head_dim) { return head_dim > 128; }

// The cost of a configuration in microseconds, by which select.cu chooses one; nothing is timed at run time. Fitted to a sweep
// of all configurations of the bench's twelve shapes on an H200; what it chooses took at most a twentieth longer than the best of
// that sweep. block_us: the begin and the end of a block. stage_us: the latencies of a stage, which more warps on a
// multiprocessor hide only in part. merge_us: grows with the elements that a thread merges. start_us: blocks start one by one.
// The sm90 kernel has a fit of its own up to head dim 64, made when key slices were merged within a block for the first time.
constexpr double block_us(int head_dim, bool sm90, int keys = 64, bool has_tail = false) {
  if (!sm90) return 3.45 + 0.012 * head_dim;
  return (head_dim <= 64 ? 1.91 : 1.75) + 0.023 * head_dim + (keys == long_keys ? 1.25 : 0.0) + (has_tail ? 0.91 : 0.0);
}
constexpr double stage_us(int head_dim, bool sm90, double warps, int keys = 64) {
  const int more = head_dim <= 64 ? 0 : head_dim - 64;
  if (sm90 && more == 0) return 0.573 * (0.78 + 0.055 * warps);
  if (sm90) return (0.575 + 0.0041 * more) * (0.58 + 0.105 * warps) * (keys == long_keys ? 1.6 : 1.0);
  return (1.0 + 0.0075 * more) * (head_dim > 128 ? 0.8 : 1.0) * (1 + 0.04 * warps);
}
constexpr double merge_us(int head_dim, bool sm90, int key_warps, int split) {
  if (sm90 && head_dim <= 64) return (key_warps > 1 ? 0.03 : 0) + (split > 1 ? 0.05 + 0.053 * split : 0);
  return (key_warps > 1 ? 0.16 + 0.005 * head_dim : 0) +
         (split > 1 ? 0.65 + 0.0024 * head_dim + 0.045 * key_warps * split : 0);
}
inline constexpr double start_us = 0.001;  // of each warp
// Registers of a thread when a block begins: they decide how many blocks share a multiprocessor.
constexpr int registers(int head_dim, bool sm90, bool has_tail) {
  return sm90 ? (head_dim > 96 || has_tail ? 168 : 128) : (head_dim > 64 ? 240 : 168);
}

// ---- The backward pass ---------------------------------------------------------------------------------------------

inline constexpr int backward_rows = 64;  // of a block: queries, or keys
// Each has 16 rows and half of a chunk's columns. Four warps waited for each other's latencies. One launch has the blocks of all
// three gradients, which fill a GPU together (ACT's encoder, forward and backward: 384 us before, 99 now).
inline constexpr int backward_warps = 8;
constexpr int backward_chunk(int head_dim) { return head_dim > 128 ? 32 : 64; }
// d_keys and d_values in one pass over the rows, where a thread has registers for the accumulators of both.
constexpr bool backward_together(int head_dim) { return head_dim <= 128; }
// Blocks for each multiprocessor that the rows of few keys are split into (pi0's prefix, one key head: 2,135 us before, 254 now).
inline constexpr int backward_blocks = 3;

}  // namespace robocache::attention_op::tuning
