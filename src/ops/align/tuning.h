// The numbers that the CUDA kernels are tuned with, and why each is what it is (measured on an H200 by bench/).
#pragma once

namespace robocache::align_op::tuning {

// Threads of a block, and the targets it takes at most: one thread searches one target.
inline constexpr int threads = 128;

// Blocks that must fit on a multiprocessor: it bounds the registers of a thread to 64.
inline constexpr int blocks_per_processor = 8;

// Vectors (16 bytes, or an element where alignment forbids) that a thread has in flight: all loads are issued before the
// first is used.
inline constexpr int vectors_in_flight = 4;

// Vectors that a thread moves in a tile. More share the search among them; fewer make more blocks, and a small call is
// over when its one block of each multiprocessor is.
inline constexpr int most_vectors = 8;
inline constexpr int fewest_vectors = 4;
inline constexpr int enough_blocks = 1056;

// Stamps that a block brings into shared memory: a row that has no more comes whole, of a longer one the stretch where
// its targets should fall, that much wider on both sides.
inline constexpr int window_stamps = 1024;
inline constexpr int window_margin = 48;

// Stamps that one thread of a checking block reads.
inline constexpr int checks_per_thread = 8;

}  // namespace robocache::align_op::tuning
