// The numbers that the CUDA kernels are tuned with, and why each is what it is.
#pragma once

namespace robocache::attention_op::tuning {

// Keys that a warp scores at once. 64 are eight products of the tensor cores, which hide each other's latency, and 32 registers of
// scores; where a row's sums alone take 96 registers or more, half of them.
constexpr int keys(int head_dim) { return head_dim > 128 ? 32 : 64; }

// Stages of keys and values in shared memory: one is used while the others are under way.
constexpr int stages(int head_dim) { return head_dim > 64 ? 2 : 3; }

// Warps of a block, so that each thread has the registers that the sums of its rows need.
constexpr int max_warps(int head_dim) { return head_dim > 64 ? 8 : 12; }

// Of the backward pass.
inline constexpr int backward_warps = 4;
constexpr int backward_chunk(int head_dim) { return head_dim > 128 ? 32 : 64; }

}  // namespace robocache::attention_op::tuning
