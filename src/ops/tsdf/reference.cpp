// The reference backend: every voxel one after the other.
#include <vector>

#include "core/interrupt.h"
#include "ops/tsdf/math.h"
#include "ops/tsdf/surface.h"

namespace robocache::tsdf_op {
namespace {

template <class T>
void integrate(const Plan& plan) {
  using C = compute_t<T>;
  const Volume<C> volume = volume_of<C>(plan);
  std::vector<Camera<C>> cameras;
  for (std::int64_t c = 0; c < plan.images.clouds; ++c) cameras.push_back(camera_of<C>(plan, c));
  for (std::int64_t key = 0; key < plan.images.cells; ++key) {
    check_interrupt();
    const std::int64_t line_number = key / plan.images.shape[2];
    const std::int64_t x = line_number / plan.images.shape[1];
    const std::int64_t y = line_number % plan.images.shape[1];
    const C centre = centre_of(volume, 2, key % plan.images.shape[2]);
    for (std::size_t c = 0; c < cameras.size(); ++c) {
      const Projection<C> projection = projection_of(cameras[c], line_of(volume, cameras[c], x, y), centre);
      if (!is_seen(volume, projection)) continue;
      const T raw =
          camera::pixel_at<T>(plan.images, static_cast<std::int64_t>(c), static_cast<std::int64_t>(projection.v),
                              static_cast<std::int64_t>(projection.u));
      C depth = 0;
      C distance = 0;
      if (!camera::depth_of(plan.images, raw, depth)) continue;
      if (is_told(volume, depth, projection.z, distance)) add(distance, plan.values[key], plan.weights[key]);
    }
  }
}

}  // namespace

void run_reference(const Plan& plan) {
  camera::with_depth_type(plan.images.dtype, [&](auto type) { integrate<typename decltype(type)::type>(plan); });
}

void find_surface_reference(const SurfacePlan& plan) {
  if (plan.points != nullptr) return write_lines(plan, 0, plan.lines());
  count_lines(plan, 0, plan.lines());
  sum_counts(plan);
}

}  // namespace robocache::tsdf_op
