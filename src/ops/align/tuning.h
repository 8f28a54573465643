// The numbers that the CUDA kernels are tuned with, and why each is what it is. Figures are microseconds on one H200, cold,
// for the six align rows of the bench in its order. Each pair is from one sweep, but the sweeps are of several versions of
// the kernel, so pairs do not compare with each other.
#pragma once

namespace robocache::align_op::tuning {

// Threads of a block, and the targets it takes at most: one thread searches one target. 256 gain on the second and third
// row (9.0, 9.3 for 9.5, 9.6) and lose on the first and last (14.9, 44 for 12.7, 38).
inline constexpr int threads = 128;

// Blocks that must fit on a multiprocessor: it bounds the registers of a thread to 64. With 6, the fourth and last row
// take 81 and 41 for 77 and 37.
inline constexpr int blocks_per_processor = 8;

// Vectors (16 bytes, or an element where alignment forbids) that a thread has in flight: all loads are issued before the
// first is used. 8, which leaves room for 4 blocks only, take 104 and 48 on the fourth and last row.
inline constexpr int vectors_in_flight = 4;

// Vectors that a thread moves in a tile. More share the search among them: 4 and 8 give 74 and 65 on the fourth row. Fewer
// make more blocks, and a small call is over when its one block of each multiprocessor is: 12.8 and 4.8 for 13.4 and 5.9
// on the first and fifth row. At least 4: 2 cost 15 on the first.
inline constexpr int most_vectors = 8;
inline constexpr int fewest_vectors = 4;
inline constexpr int enough_blocks = 1056;  // 8 on each of 132 multiprocessors

// Stamps that a block brings into shared memory: a row that has no more comes whole, of a longer one the stretch where
// its targets should fall, that much wider on both sides. 512 and a margin of 24 change nothing beyond the noise.
inline constexpr int window_stamps = 1024;
inline constexpr int window_margin = 48;

// Stamps that one thread of a checking block reads.
inline constexpr int checks_per_thread = 8;

}  // namespace robocache::align_op::tuning
