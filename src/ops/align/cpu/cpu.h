// The functions of cpu/simd.cpp that dispatch.cpp calls.
#pragma once

#include "ops/align/segments.h"

namespace robocache::align_op {

struct CpuFunctions {
  void (*run)(const Plan&, Segments);  // the whole plan, on all threads
};

}  // namespace robocache::align_op
