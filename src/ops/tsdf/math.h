// The arithmetic of tsdf, once for every backend: where a camera sees a voxel, what a reading does to it, and where the
// surface passes between two of them. docs/semantics.md says the same in words.
#pragma once

#include "camera/depth.h"
#include "camera/intrinsics.h"
#include "core/integers.h"
#include "ops/tsdf/plan.h"
#include "ops/voxelize/math.h"

namespace robocache::tsdf_op {
inline namespace ROBOCACHE_SIMD_TARGET {

// ---- projection ----------------------------------------------------------------------------------------------------

// What voxels share, in the type that they are computed in.
template <class C>
struct Volume {
  C origin[3], voxel_size[3], truncation;
  C width, height;  // of the images
};
template <class C>
ROBOCACHE_HD Volume<C> volume_of(const Plan& plan) {
  Volume<C> volume;
  for (int axis = 0; axis < 3; ++axis) {
    volume.origin[axis] = static_cast<C>(plan.images.origin[axis]);
    volume.voxel_size[axis] = static_cast<C>(plan.images.voxel_size[axis]);
  }
  volume.truncation = static_cast<C>(plan.truncation);
  volume.width = static_cast<C>(plan.images.width);
  volume.height = static_cast<C>(plan.height);
  return volume;
}

template <class C>
struct Camera {
  C rotation[3][3], shift[3];  // of its pose
  C fx, fy, cx, cy;
};
// By way of voxelize's cloud_of(): to read the pose and the intrinsics directly gives the same numbers, but other machine code
// on a GPU, which waits for a machine to test it on.
template <class C>
ROBOCACHE_HD Camera<C> camera_of(const Plan& plan, std::int64_t number) {
  const auto cloud = voxelize_op::cloud_of<C>(plan.images, number);
  const bool posed = plan.images.poses.data != nullptr;
  Camera<C> result;
  for (int i = 0; i < 3; ++i) {
    for (int j = 0; j < 3; ++j) result.rotation[i][j] = posed ? cloud.rotation[i][j] : C(i == j ? 1 : 0);
    result.shift[i] = cloud.shift[i];
  }
  result.fx = cloud.fx;
  result.fy = cloud.fy;
  result.cx = cloud.cx;
  result.cy = cloud.cy;
  return result;
}

// Index is any integer type: a GPU converts 64-bit integers to float more slowly.
template <class C, class Index>
ROBOCACHE_HD C centre_of(const Volume<C>& volume, int axis, Index index) {
  return fused(static_cast<C>(index) + C(0.5), volume.voxel_size[axis], volume.origin[axis]);
}

// What all voxels (x, y, ...) of a line share for one camera: their position in its frame without the part that z
// adds.
template <class C>
struct Line {
  C at[3];
};
template <class C, class Index>
ROBOCACHE_HD Line<C> line_of(const Volume<C>& volume, const Camera<C>& camera, Index x, Index y) {
  const C dx = centre_of(volume, 0, x) - camera.shift[0];
  const C dy = centre_of(volume, 1, y) - camera.shift[1];
  Line<C> line;
  for (int axis = 0; axis < 3; ++axis) {
    line.at[axis] = fused(camera.rotation[1][axis], dy, camera.rotation[0][axis] * dx);
  }
  return line;
}

// A voxel's centre in a camera: its pixel is (floor(u), floor(v)), which may lie outside the image, and z is its
// depth. Inside the image u and v are not negative, so that a cast is the floor.
template <class C>
struct Projection {
  C u, v, z;
};
template <class C>
ROBOCACHE_HD Projection<C> projection_of(const Camera<C>& camera, const Line<C>& line, C centre) {
  const C dz = centre - camera.shift[2];
  const C x = fused(camera.rotation[2][0], dz, line.at[0]);
  const C y = fused(camera.rotation[2][1], dz, line.at[1]);
  const C z = fused(camera.rotation[2][2], dz, line.at[2]);
  const C inverse = C(1) / z;
  return {fused(camera.fx * x, inverse, camera.cx) + C(0.5), fused(camera.fy * y, inverse, camera.cy) + C(0.5), z};
}

// In front of the camera and inside its image; false for NaN. Without branches, so that compilers make vectors of it.
template <class C>
ROBOCACHE_HD bool is_seen(const Volume<C>& volume, const Projection<C>& projection) {
  return static_cast<bool>(static_cast<int>(projection.z > C(0)) & static_cast<int>(projection.u >= C(0)) &
                           static_cast<int>(projection.u < volume.width) & static_cast<int>(projection.v >= C(0)) &
                           static_cast<int>(projection.v < volume.height));
}

// ---- readings ------------------------------------------------------------------------------------------------------

// Stands for no reading: every voxel lies far behind this depth, so none is updated.
template <class C>
ROBOCACHE_HD C no_depth() {
  return -std::numeric_limits<C>::infinity();
}

// Whether a reading updates a voxel at z, and with which distance: in units of the truncation, at most 1.
template <class C>
ROBOCACHE_HD bool is_told(const Volume<C>& volume, C depth, C z, C& distance) {
  const C metres = depth - z;
  const C ratio = metres / volume.truncation;
  distance = ratio < C(1) ? ratio : C(1);
  return metres >= -volume.truncation;
}

// Adds a reading to the running mean.
template <class C>
ROBOCACHE_HD void add(C distance, float& value, float& weight) {
  const C before = static_cast<C>(weight);
  const C after = before + C(1);
  value = narrow<float>(fused(before, static_cast<C>(value), distance) / after);
  weight = narrow<float>(after);
}

// ---- surface -------------------------------------------------------------------------------------------------------

ROBOCACHE_HD bool is_crossed(float a, float b) { return (a < 0.0f) != (b < 0.0f) && is_finite(a) && is_finite(b); }

// Whether the surface passes between a voxel and the next along x (bit 0), y and z.
ROBOCACHE_HD unsigned crossings(const SurfacePlan& plan, const std::int64_t (&index)[3]) {
  const std::int64_t steps[3] = {plan.shape[1] * plan.shape[2], plan.shape[2], 1};
  const std::int64_t key = index[0] * steps[0] + index[1] * steps[1] + index[2];
  if (!(plan.weights[key] > 0.0f)) return 0;
  const float here = plan.values[key];
  unsigned found = 0;
  for (int axis = 0; axis < 3; ++axis) {
    if (index[axis] + 1 >= plan.shape[axis] || !(plan.weights[key + steps[axis]] > 0.0f)) continue;
    if (is_crossed(here, plan.values[key + steps[axis]])) found |= 1u << axis;
  }
  return found;
}

ROBOCACHE_HD int count_bits(unsigned found) {
  return static_cast<int>((found & 1u) + (found >> 1 & 1u) + (found >> 2 & 1u));
}

// The points of one voxel, from number `place` on.
ROBOCACHE_HD void write_points(const SurfacePlan& plan, const std::int64_t (&index)[3], unsigned found,
                               std::int64_t place) {
  const std::int64_t steps[3] = {plan.shape[1] * plan.shape[2], plan.shape[2], 1};
  const std::int64_t key = index[0] * steps[0] + index[1] * steps[1] + index[2];
  for (int axis = 0; axis < 3; ++axis) {
    if ((found >> axis & 1u) == 0) continue;
    const std::int64_t row = place++;
    if (row < 0 || row >= plan.number) continue;
    const auto here = static_cast<double>(plan.values[key]);
    const double part = here / (here - static_cast<double>(plan.values[key + steps[axis]]));
    for (int k = 0; k < 3; ++k) {
      const double at = static_cast<double>(index[k]) + 0.5;
      plan.points[row * 3 + k] = narrow<float>(fused(k == axis ? at + part : at, plan.voxel_size[k], plan.origin[k]));
    }
  }
}

}  // namespace ROBOCACHE_SIMD_TARGET
}  // namespace robocache::tsdf_op
