// The points of the surface, on the host, line by line. A line is all voxels of an x and y.
#pragma once

#include "ops/tsdf/math.h"

namespace robocache::tsdf_op {
inline namespace ROBOCACHE_SIMD_TARGET {

// How many points each of the lines [begin, end) has, one place behind its own in offsets.
inline void count_lines(const SurfacePlan& plan, std::int64_t begin, std::int64_t end) {
  for (std::int64_t line = begin; line < end; ++line) {
    std::int64_t count = 0;
    for (std::int64_t z = 0; z < plan.shape[2]; ++z) {
      count += count_bits(crossings(plan, {line / plan.shape[1], line % plan.shape[1], z}));
    }
    plan.offsets[line + 1] = count;
  }
}

// Turns the counts of lines into their sums: the number of points before each line.
inline void sum_counts(const SurfacePlan& plan) {
  plan.offsets[0] = 0;
  for (std::int64_t line = 0; line < plan.lines(); ++line) plan.offsets[line + 1] += plan.offsets[line];
}

inline void write_lines(const SurfacePlan& plan, std::int64_t begin, std::int64_t end) {
  for (std::int64_t line = begin; line < end; ++line) {
    std::int64_t place = plan.offsets[line];
    for (std::int64_t z = 0; z < plan.shape[2]; ++z) {
      const std::int64_t index[3] = {line / plan.shape[1], line % plan.shape[1], z};
      const unsigned found = crossings(plan, index);
      if (found != 0) write_points(plan, index, found, place);
      place += count_bits(found);
    }
  }
}

}  // namespace ROBOCACHE_SIMD_TARGET
}  // namespace robocache::tsdf_op
