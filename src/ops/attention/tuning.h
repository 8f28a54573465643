// The numbers that the CUDA kernels are tuned with, and why each is what it is.
#pragma once

namespace robocache::attention_op::tuning {

// Keys that are scored at once: eight tiles of the tensor cores' eight columns, 32 registers of scores a thread.
inline constexpr int chunk = 64;

// A warp has 16 rows, which is what the tensor cores take.
inline constexpr int max_warps = 8;

// Chunks of keys and values that are under way at once, as many as fit beside the queries of max_warps.
constexpr int stages(int head_dim) { return head_dim > 128 ? 2 : (head_dim > 64 ? 3 : 4); }

// Of the backward pass.
inline constexpr int backward_warps = 4;
constexpr int backward_chunk(int head_dim) { return head_dim > 128 ? 32 : 64; }

}  // namespace robocache::attention_op::tuning
