// The public calls: check what shapes and dtypes can tell, fill in the defaults, hand the plan to a backend.
#include <robocache/tsdf.h>

#include <cmath>

#include "core/float_environment.h"
#include "core/speaker.h"
#include "gpu/status.h"
#include "ops/tsdf/plan.h"
#include "robocache_config.h"

namespace robocache {

#if !ROBOCACHE_WITH_CUDA
void tsdf_op::run_cuda(const Plan&, const Context&, int) { refuse_cuda(); }
void tsdf_op::find_surface_cuda(const SurfacePlan&, const Context&, int) { refuse_cuda(); }
#endif

using namespace tsdf_op;

namespace {

constexpr Speaker speaker{Operation::tsdf};

// values or weights, where they must be.
float* volume_data(const char* what, const TensorView& view, const Grid& grid, Device device, const char* other) {
  if (!view) speaker.fail(ErrorKind::value, what, " are missing");
  check_output(speaker, what, view, DType::f32, grid.shape, device, other);
  return static_cast<float*>(view.data);
}

void check_precision(double truncation, DType depth) {
  const auto rounded = static_cast<float>(truncation);
  if (depth != DType::f64 && (!(rounded > 0) || !std::isfinite(rounded))) {
    speaker.fail(ErrorKind::value, "truncation ", truncation, " is beyond float32, in which ", name_of(depth),
                 " is computed; give float64");
  }
}

// Refuses options of images that only other ops take.
void check_only_depth(const DepthImages& images) {
  if (images.rays) {
    speaker.fail(ErrorKind::value,
                 "rays say where a pixel looks, and here voxels look for their pixel; give intrinsics");
  }
  if (!images.intrinsics) speaker.fail(ErrorKind::value, "intrinsics are missing");
  if (images.features) speaker.fail(ErrorKind::value, "features cannot be integrated; leave them out");
  if (images.into) speaker.fail(ErrorKind::value, "into is for several grids; there is one volume");
  if (images.crop) speaker.fail(ErrorKind::value, "crop is for points; take a smaller grid");
}

SurfacePlan plan_surface(const Context& context, const Grid& grid, const TensorView& values, const TensorView& weights,
                         const TensorView& offsets) {
  cells_of(grid);
  SurfacePlan plan;
  for (std::size_t axis = 0; axis < 3; ++axis) {
    plan.origin[axis] = grid.origin[axis];
    plan.voxel_size[axis] = grid.voxel_size[axis];
    plan.shape[axis] = grid.shape[axis];
  }
  plan.values = volume_data("values", values, grid, values.device, "values");
  plan.weights = volume_data("weights", weights, grid, values.device, "values");
  if (!offsets) speaker.fail(ErrorKind::value, "offsets are missing");
  const std::int64_t shape[] = {plan.lines() + 1};
  check_output(speaker, "offsets", offsets, DType::i64, shape, values.device, "values");
  plan.offsets = static_cast<std::int64_t*>(offsets.data);
  check_backend(speaker, context, values.device);
  return plan;
}

void find_surface(const Context& context, const SurfacePlan& plan, Device device) {
  if (device.kind == DeviceKind::cuda) return find_surface_cuda(plan, context, device.index);
  const FloatEnvironment exact;
  context.backend == Backend::reference ? find_surface_reference(plan) : find_surface_cpu(plan);
}

}  // namespace

void check_tsdf(const Grid& grid, double truncation) {
  cells_of(grid);
  if (truncation > 0 && std::isfinite(truncation)) return;
  speaker.fail(ErrorKind::value, "truncation is ", truncation, "; it must be positive and finite");
}

void tsdf_integrate(const Context& context, const DepthImages& images, const Grid& grid, double truncation,
                    const TensorView& values, const TensorView& weights, bool check) {
  if (!images.depth) speaker.fail(ErrorKind::value, "depth is missing");
  check_only_depth(images);
  Plan plan;
  plan.images = voxelize_op::plan_images(Operation::tsdf, images, grid);
  plan.images.check = check;
  check_tsdf(grid, truncation);
  check_precision(truncation, images.depth.dtype);
  plan.truncation = truncation;
  plan.height = images.depth.shape[static_cast<std::size_t>(images.depth.rank - 2)];
  if (plan.height > most_pixels || plan.images.width > most_pixels) {
    speaker.fail(ErrorKind::value, "depth has shape ", shape_text(images.depth), "; at most 2^24 pixels along a side");
  }
  plan.values = volume_data("values", values, grid, images.depth.device, "depth");
  plan.weights = volume_data("weights", weights, grid, images.depth.device, "depth");
  check_backend(speaker, context, images.depth.device);
  if (images.depth.device.kind == DeviceKind::cuda) return run_cuda(plan, context, images.depth.device.index);
  const FloatEnvironment exact;
  voxelize_op::check_data(plan.images);
  context.backend == Backend::reference ? run_reference(plan) : run_cpu(plan);
}

void tsdf_surface_count(const Context& context, const Grid& grid, const TensorView& values, const TensorView& weights,
                        const TensorView& offsets) {
  find_surface(context, plan_surface(context, grid, values, weights, offsets), values.device);
}

void tsdf_surface_points(const Context& context, const Grid& grid, const TensorView& values, const TensorView& weights,
                         const TensorView& offsets, const TensorView& points) {
  SurfacePlan plan = plan_surface(context, grid, values, weights, offsets);
  if (!points) speaker.fail(ErrorKind::value, "points are missing");
  const std::int64_t shape[] = {points.rank > 0 ? points.shape[0] : 0, 3};
  check_output(speaker, "points", points, DType::f32, shape, values.device, "values");
  if (shape[0] == 0) return;
  plan.points = static_cast<float*>(points.data);
  plan.number = shape[0];
  find_surface(context, plan, values.device);
}

}  // namespace robocache
