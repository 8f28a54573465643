// The numbers that the CUDA kernels are tuned with, and why each is what it is. Figures are microseconds on one H200,
// cold, for the six align rows of the bench in its order. The figures for one number are from one sweep; different
// numbers were swept with different versions of the kernel, so do not compare across them. bench/tune/align.py runs
// the sweeps again.
#pragma once

#include <cstdint>

namespace robocache::align_op::tuning {

// Threads of a block, and the most targets of a tile: one thread searches one target. 128 threads take 6.7 and 3.5 on
// the third and fifth row, 64 take 6.5 and 3.4.
inline constexpr int threads = 64;

// Blocks that must fit on a multiprocessor (the second argument of __launch_bounds__), which bounds a thread to 64
// registers. 20 blocks, 48 registers, take 13, 86 and 62 on the first, fourth and last row; 16 take 10, 56 and 34.
inline constexpr int blocks_per_processor = 16;

// Vectors (16 bytes, or fewer where alignment forbids) in each of a thread's two batches of loads. One batch of 4
// takes 58.0 on the fourth row, two of 2 take 57.4; two of 3, which need more registers, 66.
inline constexpr int vectors_in_flight = 2;

// Vectors that a thread moves in a tile: as many as make one wave of blocks, within these bounds. More vectors share
// one search; fewer make the last blocks end more evenly: at most 32 take 33.6 on the last row, at most 8 take 32.0.
// The lower bound is not swept. A call with fewer tiles than the GPU has multiprocessors gets smaller tiles: 4.2 for
// 6.1 on the fifth row. A wave is blocks_per_processor times the number of multiprocessors.
inline constexpr int most_vectors = 8;
inline constexpr int fewest_vectors = 4;

// Stamps of a window in shared memory (it uses one fewer, so that a binary search takes exactly log2 steps), and the
// margins on both sides for stamps that are not evenly spaced: narrow where the window is guessed from the targets'
// positions in their list, wide where it is guessed from their times. Narrow margins of 8 and 16 do not differ; the
// others are not swept.
inline constexpr int window_stamps = 256;
inline constexpr int narrow_margin = 16;
inline constexpr int wide_margin = 48;

// With fewer targets in a tile the window is guessed from their times. Not swept.
inline constexpr int fewest_targets = 16;

// The general kernel: most channels of a tile, values that a thread writes (wide_channels() together count as one),
// samples that a thread reads where values are made from bins, and samples of a bin that it loads before it uses the
// first. Not swept.
inline constexpr std::int64_t general_channels = 32;
inline constexpr std::int64_t general_steps = 16;
inline constexpr std::int64_t bin_samples = 32;
inline constexpr int bin_unroll = 4;

// Blocks of the general kernel that must fit on a multiprocessor: 10 bound a thread to 96 registers. Without checks,
// 8, 10 and 12 take 13.9, 8.6 and 9.0 on slerp 256x1000->100x4, 12.6, 14.8 and 22 on angle 256x500->250x32, and 232,
// 201 and 209 on cubic 100000x50->20x8.
inline constexpr int general_blocks_per_processor = 10;

// The kernel that checks stamps: threads of a block, stamps that a thread loads before it uses the first, most
// blocks. On an H200, 10^6 stamps add 3.2 us to a call that takes 4.8 us without checks; 10^7 add 19 us to one that
// takes 15, and reading them once takes 18.8. The three numbers are not swept.
inline constexpr int check_threads = 128;
inline constexpr int checks_per_thread = 16;
inline constexpr int most_checks = 4096;

}  // namespace robocache::align_op::tuning
