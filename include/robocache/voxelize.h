// Voxelize: point clouds and depth images into grids, in one pass.
//
//   const robocache::Grid grid{.origin = {-3, -3, 0}, .voxel_size = {0.05, 0.05, 0.05}, .shape = {120, 120, 40}};
//   robocache::Clouds clouds;
//   clouds.points = points, clouds.features = colours;
//   const robocache::VoxelOutput outputs[] = {{Reduction::count, counts}, {Reduction::mean, means}};
//   robocache::voxelize(context, clouds, grid, {}, outputs);
//
// What is computed, to the bit, is in docs/semantics.md. In short: a point goes through its cloud's pose into the grid's
// frame, and its cell is floor((p - origin) / voxel_size) on each axis. Points without a reading, not finite, cropped or
// outside reach no cell and are counted, per cloud and reason.
//
// Dense grids, or the voxels that have points, sorted (voxelize_sparse), or one point for each voxel of a grid without end
// (voxel_downsample).
//
// Every call here
//   - gives the same bits on every backend and every run, and, but for the first points of a voxel, for any order of the
//     points: sums are made of integers;
//   - works in stream order on the caller's stream, never synchronises, and can be captured in a CUDA graph; only a sparse
//     call without max_voxels waits for the GPU, once, and voxel_downsample twice: they must know how many voxels there are;
//   - takes at most 2^31 - 1 points;
//   - asks for scratch on CUDA: a byte a cell for occupancy_bits; 2.4 bytes a point for counts of two million points and
//     more; where features are reduced 4 bytes a cell, and a point up to 17 bytes and one for each channel; where the
//     result is sparse 24 to 56 bytes a point, what CUB's sort needs, and one for every five channels;
//   - checks shapes, dtypes and devices first and throws robocache::Error before anything is written; outputs of a sparse
//     call when it is told them, by when `dropped` may have been written. What only the data
//     can tell (lengths, offsets, into, whether a pose is rigid) is checked on the CPU before anything is written too; on
//     CUDA inside the launch, the result is then unspecified but never out of bounds, and the sentence is thrown by the
//     next call or by robocache::synchronize(). `check = false` leaves those checks out.
// Cost: the bytes of the points, of their features, and of the grids.
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

// Cells [x, y, z]: cell 0 begins at the origin. At most 2^62 cells.
struct Grid {
  std::array<double, 3> origin{};
  std::array<double, 3> voxel_size{};
  std::array<std::int64_t, 3> shape{};
};
// Its cells. Throws where the numbers make no grid, as every call does.
std::int64_t cells_of(const Grid& grid);
// The smallest grid of that voxel size that begins at `low` and reaches `high`: a point at `high` itself may be outside.
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

// What clouds and depth images have in common: C of them, each into one grid.
struct Scene {
  TensorView features{};  // [..., F] after the dimensions of points or pixels: float16, bfloat16, float32, uint8
  TensorView into{};      // [C] int32 or int64: the grid that each adds to; default: its own
  TensorView poses{};     // [4, 4] or [C, 4, 4], float32 or float64: sensor to grid, rigid to 1e-3
  std::optional<Box> crop{};
};

struct Clouds : Scene {
  TensorView points{};  // [N, 3 or more]; batched [C, N, ...]; packed [N, ...] with offsets. float16, float32, float64.
  TensorView lengths{};  // [C] int32 or int64: how many of the N points of a padded cloud are real
  TensorView offsets{};  // [C + 1] int32 or int64: packed clouds
};

struct DepthImages : Scene {
  TensorView depth{};       // [H, W] or [C, H, W]: uint16, float16, float32, float64
  TensorView intrinsics{};  // (fx, fy, cx, cy) as [4] or [C, 4], or [3, 3] or [C, 3, 3]; float32 or float64
  TensorView rays{};        // [H, W, 2] or [C, H, W, 2] float32 or float64, in place of intrinsics: x / z and y / z
  double depth_scale = 0;   // metres of one unit; 0: 0.001 for uint16, 1 for floats
  double depth_min = 0, depth_max = std::numeric_limits<double>::infinity();  // metres, both inclusive
  std::vector<double> invalid{0};  // readings, before the scale, that mean none; at most 8
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

// What points or depth of a dtype are computed in, and so what holds where points are.
constexpr DType computed_type(DType dtype) { return dtype == DType::f64 ? DType::f64 : DType::f32; }

// ---- sparse --------------------------------------------------------------------------------------------------------

struct SparseOptions {
  double empty = 0;              // what rows without a voxel hold
  std::int64_t max_voxels = -1;  // rows of the result; -1: as many as there are voxels, for which a GPU is waited for
  std::int64_t grids = -1;       // how many there are; -1: as many as clouds
  std::int64_t first = 0;        // K: how many points of each voxel are kept as they are
  bool check = true;
};

// A row for each voxel that has points, in the order of grid, x, y, z. Of more than max_voxels the first are kept; rows
// that are left over have coordinates of -1. What is not given is not written.
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
// Says where to write, as soon as the number of rows is known.
using SparseRows = std::function<SparseOutput(std::int64_t rows)>;

void voxelize_sparse(const Context& context, const Clouds& clouds, const Grid& grid, const SparseOptions& options,
                     const SparseRows& rows, const TensorView& dropped = {});
void voxelize_depth_sparse(const Context& context, const DepthImages& images, const Grid& grid,
                           const SparseOptions& options, const SparseRows& rows, const TensorView& dropped = {});

// The mean point of each voxel, in the order of cloud, x, y, z. Voxels are whole multiples of their size from the origin,
// to either side, without end.
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

// options: only `check` counts. Clouds have no `into`.
void voxel_downsample(const Context& context, const Clouds& clouds, const Lattice& lattice,
                      const SparseOptions& options, const DownsampleRows& rows, const TensorView& dropped = {});

}  // namespace robocache

#pragma GCC visibility pop
