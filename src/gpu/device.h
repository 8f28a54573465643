// Devices: error codes of the CUDA runtime as robocache::Error, the current device, and the limits that launches are
// planned with. For nvcc only.
#pragma once

#include <cuda_runtime.h>

#include <atomic>
#include <cstdint>

namespace robocache {

inline constexpr int max_devices = 64;

// Throws Error(cuda) where `code` is an error. The sentence begins with "fatal" where the CUDA context is broken, so that the
// process can make no more CUDA calls.
void cuda_check(cudaError_t code, const char* doing);

// Makes `device` the current one while it lives.
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

// The properties of a device that launches are planned with. Known once cuda_fault_box() has been called for the device.
struct CudaMachine {
  int major = 0;         // of its compute capability
  int processors = 0;    // streaming multiprocessors
  int shared_bytes = 0;  // shared memory that a block may opt in to
};
const CudaMachine& cuda_machine(int device);

// Runs something once for each device, such as cudaFuncSetAttribute. Two threads that come at the same time may both run it.
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

}  // namespace robocache
