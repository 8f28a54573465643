// The functions of cpu/simd.cpp that threads.cpp calls.
#pragma once

#include "ops/tsdf/plan.h"

namespace robocache::tsdf_op {

struct CpuFunctions {
  // Integrates all images of the plan into lines [begin, end) of the volume; a line is all voxels of an x and y.
  void (*integrate_lines)(const Plan&, std::int64_t begin, std::int64_t end);
};

}  // namespace robocache::tsdf_op
