// What the CUDA kernels of voxelize share: the points that a block works on, the cells they fall into, and equal
// neighbours in a warp.
#pragma once

#include <algorithm>

#include "core/cuda.h"
#include "ops/voxelize/check.h"
#include "ops/voxelize/tuning.h"

namespace robocache::voxelize_op {
namespace {

constexpr unsigned whole_warp = 0xffffffffu;
constexpr int warp_size = 32;
constexpr int warps = tuning::threads / warp_size;
constexpr std::int64_t round_points = std::int64_t{tuning::threads} * tuning::points_per_thread;

// How points are cut into tiles, one for each block: whole rounds of them, clouds apart unless they are packed.
struct Tiling {
  std::int64_t points = round_points;
  std::int64_t per_cloud = 0;  // tiles; 0: packed, tiles run over clouds' ends
  std::int64_t tiles = 0;
};

// The cloud that a packed point is in; -1 where it is in none.
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

// The usual case: one cloud of dense points without a pose, a crop or lengths.
template <class Index, class T, class C>
__device__ Place place_plain(const Plan& plan, const Cloud<C>& cloud, const T (&point)[3]) {
  const C p[3] = {widen(point[0]), widen(point[1]), widen(point[2])};
  return all_finite(p) ? cell_of<Index>(plan, cloud, p) : Place{Drop::not_finite, -1};
}

// What a block works on: points of one cloud, or, where packed clouds are short, of several.
template <class C>
struct Tile {
  Cloud<C> cloud;  // where there is one
  bool one = true;
  std::int64_t first = 0;  // of the cloud's points; of all where there are several
  std::int64_t count = 0;
  std::int64_t stored = 0;  // of them and of the padding behind them, which gets keys too
};
template <class C>
__device__ void set_tile(const Plan& plan, const Tiling& tiling, Tile<C>& tile) {
  tile = {};  // shared memory has no initial values
  std::int64_t cloud = 0;
  if (tiling.per_cloud > 0) {
    cloud = blockIdx.x / static_cast<std::uint32_t>(tiling.per_cloud);  // both fit: a launch has fewer blocks
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
__device__ Index locate_in(const Plan& plan, const Tile<C>& tile, std::int64_t k, Drop& drop,
                           std::int64_t& cloud_number, C (&p)[3]) {
  drop = Drop::none;
  if (k >= tile.count) return -1;
  if (tile.one) {
    const Place place = locate<T, Index>(plan, tile.cloud, tile.first + k, p);
    drop = place.drop;
    return static_cast<Index>(drop == Drop::none ? tile.cloud.grid * plan.cells + place.cell : -1);
  }
  cloud_number = cloud_at(plan, tile.first + k);
  if (cloud_number < 0) return -1;
  const auto cloud = cloud_of<C>(plan, cloud_number);
  const Place place = locate<T, Index>(plan, cloud, tile.first + k - cloud.first, p);
  drop = place.drop;
  return static_cast<Index>(drop == Drop::none ? cloud.grid * plan.cells + place.cell : -1);
}

template <class C>
__device__ std::int64_t number_in(const Plan& plan, const Tile<C>& tile, std::int64_t k) {
  return tile.one ? point_number(plan, tile.cloud, tile.first + k) : tile.first + k;
}

// Of the lanes of a warp with a key, in lane order: the first of each run of equal keys, and the length of its run.
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

// Whether place_plain() is enough.
inline bool is_plain(const Plan& plan) {
  return plan.is_small() && plan.source == Source::points && plan.clouds == 1 && plan.axis_stride == 1 && !plan.crops &&
         plan.poses.data == nullptr && plan.into.data == nullptr && plan.lengths.data == nullptr &&
         plan.offsets.data == nullptr;
}

// Whether locate_pixel() is enough: dense images of pinhole cameras.
inline bool is_image(const Plan& plan) {
  return plan.is_small() && plan.source == Source::pinhole && !plan.crops && plan.width > 0 && plan.axis_stride == 1 &&
         plan.point_stride == plan.width && (plan.clouds == 1 || plan.cloud_stride == plan.points_per_cloud);
}

// Division of numbers below 2^31 by one number (Granlund and Montgomery, "Division by invariant integers using
// multiplication").
struct Division {
  std::uint32_t factor = 0;
  int shift = 0;

  Division() = default;
  explicit Division(std::uint32_t divisor) {
    while (std::uint64_t{1} << shift < divisor) ++shift;
    factor = static_cast<std::uint32_t>((((std::uint64_t{1} << shift) - divisor) << 32) / divisor + 1);
  }
  __device__ std::uint32_t divide(std::uint32_t a) const { return (__umulhi(factor, a) + a) >> shift; }
};

// Where a tile has to find out about its cloud first (its pose, its camera), several rounds share that, as long as there are
// tiles for all multiprocessors, and packed clouds are long enough to have tiles of their own.
inline Tiling tiling_of(const Plan& plan) {
  Tiling tiling;
  if (!is_plain(plan)) {
    std::int64_t rounds = plan.all_points / (round_points * tuning::enough_tiles);
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
