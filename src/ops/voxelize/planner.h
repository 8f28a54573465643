// Checks what the shapes and dtypes of a call can tell, fills in the defaults, and makes the plan.
#pragma once

#include <robocache/voxelize.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <initializer_list>

#include "core/float_environment.h"
#include "core/limits.h"
#include "core/names.h"
#include "core/speaker.h"
#include "ops/voxelize/plan.h"

namespace robocache::voxelize_op {
namespace {

bool takes_features(Reduction reduction) { return reduction >= Reduction::sum; }

constexpr std::int64_t most_cells = size_limit;
constexpr char axes[] = {'x', 'y', 'z'};

bool is_one_of(DType dtype, std::initializer_list<DType> accepted) {
  for (const DType each : accepted) {
    if (dtype == each) return true;
  }
  return false;
}

// `who` speaks where the numbers make no grid.
std::int64_t checked_cells(const char* who, const Grid& grid) {
  const auto fail = [&](const auto&... parts) { throw Error(ErrorKind::value, concat(who, ": ", parts...)); };
  std::int64_t cells = 1;
  for (std::size_t axis = 0; axis < 3; ++axis) {
    if (!std::isfinite(grid.origin[axis])) {
      fail("the origin along ", axes[axis], " is ", grid.origin[axis], "; it must be finite");
    }
    if (!(grid.voxel_size[axis] > 0) || !std::isfinite(grid.voxel_size[axis])) {
      fail("the voxel size along ", axes[axis], " is ", grid.voxel_size[axis], "; it must be positive and finite");
    }
    const std::int64_t size = grid.shape[axis];
    if (size < 1) fail("the shape is ", shape_text(grid.shape), "; every size must be positive");
    if (size > most_cells / cells)
      fail("a shape of ", shape_text(grid.shape), " has more than ", limit_in_words(most_cells), " cells");
    cells *= size;
  }
  return cells;
}

class Planner {
 public:
  Planner(Operation operation, const TensorView& main, const char* what, const Grid& grid)
      : speaker_{operation}, what_(what), device_(main.device) {
    plan_.operation = operation;
    plan_.cells = checked_cells(operation == Operation::voxel_downsample ? name_of(operation) : "Grid", grid);
    for (int axis = 0; axis < 3; ++axis) {
      const auto k = static_cast<std::size_t>(axis);
      plan_.origin[axis] = grid.origin[k];
      plan_.voxel_size[axis] = grid.voxel_size[k];
      plan_.shape[axis] = grid.shape[k];
    }
    plan_.points = main.data;
    plan_.dtype = main.dtype;
  }

  void set_options(const VoxelizeOptions& options) {
    plan_.check = options.check;
    plan_.accumulate = options.accumulate;
    plan_.empty = options.empty;
  }

  void set_clouds(const Clouds& clouds) {
    const TensorView& points = clouds.points;
    if (!is_one_of(points.dtype, {DType::f16, DType::f32, DType::f64})) {
      fail(ErrorKind::type, "points are ", name_of(points.dtype), "; they must be float16, float32 or float64");
    }
    const bool packed = static_cast<bool>(clouds.offsets);
    if (packed && clouds.lengths) {
      fail(ErrorKind::value, "lengths are for padded clouds and offsets for packed ones; give one");
    }
    batched_ = points.rank == 3;
    if ((points.rank != 2 && !batched_) || points.shape[static_cast<std::size_t>(points.rank - 1)] < 3) {
      fail(ErrorKind::value, "points have shape ", shape_text(points),
           "; expected [N, 3], [clouds, N, 3], or [N, 3] with "
           "offsets; further columns may follow");
    }
    if (packed && batched_)
      fail(ErrorKind::value, "points of shape ", shape_text(points), " with offsets; expected [N, 3]");
    if (clouds.lengths && !batched_) fail(ErrorKind::value, "lengths need points of shape [clouds, N, 3]");
    plan_.lengths = integers("lengths", clouds.lengths);
    plan_.offsets = integers("offsets", clouds.offsets);
    if (packed && clouds.offsets.shape[0] < 1) fail(ErrorKind::value, "offsets are empty; expected [clouds + 1]");
    plan_.clouds = packed ? clouds.offsets.shape[0] - 1 : (batched_ ? points.shape[0] : 1);
    if (clouds.lengths) check_length("lengths", clouds.lengths);
    lead_ = batched_ ? 2 : 1;
    const auto row = static_cast<std::size_t>(lead_ - 1);
    plan_.points_per_cloud = points.shape[row];
    plan_.all_points = plan_.points_per_cloud * (packed ? 1 : plan_.clouds);
    plan_.cloud_stride = batched_ ? points.strides[0] : 0;
    plan_.point_stride = points.strides[row];
    plan_.axis_stride = points.strides[row + 1];
    batched_ = batched_ || packed;
    check_precision(points.dtype);
    set_scene(clouds, {points.shape.data(), static_cast<std::size_t>(lead_)});
  }

