// voxelize on a GPU.
//
// One kernel fills, the next puts the points in; neighbours that share a cell are counted in the warp first. That is all
// for counts and occupancy, but for counts of many points that come in no order, which cuda_bins.h sorts. Where features are
// reduced the points form chains, which cuda_features.h makes cells of; those of plain clouds form bins
// (cuda_feature_bins.h). Depth images have kernels of their own (cuda_images.h).
#include <algorithm>

#include "ops/voxelize/cuda_bins.h"
#include "ops/voxelize/cuda_feature_bins.h"
#include "ops/voxelize/cuda_features.h"
#include "ops/voxelize/cuda_images.h"
#include "ops/voxelize/room.h"

namespace robocache::voxelize_op {
namespace {

// ---- filling -------------------------------------------------------------------------------------------------------

__global__ void __launch_bounds__(tuning::threads) voxelize_fill_kernel(const __grid_constant__ Call call) {
  after_earlier_work();
  let_next_begin();  // so it may read its input at once: all that wrote it is done
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

// A cell's byte becomes 1. Where all of them are 0 or 1 the word that it is in is or-ed, which takes the L2 less time than
// to write a byte.
template <class Index>
__device__ void mark(const Call& call, std::uint8_t* cells, Index key) {
  if (key < static_cast<Index>(call.word_cells)) {
    const auto bit = static_cast<unsigned>(key) * 8u;  // of which a funnel shift takes the lowest five bits
    atomicOr(reinterpret_cast<unsigned*>(cells + (key & ~Index{3})), __funnelshift_l(0u, 1u, bit));
  } else {
    cells[key] = 1;
  }
}

// Cells that points of a block were in. Where many blocks meet in few cells, as they do near a lidar, their atomics wait
// for each other: what a block can put together it does. Another cell may have a cell's slot.
struct Recent {
  static constexpr int slots = tuning::recent_slots;
  std::int32_t keys[slots];  // -1: none
  int counts[slots];

  __device__ void clear() {
    for (auto slot = static_cast<int>(threadIdx.x); slot < slots; slot += tuning::threads) {
      keys[slot] = -1;
      counts[slot] = 0;
    }
  }
  __device__ static unsigned slot_of(std::int32_t key) {
    return __umulhi(static_cast<unsigned>(key) * 0x9e3779b1u, slots);  // the upper bits of a product that mixes them
  }
  // Whether a cell is here from now on and was not just before.
  __device__ bool enter(std::int32_t key) { return atomicExch(keys + slot_of(key), key) != key; }
  // Whether it was taken up: 0: no, 1: as the first of its cell, 2: as another.
  __device__ int add(std::int32_t key, int count) {
    const unsigned slot = slot_of(key);
    const std::int32_t before = atomicCAS(keys + slot, -1, key);
    if (before != -1 && before != key) return 0;
    atomicAdd(counts + slot, count);
    return before == key ? 2 : 1;
  }
  __device__ void flush(std::int32_t* to) {
    for (auto slot = static_cast<int>(threadIdx.x); slot < slots; slot += tuning::threads) {
      if (keys[slot] >= 0) atomicAdd(to + keys[slot], counts[slot]);
    }
  }
};

// A pixel of a dense image that a pinhole camera took, as bring() and cell_of() have it, with 32-bit numbers.
template <class T, class C>
__device__ Place locate_pixel(const Call& call, const Cloud<C>& cloud, const T* image, std::uint32_t k) {
  const Plan& plan = call.plan;
  const std::uint32_t v = call.width.divide(k);
  const std::uint32_t u = k - v * static_cast<std::uint32_t>(plan.width);
  C p[3];
  if (!depth_of(plan, image[k], p[2])) return {Drop::no_reading, -1};
  p[0] = ((static_cast<C>(u) - cloud.cx) * p[2]) / cloud.fx;
  p[1] = ((static_cast<C>(v) - cloud.cy) * p[2]) / cloud.fy;
  if (plan.poses.data != nullptr) transform(cloud, p);  // no sum of something that is not finite is
  return place_of<std::int32_t>(plan, call.axes, cloud, p);
}

// Counts, occupancy or both of a plain cloud whose cells are quick to find.
template <class T, bool Counts, bool Marks>
__global__ void __launch_bounds__(tuning::threads) voxelize_cloud_kernel(const __grid_constant__ Call call) {
  constexpr int n = tuning::points_per_thread;
  const Plan& plan = call.plan;
  __shared__ Recent recent;
  __shared__ int dropped[drop_reasons];
  if (threadIdx.x < drop_reasons) dropped[threadIdx.x] = 0;
  const auto lane = static_cast<int>(threadIdx.x % warp_size);
  const std::int64_t first = blockIdx.x * call.tiling.points;
  const auto points = static_cast<int>(min(call.tiling.points, plan.points_per_cloud - first));
  auto at = static_cast<int>(threadIdx.x / warp_size) * warp_points + lane;
  const T* from = static_cast<const T*>(plan.points) + (first + at) * plan.point_stride;
  // Where the points are sorted, only blocks that wait for that anyway read some in vain.
  if (call.bins.tiles > 0 && blockIdx.x >= tuning::early_blocks) {
    after_earlier_work();
    if (*call.bins.scattered) return;
  }
  T next[n][3] = {};  // points of the next round, on their way
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
  // Of a single round too little would be put together.
  const bool may_meet = call.tiling.points > round_points;
  bool shares = may_meet;
  if (shares) recent.clear();
  __syncthreads();
  int outside = 0, not_finite = 0;  // the former with what is no point, too
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
    after_earlier_work();  // the grids are filled
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
          const int taken = leads ? recent.add(keys[k], length) : 0;
          adds = leads && taken == 0;
          leads = leads && taken != 2;
        } else if (leads) {
          leads = recent.enter(keys[k]);
        }
        // Where points have cells for themselves it only costs.
        shares = 4 * __popc(__ballot_sync(whole_warp, leads)) <= 3 * __popc(runs);
      }
      // Nothing comes back: a reduction, which nobody waits for.
      if constexpr (Counts) {
        if (adds) atomicAdd(plan.count + keys[k], length);
      }
      if constexpr (Marks) {
        if (leads && plan.occupancy != nullptr) mark(call, plan.occupancy, keys[k]);
        if (leads && call.occupied != nullptr) call.occupied[keys[k]] = 1;
      }
    }
  }
  after_earlier_work();  // of a block without points too
  if (Counts && may_meet) {
    __syncthreads();
    recent.flush(plan.count);
  }
  let_next_begin();
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
  // Of a single round too little would be put together.
  constexpr bool may_share = !Features && sizeof(Index) == 4;
  __shared__ std::conditional_t<may_share, Recent, int> recent;
  const bool may_meet = may_share && call.tiling.points > round_points;
  bool shares = may_meet;
  if constexpr (may_share) {
    if (shares) {
      recent.clear();
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

    after_earlier_work();  // the grids, or the heads, are filled
    if constexpr (Features) {
      // Points of a warp follow each other in memory, whichever cloud they are of.
      const std::int64_t number = number_in(plan, tile, base);
      std::int32_t previous[n] = {}, lengths[n];
#pragma unroll
      for (int k = 0; k < n; ++k) {
        const Runs runs(keys[k]);
        lengths[k] = runs.leads ? runs.length : 0;
        if (runs.leads)
          previous[k] = atomicExch(call.heads + keys[k], static_cast<std::int32_t>(number + k * warp_size));
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
    } else {
#pragma unroll
      for (int k = 0; k < n; ++k) {
        const Runs runs(keys[k]);
        bool leads = runs.leads;
        bool adds = leads;
        if constexpr (may_share) {
          if (shares) {
            if (plan.count != nullptr) {
              const int taken = leads ? recent.add(keys[k], runs.length) : 0;
              adds = leads && taken == 0;
              leads = leads && taken != 2;
            } else if (leads) {
              leads = recent.enter(keys[k]);
            }
            // Where points have cells for themselves it only costs.
            const unsigned new_ones = __ballot_sync(whole_warp, leads);
            shares = 4 * __popc(new_ones) <= 3 * __popc(__ballot_sync(whole_warp, runs.leads));
          }
        }
        // Nothing comes back: a reduction, which nobody waits for.
        if (adds && plan.count != nullptr) atomicAdd(plan.count + keys[k], runs.length);
        if (leads && plan.occupancy != nullptr) mark(call, plan.occupancy, keys[k]);
        if (leads && call.occupied != nullptr) call.occupied[keys[k]] = 1;
      }
    }
#pragma unroll
    for (int k = 0; plan.dropped != nullptr && k < n; ++k) {
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
    __syncwarp();  // what find_largest() shares is read
  }
  if constexpr (may_share) {
    if (may_meet && plan.count != nullptr) {
      __syncthreads();
      recent.flush(plan.count);
    }
  }
  let_next_begin();
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

// ---- what is left --------------------------------------------------------------------------------------------------

// A count that went from 0 gets its empty cells last.
__host__ __device__ bool empties_count(const Call& call) {
  return call.plan.count != nullptr && call.heads == nullptr && call.plan.empty != 0 && !call.plan.accumulate;
}

// Cells without points where they hold another number than 0, and occupancy as bits.
__global__ void __launch_bounds__(tuning::threads) voxelize_marks_kernel(const __grid_constant__ Call call) {
  const Plan& plan = call.plan;
  after_earlier_work();
  let_next_begin();
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

// ---- planning ------------------------------------------------------------------------------------------------------

// Cells with long chains: more points than steps are too many; and all cells of bins, or of lines of 32, that have too many
// points.
std::int64_t most_heavy(const Call& call) {
  const std::int64_t points = call.plan.all_points;
  const FeatureBins& by = call.feature_bins;
  return points / (tuning::longest_chain + 1) + points / (tuning::longest_bin + 1) * by.cells +
         points / (by.capacity + 1) * (by.tiles > 0 ? warp_size : 0);
}

void take_scratch(Call& call, Room& room) {
  const Plan& plan = call.plan;
  if (call.bins.tiles > 0) {
    room.take(call.bins.scattered, 1);
    room.take(call.bins.dropped, std::int64_t{call.bins.sorters} * drop_reasons);
    room.take(call.bins.places, std::int64_t{call.bins.tiles} * bin_places);
    room.take(call.bins.extents, std::int64_t{call.bins.tiles} * bins);
  }
  if (plan.bits != nullptr) room.take(call.occupied, call.all_cells);
  if (!plan.reduces_features()) return;
  if (FeatureBins& bins_of = call.feature_bins; bins_of.tiles > 0) {
    room.take(bins_of.heavy, feature_bin_count);
    room.take(bins_of.dropped, bins_of.tiles);
    room.take(bins_of.entries, std::int64_t{bins_of.tiles} * feature_tile);
    room.take(bins_of.extents, std::int64_t{bins_of.tiles} * feature_bin_count);
    room.take(bins_of.largest, bins_of.tiles * plan.channels);
  }
  room.take(call.heads, call.all_cells);
  if (call.feature_bins.tiles == 0) room.take(call.nodes, plan.all_points);
  auto* keys = static_cast<char*>(call.keys);
  room.take(keys, plan.all_points * (plan.is_small() ? 4 : 8));
  call.keys = keys;
  room.take(call.magnitudes.largest, plan.grids * plan.channels);
  room.take(call.magnitudes.given, plan.grids);
  room.take(call.heavy_count, 1);
  room.take(call.heavy_cells, most_heavy(call));
  room.take(call.heavy, most_heavy(call) * plan.channels);
}

std::uint32_t four_times(double empty) { return static_cast<std::uint32_t>(whole(empty)) * 0x01010101u; }
std::uint32_t pattern_of(DType dtype, double empty) {
  switch (dtype) {
    case DType::f16:
      return narrow<f16>(empty).bits * 0x10001u;
    case DType::bf16:
      return narrow<bf16>(empty).bits * 0x10001u;
    case DType::f32:
      return bit_copy<std::uint32_t>(narrow<float>(empty));
    default:
      return four_times(empty);
  }
}

class Runner {
 public:
  Runner(Call& call, const Context& context, int device)
      : call_(call), device_(device), stream_(static_cast<cudaStream_t>(context.stream)) {}

  void fill(void* data, std::int64_t bytes, std::uint32_t pattern) {
    if (data != nullptr && bytes > 0) call_.fills[call_.fill_count++] = {data, bytes, pattern};
  }
  template <class Kernel>
  void launch(Kernel kernel, std::int64_t blocks) const {
    if (blocks == 0) return;
    if (blocks >= std::int64_t{1} << 31) {
      throw Error(ErrorKind::value, std::string(name_of(call_.plan.operation)) + ": too large for one launch");
    }
    cuda_launch(reinterpret_cast<const void*>(kernel), blocks, tuning::threads, 0, &call_, device_, stream_,
                name_of(call_.plan.operation));
  }

  void run() {
    const Plan& plan = call_.plan;
    const bool features = plan.reduces_features();
    const std::int64_t cells = call_.all_cells;
    if (call_.feature_bins.tiles > 0) return run_feature_bins();
    if (features) {
      fill(call_.heads, cells * 4, 0xffffffffu);
      fill(call_.magnitudes.largest, plan.grids * plan.channels * 4, 0);
      fill(call_.magnitudes.given, plan.grids * 8, 0);
      fill(call_.heavy_count, 4, 0);
    } else {
      fill(call_.occupied, cells, 0);
      if (!plan.accumulate) {
        fill(plan.count, cells * 4, 0);
        fill(plan.occupancy, cells, four_times(plan.empty));
      }
    }
    fill(plan.dropped, plan.clouds * drop_reasons * 8, 0);
    if (plan.empty == 0 && !plan.accumulate && reinterpret_cast<std::uintptr_t>(plan.occupancy) % 4 == 0) {
      call_.word_cells = cells / 4 * 4;
    }
    std::int64_t bytes = 0;
    for (int n = 0; n < call_.fill_count; ++n) bytes = std::max(bytes, call_.fills[n].bytes);
    if (call_.bins.tiles > 0) {
      run_many();
    } else {
      launch(&voxelize_fill_kernel,
             std::clamp<std::int64_t>(divide_up(bytes, tuning::fill_bytes * tuning::threads), 1, tuning::most_blocks));
      if (features) {
        with_feature_type(plan, [&](auto type) { run_features<typename decltype(type)::type>(); });
      } else {
        run_points<false>();
      }
    }
    if (plan.bits != nullptr || empties_count(call_)) {
      launch(&voxelize_marks_kernel,
             std::clamp<std::int64_t>(divide_up(cells, tuning::marks_per_thread * tuning::threads), 1,
                                      tuning::most_blocks));
    }
  }

 private:
  template <bool Features>
  void run_points() const {
    const Plan& plan = call_.plan;
    const std::int64_t tiles = call_.tiling.tiles;
    with_point_type(plan, [&](auto type) {
      using T = typename decltype(type)::type;
      if constexpr (is_float_type<T>) {
        if constexpr (!Features && sizeof(compute_t<T>) == 4) {
          if (is_plain(plan) && call_.axes.quick) {
            const bool marks = plan.occupancy != nullptr || call_.occupied != nullptr;
            return launch(plan.count == nullptr ? &voxelize_cloud_kernel<T, false, true>
                          : marks               ? &voxelize_cloud_kernel<T, true, true>
                                                : &voxelize_cloud_kernel<T, true, false>,
                          tiles);
          }
        }
        if (is_plain(plan)) {
          return launch(&voxelize_points_kernel<T, std::int32_t, From::plain_points, Features>, tiles);
        }
      }
      if constexpr (!Features && sizeof(compute_t<T>) == 4) {
        if (is_image(plan) && call_.axes.quick && call_.readings.quick && call_.image_tiling.quick) {
          const std::int64_t blocks = plan.clouds * call_.image_tiling.blocks;
          const bool writes = plan.count != nullptr || plan.occupancy != nullptr || call_.occupied != nullptr;
          if (plan.poses.data == nullptr && call_.readings.ordinary && !marks_twice(call_) && writes) {
            return plan.count != nullptr ? launch(&voxelize_plain_images_kernel<T, true>, blocks)
                                         : launch(&voxelize_plain_images_kernel<T, false>, blocks);
          }
          return plan.count != nullptr ? launch(&voxelize_images_kernel<T, true>, blocks)
                                       : launch(&voxelize_images_kernel<T, false>, blocks);
        }
      }
      if (is_image(plan)) return launch(&voxelize_points_kernel<T, std::int32_t, From::images, Features>, tiles);
      if (plan.is_small()) {
        launch(&voxelize_points_kernel<T, std::int32_t, From::points, Features>, tiles);
      } else {
        launch(&voxelize_points_kernel<T, std::int64_t, From::points, Features>, tiles);
      }
    });
  }

  static void ask(const void* kernel, cudaFuncAttribute attribute, int value) {
    cuda_check(cudaFuncSetAttribute(kernel, attribute, value), "asking for shared memory");
  }

  // Counts of so many points that it is worth asking whether they come in an order.
  void run_many() const {
    static OncePerDevice once;
    once(device_, [] {
      constexpr auto most = cudaFuncAttributeMaxDynamicSharedMemorySize;
      ask(reinterpret_cast<const void*>(&voxelize_sort_kernel), most, sizeof(SortShared));
      ask(reinterpret_cast<const void*>(&voxelize_bins_kernel), most, tuning::bin_most_rows * 32 * 4);
    });
    const auto run = [&](const void* kernel, int blocks, int bytes) {
      cuda_launch(kernel, blocks, bin_threads, static_cast<std::size_t>(bytes), &call_, device_, stream_,
                  name_of(call_.plan.operation));
    };
    run(reinterpret_cast<const void*>(&voxelize_sort_kernel), call_.bins.sorters, sizeof(SortShared));
    run_points<false>();
    run(reinterpret_cast<const void*>(&voxelize_bins_kernel), call_.bins.counters, call_.bins.cells * 4);
  }

  template <class F, int V>
  void run_cells() const {
    const Plan& plan = call_.plan;
    const std::int64_t blocks = divide_up(call_.all_cells, tile_cells);
    if (plan.max == nullptr && plan.min == nullptr) {
      launch(&voxelize_cells_kernel<F, V, true, false>, blocks);
    } else if (!call_.sums) {
      launch(&voxelize_cells_kernel<F, V, false, true>, blocks);
    } else {
      launch(&voxelize_cells_kernel<F, V, true, true>, blocks);
    }
  }

  template <class F, int V>
  void set_features() {
    const Plan& plan = call_.plan;
    call_.wide = is_wide<F, V>(plan);
    call_.sums = plan.sums();
    call_.empty_float = pattern_of(DType::f32, plan.empty);
    call_.empty_feature = pattern_of(plan.feature_dtype, plan.empty);
  }

  template <class F>
  void run_features() {
    constexpr int wide = 4;
    set_features<F, wide>();
    run_points<true>();
    if (call_.wide) {
      run_cells<F, wide>();
    } else {
      run_cells<F, 1>();
    }
    run_heavy<F>();
  }

  void run_feature_bins() {
    const Plan& plan = call_.plan;
    const FeatureBins& by = call_.feature_bins;
    set_features<float, 4>();
    cuda_launch(reinterpret_cast<const void*>(&voxelize_feature_sort_kernel), call_.sums ? 2 * by.tiles : by.tiles,
                tuning::feature_sort_threads, 0, &call_, device_, stream_, name_of(plan.operation));
    const void* const kernels[] = {reinterpret_cast<const void*>(&voxelize_feature_bins_kernel<true, false>),
                                   reinterpret_cast<const void*>(&voxelize_feature_bins_kernel<true, true>),
                                   reinterpret_cast<const void*>(&voxelize_feature_bins_kernel<false, true>)};
    static OncePerDevice once;
    once(device_, [&] {
      for (const void* const each : kernels) {
        ask(each, cudaFuncAttributeMaxDynamicSharedMemorySize, cuda_machine(device_).shared_bytes);
        ask(each, cudaFuncAttributePreferredSharedMemoryCarveout, cudaSharedmemCarveoutMaxShared);
      }
    });
    const void* const kernel = kernels[plan.max == nullptr && plan.min == nullptr ? 0 : (call_.sums ? 1 : 2)];
    cuda_launch(kernel, feature_bin_count, tuning::threads, static_cast<std::size_t>(by.shared_bytes), &call_, device_,
                stream_, name_of(plan.operation));
    run_heavy<float>();
  }

  // Cells of too many points for one thread.
  template <class F>
  void run_heavy() const {
    const Plan& plan = call_.plan;
    if (most_heavy(call_) == 0) return;
    const std::int64_t spans = divide_up(plan.all_points, std::int64_t{tuning::heavy_span} * warps);
    const std::int64_t blocks = std::min<std::int64_t>(spans, tuning::most_heavy_blocks);
    if (plan.is_small()) {
      launch(&voxelize_heavy_points_kernel<F, std::int32_t>, blocks);
    } else {
      launch(&voxelize_heavy_points_kernel<F, std::int64_t>, blocks);
    }
    launch(&voxelize_heavy_cells_kernel<F>,
           std::min<std::int64_t>(divide_up(most_heavy(call_) * plan.channels, tuning::threads),
                                  tuning::most_heavy_blocks));
  }

  Call& call_;
  int device_;
  cudaStream_t stream_;
};

}  // namespace

void run_cuda(const Plan& plan, const Context& context, int device) {
  Call call;
  call.plan = plan;
  call.box = cuda_fault_box(device);
  const CudaDevice current(device);
  call.all_cells = plan.grids * plan.cells;
  call.tiling = tiling_of(plan, !is_plain(plan) || !plan.reduces_features());
  call.axes = Axes(plan);
  if (call.axes.quick) {
    call.bins = Bins(plan, cuda_machine(device));
    call.feature_bins = FeatureBins(plan, cuda_machine(device));
  }
  if (is_image(plan)) {
    call.width = Division(static_cast<std::uint32_t>(plan.width));
    call.readings = Readings(plan);
    if (call.axes.quick) call.fixed = FixedAxes(call.axes);
    call.image_tiling = ImageTiling(plan);
  }
  Room needed(nullptr);
  take_scratch(call, needed);
  const CudaScratch scratch(context.workspace, device, static_cast<std::size_t>(needed.used()),
                            static_cast<cudaStream_t>(context.stream));
  Room room(static_cast<char*>(scratch.data()));
  take_scratch(call, room);
  Runner(call, context, device).run();
}

}  // namespace robocache::voxelize_op
