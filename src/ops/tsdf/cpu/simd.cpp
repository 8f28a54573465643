// Integrates images into lines of voxels; compiled once for each SIMD target. Projection and mean are loops over a
// run of voxels that compilers vectorise; between them each voxel loads its own pixel.
#include "ops/tsdf/cpu/cpu.h"
#include "ops/tsdf/math.h"

namespace robocache::tsdf_op {
inline namespace ROBOCACHE_SIMD_TARGET {
namespace {

constexpr std::int64_t run_voxels = 128;  // of a line: few enough to stay in the L1 cache through the loops
constexpr std::int64_t tile_lines = 16;   // lines for which a camera is read once

// Voxels of a line: their centres along z, and what one camera sees of them.
template <class C>
struct Run {
  std::int64_t first = 0;
  std::int32_t count = 0;
  C centre[run_voxels];
  C z[run_voxels], depth[run_voxels];
  std::int32_t u[run_voxels], v[run_voxels];  // -1: not seen
};

template <class T, class C = compute_t<T>>
void integrate_run(const Plan& plan, const Volume<C>& volume, const Camera<C>& camera, std::int64_t image,
                   const Line<C>& line, Run<C>& run, float* values, float* weights) {
  std::int32_t seen = 0;
  for (std::int32_t k = 0; k < run.count; ++k) {
    const Projection<C> projection = projection_of(camera, line, run.centre[k]);
    const bool here = is_seen(volume, projection);
    run.z[k] = projection.z;
    run.u[k] = static_cast<std::int32_t>(here ? projection.u : C(-1));
    run.v[k] = static_cast<std::int32_t>(here ? projection.v : C(-1));
    seen += here ? 1 : 0;
  }
  if (seen == 0) return;
  for (std::int32_t k = 0; k < run.count; ++k) {
    C depth = 0;
    const bool told = run.u[k] >= 0 &&
                      camera::depth_of(plan.images, camera::pixel_at<T>(plan.images, image, run.v[k], run.u[k]), depth);
    run.depth[k] = told ? depth : no_depth<C>();
  }
  for (std::int32_t k = 0; k < run.count; ++k) {
    C distance = 0;
    float value = values[k];
    float weight = weights[k];
    const bool told = is_told(volume, run.depth[k], run.z[k], distance);
    add(distance, value, weight);
    values[k] = told ? value : values[k];
    weights[k] = told ? weight : weights[k];
  }
}

template <class T>
void integrate(const Plan& plan, std::int64_t begin, std::int64_t end) {
  using C = compute_t<T>;
  const Volume<C> volume = volume_of<C>(plan);
  const std::int64_t length = plan.images.shape[2];
  Run<C> run;
  for (std::int64_t tile = begin; tile < end; tile += tile_lines) {
    const std::int64_t tile_end = tile + tile_lines < end ? tile + tile_lines : end;
    for (run.first = 0; run.first < length; run.first += run_voxels) {
      run.count = static_cast<std::int32_t>(run.first + run_voxels < length ? run_voxels : length - run.first);
      for (std::int32_t k = 0; k < run.count; ++k) run.centre[k] = centre_of(volume, 2, run.first + k);
      for (std::int64_t image = 0; image < plan.images.clouds; ++image) {
        const Camera<C> camera = camera_of<C>(plan, image);
        for (std::int64_t number = tile; number < tile_end; ++number) {
          const Line<C> line = line_of(volume, camera, number / plan.images.shape[1], number % plan.images.shape[1]);
          const std::int64_t first = number * length + run.first;
          integrate_run<T>(plan, volume, camera, image, line, run, plan.values + first, plan.weights + first);
        }
      }
    }
  }
}

void integrate_lines(const Plan& plan, std::int64_t begin, std::int64_t end) {
  camera::with_depth_type(plan.images.dtype,
                          [&](auto type) { integrate<typename decltype(type)::type>(plan, begin, end); });
}

}  // namespace

extern const CpuFunctions cpu_functions;
constexpr CpuFunctions cpu_functions{integrate_lines};

}  // namespace ROBOCACHE_SIMD_TARGET
}  // namespace robocache::tsdf_op