  void set_images(const DepthImages& images) {
    const TensorView& depth = images.depth;
    if (!is_one_of(depth.dtype, {DType::u16, DType::f16, DType::f32, DType::f64})) {
      fail(ErrorKind::type, "depth is ", name_of(depth.dtype), "; it must be uint16, float16, float32 or float64");
    }
    if (depth.rank != 2 && depth.rank != 3) {
      fail(ErrorKind::value, "depth has shape ", shape_text(depth), "; expected [H, W] or [cameras, H, W]");
    }
    batched_ = depth.rank == 3;
    lead_ = depth.rank;
    const auto row = static_cast<std::size_t>(lead_ - 2);
    plan_.clouds = batched_ ? depth.shape[0] : 1;
    plan_.width = depth.shape[row + 1];
    plan_.points_per_cloud = depth.shape[row] * plan_.width;
    plan_.all_points = plan_.points_per_cloud * plan_.clouds;
    plan_.cloud_stride = batched_ ? depth.strides[0] : 0;
    plan_.point_stride = depth.strides[row];
    plan_.axis_stride = depth.strides[row + 1];
    if (static_cast<bool>(images.intrinsics) == static_cast<bool>(images.rays)) {
      fail(ErrorKind::value, "give intrinsics or rays, one of the two");
    }
    if (images.rays) {
      plan_.source = Source::rays;
      set_rays(images.rays, depth, row);
    } else {
      plan_.source = Source::pinhole;
      set_intrinsics(images.intrinsics);
    }
    plan_.depth_scale = images.depth_scale != 0 ? images.depth_scale : (is_float(depth.dtype) ? 1.0 : 0.001);
    if (!(plan_.depth_scale > 0) || !std::isfinite(plan_.depth_scale)) {
      fail(ErrorKind::value, "depth_scale is ", plan_.depth_scale, "; it must be positive and finite");
    }
    const auto scale = static_cast<float>(plan_.depth_scale);
    if (depth.dtype != DType::f64 && (scale == 0 || !std::isfinite(scale))) {
      fail(ErrorKind::value, "depth_scale ", plan_.depth_scale, " is beyond float32, in which ", name_of(depth.dtype),
           " is computed; give float64");
    }
    plan_.depth_min = images.depth_min;
    plan_.depth_max = images.depth_max;
    if (!(plan_.depth_min <= plan_.depth_max)) {
      fail(ErrorKind::value, "depth_min = ", plan_.depth_min, " is not below depth_max = ", plan_.depth_max);
    }
    if (images.invalid.size() > camera::max_invalid) {
      fail(ErrorKind::value, images.invalid.size(), " invalid readings; at most ", camera::max_invalid);
    }
    for (const double reading : images.invalid) plan_.invalid[plan_.invalid_count++] = reading;
    check_precision(depth.dtype);
    set_scene(images, {depth.shape.data(), static_cast<std::size_t>(lead_)});
  }

  void set_outputs(std::span<const VoxelOutput> outputs) {
    // Where clouds go into grids of others, the outputs say how many grids there are.
    plan_.grids = plan_.clouds;
    if (plan_.into.data != nullptr && !outputs.empty() && outputs[0].values.rank > 0) {
      plan_.grids = outputs[0].values.shape[0];
      if (plan_.grids < 1 && plan_.clouds > 0) {
        fail(ErrorKind::value, "there are ", plan_.clouds, " clouds and no grid for them to go into");
      }
    }
    check_cells();
    std::int64_t shape[4];
    std::size_t rank = 0;
    if (batched_) shape[rank++] = plan_.grids;
    for (const std::int64_t size : plan_.shape) shape[rank++] = size;
    for (const VoxelOutput& output : outputs) set_output(output, {shape, rank});
  }

