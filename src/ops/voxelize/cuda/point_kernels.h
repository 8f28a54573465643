// The kernels that fill the grids, put the points in, and write what depends on all points.
#pragma once

#include "ops/voxelize/cuda/cell_cache.h"
#include "ops/voxelize/cuda/chains.h"

namespace robocache::voxelize_op {
namespace {

// ---- filling -------------------------------------------------------------------------------------------------------

__global__ void __launch_bounds__(tuning::threads) voxelize_fill_kernel(const __grid_constant__ Call call) {
  wait_on_dependent_grids();
  launch_dependent_grids();  // so the next kernel may read its input at once: all kernels that wrote it are complete
  check_data<tuning::threads>(call.plan, call.box);
  fill_all(call);
}

// ---- points --------------------------------------------------------------------------------------------------------

// A point of a plain cloud.
template <class T, class Index, class C>
__device__ Index locate_plain(const Call& call, const Cloud<C>& cloud, std::int64_t k, Drop& drop) {
  drop = Drop::none;
  if (k >= cloud.count) return -1;
  const T* const from = static_cast<const T*>(call.plan.points) + k * call.plan.point_stride;
  const C p[3] = {widen(from[0]), widen(from[1]), widen(from[2])};
  const Place place = place_of<Index>(call.plan, call.axes, cloud, p);
  drop = place.drop;
  return static_cast<Index>(place.cell);
}

// Sets a cell's byte to 1. Where all bytes of its word are 0 or 1, an atomicOr on the word: the L2 does that faster
// than a byte store.
template <class Index>
__device__ void mark(const Call& call, std::uint8_t* cells, Index key) {
  if (key < static_cast<Index>(call.word_cells)) {
    const auto bit = static_cast<unsigned>(key) * 8u;  // a funnel shift uses only the lowest five bits
    atomicOr(reinterpret_cast<unsigned*>(cells + (key & ~Index{3})), __funnelshift_l(0u, 1u, bit));
  } else {
    cells[key] = 1;
  }
}

// A pixel of a dense image of a pinhole camera: to_grid_frame() and cell_of() with 32-bit integers.
template <class T, class C>
__device__ Place locate_pixel(const Call& call, const Cloud<C>& cloud, const T* image, std::uint32_t k) {
  const Plan& plan = call.plan;
  const std::uint32_t v = call.width.divide(k);
  const std::uint32_t u = k - v * static_cast<std::uint32_t>(plan.width);
  C p[3];
  if (!camera::depth_of(plan, image[k], p[2])) return {Drop::no_reading, -1};
  camera::unproject(cloud, v, u, p[2], p);
  // A point that is not finite stays so: a non-finite term makes the sum non-finite.
  if (plan.poses.data != nullptr) camera::transform(cloud, p);
  return place_of<std::int32_t>(plan, call.axes, cloud, p);
}

// Adds what a block of the cloud kernel dropped. `outside` also counts the lanes without a point. All threads of the block
// must call it.
__device__ __forceinline__ void add_dropped(const Plan& plan, int points, int outside, int not_finite, int* dropped) {
  if (plan.dropped == nullptr) return;
  if (outside > not_finite) atomicAdd(dropped + static_cast<int>(Drop::outside), outside - not_finite);
  if (not_finite > 0) atomicAdd(dropped + static_cast<int>(Drop::not_finite), not_finite);
  __syncthreads();
  if (threadIdx.x == 0) {
    const auto all = static_cast<int>(divide_up(points, round_points) * round_points);
    dropped[static_cast<int>(Drop::outside)] -= all - points;
  }
  __syncthreads();
  if (threadIdx.x < drop_reasons && dropped[threadIdx.x] > 0) {
    atomicAdd(reinterpret_cast<unsigned long long*>(plan.dropped) + threadIdx.x,
              static_cast<unsigned long long>(dropped[threadIdx.x]));
  }
}

// Counts, occupancy or both of a plain cloud whose cells are quick to find.
template <class T, bool Counts, bool Marks>
__global__ void __launch_bounds__(tuning::threads) voxelize_cloud_kernel(const __grid_constant__ Call call) {
  constexpr int n = tuning::points_per_thread;
  const Plan& plan = call.plan;
  __shared__ CellCache cache;
  __shared__ int dropped[drop_reasons];
  if (threadIdx.x < drop_reasons) dropped[threadIdx.x] = 0;
  const auto lane = static_cast<int>(threadIdx.x % warp_size);
  const std::int64_t first = blockIdx.x * call.tiling.points;
  const auto points = static_cast<int>(min(call.tiling.points, plan.points_per_cloud - first));
  auto at = static_cast<int>(threadIdx.x / warp_size) * warp_points + lane;
  const T* from = static_cast<const T*>(plan.points) + (first + at) * plan.point_stride;
  // If the points turn out to be scattered, the sort kernel counts them, and what is read here is wasted. So only the
  // first blocks, which wait for that kernel anyway, read before they know.
  if (call.bins.tiles > 0 && blockIdx.x >= call.bins.early_blocks) {
    wait_on_dependent_grids();
    if (*call.bins.scattered) return;
  }
  T next[n][3] = {};  // points of the next round, being loaded
  const auto read = [&](int number) {
#pragma unroll
    for (int k = 0; k < n; ++k) {
      if (number + k * warp_size >= points) continue;
#pragma unroll
      for (int axis = 0; axis < 3; ++axis) next[k][axis] = from[k * warp_size * plan.point_stride + axis];
    }
    from += round_points * plan.point_stride;
  };
  read(at);
  // One round reuses too few cells for the cache to pay.
  const bool may_meet = call.tiling.points > round_points;
  bool shares = may_meet;
  if (shares) cache.clear();
  __syncthreads();
  int outside = 0, not_finite = 0;  // `outside` also counts the lanes without a point
  for (int round = 0; round < points; round += round_points, at += round_points) {
    std::int32_t keys[n];
#pragma unroll
    for (int k = 0; k < n; ++k) {
      const bool is_point = at + k * warp_size < points;
      bool inside = is_point;
      const float p[3] = {widen(next[k][0]), widen(next[k][1]), widen(next[k][2])};
      const std::int32_t cell = call.axes.cell(p, inside);
      keys[k] = inside ? cell : -1;
      if (!inside) {
        ++outside;
        if (is_point && !all_finite(p)) ++not_finite;
      }
    }
    read(at + round_points);
    wait_on_dependent_grids();  // the grids are filled
    if (round == 0 && call.bins.tiles > 0 && *call.bins.scattered) return;
#pragma unroll
    for (int k = 0; k < n; ++k) {
      const std::int32_t previous = __shfl_up_sync(whole_warp, keys[k], 1);
      const bool begins = lane == 0 || keys[k] != previous;
      bool leads = begins && keys[k] >= 0;
      bool adds = leads;
      int length = 0;
      if constexpr (Counts) {
        const unsigned later = __ballot_sync(whole_warp, begins) >> lane >> 1;
        length = later == 0 ? warp_size - lane : __ffs(static_cast<int>(later));
      }
      if (shares) {
        const unsigned runs = __ballot_sync(whole_warp, leads);
        if constexpr (Counts) {
          const int taken = leads ? cache.add(keys[k], length) : 0;
          adds = leads && taken == 0;
          leads = leads && taken != 2;
        } else if (leads) {
          leads = cache.enter(keys[k]);
        }
        // Where each point has a cell of its own the cache only costs.
        shares = 4 * __popc(__ballot_sync(whole_warp, leads)) <= 3 * __popc(runs);
      }
      // The result is unused, so this is a RED instruction: nothing waits for it.
      if constexpr (Counts) {
        if (adds) atomicAdd(plan.count + keys[k], length);
      }
      if constexpr (Marks) {
        if (leads && plan.occupancy != nullptr) mark(call, plan.occupancy, keys[k]);
        if (leads && call.occupied != nullptr) call.occupied[keys[k]] = 1;
      }
    }
  }
  wait_on_dependent_grids();  // blocks without points must wait, too
  if (Counts && may_meet) {
    __syncthreads();
    cache.flush(plan.count);
  }
  launch_dependent_grids();
  add_dropped(plan, points, outside, not_finite, dropped);
}

// Makes a thread's points the heads of their cells' chains, and counts the points that are given to each grid.
template <class Index, class C>
__device__ __forceinline__ void link_points(const Call& call, const Tile<C>& tile, std::int64_t round,
                                            std::int64_t base, const Index (&keys)[tuning::points_per_thread],
                                            const std::int64_t (&clouds)[tuning::points_per_thread]) {
  constexpr int n = tuning::points_per_thread;
  const Plan& plan = call.plan;
  // The points of a warp are contiguous in memory, even across clouds.
  const std::int64_t number = number_in(plan, tile, base);
  std::int32_t previous[n] = {}, lengths[n];
#pragma unroll
  for (int k = 0; k < n; ++k) {
    const Runs runs(keys[k]);
    lengths[k] = runs.leads ? runs.length : 0;
    if (runs.leads) previous[k] = atomicExch(call.heads + keys[k], static_cast<std::int32_t>(number + k * warp_size));
  }
#pragma unroll
  for (int k = 0; k < n; ++k) {
    if (base + k * warp_size < tile.stored) static_cast<Index*>(call.keys)[number + k * warp_size] = keys[k];
  }
  if (threadIdx.x == 0 && tile.one && tile.first + round == 0) {
    atomicAdd(call.magnitudes.given + tile.cloud.grid, static_cast<unsigned long long>(tile.cloud.count));
  }
#pragma unroll
  for (int k = 0; k < n; ++k) {
    const std::int64_t at = base + k * warp_size;
    if (!tile.one && at < tile.count && clouds[k] >= 0 && integer(plan.offsets, clouds[k]) == tile.first + at) {
      Cloud<float> cloud;
      set_extent(plan, clouds[k], cloud);
      atomicAdd(call.magnitudes.given + cloud.grid, static_cast<unsigned long long>(cloud.count));
    }
  }
#pragma unroll
  for (int k = 0; k < n; ++k) {
    if (lengths[k] > 0) call.nodes[number + k * warp_size] = {previous[k], lengths[k]};
  }
}

// Counts and marks the cells of a thread's points. shares: whether the cell cache is still in use.
template <class Index, class Cache>
__device__ __forceinline__ void count_and_mark(const Call& call, const Index (&keys)[tuning::points_per_thread],
                                               Cache& cache, bool& shares) {
  constexpr bool may_share = std::is_same_v<Cache, CellCache>;
  const Plan& plan = call.plan;
#pragma unroll
  for (int k = 0; k < tuning::points_per_thread; ++k) {
    const Runs runs(keys[k]);
    bool leads = runs.leads;
    bool adds = leads;
    if constexpr (may_share) {
      if (shares) {
        if (plan.count != nullptr) {
          const int taken = leads ? cache.add(keys[k], runs.length) : 0;
          adds = leads && taken == 0;
          leads = leads && taken != 2;
        } else if (leads) {
          leads = cache.enter(keys[k]);
        }
        // Where points seldom share cells, the cell cache costs more than it saves.
        const unsigned new_ones = __ballot_sync(whole_warp, leads);
        shares = 4 * __popc(new_ones) <= 3 * __popc(__ballot_sync(whole_warp, runs.leads));
      }
    }
    // The old value is unused, so this is a RED instruction, and no thread waits for it.
    if (adds && plan.count != nullptr) atomicAdd(plan.count + keys[k], runs.length);
    if (leads && plan.occupancy != nullptr) mark(call, plan.occupancy, keys[k]);
    if (leads && call.occupied != nullptr) call.occupied[keys[k]] = 1;
  }
}

// Counts why points are in no cell: in shared memory where the block has one cloud.
template <class C>
__device__ __forceinline__ void count_drops(const Plan& plan, const Tile<C>& tile,
                                            const Drop (&drops)[tuning::points_per_thread],
                                            const std::int64_t (&clouds)[tuning::points_per_thread], int lane,
                                            int* dropped) {
#pragma unroll
  for (int k = 0; plan.dropped != nullptr && k < tuning::points_per_thread; ++k) {
    if (!__any_sync(whole_warp, drops[k] != Drop::none)) continue;
#pragma unroll
    for (int reason = 0; reason < drop_reasons; ++reason) {
      const bool mine = static_cast<int>(drops[k]) == reason;
      if (tile.one) {
        const int count = __popc(__ballot_sync(whole_warp, mine));
        if (lane == 0 && count > 0) atomicAdd(dropped + reason, count);
      } else if (mine) {
        atomicAdd(reinterpret_cast<unsigned long long*>(plan.dropped) + clouds[k] * drop_reasons + reason, 1ull);
      }
    }
  }
}

// What a block kept in shared memory goes to global memory.
template <bool Features, class C>
__device__ __forceinline__ void write_block_results(const Call& call, const Tile<C>& tile, const int* dropped,
                                                    const std::uint32_t* largest) {
  const Plan& plan = call.plan;
  const bool drops_together = plan.dropped != nullptr && tile.one;
  const bool shares_largest = Features && call.sums && (tile.one || plan.grids == 1);
  if (!drops_together && !shares_largest) return;
  __syncthreads();
  if (drops_together && threadIdx.x < drop_reasons && dropped[threadIdx.x] > 0) {
    atomicAdd(reinterpret_cast<unsigned long long*>(plan.dropped) + tile.cloud.number * drop_reasons + threadIdx.x,
              static_cast<unsigned long long>(dropped[threadIdx.x]));
  }
  if (shares_largest && threadIdx.x < min(plan.channels, std::int64_t{most_shared_channels})) {
    const std::uint32_t magnitude = largest[threadIdx.x];
    std::uint32_t* const to = call.magnitudes.largest + (tile.one ? tile.cloud.grid : 0) * plan.channels + threadIdx.x;
    if (magnitude > 0) atomicMax(to, magnitude);
  }
}

enum class From { points, plain_points, images };  // is_plain(), is_image()

template <class T, class Index, From from, bool Features>
__global__ void __launch_bounds__(tuning::threads) voxelize_points_kernel(const __grid_constant__ Call call) {
  using C = compute_t<T>;
  constexpr int n = tuning::points_per_thread;
  constexpr bool Plain = from == From::plain_points;
  const Plan& plan = call.plan;
  __shared__ Tile<C> tile;
  __shared__ int dropped[drop_reasons];
  __shared__ std::uint32_t largest[Features ? most_shared_channels : 1];
  if (threadIdx.x < drop_reasons) dropped[threadIdx.x] = 0;
  if (Features && threadIdx.x < most_shared_channels) largest[threadIdx.x] = 0;
  if (threadIdx.x == 0) {
    if constexpr (Plain) {
      tile.one = true;
      tile.first = blockIdx.x * call.tiling.points;
      tile.count = tile.stored = min(call.tiling.points, plan.points_per_cloud - tile.first);
      tile.cloud.number = tile.cloud.grid = tile.cloud.first = 0;
      tile.cloud.count = plan.points_per_cloud;
    } else {
      set_tile(plan, call.tiling, tile);
    }
  }
  // One round reuses too little for the cell cache to pay.
  constexpr bool may_share = !Features && sizeof(Index) == 4;
  __shared__ std::conditional_t<may_share, CellCache, int> cache;
  const bool may_meet = may_share && call.tiling.points > round_points;
  bool shares = may_meet;
  if constexpr (may_share) {
    if (shares) {
      cache.clear();
      if constexpr (Plain) __syncthreads();
    }
  }
  if constexpr (!Plain) __syncthreads();
  const auto lane = static_cast<int>(threadIdx.x % warp_size);
  std::int64_t base = static_cast<std::int64_t>(threadIdx.x / warp_size) * warp_points + lane;
  const std::int64_t plain_points = Features ? round_points : call.tiling.points;
  const std::int64_t plain_first = blockIdx.x * plain_points;
  const std::int64_t plain_stored = Features ? round_points : min(plain_points, plan.points_per_cloud - plain_first);
  for (std::int64_t round = 0; round < (Plain ? plain_stored : tile.stored);
       round += round_points, base += round_points) {
    Index keys[n];
    Drop drops[n];
    std::int64_t clouds[n];
    if constexpr (Plain) {
      Cloud<C> cloud;
      cloud.count = plan.points_per_cloud;
#pragma unroll
      for (int axis = 0; axis < 3; ++axis) {
        cloud.origin[axis] = static_cast<C>(plan.origin[axis]);
        cloud.voxel_size[axis] = static_cast<C>(plan.voxel_size[axis]);
      }
#pragma unroll
      for (int k = 0; k < n; ++k) {
        const std::int64_t at = plain_first + base + k * warp_size;
        keys[k] = locate_plain<T, Index>(call, cloud, at, drops[k]);
      }
      if (round == 0) __syncthreads();
    } else if constexpr (from == From::images) {
      const Cloud<C> cloud = tile.cloud;
      const T* const image = static_cast<const T*>(plan.points) + cloud.number * plan.points_per_cloud;
#pragma unroll
      for (int k = 0; k < n; ++k) {
        const std::int64_t at = base + k * warp_size;
        Place place;
        if (at < tile.count) place = locate_pixel(call, cloud, image, static_cast<std::uint32_t>(tile.first + at));
        drops[k] = place.drop;
        keys[k] = static_cast<Index>(place.cell < 0 ? -1 : cloud.grid * plan.cells + place.cell);
      }
    } else {
#pragma unroll
      for (int k = 0; k < n; ++k) {
        C p[3] = {};
        keys[k] = locate_in<T, Index>(plan, call.axes, tile, base + k * warp_size, drops[k], clouds[k], p);
      }
    }
    if constexpr (Features) {
      if (call.sums) find_largest(call, tile, base, keys, largest);
    }

    wait_on_dependent_grids();  // the grids, or the chains' heads, are filled
    if constexpr (Features) {
      link_points(call, tile, round, base, keys, clouds);
    } else {
      count_and_mark(call, keys, cache, shares);
    }
    count_drops(plan, tile, drops, clouds, lane, dropped);
    __syncwarp();  // the lanes have read what find_largest() keeps in shared memory
  }
  if constexpr (may_share) {
    if (may_meet && plan.count != nullptr) {
      __syncthreads();
      cache.flush(plan.count);
    }
  }
  launch_dependent_grids();
  write_block_results<Features>(call, tile, dropped, largest);
}

// ---- what is left --------------------------------------------------------------------------------------------------

// Counts start from 0; the value of empty cells is written last.
__host__ __device__ bool empties_count(const Call& call) {
  return call.plan.count != nullptr && call.heads == nullptr && call.plan.empty != 0 && !call.plan.accumulate;
}

// Writes the value of empty cells into counts, where it is not 0, and packs occupancy into bits.
__global__ void __launch_bounds__(tuning::threads) voxelize_marks_kernel(const __grid_constant__ Call call) {
  const Plan& plan = call.plan;
  wait_on_dependent_grids();
  launch_dependent_grids();
  const std::int64_t thread = static_cast<std::int64_t>(blockIdx.x) * tuning::threads + threadIdx.x;
  const std::int64_t stride = static_cast<std::int64_t>(gridDim.x) * tuning::threads;
  if (empties_count(call)) {
    for (std::int64_t k = thread; k < call.all_cells; k += stride) {
      if (plan.count[k] == 0) plan.count[k] = static_cast<std::int32_t>(plan.empty);
    }
  }
  if (plan.bits == nullptr) return;
  const std::int64_t bytes = (plan.shape[2] + 7) / 8;
  for (std::int64_t k = thread; k < call.all_cells / plan.shape[2] * bytes; k += stride) {
    const std::int64_t line = k / bytes;
    const std::int64_t z = (k - line * bytes) * 8;
    unsigned bits = plan.accumulate ? plan.bits[k] : 0u;
    for (int n = 0; n < 8 && z + n < plan.shape[2]; ++n) {
      if (call.occupied[line * plan.shape[2] + z + n] != 0) bits |= 1u << n;
    }
    plan.bits[k] = static_cast<std::uint8_t>(bits);
  }
}

}  // namespace
}  // namespace robocache::voxelize_op
