// Where a pixel looks: the intrinsics of a pinhole camera, or a ray for each pixel of a camera whose lens distorts.
#pragma once

#include "camera/pose.h"

namespace robocache::camera {

// Images: voxelize's plan, which tsdf shares. It has intrinsics or rays, one of the two. A template parameter, because camera
// stands below the ops; the numbers are fields of the plan itself, because a struct of them inside it changes the machine code
// of a few kernels.
inline namespace ROBOCACHE_SIMD_TARGET {

// Number n of fx, fy, cx, cy.
template <class Images>
ROBOCACHE_HD double intrinsic(const Images& images, std::int64_t camera, int n) {
  return images.intrinsics_are_matrices ? entry(images.intrinsics, camera, n % 2, n < 2 ? n : 2)
                                        : entry(images.intrinsics, camera, 0, n);
}
// A camera holds its intrinsics as C fx, fy, cx, cy.
template <class C, class Images, class Camera>
ROBOCACHE_HD void read_intrinsics(const Images& images, std::int64_t number, Camera& camera) {
  C* const numbers[] = {&camera.fx, &camera.fy, &camera.cx, &camera.cy};
  for (int n = 0; n < 4; ++n) *numbers[n] = static_cast<C>(intrinsic(images, number, n));
}

// x and y, in the camera's frame, of the point at depth z that the pixel in row v and column u sees.
template <class Camera, class Pixel, class C>
ROBOCACHE_HD void unproject(const Camera& camera, Pixel v, Pixel u, const C& z, C (&p)[3]) {
  p[0] = ((static_cast<C>(u) - camera.cx) * z) / camera.fx;
  p[1] = ((static_cast<C>(v) - camera.cy) * z) / camera.fy;
}
template <class Images, class C>
ROBOCACHE_HD void unproject_by_ray(const Images& images, std::int64_t camera, std::int64_t v, std::int64_t u,
                                   const C& z, C (&p)[3]) {
  const std::int64_t at = camera * images.rays.sensor_stride + v * images.rays.stride[0] + u * images.rays.stride[1];
  const auto ray = [&](std::int64_t offset) {
    return images.rays.wide ? static_cast<C>(static_cast<const double*>(images.rays.data)[offset])
                            : static_cast<C>(static_cast<const float*>(images.rays.data)[offset]);
  };
  p[0] = ray(at) * z;
  p[1] = ray(at + images.ray_stride) * z;
}

}  // namespace ROBOCACHE_SIMD_TARGET
}  // namespace robocache::camera
