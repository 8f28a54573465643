// The CUDA runtime as the ops see it: is it there, errors as robocache::Error, and the box in which a kernel leaves what
// its checks found. Compiled by nvcc only, but for cuda_status.
#pragma once

#include <robocache/context.h>

#include <string>

#include "core/cuda_memory.h"
#include "core/fault.h"
#include "core/integers.h"

namespace robocache {

struct CudaStatus {
  bool available = false;
  std::string description;  // the GPUs, or why there are none
};
const CudaStatus& cuda_status();

// Throws Error(unavailable). Only in a build without CUDA: what the ops call in place of their kernels.
[[noreturn]] void refuse_cuda();

// Waits for every device that was used, then throws what a box of any thread holds.
void cuda_synchronize_all();

// In host memory that the GPU can write.
struct FaultBox {
  int taken;  // by the first thread that found something
  int ready;  // the record is whole
  Fault fault;
};

}  // namespace robocache

#if defined(__CUDACC__)
#include <cuda_runtime.h>

#include <atomic>

namespace robocache {

// Throws where `code` is an error; says "fatal" where the process can make no more CUDA calls.
void cuda_check(cudaError_t code, const char* doing);

// Makes `device` current while it lives.
class CudaDevice {
 public:
  explicit CudaDevice(int device);
  ~CudaDevice();
  CudaDevice(const CudaDevice&) = delete;
  CudaDevice& operator=(const CudaDevice&) = delete;

 private:
  int before_ = 0;
  bool changed_ = false;
};

// This thread's box of a device, as a pointer that is good on the host and on the device. Throws the fault of an earlier
// call of this thread where one is in it, having emptied it, and Error(unavailable) where CUDA cannot run.
FaultBox* cuda_fault_box(int device);

inline constexpr int max_devices = 64;

// What kernels are planned for. Of a device whose box has been asked for.
struct CudaMachine {
  int major = 0;         // of its compute capability
  int processors = 0;    // streaming multiprocessors
  int shared_bytes = 0;  // that a block may have
};
const CudaMachine& cuda_machine(int device);

// Scratch of a call, from the caller's workspace where there is one; nullptr where no bytes are wanted.
class CudaScratch {
 public:
  CudaScratch(const Workspace& workspace, int device, std::size_t bytes, cudaStream_t stream)
      : owned_(workspace.allocate == nullptr && bytes > 0), device_(device), stream_(stream) {
    if (bytes > 0) {
      data_ = owned_ ? cuda_allocate(device, bytes, stream) : workspace.allocate(workspace.state, bytes);
    }
  }
  ~CudaScratch() {
    if (owned_) cuda_free(device_, data_, stream_);
  }
  CudaScratch(const CudaScratch&) = delete;
  CudaScratch& operator=(const CudaScratch&) = delete;
  void* data() const { return data_; }

 private:
  bool owned_;
  int device_;
  cudaStream_t stream_;
  void* data_ = nullptr;
};

// What is done once for each device, by whichever thread comes first; twice where two come at once.
class OncePerDevice {
 public:
  template <class F>
  void operator()(int device, const F& f) {
    const std::uint64_t bit = std::uint64_t{1} << device % max_devices;
    if ((done_.load(std::memory_order_acquire) & bit) != 0) return;
    f();
    done_.fetch_or(bit, std::memory_order_release);
  }

 private:
  std::atomic<std::uint64_t> done_{0};
};

// Launches a kernel of which every thread calls after_earlier_work(). On GPUs that can (Hopper and later) its blocks are
// brought up while the work before it in the stream drains. There, too, so many blocks as `cluster` can be one.
void cuda_launch(const void* kernel, std::int64_t blocks, int threads, std::size_t shared_bytes, void* argument,
                 int device, cudaStream_t stream, const char* doing, int cluster = 1);

// Lets the next launch of the stream bring up its blocks, which wait in turn; they take room from those that
// are still to begin.
__device__ inline void let_next_begin() {
#if __CUDA_ARCH__ >= 900
  cudaTriggerProgrammaticLaunchCompletion();
#endif
}
// Waits until all earlier work of the stream is done and its writes are seen. Before it a kernel touches nothing but its
// arguments and its shared memory; or, where the kernel before it is ours and calls let_next_begin() only after its own
// wait, also what that one does not write.
__device__ inline void after_earlier_work() {
#if __CUDA_ARCH__ >= 900
  cudaGridDependencySynchronize();
#endif
}

// What the lanes of a warp up to this one have, added up. All of them call it.
__device__ inline int sum_up_to_lane(int x) {
  constexpr int lanes = 32;
  const auto lane = static_cast<int>(threadIdx.x % lanes);
#pragma unroll
  for (int step = 1; step < lanes; step *= 2) {
    const int other = __shfl_up_sync(0xffffffffu, x, step);
    if (lane >= step) x += other;
  }
  return x;
}

__device__ inline void report(FaultBox* box, const Fault& fault) {
  if (atomicCAS(&box->taken, 0, 1) != 0) return;
  box->fault = fault;
  __threadfence_system();
  *static_cast<volatile int*>(&box->ready) = 1;
}

}  // namespace robocache
#endif