  void set_sparse(const SparseOptions& options) {
    plan_.check = options.check;
    plan_.empty = options.empty;
    plan_.max_voxels = options.max_voxels;
    plan_.first_points = options.first;
    if (options.max_voxels < -1) {
      fail(ErrorKind::value, "max_voxels is ", options.max_voxels, "; it must not be negative");
    }
    if (options.first < 0) fail(ErrorKind::value, "first is ", options.first, "; it must not be negative");
    plan_.grids = options.grids < 0 ? plan_.clouds : options.grids;
    if (plan_.into.data == nullptr && plan_.grids != plan_.clouds) {
      fail(ErrorKind::value, "there are ", plan_.grids, " grids and ", plan_.clouds,
           " clouds; into says which goes where");
    }
    if (plan_.grids < 1 && plan_.clouds > 0) {
      fail(ErrorKind::value, "there are ", plan_.clouds, " clouds and no grid for them to go into");
    }
    check_cells();
    const std::int64_t values = std::max<std::int64_t>(plan_.channels, 3);  // of a grid that sums are scaled by
    if (plan_.grids > (std::int64_t{1} << 31) / values) {
      fail(ErrorKind::value, plan_.grids, " grids of ", plan_.channels, " channels; at most 2^31 in all");
    }
  }
  void set_lattice() {
    if (plan_.into.data != nullptr)
      fail(ErrorKind::value, "into has no meaning here: each cloud is downsampled by itself");
    plan_.lattice = true;
  }

  void set_dropped(const TensorView& dropped) {
    if (!dropped) return;
    const std::int64_t shape[] = {plan_.clouds, drop_reasons};
    check_output("dropped", dropped, DType::i64, shape);
    plan_.dropped = static_cast<std::int64_t*>(dropped.data);
  }

  const Plan& plan() const { return plan_; }

  void run(const Context& context) const {
    check_call(context);
    if (device_.kind == DeviceKind::cuda) return run_cuda(plan_, context, device_.index);
    const FloatEnvironment exact;
    check_data(plan_);
    if (context.backend == Backend::reference) {
      run_reference(plan_);
    } else {
      run_cpu(plan_);
    }
  }

  void run(const Context& context, const SparseRows& rows) {
    run_rows(context, [&](std::int64_t count) { set_rows(rows(count)); });
  }
  void run(const Context& context, const DownsampleRows& rows) {
    run_rows(context, [&](std::int64_t count) { set_rows(rows(count)); });
  }

 private:
  void check_call(const Context& context) const {
    check_backend(speaker_, context, device_);
    if (plan_.all_points >= std::int64_t{1} << 31) {
      fail(ErrorKind::value, plan_.all_points, " points in one call; at most 2^31 - 1");
    }
  }
  void check_cells() const {
    if (plan_.grids > most_cells / plan_.cells) {
      fail(ErrorKind::value, plan_.grids, " grids of ", plan_.cells, " cells are more than ",
           limit_in_words(most_cells));
    }
  }

  // `set` fills in the outputs of that many rows.
  template <class Set>
  void run_rows(const Context& context, const Set& set) {
    check_call(context);
    const SetRows set_rows = [&](Plan& plan, std::int64_t voxels) {
      plan_ = plan;
      plan_.rows = plan_.max_voxels < 0 ? voxels : plan_.max_voxels;
      set(plan_.rows);
      plan = plan_;
    };
    if (device_.kind == DeviceKind::cuda) return run_sparse_cuda(plan_, set_rows, context, device_.index);
    const FloatEnvironment exact;
    check_data(plan_);
    if (context.backend == Backend::reference) {
      run_sparse_reference(plan_, set_rows);
    } else {
      run_sparse_cpu(plan_, set_rows);
    }
  }

