// The numbers that the CUDA kernels are tuned with. None of them has been swept yet.
#pragma once

#include <cstdint>

namespace robocache::voxelize_op::tuning {

inline constexpr int threads = 256;

// Points of a thread: so many are under way at once, and so many neighbours can share one atomic.
inline constexpr int points_per_thread = 4;

// Cells of which a thread finds those that have points.
inline constexpr int cells_per_thread = 16;

// Points of a cell over which blocks add them instead of a thread, and how many a block takes.
inline constexpr int heavy = 128;
inline constexpr int chunk = 2048;

}  // namespace robocache::voxelize_op::tuning
