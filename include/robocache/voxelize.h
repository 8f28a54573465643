// Voxelize: point clouds and depth images into grids, in one pass.
//
// ```cpp
// using robocache::Array, robocache::DType, robocache::Reduction;
// const Array points = Array::zeros(DType::f32, {20000, 3}), colours = Array::zeros(DType::u8, {20000, 3});
// const robocache::Grid grid{.origin = {-3, -3, 0}, .voxel_size = {0.05, 0.05, 0.05}, .shape = {120, 120, 40}};
// const Array counts = Array::zeros(DType::i32, {120, 120, 40}), means = Array::zeros(DType::f32, {120, 120, 40, 3});
// const std::vector<robocache::VoxelOutput> outputs = {{Reduction::count, counts.view()}, {Reduction::mean, means.view()}};
// robocache::voxelize({}, {.points = points.view(), .features = colours.view()}, grid, {}, outputs);
// ```
//
// docs/semantics.md says what is computed, to the bit. In short: a point goes through its cloud's pose into the grid's frame,
// and its cell is floor((p - origin) / voxel_size) on each axis. Points without a reading, not finite, cropped or outside reach
// no cell; `dropped` counts them, for each cloud and reason.
//
// There are three results: dense grids, a sorted list of the voxels that have points (voxelize_sparse), and one point for each
// voxel of a grid without end (voxel_downsample).
//
// Errors. Shapes, dtypes and devices are checked first, and robocache::Error is thrown before anything is written. The outputs
// of a sparse call are checked when the callback returns them; `dropped` may have been written by then. Some mistakes can only
// be found by reading the data: lengths, offsets and `into` out of range, a pose that is not rigid. The CPU backends read the
// data before they write. On CUDA the kernel finds the mistake: the result is unspecified, no memory outside the arrays is
// touched, and the error is thrown by the same thread's next call on that device or by robocache::synchronize(). `check =
// false` turns these checks off; the data must then be valid.
//
// Callbacks. SparseRows and DownsampleRows run once in a call, in the thread that makes the call. They may throw; the caller
// gets the exception, and the outputs are then unspecified.
//
// Determinism. Every backend and every run gives the same bits, whatever the number of threads: sums are made of integers. The
// order of the points makes no difference, except to the first points of a voxel.
// CUDA. Work goes to the caller's stream, in order. A call waits for nothing and can be captured in a CUDA graph; but without
// max_voxels a sparse call waits for the GPU once, and voxel_downsample waits twice, because the size of the result depends on
// the data. Scratch memory: occupancy_bits takes 1 byte per cell. Counts of two million points or more take 2.4 bytes per point.
// Reducing features takes 4 bytes per cell, and per point up to 17 bytes plus 1 per channel. A sparse result takes, per point,
// 24 to 56 bytes plus 1 for every five channels, and what CUB's sort needs.
// Threads. Any number of threads may call at the same time, with outputs that do not overlap.
// Limits. 2^31 - 1 points in a call; 2^62 cells in all grids of a call; 8 invalid readings. Grids times channels of a sparse
// call are at most 2^31.
// Memory. The bytes of an array are aligned for its dtype; more is not needed.
// Cost. The bytes of the points, of their features, and of the grids.
#pragma once

#include <robocache/context.h>
#include <robocache/error.h>
#include <robocache/tensor.h>

#include <array>
#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <span>
#include <vector>

#pragma GCC visibility push(default)  // the shared library exports what follows

