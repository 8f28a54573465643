// The plan that planner.h makes and a backend runs: every default filled in, every shape checked. Plain data, so that
// it can be a kernel argument. The order of its fields is part of the kernels' machine code.
#pragma once

#include <robocache/voxelize.h>

#include "camera/depth.h"
#include "camera/intrinsics.h"
#include "core/fault.h"
#include "core/integers.h"

namespace robocache::voxelize_op {

enum class Source : std::uint8_t { points, pinhole, rays };

struct Plan {
  Operation operation = Operation::voxelize;
  Source source = Source::points;
  DType dtype = DType::f32;  // of points or depth
  DType feature_dtype = DType::f32;
  bool check = true;
  bool accumulate = false;
  bool crops = false, crop_in_sensor_frame = false;

  // Point k of cloud c is at points[c * cloud_stride + k * point_stride + axis * axis_stride]; pixel (v, u) of image c at
  // points[c * cloud_stride + v * point_stride + u * axis_stride].
  const void* points = nullptr;
  std::int64_t cloud_stride = 0, point_stride = 0, axis_stride = 0;
  std::int64_t clouds = 1;
  std::int64_t points_per_cloud = 0;  // N, or of all clouds where packed; pixels
  std::int64_t all_points = 0;        // in memory
  std::int64_t width = 0;             // of an image
  Integers lengths, offsets, into;
  camera::Matrices poses, intrinsics, rays;  // rays: element (v, u) is the x of a direction with z = 1
  bool intrinsics_are_matrices = false;      // [3, 3], else fx, fy, cx, cy as [4]
  std::int64_t ray_stride = 0;               // from the x of a ray to its y
  double depth_scale = 1, depth_min = 0, depth_max = 0;
  double invalid[camera::max_invalid] = {};  // numbers that stand for "no reading", unscaled
  std::int32_t invalid_count = 0;
  double crop_low[3] = {}, crop_high[3] = {};

  const void* features = nullptr;
  std::int64_t feature_cloud_stride = 0, feature_stride[2] = {}, channel_stride = 0;  // as of points
  std::int64_t flat_feature_stride = 0;  // from a point to the next among all in memory; 0: not one number
  std::int64_t channels = 0;

  double origin[3] = {}, voxel_size[3] = {};
  std::int64_t shape[3] = {};
  std::int64_t cells = 0;  // of one grid
  std::int64_t grids = 1;

  // A grid without end: cells are counted from `lowest`, which is found from the points, and so is the shape.
  bool lattice = false;
  std::int64_t lowest[3] = {};

  // Outputs; nullptr where not wanted. Those of cells are indexed by key, or, where the result is sparse, by row.
  double empty = 0;
  std::int32_t* count = nullptr;
  std::uint8_t* occupancy = nullptr;
  std::uint8_t* bits = nullptr;
  float* sum = nullptr;
  float* mean = nullptr;
  void* max = nullptr;
  void* min = nullptr;
  std::int64_t* dropped = nullptr;

  // Only of a sparse result.
  std::int64_t max_voxels = -1;
  std::int64_t rows = 0;
  std::int64_t* coordinates = nullptr;
  std::int32_t* counts = nullptr;  // the voxels' points; `count` is the reduction of that name
  void* first = nullptr;           // in the type that points are computed in, and so is point_means
  std::int64_t first_points = 0;   // K
  std::int32_t* first_counts = nullptr;
  void* point_means = nullptr;
  std::int64_t* point_to_voxel = nullptr;
  std::int64_t* found = nullptr;

  // Whether cells of all grids, and each axis alone as a float, are 32-bit integers.
  bool is_small() const { return grids * cells < std::int64_t{1} << 30; }
  constexpr bool sums() const { return sum != nullptr || mean != nullptr; }
  // Bytes of a point's place in the grid's frame, and whether those places are wanted.
  std::int64_t located_bytes() const { return 3 * size_of(computed_type(dtype)); }
  bool locates() const { return lattice || first_points > 0; }
  bool reduces_features() const {
    return channels > 0 && (sum != nullptr || mean != nullptr || max != nullptr || min != nullptr);
  }
};

// The same points with their place in the grid's frame as features ([N, 3], of the type that points are computed in),
// whose mean is wanted.
inline Plan with_point_means(const Plan& plan, const void* located) {
  Plan means = plan;
  means.features = located;
  means.feature_dtype = computed_type(plan.dtype);
  means.channels = 3;
  means.channel_stride = 1;
  means.flat_feature_stride = 3;
  means.count = nullptr;
  means.occupancy = nullptr;
  means.sum = nullptr;
  means.mean = static_cast<float*>(plan.point_means);
  means.max = means.min = nullptr;
  return means;
}

// Throws what the data must not be, where plan.check is set and the data is in host memory.
void check_data(const Plan& plan);

// Sets where a sparse plan writes, once the number of its voxels is known.
using SetRows = std::function<void(Plan& plan, std::int64_t voxels)>;
// Sets the shape of a lattice from its lowest and highest cells, which are farthest and -farthest where there are none;
// throws where there are too many cells.
inline constexpr std::int64_t farthest = std::numeric_limits<std::int64_t>::max();
void set_lattice(Plan& plan, const std::int64_t (&low)[3], const std::int64_t (&high)[3]);

// The checked plan of depth images and a grid, without outputs. tsdf begins with it.
Plan plan_images(Operation operation, const DepthImages& images, const Grid& grid);

// The backends. Each computes the whole plan. For reference and cpu the planner has checked the data before; cuda
// checks it on the GPU, where plan.check is set.
void run_reference(const Plan& plan);
void run_cpu(const Plan& plan);
void run_cuda(const Plan& plan, const Context& context, int device);
void run_sparse_reference(Plan plan, const SetRows& set_rows);
void run_sparse_cpu(Plan plan, const SetRows& set_rows);
void run_sparse_cuda(const Plan& plan, const SetRows& set_rows, const Context& context, int device);

}  // namespace robocache::voxelize_op
