// The numbers that the CUDA kernels are tuned with, and why each is what it is. Figures are microseconds on one H200, cold,
// for the six align rows of the bench in its order. Each pair is from one sweep, but the sweeps are of several versions of
// the kernel, so pairs do not compare with each other.
#pragma once

namespace robocache::align_op::tuning {

// Threads of a block, and the targets it takes at most: one thread searches one target. 128 take 6.7 and 3.5 on the third
// and fifth row, 64 take 6.5 and 3.4.
inline constexpr int threads = 64;

// Blocks that must fit on a multiprocessor: it bounds the registers of a thread to 64. 20, which leave it 48, take 13, 86
// and 62 on the first, fourth and last row for 10, 56 and 34.
inline constexpr int blocks_per_processor = 16;

// Vectors (16 bytes, or less where alignment forbids) in each of the two flights of a thread. One flight of 4 takes 58.0
// on the fourth row, two of 2 take 57.4; two of 3, which need more registers, 66.
inline constexpr int vectors_in_flight = 2;

// Vectors that a thread moves in a tile: as many as make one wave of blocks, within these bounds. More share the search
// among them, fewer end more evenly: at most 32 take 33.6 on the last row, 8 take 32.0. A call that has not even one tile
// for each multiprocessor gets smaller ones: 4.2 for 6.1 on the fifth row.
inline constexpr int most_vectors = 8;
inline constexpr int fewest_vectors = 4;
inline constexpr int one_wave = 2112;  // 16 blocks on each of 132 multiprocessors
inline constexpr int least_tiles = 132;

// Stamps that a block brings into shared memory (one less: so a search takes as many steps as the power of two says), and
// how many of them are for targets that fall beside where even stamps would have them: a few where the guess is from the
// targets' place in their list, more where it is from their times. 8 and 16 do not differ.
inline constexpr int window_stamps = 256;
inline constexpr int narrow_margin = 16;
inline constexpr int wide_margin = 48;

// Targets of a tile below which it is better to guess the window from their times.
inline constexpr int fewest_targets = 16;

// Of a tile that goes through range.h: its channels at most, how many times a thread writes one value (or a few channels
// together), and how many samples it reads for that where each is made from a bin of them; how many it has under way.
inline constexpr std::int64_t general_channels = 32;
inline constexpr std::int64_t general_steps = 16;
inline constexpr std::int64_t bin_samples = 32;
inline constexpr int bin_unroll = 4;

// Blocks of the general kernel that must fit on a multiprocessor: 10 leave a thread 96 registers. Unchecked, 8, 10 and 12
// take 13.9, 8.6 and 9.0 on slerp 256x1000->100x4, 12.6, 14.8 and 22 on angle 256x500->250x32, and 232, 201 and 209 on
// cubic 100000x50->20x8.
inline constexpr int general_blocks_per_processor = 10;

// The kernel that checks stamps: threads of a block, stamps that a thread loads at once, most blocks. On an H200, 10^6 stamps
// add 3.2 us to a call that takes 4.8 unchecked. 10^7 add 19 us to one that takes 15; reading them once takes 18.8.
inline constexpr int check_threads = 128;
inline constexpr int checks_per_thread = 16;
inline constexpr int most_checks = 4096;

}  // namespace robocache::align_op::tuning
