// Counts of many scattered points on a GPU, by bins of cells.
//
// Points that are neighbours in memory but not in space each cost an atomic in L2. Instead, a block sorts the points
// of a tile by bin in shared memory; then a block for each bin counts its points of all tiles, in shared memory too,
// and writes the bin's cells, the empty ones as well. The sort kernel looks at a sample of the points and decides
// whether to do this; the counts are the same either way.
#pragma once

#include "ops/voxelize/cuda/call.h"

namespace robocache::voxelize_op {
namespace {

constexpr int bin_threads = tuning::bin_threads;
constexpr int bin_warps = bin_threads / warp_size;
constexpr int bin_tile = bin_threads * tuning::bin_points;  // points
constexpr int bin_places = bin_tile + bins;                 // every bin begins at an even place: two are read at once

// Which bin has a cell. Lines of 32 cells go to the bins in turn, so that a plane of points, such as a wall, spreads
// over all bins.
template <std::uint32_t bins>
struct InterleavedBins {
  __device__ static std::uint32_t bin_of(std::uint32_t cell) {
    return (cell / 32 + cell / (32 * bins) * tuning::bin_mix) % bins;
  }
  __device__ static std::uint32_t place_in_bin(std::uint32_t cell) { return cell / (32 * bins) * 32 + cell % 32; }
  // The bin in the upper half, the place there in the lower half.
  __device__ static std::uint32_t where(std::uint32_t cell) { return bin_of(cell) << 16 | place_in_bin(cell); }
  __device__ static std::uint32_t cell_in_bin(std::uint32_t bin, std::uint32_t place) {
    const std::uint32_t row = place / 32;
    return (row * bins + (bin - row * tuning::bin_mix) % bins) * 32 + place % 32;
  }
};
using CountBinning = InterleavedBins<bins>;

// Whether points that are neighbours in memory mostly lie in different cells, judged by the points of a few warps.
// All threads of the block must call it.
__device__ bool is_scattered(const Call& call) {
  constexpr int samples = 4;
  bool is_first = false;  // the first of the warp's points in its cell
  if (const auto sample = static_cast<int>(threadIdx.x / warp_size); sample < samples) {
    const auto lane = static_cast<int>(threadIdx.x % warp_size);
    const std::int64_t point = call.plan.points_per_cloud * (2 * sample + 1) / (2 * samples) + lane;
    const float* const at = static_cast<const float*>(call.plan.points) + point * call.plan.point_stride;
    const float p[3] = {at[0], at[1], at[2]};
    bool inside = true;
    const std::int32_t cell = call.axes.cell(p, inside);
    const unsigned same = __match_any_sync(whole_warp, inside ? cell : -1);
    is_first = __ffs(static_cast<int>(same)) - 1 == lane;
  }
  return 4 * __syncthreads_count(is_first ? 1 : 0) > 3 * samples * warp_size;
}

struct SortShared {
  std::uint32_t where[bin_tile];                 // of each point: its bin (upper half) and its place there
  alignas(16) std::uint16_t sorted[bin_places];  // the places, sorted by bin
  int starts[bins + 1];               // first the points of each bin, then where it begins; the last: points in no bin
  alignas(16) int totals[bin_warps];  // read as vectors
  int dropped[drop_reasons];
};

// The sum of `own` over the lanes below this one. The sum of each warp goes to totals. All threads of the block must call it.
__device__ __forceinline__ int sum_in_warp_before(int own, int* totals) {
  const auto thread = static_cast<int>(threadIdx.x);
  const int sum = warp_inclusive_sum(own);
  if (thread % warp_size == warp_size - 1) totals[thread / warp_size] = sum;
  __syncthreads();
  return sum - own;
}

// Turns the number of points of each bin into where the bin begins, and writes the bins' extents. Adds the points in bins to
// `inside`. All threads of the block must call it.
__device__ __forceinline__ void place_bins(const Call& call, SortShared& shared, std::int64_t tile, int thread,
                                           int lane, int warp, int& inside) {
  constexpr int each = bins / bin_threads;  // bins of a thread
  int counts[each];
  int own = 0;
#pragma unroll
  for (int k = 0; k < each; ++k) {
    counts[k] = shared.starts[thread * each + k];
    inside += counts[k];
    own += (counts[k] + 1) / 2 * 2;
  }
  int before = sum_in_warp_before(own, shared.totals);
  for (int k = 0; k < warp; ++k) before += shared.totals[k];
#pragma unroll
  for (int k = 0; k < each; ++k) {
    const int bin = thread * each + k;
    shared.starts[bin] = before;
    call.bins.extents[tile * bins + bin] = static_cast<std::uint32_t>(before | (before + counts[k]) << 16);
    before += (counts[k] + 1) / 2 * 2;
  }
  if (thread == bin_threads - 1) shared.starts[bins] = before;
  __syncthreads();
}

// Sorts scattered points, tile by tile. Where they are not scattered it only fills the grids, for the points kernel.
__global__ void __launch_bounds__(bin_threads, tuning::sort_blocks)
    voxelize_sort_kernel(const __grid_constant__ Call call) {
  constexpr int flight = 4;                 // points that a thread loads before it uses the first
  constexpr int each = bins / bin_threads;  // bins of a thread
  const Plan& plan = call.plan;
  extern __shared__ uint4 memory[];
  SortShared& shared = *reinterpret_cast<SortShared*>(memory);
  wait_on_dependent_grids();
  launch_dependent_grids();
  const bool scattered = is_scattered(call);
  if (blockIdx.x == 0 && threadIdx.x == 0) *call.bins.scattered = scattered;
  if (!scattered) return fill_all(call);
  const auto thread = static_cast<int>(threadIdx.x);
  const int lane = thread % warp_size;
  const int warp = thread / warp_size;
  if (thread < drop_reasons) shared.dropped[thread] = 0;
  __syncthreads();
  int given = 0, inside_all = 0, not_finite = 0;  // points
  float next[flight][3];                          // being loaded; the largest float where there is no point
  const auto read = [&](std::int64_t tile, int k) {
    const std::int64_t first = tile * bin_tile + k;
    const float* at = static_cast<const float*>(plan.points) + first * plan.point_stride;
#pragma unroll
    for (int j = 0; j < flight; ++j, at += bin_threads * plan.point_stride) {
#pragma unroll
      for (int axis = 0; axis < 3; ++axis) {
        next[j][axis] =
            first + j * bin_threads < plan.points_per_cloud ? __ldcs(at + axis) : std::numeric_limits<float>::max();
      }
    }
  };
  read(blockIdx.x, thread);
  for (std::int64_t tile = blockIdx.x; tile < call.bins.tiles; tile += gridDim.x) {
#pragma unroll
    for (int k = 0; k < each; ++k) shared.starts[thread + k * bin_threads] = 0;
    if (thread == 0) {
      shared.starts[bins] = 0;
      given += static_cast<int>(min(plan.points_per_cloud - tile * bin_tile, std::int64_t{bin_tile}));
    }
    __syncthreads();
#pragma unroll 1
    for (int k = thread; k < bin_tile; k += flight * bin_threads) {
      float p[flight][3];
#pragma unroll
      for (int j = 0; j < flight; ++j) {
#pragma unroll
        for (int axis = 0; axis < 3; ++axis) p[j][axis] = next[j][axis];
      }
      const bool is_last = k + flight * bin_threads >= bin_tile;
      read(is_last ? tile + gridDim.x : tile, is_last ? thread : k + flight * bin_threads);
      bool all_inside = true;
#pragma unroll
      for (int j = 0; j < flight; ++j) {
        bool inside = true;
        const auto cell = static_cast<std::uint32_t>(call.axes.cell(p[j], inside));
        const std::uint32_t where = inside ? CountBinning::where(cell) : bins << 16;
        shared.where[k + j * bin_threads] = where;
        atomicAdd(shared.starts + (where >> 16), 1);
        all_inside &= inside;
      }
      if (all_inside) continue;
#pragma unroll
      for (int j = 0; j < flight; ++j) {
        if (!all_finite(p[j])) ++not_finite;
      }
    }
    __syncthreads();
    place_bins(call, shared, tile, thread, lane, warp, inside_all);
#pragma unroll 4
    for (int k = thread; k < bin_tile; k += bin_threads) {
      const std::uint32_t where = shared.where[k];
      shared.sorted[atomicAdd(shared.starts + (where >> 16), 1)] = static_cast<std::uint16_t>(where);
    }
    __syncthreads();
    auto* const to = reinterpret_cast<uint4*>(call.bins.places + tile * bin_places);
    for (int k = thread; k < bin_places / 8; k += bin_threads) to[k] = reinterpret_cast<const uint4*>(shared.sorted)[k];
    __syncthreads();
  }
  if (not_finite > 0) atomicAdd(shared.dropped + static_cast<int>(Drop::not_finite), not_finite);
  atomicAdd(shared.dropped + static_cast<int>(Drop::outside), given - inside_all - not_finite);
  __syncthreads();
  if (thread < drop_reasons) call.bins.dropped[blockIdx.x * drop_reasons + thread] = shared.dropped[thread];
}

// Counts the sorted points, bin by bin.
__global__ void __launch_bounds__(bin_threads, tuning::bins_blocks)
    voxelize_bins_kernel(const __grid_constant__ Call call) {
  constexpr int lanes = 16;                   // lanes that read the points of one tile, two each
  constexpr int at_once = warp_size / lanes;  // tiles
  constexpr int flight = 4;
  const Plan& plan = call.plan;
  extern __shared__ uint4 memory[];
  int* const counts = reinterpret_cast<int*>(memory);
  wait_on_dependent_grids();
  launch_dependent_grids();
  if (!*call.bins.scattered) return;
  const auto thread = static_cast<int>(threadIdx.x);
  const int lane = thread % warp_size;
  if (blockIdx.x == 0 && thread < drop_reasons && plan.dropped != nullptr) {
    std::int64_t dropped = 0;
    for (int k = 0; k < call.bins.sorters; ++k) dropped += call.bins.dropped[k * drop_reasons + thread];
    plan.dropped[thread] = dropped;
  }
  const std::uint32_t mine = lane % lanes * 2;
  const auto cells = static_cast<std::uint32_t>(call.all_cells);
  for (std::uint32_t bin = blockIdx.x; bin < bins; bin += gridDim.x) {
    for (int k = thread; k < call.bins.cells / 4; k += bin_threads) memory[k] = {};
    __syncthreads();
    for (int first = thread - lane; first < call.bins.tiles; first += bin_threads) {
      const int tile = first + lane;
      const std::uint32_t extent = tile < call.bins.tiles ? call.bins.extents[std::int64_t{tile} * bins + bin] : 0u;
      const std::uint16_t* places = call.bins.places + std::int64_t{first + lane / lanes} * bin_places + mine;
#pragma unroll 1
      for (int k = 0; k < warp_size; k += at_once * flight, places += flight * at_once * bin_places) {
        std::uint32_t left[flight], pairs[flight];  // places left from this lane on, and the first two
#pragma unroll
        for (int j = 0; j < flight; ++j) {
          const std::uint32_t here = __shfl_sync(whole_warp, extent, k + j * at_once + lane / lanes);
          const std::uint32_t number = (here >> 16) - here % 0x10000u;
          left[j] = number > mine ? number - mine : 0;
          pairs[j] = 0;
          if (left[j] > 0) {
            pairs[j] = *reinterpret_cast<const std::uint32_t*>(places + j * at_once * bin_places + here % 0x10000u);
          }
        }
        bool more = false;
#pragma unroll
        for (int j = 0; j < flight; ++j) {
          int* const one = counts + pairs[j] % 0x10000u;
          int* const other = counts + (pairs[j] >> 16);
          if (left[j] > 0) atomicAdd(one, 1);
          if (left[j] > 1) atomicAdd(other, 1);
          more = more || left[j] > 2 * lanes;
        }
        if (!__any_sync(whole_warp, more)) continue;
#pragma unroll 1
        for (int j = 0; j < flight; ++j) {
          const std::uint32_t here = __shfl_sync(whole_warp, extent, k + j * at_once + lane / lanes);
          for (std::uint32_t place = here % 0x10000u + 2 * lanes; place + mine < here >> 16; place += 2 * lanes) {
            const auto pair = *reinterpret_cast<const std::uint32_t*>(places + j * at_once * bin_places + place);
            atomicAdd(counts + pair % 0x10000u, 1);
            if (place + mine + 1 < here >> 16) atomicAdd(counts + (pair >> 16), 1);
          }
        }
      }
    }
    __syncthreads();
    for (int k = thread * 4; k < call.bins.cells; k += bin_threads * 4) {
      const std::uint32_t cell = CountBinning::cell_in_bin(bin, static_cast<std::uint32_t>(k));
      if (call.bins.wide && cell + 4 <= cells) {
        *reinterpret_cast<uint4*>(plan.count + cell) = memory[k / 4];
      } else {
        for (std::uint32_t j = 0; j < 4 && cell + j < cells; ++j) plan.count[cell + j] = counts[k + j];
      }
    }
    __syncthreads();
  }
}

Bins::Bins(const Plan& plan, const CudaMachine& machine) {
  const std::int64_t rows = divide_up(divide_up(plan.grids * plan.cells, 32), bins);
  const bool counts_alone = plan.count != nullptr && plan.occupancy == nullptr && plan.bits == nullptr;
  // Padding of a tile is at the largest float, which must be in no cell.
  const bool is_farthest = static_cast<float>(plan.origin[0]) == std::numeric_limits<float>::max();
  if (is_farthest || !is_plain(plan) || plan.dtype != DType::f32 || !counts_alone || plan.reduces_features() ||
      plan.accumulate || plan.all_points < tuning::bin_least_points || rows > tuning::bin_most_rows ||
      machine.shared_bytes < static_cast<int>(sizeof(SortShared))) {
    return;
  }
  tiles = static_cast<int>(divide_up(plan.all_points, bin_tile));
  cells = static_cast<int>(rows * 32);
  sorters = machine.processors * tuning::sort_blocks;
  early_blocks = static_cast<unsigned>(machine.processors * tuning::early_blocks_per_processor);
  counters = std::min(bins, machine.processors * tuning::bins_blocks);
  wide = reinterpret_cast<std::uintptr_t>(plan.count) % 16 == 0;
}

}  // namespace
}  // namespace robocache::voxelize_op
