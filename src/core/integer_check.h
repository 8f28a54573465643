// What must hold of lengths, offsets, rows and into, one element at a time, for host and device.
#pragma once

#include "core/fault.h"
#include "core/integers.h"

namespace robocache {
inline namespace ROBOCACHE_SIMD_TARGET {

// `fault` with that code where element k is not in [0, largest].
ROBOCACHE_HD Fault outside(Fault fault, FaultCode code, const Integers& integers, std::int64_t k,
                           std::int64_t largest) {
  fault.index = k;
  fault.value = integer(integers, k);
  fault.other = largest;
  if (fault.value < 0 || fault.value > largest) fault.code = code;
  return fault;
}

// The same of offsets, which must not decrease either.
ROBOCACHE_HD Fault outside_or_falling(Fault fault, const Integers& offsets, std::int64_t k, std::int64_t largest) {
  fault = outside(fault, FaultCode::offset_outside, offsets, k, largest);
  if (fault.code == FaultCode::none && k > 0 && fault.value < integer(offsets, k - 1)) {
    fault.code = FaultCode::offsets_decrease;
    fault.other = integer(offsets, k - 1);
  }
  return fault;
}

}  // namespace ROBOCACHE_SIMD_TARGET
}  // namespace robocache
