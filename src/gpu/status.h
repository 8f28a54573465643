// Whether CUDA can run here, for code that is compiled with and without nvcc.
#pragma once

#include <string>

namespace robocache {

struct CudaStatus {
  bool available = false;
  std::string description;  // the GPUs, or why there are none
};
const CudaStatus& cuda_status();

// Throws Error(unavailable). A build without CUDA defines the ops' run_cuda() with it.
[[noreturn]] void refuse_cuda();

// Waits for every device that this process has used, then throws the fault that any thread's box holds.
void cuda_synchronize_all();

}  // namespace robocache