  // An output that need not be there.
  template <class T>
  void set_part(T*& place, const char* what, const TensorView& view, DType dtype,
                std::initializer_list<std::int64_t> shape) const {
    if (!view) return;
    check_output(what, view, dtype, {shape.begin(), shape.size()});
    place = static_cast<T*>(view.data);
  }

  void set_rows(const SparseOutput& output) {
    const std::int64_t rows = plan_.rows;
    set_part(plan_.coordinates, "coordinates", output.coordinates, DType::i64, {rows, 4});
    set_part(plan_.counts, "counts", output.counts, DType::i32, {rows});
    set_part(plan_.first, "first", output.first, computed_type(plan_.dtype),
             {rows, plan_.first_points, 3 + plan_.channels});
    set_part(plan_.first_counts, "first_counts", output.first_counts, DType::i32, {rows});
    set_part(plan_.found, "found", output.found, DType::i64, {2});
    if (output.point_to_voxel) {
      check_output("point_to_voxel", output.point_to_voxel, DType::i64,
                   {leading_.data(), static_cast<std::size_t>(lead_)});
      plan_.point_to_voxel = static_cast<std::int64_t*>(output.point_to_voxel.data);
    }
    for (const VoxelOutput& values : output.values) {
      if (values.reduction == Reduction::occupancy_bits) {
        fail(ErrorKind::value, "occupancy as bits is for dense grids; a sparse result lists its voxels");
      }
      set_output(values, {&rows, 1});
    }
  }
  void set_rows(const DownsampleOutput& output) {
    const std::int64_t rows = plan_.rows;
    set_part(plan_.point_means, "points", output.points, computed_type(plan_.dtype), {rows, 3});
    set_part(plan_.counts, "counts", output.counts, DType::i32, {rows});
    set_part(plan_.coordinates, "coordinates", output.coordinates, DType::i64, {rows, 4});
    if (output.features) set_output({Reduction::mean, output.features}, {&rows, 1});
  }

  template <class... Parts>
  [[noreturn]] void fail(ErrorKind kind, const Parts&... parts) const {
    speaker_.fail(kind, parts...);
  }

  // The grid is rounded to the type that points are computed in.
  void check_precision(DType dtype) const {
    for (int axis = 0; axis < 3 && dtype != DType::f64; ++axis) {
      const auto size = static_cast<float>(plan_.voxel_size[axis]);
      if (size > 0 && std::isfinite(size) && std::isfinite(static_cast<float>(plan_.origin[axis]))) continue;
      fail(ErrorKind::value, "the grid's origin ", plan_.origin[axis], " or voxel size ", plan_.voxel_size[axis],
           " along ", axes[axis], " is beyond float32, in which ", name_of(dtype), " is computed; give float64");
    }
  }

  Integers integers(const char* what, const TensorView& view) const {
    robocache::check_device(speaker_, what, view, device_, what_);
    return integers_of(speaker_, what, view);
  }
  const char* sources() const { return plan_.source == Source::points ? "clouds" : "cameras"; }
  void check_length(const char* what, const TensorView& view) const {
    if (view.shape[0] != plan_.clouds) {
      fail(ErrorKind::value, what, " has ", view.shape[0], " elements for ", plan_.clouds, " ", sources());
    }
  }

  // [rows, columns] for all clouds, or one for each.
  camera::Matrices matrices(const char* what, const TensorView& view, int rank) const {
    robocache::check_device(speaker_, what, view, device_, what_);
    if (!is_one_of(view.dtype, {DType::f32, DType::f64})) {
      fail(ErrorKind::type, what, " is ", name_of(view.dtype), "; it must be float32 or float64");
    }
    const bool each = view.rank == rank + 1;
    if (each && view.shape[0] != plan_.clouds) {
      fail(ErrorKind::value, what, " has shape ", shape_text(view), " for ", plan_.clouds, " ", sources(),
           "; expected one for all, or one for each");
    }
    camera::Matrices matrices;
    matrices.data = view.data;
    matrices.sensor_stride = each ? view.strides[0] : 0;
    matrices.stride[1] = view.strides[static_cast<std::size_t>(view.rank - 1)];
    if (rank == 2) matrices.stride[0] = view.strides[static_cast<std::size_t>(view.rank - 2)];
    matrices.wide = view.dtype == DType::f64;
    return matrices;
  }

