// The checks of the data, one element at a time, for host and device: lengths and offsets.
#pragma once

#include "core/integer_check.h"
#include "gpu/data_check.h"
#include "ops/attention/plan.h"

namespace robocache::attention_op {
inline namespace ROBOCACHE_SIMD_TARGET {

struct DataCheck {
  const Plan* plan;

  ROBOCACHE_HD std::int64_t count() const { return lengths() + 2 * offsets(); }

  ROBOCACHE_HD Fault operator()(std::int64_t k) const {
    Fault fault;
    fault.operation = plan->operation;
    if (k < lengths()) {
      const std::int64_t fresh = plan->append ? plan->segments[1].count : 0;
      return outside(fault, FaultCode::length_outside, plan->lengths, k, plan->segments[0].count - fresh);
    }
    k -= lengths();
    if (k < offsets()) return outside_or_falling(fault, plan->query_offsets, k, plan->queries);
    fault = outside_or_falling(fault, plan->key_offsets, k - offsets(), plan->keys);
    if (fault.code == FaultCode::offset_outside) fault.code = FaultCode::key_offset_outside;
    if (fault.code == FaultCode::offsets_decrease) fault.code = FaultCode::key_offsets_decrease;
    return fault;
  }

 private:
  ROBOCACHE_HD std::int64_t lengths() const { return plan->lengths.data != nullptr ? plan->batch : 0; }
  ROBOCACHE_HD std::int64_t offsets() const { return plan->is_packed() ? plan->batch + 1 : 0; }
};

#if defined(__CUDACC__)
__device__ inline void check_data(const Plan& plan, FaultBox* box) {
  if (plan.check) check_with_all_threads(DataCheck{&plan}, box);
}
#endif

}  // namespace ROBOCACHE_SIMD_TARGET
}  // namespace robocache::attention_op
