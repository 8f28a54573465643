// What must hold of the data, one element at a time, for host and device: rows and crop offsets.
#pragma once

#include "core/integer_check.h"
#include "ops/image/plan.h"

namespace robocache::image_op {
inline namespace ROBOCACHE_SIMD_TARGET {

struct DataCheck {
  const Plan* plan;

  ROBOCACHE_HD std::int64_t count() const { return rows() + 2 * offsets(); }

  ROBOCACHE_HD Fault operator()(std::int64_t k) const {
    Fault fault;
    fault.operation = Operation::image;
    if (k < rows()) return outside(fault, FaultCode::row_outside, plan->rows, k, plan->stack - 1);
    k -= rows();
    fault.row = k / 2;
    const bool is_left = k % 2 != 0;
    fault = outside(fault, FaultCode::crop_offset_outside, is_left ? plan->lefts : plan->tops, k / 2,
                    is_left ? plan->width.most_offset : plan->height.most_offset);
    fault.index = k % 2;
    return fault;
  }

 private:
  ROBOCACHE_HD std::int64_t rows() const { return plan->rows.data != nullptr ? plan->frames : 0; }
  ROBOCACHE_HD std::int64_t offsets() const { return plan->tops.data != nullptr ? plan->frames : 0; }
};

}  // namespace ROBOCACHE_SIMD_TARGET
}  // namespace robocache::image_op