  void set_intrinsics(const TensorView& view) {
    const auto last = [&](int k) {
      return view.rank > k ? view.shape[static_cast<std::size_t>(view.rank - 1 - k)] : 0;
    };
    const bool matrix = last(0) == 3 && last(1) == 3 && view.rank <= 3;
    if (!matrix && !(last(0) == 4 && view.rank <= 2)) {
      fail(ErrorKind::value, "intrinsics have shape ", shape_text(view),
           "; expected (fx, fy, cx, cy) as [4] or [cameras, 4], or [3, 3] or [cameras, 3, 3]");
    }
    plan_.intrinsics = matrices("intrinsics", view, matrix ? 2 : 1);
    plan_.intrinsics_are_matrices = matrix;
  }

  void set_rays(const TensorView& view, const TensorView& depth, std::size_t row) {
    if ((view.rank != 3 && view.rank != 4) || view.shape[static_cast<std::size_t>(view.rank - 1)] != 2 ||
        view.shape[static_cast<std::size_t>(view.rank - 3)] != depth.shape[row] ||
        view.shape[static_cast<std::size_t>(view.rank - 2)] != depth.shape[row + 1] ||
        (view.rank == 4 && view.shape[0] != plan_.clouds)) {
      fail(ErrorKind::value, "rays have shape ", shape_text(view),
           "; expected [H, W, 2] or [cameras, H, W, 2] for depth of ", shape_text(depth));
    }
    TensorView pixels = view;
    --pixels.rank;
    plan_.rays = matrices("rays", pixels, 2);
    plan_.ray_stride = view.strides[static_cast<std::size_t>(view.rank - 1)];
  }

  void set_scene(const auto& scene, std::span<const std::int64_t> leading) {
    std::copy(leading.begin(), leading.end(), leading_.begin());
    plan_.into = integers("into", scene.into);
    if (scene.into) {
      if (!batched_) fail(ErrorKind::value, "into is for several clouds; there is one, without a batch dimension");
      check_length("into", scene.into);
    }
    if (scene.poses) {
      const auto rank = scene.poses.rank;
      if ((rank != 2 && rank != 3) || scene.poses.shape[static_cast<std::size_t>(rank - 1)] != 4 ||
          scene.poses.shape[static_cast<std::size_t>(rank - 2)] != 4) {
        fail(ErrorKind::value, "pose has shape ", shape_text(scene.poses), "; expected [4, 4] or [clouds, 4, 4]");
      }
      plan_.poses = matrices("pose", scene.poses, 2);
    }
    if (scene.crop) {
      plan_.crops = true;
      plan_.crop_in_sensor_frame = scene.crop->in_sensor_frame;
      for (std::size_t axis = 0; axis < 3; ++axis) {
        plan_.crop_low[axis] = scene.crop->low[axis];
        plan_.crop_high[axis] = scene.crop->high[axis];
        if (!(scene.crop->low[axis] <= scene.crop->high[axis])) {
          fail(ErrorKind::value, "crop along ", axes[axis], " is ", scene.crop->low[axis], "..", scene.crop->high[axis],
               "; low must not be above high");
        }
      }
    }
    if (scene.features) set_features(scene.features, leading);
  }

  void set_features(const TensorView& view, std::span<const std::int64_t> leading) {
    robocache::check_device(speaker_, "features", view, device_, what_);
    if (!is_one_of(view.dtype, {DType::f16, DType::bf16, DType::f32, DType::u8})) {
      fail(ErrorKind::type, "features are ", name_of(view.dtype), "; they must be float16, bfloat16, float32 or uint8");
    }
    const bool fits = view.rank == static_cast<int>(leading.size()) + 1 &&
                      std::equal(leading.begin(), leading.end(), view.shape.begin());
    if (!fits) {
      fail(ErrorKind::value, "features have shape ", shape_text(view), "; expected ", shape_text(leading),
           " and a last dimension of channels",
           view.rank == static_cast<int>(leading.size()) ? "; where there is one, features[..., None]" : "");
    }
    has_features_ = true;
    plan_.features = view.data;
    plan_.feature_dtype = view.dtype;
    plan_.channels = view.shape[leading.size()];
    plan_.channel_stride = view.strides[leading.size()];
    const bool images = plan_.source != Source::points;
    const std::size_t row = leading.size() - (images ? 2 : 1);
    plan_.feature_cloud_stride = row > 0 ? view.strides[0] : 0;
    plan_.feature_stride[0] = view.strides[row];
    plan_.feature_stride[1] = images ? view.strides[row + 1] : 0;
    const std::int64_t step = view.strides[leading.size() - 1];
    const bool rows_follow = !images || plan_.feature_stride[0] == plan_.width * step;
    const bool clouds_follow = row == 0 || plan_.feature_cloud_stride == plan_.points_per_cloud * step;
    if (rows_follow && clouds_follow) plan_.flat_feature_stride = step;
  }