namespace robocache {

// Cells [x, y, z]: cell 0 begins at the origin.
struct Grid {
  std::array<double, 3> origin{};
  std::array<double, 3> voxel_size{};
  std::array<std::int64_t, 3> shape{};
};
// How many cells it has. Throws Error(value) where the numbers make no grid, as every call does.
std::int64_t cells_of(const Grid& grid);
// The smallest grid of that voxel size that begins at `low` and reaches `high`. A point at `high` itself may be outside.
Grid grid_from_bounds(const std::array<double, 3>& low, const std::array<double, 3>& high,
                      const std::array<double, 3>& voxel_size);

enum class Reduction : std::uint8_t {
  count,           // int32: points
  occupancy,       // uint8: 1 where there is a point
  occupancy_bits,  // uint8, eight cells along z in a byte: cell z is bit z % 8 of byte z / 8
  sum,             // float32, of each feature
  mean,            // float32
  max,             // of the features' dtype; NaN wins, -0 < +0
  min,
};

// A box that points must lie in: low <= p < high.
struct Box {
  std::array<double, 3> low{}, high{};
  bool in_sensor_frame = false;  // before the pose, else after it
};

// C clouds, each into one grid.
struct Clouds {
  TensorView points{};    // [N, 3 or more]; batched [C, N, ...]; packed [N, ...]. float16, float32, float64
  TensorView lengths{};   // [C] int32 or int64: how many of the N points of a padded cloud are real
  TensorView offsets{};   // [C + 1] int32 or int64: packed clouds
  TensorView features{};  // as points, with F channels for the coordinates: float16, bfloat16, float32, uint8
  TensorView into{};      // [C] int32 or int64: the grid that each adds to; default: its own
  TensorView poses{};     // [4, 4] or [C, 4, 4], float32 or float64: sensor to grid, rigid to 1e-3
  std::optional<Box> crop{};
};

// C depth images, each into one grid.
struct DepthImages {
  TensorView depth{};       // [H, W] or [C, H, W]: uint16, float16, float32, float64
  TensorView intrinsics{};  // (fx, fy, cx, cy) as [4] or [C, 4], or [3, 3] or [C, 3, 3]; float32 or float64
  TensorView rays{};        // [H, W, 2] or [C, H, W, 2] float32 or float64, in place of intrinsics: x / z and y / z
  double depth_scale = 0;   // metres of one unit; 0: 0.001 for uint16, 1 for floats
  double depth_min = 0, depth_max = std::numeric_limits<double>::infinity();  // metres, both inclusive
  std::vector<double> invalid{0};  // readings, before the scale, that mean none; at most 8
  TensorView features{};           // [H, W, F] or [C, H, W, F]; what follows is as in Clouds
  TensorView into{};
  TensorView poses{};
  std::optional<Box> crop{};
};

struct VoxelizeOptions {
  double empty = 0;         // what a cell without points holds
  bool accumulate = false;  // add to what the outputs hold, empty cells too: count, occupancy, max and min only
  bool check = true;
};

struct VoxelOutput {
  Reduction reduction = Reduction::count;
  TensorView values{};  // dense [G, X, Y, Z] (bits: [G, X, Y, (Z + 7) / 8]; features: [..., F]); no G where C is absent
};

inline constexpr int drop_reasons = 4;  // no_reading, not_finite, cropped, outside

// `dropped`, where given: int64 [C, 4], how many points each cloud lost and why, in the order above.
void voxelize(const Context& context, const Clouds& clouds, const Grid& grid, const VoxelizeOptions& options,
              std::span<const VoxelOutput> outputs, const TensorView& dropped = {});
void voxelize_depth(const Context& context, const DepthImages& images, const Grid& grid, const VoxelizeOptions& options,
                    std::span<const VoxelOutput> outputs, const TensorView& dropped = {});

// The type that points or depth of a dtype are computed in, and that holds points of a result.
constexpr DType computed_type(DType dtype) { return dtype == DType::f64 ? DType::f64 : DType::f32; }

// ---- sparse --------------------------------------------------------------------------------------------------------

struct SparseOptions {
  double empty = 0;              // what rows without a voxel hold
  std::int64_t max_voxels = -1;  // rows of the result; -1: as many as there are voxels (on CUDA the call then waits)
  std::int64_t grids = -1;       // how many there are; -1: as many as clouds
  std::int64_t first = 0;        // K: how many points of each voxel are kept as they are
  bool check = true;
};

// A row for each voxel that has points, in the order of grid, x, y, z. Where there are more than max_voxels, the first are kept;
// rows that are left over have coordinates of -1. What has no view is not written.
struct SparseOutput {
  TensorView coordinates{};           // int64 [M, 4]: grid, x, y, z
  TensorView counts{};                // int32 [M]: points
  std::vector<VoxelOutput> values{};  // [M]; features [M, F]. No occupancy_bits
  // The first K points of each voxel, in the order of the points: where they are in the grid's frame, then their features.
  // [M, K, 3 + F] of computed_type(); 0 behind the last.
  TensorView first{};
  TensorView first_counts{};    // int32 [M]: min(points, K)
  TensorView point_to_voxel{};  // int64, as points or pixels are shaped: the row of each; -1: none
  TensorView found{};           // int64 [2]: rows that hold voxels, and voxels that got no row
};
// Called when the number of rows is known; returns where to write them.
using SparseRows = std::function<SparseOutput(std::int64_t rows)>;

void voxelize_sparse(const Context& context, const Clouds& clouds, const Grid& grid, const SparseOptions& options,
                     const SparseRows& rows, const TensorView& dropped = {});
void voxelize_depth_sparse(const Context& context, const DepthImages& images, const Grid& grid,
                           const SparseOptions& options, const SparseRows& rows, const TensorView& dropped = {});

// The mean point of each voxel, in the order of cloud, x, y, z. Voxels begin at whole multiples of their size from the origin,
// in both directions and without end.
struct Lattice {
  std::array<double, 3> voxel_size{};
  std::array<double, 3> origin{};
};
struct DownsampleOutput {
  TensorView points{};       // [M, 3] in the frame after the pose, of computed_type()
  TensorView features{};     // [M, F] float32: their mean
  TensorView counts{};       // int32 [M]
  TensorView coordinates{};  // int64 [M, 4]: cloud, x, y, z; negative before the origin
};
using DownsampleRows = std::function<DownsampleOutput(std::int64_t rows)>;

// Uses only `check` of `options`. Throws Error(value) if the clouds have `into`.
void voxel_downsample(const Context& context, const Clouds& clouds, const Lattice& lattice,
                      const SparseOptions& options, const DownsampleRows& rows, const TensorView& dropped = {});

}  // namespace robocache

#pragma GCC visibility pop
