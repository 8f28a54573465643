// Depth readings: the number in a pixel becomes a distance along the camera's axis, or is no reading.
#pragma once

#include "core/element.h"

namespace robocache::camera {

inline constexpr int max_invalid = 8;

inline namespace ROBOCACHE_SIMD_TARGET {

// Calls f(Type<T>{}) with the C++ type of depth images, or of points.
template <class F>
inline void with_depth_type(DType dtype, const F& f) {
  with_type(dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    if constexpr (is_float_type<T> || std::is_same_v<T, std::uint16_t>) f(type);
  });
}

// The number in row v and column u of an image. Images: voxelize's plan, which tsdf shares (see intrinsics.h).
template <class T, class Images>
ROBOCACHE_HD T pixel_at(const Images& images, std::int64_t image, std::int64_t v, std::int64_t u) {
  return static_cast<const T*>(
      images.points)[image * images.cloud_stride + v * images.point_stride + u * images.axis_stride];
}

// The depth of a pixel. False where it is no reading.
template <class Images, class T, class C>
ROBOCACHE_HD bool depth_of(const Images& images, T raw, C& z) {
  C reading;
  if constexpr (std::is_integral_v<T>) {
    reading = static_cast<C>(raw);
  } else {
    reading = widen(raw);
  }
  for (int n = 0; n < images.invalid_count; ++n) {
    if (reading == static_cast<C>(images.invalid[n])) return false;
  }
  z = reading * static_cast<C>(images.depth_scale);
  if (!is_finite(z) || !(z > C(0))) return false;
  return !(z < static_cast<C>(images.depth_min) || z > static_cast<C>(images.depth_max));
}

}  // namespace ROBOCACHE_SIMD_TARGET
}  // namespace robocache::camera
