// The numbers that the CUDA kernels are tuned with, and why each is what it is (measured on an H200 by bench/).
#pragma once

namespace robocache::align_op::tuning {

// Threads of a block, and the targets it takes at most: one thread searches one target.
inline constexpr int threads = 128;

// Blocks that must fit on a multiprocessor: it bounds the registers of a thread to 64.
inline constexpr int blocks_per_processor = 8;

// Vectors (16 bytes, or an element where alignment forbids) that a thread moves; all its loads are issued before the
// first is used.
inline constexpr int vectors_per_thread = 4;

// A row of at most this many stamps is brought into shared memory whole; of a longer one every n-th stamp is.
inline constexpr int stamps_in_shared = 1024;
inline constexpr int pivots = 256;

// The last stamps of a search are compared all at once instead of one after the other: one trip to memory.
inline constexpr int stamps_at_once = 16;

// Stamps that one thread of a checking block reads.
inline constexpr int checks_per_thread = 8;

}  // namespace robocache::align_op::tuning
