// What the CUDA kernels of voxelize share: the points that a block works on, the cells they fall into, and equal
// neighbours in a warp.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/division.h"
#include "gpu/device.h"
#include "gpu/launch.h"
#include "gpu/scratch.h"
#include "gpu/warp.h"
#include "ops/voxelize/cuda/check.h"
#include "ops/voxelize/cuda/tuning.h"

namespace robocache::voxelize_op {
namespace {

constexpr int warps = tuning::threads / warp_size;
constexpr std::int64_t round_points = std::int64_t{tuning::threads} * tuning::points_per_thread;

// How points are cut into tiles, one for each block. A tile is some whole rounds of points; unless clouds are packed,
// it lies in one cloud.
struct Tiling {
  std::int64_t points = round_points;
  std::int64_t per_cloud = 0;  // tiles; 0: packed, a tile may have points of several clouds
  std::int64_t tiles = 0;
};

// The cloud of a packed point; -1: it is in none.
__device__ std::int64_t cloud_at(const Plan& plan, std::int64_t point) {
  std::int64_t low = 0;
  std::int64_t high = plan.clouds;
  while (low < high) {
    const std::int64_t middle = (low + high) / 2;
    if (integer(plan.offsets, middle + 1) <= point) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low < plan.clouds && integer(plan.offsets, low) <= point ? low : -1;
}

// Correctly rounded division by a fixed number, in four instructions (Markstein). `inverse` is 1 / divisor rounded,
// and `rest` its rounding error. The first quotient is off by less than one unit in the last place, and the
// correction step rounds it, provided that neither the quotient nor the remainder, about 2^-48 of the dividend, comes
// near the ends of float's range.
struct Inverse {
  float divisor = 1, inverse = 1, rest = 0;

  Inverse() = default;
  __host__ __device__ explicit Inverse(float by) : divisor(by), inverse(1 / by) {
    rest = fused(-by, inverse, 1.0f) * inverse;
  }
  __device__ float divide(float a) const {
    const float quotient = fused(a, inverse, a * rest);
    return fused(fused(-quotient, divisor, a), inverse, quotient);
  }
  // Subnormal quotients become 0.
  __device__ float divide_flushed(float a) const {
    const float quotient = fused(a, inverse, a * rest);
    float rounded;
    asm("fma.rn.ftz.f32 %0, %1, %2, %3;"
        : "=f"(rounded)
        : "f"(fused(-quotient, divisor, a)), "f"(inverse), "f"(quotient));
    return rounded;
  }
};

// cell_of() of math.h, faster, for points that are computed in float. Subtraction, division and floor are monotonic,
// so p - origin is inside along an axis exactly when it lies between two bounds. For values between them Inverse
// gives the right quotient, or one so near 0 that the first cell is right anyway.
struct Axis {
  float origin = 0;
  Inverse size;
  float lowest = 0, highest = 0;  // of p - origin
  std::uint32_t cells = 0;
};
struct Axes {
  Axis axes[3];
  std::uint32_t base = 0;  // subtracted by cell(): the cell at the origin, with the bits of `shift`
  bool quick = false;      // the other fields are set

  Axes() = default;
  explicit Axes(const Plan& plan) {
    if (!plan.is_small() || plan.lattice || computed_type(plan.dtype) != DType::f32) return;
    for (int n = 0; n < 3; ++n) {
      Axis& axis = axes[n];
      const auto size = static_cast<float>(plan.voxel_size[n]);
      if (size < 0x1p-60f || size > 0x1p20f || plan.shape[n] < 1 || plan.shape[n] > most_cells) return;
      axis.origin = static_cast<float>(plan.origin[n]);
      axis.size = Inverse(size);
      axis.cells = static_cast<std::uint32_t>(plan.shape[n]);
      // A negative quotient of at most 2^-150 rounds to -0, which is in the first cell. As bits, a subnormal float
      // counts units of 2^-149.
      axis.lowest = bit_copy<float>(0x80000000u | static_cast<std::uint32_t>(size / 2));
      const auto cells = static_cast<float>(axis.cells);
      axis.highest = cells * size;
      while (axis.highest / size < cells)
        axis.highest = std::nextafter(axis.highest, std::numeric_limits<float>::max());
      while (axis.highest / size >= cells) axis.highest = std::nextafter(axis.highest, 0.0f);
      base = base * axis.cells + bit_copy<std::uint32_t>(shift);
    }
    quick = true;
  }
  // Valid only where `inside` stays true.
  __device__ std::int32_t cell(const float (&p)[3], bool& inside) const {
    std::uint32_t cell = 0;
#pragma unroll
    for (int n = 0; n < 3; ++n) cell = cell * axes[n].cells + along(n, p[n], inside);
    return static_cast<std::int32_t>(cell - base);
  }
  // The cell along one axis, with the bits of `shift`.
  __device__ std::uint32_t along(int n, float p, bool& inside) const {
    const Axis& axis = axes[n];
    const float d = p - axis.origin;
    inside = inside && d >= axis.lowest && d <= axis.highest;
    return __float_as_uint(__fadd_rz(axis.size.divide_flushed(d), shift));
  }

  // Added to a quotient with rounding towards 0, it leaves the whole part in the lowest bits. Cheaper than a
  // conversion.
  static constexpr float shift = 0x1p23f;

 private:
  static constexpr std::int64_t most_cells = std::int64_t{1} << 22;
};

// The cell of a point in the grid's frame, or why it has none. Only where dropped points are counted it tells a point
// that is not finite from one outside.
template <class Index, class C>
__device__ Place place_of(const Plan& plan, const Axes& axes, const Cloud<C>& cloud, const C (&p)[3]) {
  if constexpr (sizeof(Index) == 4 && sizeof(C) == 4) {
    if (axes.quick) {
      bool inside = true;
      const std::int32_t cell = axes.cell(p, inside);
      if (inside) return {Drop::none, cell};
      return {plan.dropped == nullptr || all_finite(p) ? Drop::outside : Drop::not_finite, -1};
    }
  }
  return all_finite(p) ? cell_of<Index>(plan, cloud, p) : Place{Drop::not_finite, -1};
}

// A block's tile: points of one cloud, or of several where packed clouds are short.
template <class C>
struct Tile {
  Cloud<C> cloud;  // set where `one` is true
  bool one = true;
  std::int64_t first = 0;  // number of the first point: in its cloud; among all points where there are several clouds
  std::int64_t count = 0;
  std::int64_t stored = 0;  // points and padding after them; padding gets keys, too
};
template <class C>
__device__ void set_tile(const Plan& plan, const Tiling& tiling, Tile<C>& tile) {
  tile = {};  // shared memory has no initial values
  std::int64_t cloud = 0;
  if (tiling.per_cloud > 0) {
    cloud = blockIdx.x /
            static_cast<std::uint32_t>(tiling.per_cloud);  // both fit 32 bits: a launch has fewer than 2^31 blocks
    tile.first = (blockIdx.x - cloud * tiling.per_cloud) * tiling.points;
  } else {
    const std::int64_t first = blockIdx.x * tiling.points;
    const std::int64_t last = min(first + tiling.points, plan.points_per_cloud) - 1;
    cloud = cloud_at(plan, first);
    tile.one = cloud >= 0 && cloud == cloud_at(plan, last);
    tile.first = first;
    tile.count = tile.stored = last + 1 - first;
    if (!tile.one) return;
    tile.first -= clamp_to(integer(plan.offsets, cloud), 0, plan.points_per_cloud);
  }
  tile.cloud = cloud_of<C>(plan, cloud);
  tile.count = min(tiling.points, tile.cloud.count - tile.first);
  if (tiling.per_cloud > 0) tile.stored = min(tiling.points, plan.points_per_cloud - tile.first);
}

// The key of point k of a tile, -1 where it has none, and the point in the grid's frame.
template <class T, class Index, class C>
__device__ Index locate_in(const Plan& plan, const Axes& axes, const Tile<C>& tile, std::int64_t k, Drop& drop,
                           std::int64_t& cloud_number, C (&p)[3]) {
  const auto locate = [&](const Cloud<C>& cloud, std::int64_t point) {
    if constexpr (sizeof(Index) == 4 && sizeof(C) == 4) {
      if (axes.quick) {
        const Drop early = to_grid_frame<T>(plan, cloud, point, p);
        return early == Drop::none ? place_of<Index>(plan, axes, cloud, p) : Place{early, -1};
      }
    }
    return voxelize_op::locate<T, Index>(plan, cloud, point, p);
  };
  drop = Drop::none;
  if (k >= tile.count) return -1;
  if (tile.one) {
    const Place place = locate(tile.cloud, tile.first + k);
    drop = place.drop;
    return static_cast<Index>(drop == Drop::none ? tile.cloud.grid * plan.cells + place.cell : -1);
  }
  cloud_number = cloud_at(plan, tile.first + k);
  if (cloud_number < 0) return -1;
  const auto cloud = cloud_of<C>(plan, cloud_number);
  const Place place = locate(cloud, tile.first + k - cloud.first);
  drop = place.drop;
  return static_cast<Index>(drop == Drop::none ? cloud.grid * plan.cells + place.cell : -1);
}

template <class C>
__device__ std::int64_t number_in(const Plan& plan, const Tile<C>& tile, std::int64_t k) {
  return tile.one ? point_number(plan, tile.cloud, tile.first + k) : tile.first + k;
}

// Runs of equal keys in a warp, in lane order. `leads`: this lane is the first of a run whose key is not negative;
// `length`: lanes from this one to the end of its run.
struct Runs {
  bool leads = false;
  int length = 0;
  template <class Index>
  __device__ explicit Runs(Index key) {
    const auto lane = static_cast<int>(threadIdx.x % warp_size);
    const Index previous = __shfl_up_sync(whole_warp, key, 1);
    const unsigned heads = __ballot_sync(whole_warp, lane == 0 || key != previous);
    const int leader = 31 - __clz(static_cast<int>(heads & (~0u >> (31 - lane))));
    const unsigned later = lane == 31 ? 0u : heads >> (lane + 1);
    length = later == 0 ? warp_size - lane : __ffs(static_cast<int>(later));
    leads = leader == lane && key >= 0;
  }
};

// One cloud of dense points without a pose, a crop or lengths.
inline bool is_plain(const Plan& plan) {
  return plan.is_small() && plan.source == Source::points && plan.clouds == 1 && plan.axis_stride == 1 && !plan.crops &&
         plan.poses.data == nullptr && plan.into.data == nullptr && plan.lengths.data == nullptr &&
         plan.offsets.data == nullptr;
}

// Dense images of pinhole cameras.
inline bool is_image(const Plan& plan) {
  return plan.is_small() && plan.source == Source::pinhole && !plan.crops && plan.width > 0 && plan.axis_stride == 1 &&
         plan.point_stride == plan.width && (plan.clouds == 1 || plan.cloud_stride == plan.points_per_cloud);
}

// The rule of camera::depth_of(), in float: bounds of a valid depth.
struct FloatReadings {
  float scale = 1;
  float lowest = 0, highest = 0;            // of z
  float invalid[camera::max_invalid] = {};  // only those that would scale to a depth between the bounds
  int invalid_count = 0;
  bool quick = false;     // they are set
  bool ordinary = false;  // every valid depth is_ordinary(), and `invalid` is empty

  FloatReadings() = default;
  explicit FloatReadings(const Plan& plan) : scale(static_cast<float>(plan.depth_scale)) {
    // A host thread may flush subnormal numbers to 0, where a GPU does not: leave those to the slow path.
    const auto tiny = [](double x) { return x != 0 && std::abs(x) < 0x1p-100; };
    if (tiny(plan.depth_scale) || tiny(plan.depth_min) || tiny(plan.depth_max)) return;
    lowest = plan.depth_min > 0 ? static_cast<float>(plan.depth_min) : bit_copy<float>(1u);
    highest = std::min(static_cast<float>(plan.depth_max), std::numeric_limits<float>::max());
    float largest = 65535;
    for (int n = 0; n < plan.invalid_count; ++n) {
      const auto reading = static_cast<float>(plan.invalid[n]);
      if (tiny(plan.invalid[n]) || tiny(plan.invalid[n] * plan.depth_scale)) return;
      const float z = reading * scale;
      if (plan.dtype == DType::u16 && reading == largest) {
        largest -= 1;
      } else if (z >= lowest && z <= highest) {
        invalid[invalid_count++] = reading;
      }
    }
    if (plan.dtype == DType::u16) {
      lowest = std::max(lowest, scale);
      highest = std::min(highest, largest * scale);
    }
    quick = true;
    ordinary = lowest >= least && highest <= most && invalid_count == 0;
  }
  // If the camera is ordinary as well, Inverse gives the right quotients.
  static constexpr float least = 0x1p-40f, most = 0x1p40f;
  __device__ static bool is_ordinary(float z) { return z >= least && z <= most; }
};

// Cells along x and y in fixed point, for pixels of an ordinary camera without a pose. The number is `first`, a power
// of two that puts the fraction into the lowest bits, plus the pixel's position in cells; one fused multiply-add
// computes it from z. Its error is less than a margin, and the margin is added to it: so it is never below the true
// position, and above it by less than two margins. It therefore tells the cell unless its fraction is below two
// margins. Not used along z: depth comes in whole millimetres, so pixels often lie on a face there.
struct FixedAxes {
  float first = 1;             // where the first cell begins
  float end[2] = {};           // and where the last one ends
  float offset[2] = {};        // where x = 0 and y = 0 are, and the margin
  std::uint32_t fraction = 0;  // bits that are all 0 near a face; 0: fixed point is never sure
  std::uint32_t base = 0;      // subtracted from a cell's number

  FixedAxes() = default;
  explicit FixedAxes(const Axes& by) {
    for (const int n : {0, 1}) {
      while (first < static_cast<float>(by.axes[n].cells)) first *= 2;
    }
    for (const int n : {0, 1}) {
      end[n] = first + static_cast<float>(by.axes[n].cells);
      base = base * by.axes[n].cells + bit_copy<std::uint32_t>(Axes::shift + first);
    }
    base = base * by.axes[2].cells + bit_copy<std::uint32_t>(Axes::shift);
    // The error, in units of the number's last place, for coordinates of up to `reach` times `first` cells. In the
    // definition of the cell, x is rounded as a product and as a quotient: one reach; the difference and its quotient
    // are rounded: one unit. Here two inverses and a product are rounded: half a reach each; the fused step: up to
    // one unit.
    const double unit = static_cast<double>(first) * 0x1p-23;
    for (double margin = 4; margin * unit <= 0x1p-10;
         margin *= 2) {  // so that less than one pixel in 250 is near a face
      double error = 0;
      for (const int n : {0, 1}) {
        const double origin = static_cast<double>(by.axes[n].origin) / static_cast<double>(by.axes[n].size.divisor);
        const double reach =
            std::max(std::abs(origin), std::abs(origin + by.axes[n].cells)) / static_cast<double>(first);
        const double exact = static_cast<double>(first) - origin + margin * unit;
        offset[n] = static_cast<float>(exact);
        error = std::max(error, 2.5 * reach + 2.05 + std::abs(exact - static_cast<double>(offset[n])) / unit);
      }
      if (error > margin) continue;
      fraction = static_cast<std::uint32_t>(1 / unit - 2 * margin);
      return;
    }
  }
  __device__ bool is_inside(int n, float at) const { return (at >= first) & (at < end[n]); }
  __device__ bool is_sure(float at) const { return (__float_as_uint(at) & fraction) != 0; }
  // The cell, with the bits of Axes::shift + first in the upper bits.
  __device__ static std::uint32_t along(float at) { return __float_as_uint(__fadd_rz(at, Axes::shift)); }
};

// How images are cut into tiles, one for each warp: some rows of 32 columns.
struct ImageTiling {
  std::uint32_t width = 0, height = 0;
  std::uint32_t rows = 0;     // of a tile
  std::uint32_t columns = 0;  // tiles side by side
  std::uint32_t blocks = 0;   // of an image
  Division by_blocks, by_columns;
  bool quick = false;  // they are set

  ImageTiling() = default;
  ImageTiling(const Plan& plan, const CudaMachine& machine)
      : width(static_cast<std::uint32_t>(plan.width)),
        height(static_cast<std::uint32_t>(plan.points_per_cloud / plan.width)) {
    const std::int64_t each =
        plan.all_points / (std::int64_t{tuning::threads} * tuning::image_blocks_per_processor * machine.processors);
    rows = static_cast<std::uint32_t>(std::clamp<std::int64_t>(each, 1, tuning::most_image_rows));
    rows = static_cast<std::uint32_t>(divide_up(rows, tuning::image_flight) * tuning::image_flight);
    columns = static_cast<std::uint32_t>(divide_up(width, warp_size));
    blocks = static_cast<std::uint32_t>(divide_up(columns * divide_up(height, rows), warps));
    quick = blocks > 0 && width >= warp_size && height < 1 << 24;  // rows are counted in a float
    if (!quick) return;
    by_blocks = Division(blocks);
    by_columns = Division(columns);
  }
};

// A tile reads its cloud's pose and camera once, so a tile of several rounds is cheaper, as long as there are enough
// tiles for all multiprocessors and packed clouds are long enough for tiles of their own.
inline Tiling tiling_of(const Plan& plan, const CudaMachine& machine, bool in_rounds) {
  Tiling tiling;
  if (in_rounds) {
    std::int64_t rounds = plan.all_points / (round_points * tuning::tiles_per_processor * machine.processors);
    if (plan.offsets.data != nullptr && plan.clouds > 0) {
      rounds = std::min(rounds, plan.all_points / plan.clouds / (round_points * tuning::most_rounds));
    }
    tiling.points = round_points * std::clamp<std::int64_t>(rounds, 1, tuning::most_rounds);
  }
  const std::int64_t tiles = divide_up(plan.points_per_cloud, tiling.points);
  if (plan.offsets.data == nullptr) tiling.per_cloud = std::max<std::int64_t>(tiles, 1);
  tiling.tiles = tiling.per_cloud > 0 ? plan.clouds * tiling.per_cloud : tiles;
  return tiling;
}

}  // namespace
}  // namespace robocache::voxelize_op
