// What must hold of the data, one element at a time, for host and device: lengths, offsets, into, and the poses.
#pragma once

#include "core/cuda.h"
#include "core/integer_check.h"
#include "ops/voxelize/kernel.h"

namespace robocache::voxelize_op {
inline namespace ROBOCACHE_SIMD_TARGET {

struct DataCheck {
  const Plan* plan;

  ROBOCACHE_HD std::int64_t count() const { return lengths() + offsets() + into() + poses(); }

  ROBOCACHE_HD Fault operator()(std::int64_t k) const {
    Fault fault;
    fault.operation = plan->operation;
    if (k < lengths()) return outside(fault, FaultCode::length_outside, plan->lengths, k, plan->points_per_cloud);
    k -= lengths();
    if (k < offsets()) return outside_or_falling(fault, plan->offsets, k, plan->points_per_cloud);
    k -= offsets();
    if (k < into()) return outside(fault, FaultCode::into_outside, plan->into, k, plan->grids - 1);
    k -= into();
    fault.index = k;
    if (!is_rigid(k)) fault.code = FaultCode::pose_not_rigid;
    return fault;
  }

 private:
  ROBOCACHE_HD std::int64_t lengths() const { return plan->lengths.data != nullptr ? plan->clouds : 0; }
  ROBOCACHE_HD std::int64_t offsets() const { return plan->offsets.data != nullptr ? plan->clouds + 1 : 0; }
  ROBOCACHE_HD std::int64_t into() const { return plan->into.data != nullptr ? plan->clouds : 0; }
  ROBOCACHE_HD std::int64_t poses() const {
    return plan->poses.data == nullptr ? 0 : (plan->poses.cloud_stride == 0 ? 1 : plan->clouds);
  }

  // Rows of unit length at right angles, a determinant of +1, the last row 0 0 0 1; NaN is none of that.
  ROBOCACHE_HD bool is_rigid(std::int64_t cloud) const {
    constexpr double tolerance = 1e-3;
    double r[4][4];
    for (int i = 0; i < 4; ++i) {
      for (int j = 0; j < 4; ++j) r[i][j] = entry(plan->poses, cloud, i, j);
    }
    bool fine = true;
    for (int i = 0; i < 3; ++i) {
      for (int j = i; j < 3; ++j) {
        const double dot = r[i][0] * r[j][0] + r[i][1] * r[j][1] + r[i][2] * r[j][2];
        fine = fine && ::fabs(dot - (i == j ? 1.0 : 0.0)) <= tolerance;
      }
      fine = fine && ::fabs(r[3][i]) <= tolerance && is_finite(r[i][3]);
    }
    const double determinant = r[0][0] * (r[1][1] * r[2][2] - r[1][2] * r[2][1]) -
                               r[0][1] * (r[1][0] * r[2][2] - r[1][2] * r[2][0]) +
                               r[0][2] * (r[1][0] * r[2][1] - r[1][1] * r[2][0]);
    return fine && determinant > 0 && ::fabs(r[3][3] - 1.0) <= tolerance;
  }
};

#if defined(__CUDACC__)
// All threads of a launch of blocks of that size look through the data; what they find is reported.
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
#endif

}  // namespace ROBOCACHE_SIMD_TARGET
}  // namespace robocache::voxelize_op
