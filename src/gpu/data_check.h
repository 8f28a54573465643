// How all threads of a launch check the data between them and report what they find.
#pragma once

#include "gpu/fault_box.h"

#if defined(__CUDACC__)
namespace robocache {

// check(k) gives a Fault, or one of code none, for each k below check.count().
template <class Check>
__device__ inline void check_with_all_threads(const Check& check, FaultBox* box) {
  const std::int64_t stride = static_cast<std::int64_t>(gridDim.x) * blockDim.x;
  for (std::int64_t k = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; k < check.count();
       k += stride) {
    const Fault fault = check(k);
    if (fault.code != FaultCode::none) report(box, fault);
  }
}

}  // namespace robocache
#endif
