// The plan that api.cpp makes and a backend runs: every default filled in, every shape checked. Plain data, so that
// it can be a kernel argument.
#pragma once

#include <robocache/tsdf.h>

#include "ops/voxelize/plan.h"

namespace robocache::tsdf_op {

// A limit: a pixel's row and column must be exact in float32.
inline constexpr std::int64_t most_pixels = std::int64_t{1} << 24;  // along a side

// Images into a volume.
struct Plan {
  voxelize_op::Plan images;  // the images with their cameras, and the grid; voxelize plans images, too
  std::int64_t height = 0;   // of an image
  double truncation = 0;
  float* values = nullptr;
  float* weights = nullptr;

  constexpr std::int64_t lines() const { return images.shape[0] * images.shape[1]; }  // of voxels along z
};

// The surface of a volume.
struct SurfacePlan {
  double origin[3] = {}, voxel_size[3] = {};
  std::int64_t shape[3] = {};
  const float* values = nullptr;
  const float* weights = nullptr;
  std::int64_t* offsets = nullptr;  // [lines + 1]; points are written by it
  float* points = nullptr;          // nullptr: they are counted
  std::int64_t number = 0;          // of points that there is room for

  constexpr std::int64_t lines() const { return shape[0] * shape[1]; }
};

// The backends. reference and cpu have checked the data before (tsdf.cpp does that); cuda checks inside its launch where
// plan.images.check is set.
void run_reference(const Plan& plan);
void run_cpu(const Plan& plan);
void run_cuda(const Plan& plan, const Context& context, int device);

// Each counts, or writes the points.
void find_surface_reference(const SurfacePlan& plan);
void find_surface_cpu(const SurfacePlan& plan);
void find_surface_cuda(const SurfacePlan& plan, const Context& context, int device);

}  // namespace robocache::tsdf_op
