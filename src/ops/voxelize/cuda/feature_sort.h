// Features of a plain cloud on a GPU, first kernel: sorts the points by bin.
//
// Half of the blocks sort the points of a tile by bin in shared memory; the others find the largest magnitudes of the
// features of a tile.
#pragma once

#include "ops/voxelize/cuda/chains.h"

namespace robocache::voxelize_op {
namespace {

constexpr int feature_sort_warps = tuning::feature_sort_threads / warp_size;
constexpr int feature_tile = tuning::feature_sort_threads * tuning::feature_sort_points;  // points
constexpr int most_bin_channels = 16;
static_assert(feature_tile < 1 << 16, "extents have 16 bits for each end, entries for the number of a point");

__device__ inline const float* features_of(const Plan& plan, std::int64_t point) {
  return static_cast<const float*>(plan.features) + point * plan.flat_feature_stride;
}

// The maximum of a warp's magnitudes goes to shared memory. Each lane has four channels: vector number lane %
// vectors.
__device__ inline void share_largest(const std::uint32_t (&mine)[4], int vectors, std::uint32_t* largest) {
  const auto lane = static_cast<int>(threadIdx.x % warp_size);
#pragma unroll 1
  for (int vector = 0; vector < vectors; ++vector) {
#pragma unroll
    for (int v = 0; v < 4; ++v) {
      const std::uint32_t most = __reduce_max_sync(whole_warp, lane % vectors == vector ? mine[v] : 0u);
      if (lane == 0) atomicMax(largest + vector * 4 + v, most);
    }
  }
}

struct FeatureTile {
  static constexpr int threads = tuning::feature_sort_threads;
  static constexpr int n = tuning::feature_sort_points;
  const Call& call;
  const Plan& plan = call.plan;
  const FeatureBins& to = call.feature_bins;
  const std::int64_t tile;
  const std::int64_t first = tile * feature_tile;
  const int here = static_cast<int>(min(plan.points_per_cloud - first, std::int64_t{feature_tile}));
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % warp_size;
  const int warp = thread / warp_size;

  __device__ FeatureTile(const Call& of, std::int64_t number) : call(of), tile(number) {}

