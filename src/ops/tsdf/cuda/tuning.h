// The numbers that the CUDA kernels are tuned with. None has been swept: they are first guesses. bench/tune/tsdf.py
// would sweep them.
#pragma once

namespace robocache::tsdf_op::tuning {

// Threads of a block, and neighbouring voxels along z of a thread: four float32 are the widest load.
inline constexpr int threads = 128;
inline constexpr int voxels_per_thread = 4;

// Cameras whose numbers lie in shared memory at a time.
inline constexpr int cameras = 32;

}  // namespace robocache::tsdf_op::tuning
