// Kernel launches with programmatic dependent launch, and with thread block clusters where asked. For nvcc only.
//
// Programmatic dependent launch (PDL, Hopper and later) lets the blocks of a kernel become resident while the kernel before
// it in the stream still runs. Every kernel that cuda_launch() launches must therefore call wait_on_dependent_grids() in
// every thread. The names are those of CUTLASS (cutlass/arch/grid_dependency_control.h). On older GPUs both functions do
// nothing, and launches are plain ones.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

namespace robocache {

// Launches `kernel` with one argument. cluster: blocks of a thread block cluster; over 1 only on Hopper and later.
void cuda_launch(const void* kernel, std::int64_t blocks, int threads, std::size_t shared_bytes, void* argument,
                 int device, cudaStream_t stream, const char* doing, int cluster = 1);

// griddepcontrol.launch_dependents: the next kernel of the stream may become resident once every block has called this or
// has ended. Its blocks then wait in wait_on_dependent_grids(), and until that returns they occupy multiprocessors that
// blocks of this kernel may still need.
__device__ inline void launch_dependent_grids() {
#if __CUDA_ARCH__ >= 900
  cudaTriggerProgrammaticLaunchCompletion();
#endif
}

// griddepcontrol.wait: blocks until all earlier kernels of the stream are complete and their writes are visible. Before it a
// kernel reads only its arguments and its shared memory. There is one exception: where the kernel before it is ours and
// calls launch_dependent_grids() only after its own wait, it may also read memory that that kernel does not write.
__device__ inline void wait_on_dependent_grids() {
#if __CUDA_ARCH__ >= 900
  cudaGridDependencySynchronize();
#endif
}

}  // namespace robocache
