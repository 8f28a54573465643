// What must hold of the data, one element at a time, for host and device: lengths, offsets, into and poses.
#pragma once

#include "core/integer_check.h"
#include "ops/voxelize/math.h"

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
    if (!camera::is_rigid(plan->poses, k)) fault.code = FaultCode::pose_not_rigid;
    return fault;
  }

 private:
  ROBOCACHE_HD std::int64_t lengths() const { return plan->lengths.data != nullptr ? plan->clouds : 0; }
  ROBOCACHE_HD std::int64_t offsets() const { return plan->offsets.data != nullptr ? plan->clouds + 1 : 0; }
  ROBOCACHE_HD std::int64_t into() const { return plan->into.data != nullptr ? plan->clouds : 0; }
  ROBOCACHE_HD std::int64_t poses() const {
    return plan->poses.data == nullptr ? 0 : (plan->poses.sensor_stride == 0 ? 1 : plan->clouds);
  }
};

}  // namespace ROBOCACHE_SIMD_TARGET
}  // namespace robocache::voxelize_op