  __device__ void read(float (&p)[n][3]) const {
    const float* const points = static_cast<const float*>(plan.points) + (first + thread) * plan.point_stride;
#pragma unroll
    for (int k = 0; k < n; ++k) {
#pragma unroll
      for (int axis = 0; axis < 3; ++axis) {
        p[k][axis] = thread + k * threads < here ? points[k * threads * plan.point_stride + axis]
                                                 : std::numeric_limits<float>::max();
      }
    }
  }
  __device__ void sort() const;
  __device__ void find_largest() const;
};

__device__ void FeatureTile::sort() const {
  constexpr int each = feature_bin_count / threads;  // bins of a thread
  __shared__ struct {
    alignas(16) std::uint32_t sorted[feature_tile];
    int starts[feature_bin_count];  // first the number of points of each bin, then where it begins
    int totals[feature_sort_warps];
    int not_finite, outside;
  } shared;
  float p[n][3];
  read(p);
#pragma unroll
  for (int k = 0; k < each; ++k) shared.starts[thread + k * threads] = 0;
  if (thread == 0) shared.not_finite = shared.outside = 0;
  if (tile == 0 && thread == 0) {
    *call.heavy_count = 0;
    *call.magnitudes.given = static_cast<unsigned long long>(plan.points_per_cloud);
  }
  __syncthreads();
  std::uint32_t where[n];  // the bin in the upper half, the place there in the lower half
  int ranks[n];            // among the points of the bin; -1: in none
  int outside = 0, not_finite = 0;
#pragma unroll
  for (int k = 0; k < n; ++k) {
    const int at = thread + k * threads;
    bool inside = at < here;
    const auto cell = static_cast<std::uint32_t>(call.axes.cell(p[k], inside));
    where[k] = FeatureBinning::bin_of(cell) << 16 | FeatureBinning::place_in_bin(cell) % 0x10000u;
    ranks[k] = inside ? atomicAdd(shared.starts + (where[k] >> 16), 1) : -1;
    if (at < here) {
      static_cast<std::int32_t*>(call.keys)[first + at] = inside ? static_cast<std::int32_t>(cell) : -1;
      if (!inside) ++(all_finite(p[k]) ? outside : not_finite);
    }
  }
  if (outside > 0) atomicAdd(&shared.outside, outside);
  if (not_finite > 0) atomicAdd(&shared.not_finite, not_finite);
  __syncthreads();

  int counts[each];
  int own = 0;
#pragma unroll
  for (int k = 0; k < each; ++k) {
    counts[k] = shared.starts[thread * each + k];
    own += counts[k];
  }
  int before = sum_in_warp_before(own, shared.totals);
  int all = 0;  // entries
#pragma unroll
  for (int k = 0; k < feature_sort_warps; ++k) {
    if (k < warp) before += shared.totals[k];
    all += shared.totals[k];
  }
#pragma unroll
  for (int k = 0; k < each; ++k) {
    const int bin = thread * each + k;
    shared.starts[bin] = before;
    to.extents[tile * feature_bin_count + bin] = static_cast<std::uint32_t>(before | (before + counts[k]) << 16);
    before += counts[k];
  }
  __syncthreads();
#pragma unroll
  for (int k = 0; k < n; ++k) {
    if (ranks[k] < 0) continue;
    shared.sorted[shared.starts[where[k] >> 16] + ranks[k]] =
        where[k] << 16 | static_cast<std::uint32_t>(thread + k * threads);
  }
  __syncthreads();
  auto* const entries = reinterpret_cast<uint4*>(to.entries + tile * feature_tile);
  for (int k = thread; k < (all + 3) / 4; k += threads) entries[k] = reinterpret_cast<const uint4*>(shared.sorted)[k];
  if (thread == 0) to.dropped[tile] = {shared.not_finite, shared.outside};
}

// The largest magnitudes of the tile's points that are inside the grid.
__device__ void FeatureTile::find_largest() const {
  __shared__ std::uint32_t largest[most_bin_channels];
  if (thread < most_bin_channels) largest[thread] = 0;
  float p[n][3];
  read(p);
  unsigned inside[n];  // lanes whose point is inside
#pragma unroll
  for (int k = 0; k < n; ++k) {
    bool is_inside = thread + k * threads < here;
    call.axes.cell(p[k], is_inside);
    inside[k] = __ballot_sync(whole_warp, is_inside);
  }
  std::uint32_t most[4] = {};
  const float* const from = features_of(plan, first + warp * warp_size) + (lane & (to.vectors - 1)) * 4;
#pragma unroll 1
  for (int vector = lane; vector < warp_size << to.log_vectors; vector += warp_size) {
    const int point = vector >> to.log_vectors;
    Pack<float, 4> pack[n] = {};
#pragma unroll
    for (int k = 0; k < n; ++k) {
      if ((inside[k] >> point & 1u) == 0) continue;
      pack[k] = *reinterpret_cast<const Pack<float, 4>*>(from + (point + k * threads) * plan.flat_feature_stride);
    }
#pragma unroll
    for (int k = 0; k < n; ++k) {
#pragma unroll
      for (int v = 0; v < 4; ++v) most[v] = max(most[v], magnitude_of(pack[k].x[v]));
    }
  }
  __syncthreads();
  share_largest(most, to.vectors, largest);
  __syncthreads();
  if (thread < plan.channels) to.largest[tile * plan.channels + thread] = largest[thread];
}

// One block for each tile; where there are sums, one more for each tile.
__global__ void __launch_bounds__(tuning::feature_sort_threads, tuning::feature_sort_blocks)
    voxelize_feature_sort_kernel(const __grid_constant__ Call call) {
  wait_on_dependent_grids();
  launch_dependent_grids();
  if (const int tiles = call.feature_bins.tiles; static_cast<int>(blockIdx.x) < tiles) {
    FeatureTile(call, blockIdx.x).sort();
  } else {
    FeatureTile(call, blockIdx.x - tiles).find_largest();
  }
}

}  // namespace
}  // namespace robocache::voxelize_op
