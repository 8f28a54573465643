// The checks of the data, inside a kernel that reads it.
#pragma once

#include "gpu/fault_box.h"
#include "ops/voxelize/check.h"

namespace robocache::voxelize_op {
inline namespace ROBOCACHE_SIMD_TARGET {

// All threads of a launch check the data between them and report what they find. `threads`: those of a block.
template <int threads>
__device__ void check_data(const Plan& plan, FaultBox* box) {
  if (!plan.check) return;
  const DataCheck check{&plan};
  const std::int64_t stride = static_cast<std::int64_t>(gridDim.x) * threads;
  for (std::int64_t k = static_cast<std::int64_t>(blockIdx.x) * threads + threadIdx.x; k < check.count(); k += stride) {
    const Fault fault = check(k);
    if (fault.code != FaultCode::none) report(box, fault);
  }
}

}  // namespace ROBOCACHE_SIMD_TARGET
}  // namespace robocache::voxelize_op