  void check_output(const char* what, const TensorView& view, DType dtype, std::span<const std::int64_t> shape) const {
    robocache::check_output(speaker_, what, view, dtype, shape, device_, what_);
  }

  void check_empty(Reduction reduction, DType dtype) const {
    if (is_float(dtype) || plan_.accumulate) return;
    const double largest = dtype == DType::i32 ? 0x1p31 - 1 : 255;
    const double lowest = dtype == DType::i32 ? -0x1p31 : 0;
    const bool whole = plan_.empty == std::floor(plan_.empty) && plan_.empty >= lowest && plan_.empty <= largest;
    if (!whole || (reduction == Reduction::occupancy_bits && plan_.empty != 0)) {
      fail(ErrorKind::value, "empty = ", plan_.empty, " is no value of ", word_of(reduction), ", which is ",
           reduction == Reduction::occupancy_bits ? "bits" : name_of(dtype));
    }
  }

  // `leading`: the dimensions before the channels.
  void set_output(const VoxelOutput& output, std::span<const std::int64_t> leading) {
    const Reduction reduction = output.reduction;
    const char* const name = word_of(reduction);
    if (takes_features(reduction) && !has_features_) {
      fail(ErrorKind::value, "reduce ", name, " needs features");
    }
    if (plan_.accumulate && (reduction == Reduction::sum || reduction == Reduction::mean)) {
      fail(ErrorKind::value, "accumulate with ", name,
           ": the result would depend on the order of the calls; give all "
           "clouds to one call, with into");
    }
    std::int64_t shape[max_rank];
    std::copy(leading.begin(), leading.end(), shape);
    std::size_t rank = leading.size();
    DType dtype = DType::f32;
    if (reduction == Reduction::count) dtype = DType::i32;
    if (reduction == Reduction::occupancy || reduction == Reduction::occupancy_bits) dtype = DType::u8;
    if (reduction == Reduction::max || reduction == Reduction::min) dtype = plan_.feature_dtype;
    if (reduction == Reduction::occupancy_bits) shape[rank - 1] = (plan_.shape[2] + 7) / 8;
    if (takes_features(reduction)) shape[rank++] = plan_.channels;
    check_empty(reduction, dtype);
    check_output(name, output.values, dtype, {shape, rank});
    void* const data = output.values.data;
    switch (reduction) {
      case Reduction::count:
        return set_once(plan_.count, data, name);
      case Reduction::occupancy:
        return set_once(plan_.occupancy, data, name);
      case Reduction::occupancy_bits:
        return set_once(plan_.bits, data, name);
      case Reduction::sum:
        return set_once(plan_.sum, data, name);
      case Reduction::mean:
        return set_once(plan_.mean, data, name);
      case Reduction::max:
        return set_once(plan_.max, data, name);
      case Reduction::min:
        return set_once(plan_.min, data, name);
    }
  }
  template <class T>
  void set_once(T*& place, void* data, const char* name) const {
    if (place != nullptr) fail(ErrorKind::value, "reduce names ", name, " twice");
    place = static_cast<T*>(data);
  }

  Speaker speaker_;
  const char* what_;
  Device device_;
  bool batched_ = false, has_features_ = false;
  int lead_ = 1;  // dimensions of points or pixels
  std::array<std::int64_t, 3> leading_{};
  Plan plan_;
};

}  // namespace
}  // namespace robocache::voxelize_op
