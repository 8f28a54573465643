// The CUDA runtime as the ops see it: is it there, errors as robocache::Error, and the box in which a kernel leaves what
// its checks found. Compiled by nvcc only, but for cuda_status.
#pragma once

#include <string>

#include "core/fault.h"

namespace robocache {

struct CudaStatus {
  bool available = false;
  std::string description;  // the GPUs, or why there are none
};
const CudaStatus& cuda_status();

// Throws Error(unavailable). Only in a build without CUDA: what the ops call in place of their kernels.
[[noreturn]] void refuse_cuda();

// Waits for every device that was used, then throws what its box holds.
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

// The box of a device, as a pointer that is good on the host and on the device. Throws the fault of an earlier call
// where one is in it, having emptied it, and Error(unavailable) where CUDA cannot run.
FaultBox* cuda_fault_box(int device);

__device__ inline void report(FaultBox* box, const Fault& fault) {
  if (atomicCAS(&box->taken, 0, 1) != 0) return;
  box->fault = fault;
  __threadfence_system();
  *static_cast<volatile int*>(&box->ready) = 1;
}

}  // namespace robocache
#endif
