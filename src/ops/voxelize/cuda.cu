// voxelize on a GPU.
//
// Counts and occupancy: one kernel fills the grids, the next puts the points in; neighbours that share a cell are counted
// in the warp first. Features: points are counted, cells that have some get room side by side in any order (segments),
// each point takes its place there, and then every such cell is written, by a thread for each few channels or, where it
// has many points, by blocks. Integers make the order of the points in a cell irrelevant.
#include <algorithm>
#include <limits>

#include "ops/voxelize/cuda_points.h"
#include "ops/voxelize/room.h"

namespace robocache::voxelize_op {
namespace {

struct Fill {
  void* data = nullptr;
  std::int64_t bytes = 0;
  std::uint32_t pattern = 0;  // four bytes, again and again
};
inline constexpr int max_fills = 16;

// A cell that has points, and where they are in `order`.
struct Occupied {
  std::int64_t key;
  std::int32_t start, points;
};
// Some of the points of a cell that has many.
struct Chunk {
  std::int64_t key;
  std::int32_t start, points;  // of the cell
  std::int32_t cell;           // its number among the heavy
  std::int32_t first;          // of its points
};
// One channel of such a cell, or in `done` how many chunks of the cell are in.
struct Heavy {
  long long fixed, most, least;  // order_of() of max and min
  int flags;                     // of a Sum
  int done;
};

struct Call {
  Plan plan;
  FaultBox* box = nullptr;
  Fill fills[max_fills];
  int fill_count = 0;
  std::int64_t tiles_per_cloud = 0;  // 0: packed, tiles run over clouds' ends
  std::int64_t all_cells = 0;        // of all grids

  std::uint8_t* occupied = nullptr;  // scratch: what bits are packed from

  // Scratch, with features only.
  std::int32_t* counts = nullptr;       // points of each cell, then where they start: scratch, or plan.count
  void* keys = nullptr;                 // of each point, int32 where the plan is small; -1: dropped
  std::int32_t* ranks = nullptr;        // which of its cell's points it is, in no particular order
  std::int32_t* order = nullptr;        // points by cell
  std::uint32_t* largest = nullptr;     // magnitude, of each grid and channel
  unsigned long long* given = nullptr;  // points, to each grid
  std::int32_t* cursor = nullptr;       // [0]: points that have room, [1]: occupied cells, [2]: heavy ones, [3]: chunks
  Occupied* occupied_cells = nullptr;
  Chunk* chunks = nullptr;  // what a block adds up
  Heavy* heavy = nullptr;   // cells and channels that several blocks add up

  // A count that went from 0 gets its empty cells last.
  __host__ __device__ bool empties_count() const {
    return plan.count != nullptr && counts == plan.count && plan.empty != 0 && !plan.accumulate;
  }
};

// ---- filling -------------------------------------------------------------------------------------------------------

__global__ void __launch_bounds__(tuning::threads) voxelize_fill_kernel(const __grid_constant__ Call call) {
  after_earlier_work();
  let_next_begin();  // so it may read its input at once: all that wrote it is done
  const std::int64_t thread = static_cast<std::int64_t>(blockIdx.x) * tuning::threads + threadIdx.x;
  const std::int64_t stride = static_cast<std::int64_t>(gridDim.x) * tuning::threads;
  if (call.plan.check) {
    const DataCheck check{&call.plan};
    for (std::int64_t k = thread; k < check.count(); k += stride) {
      const Fault fault = check(k);
      if (fault.code != FaultCode::none) report(call.box, fault);
    }
  }
  for (int n = 0; n < call.fill_count; ++n) {
    const Fill& fill = call.fills[n];
    const std::int64_t wide = reinterpret_cast<std::uintptr_t>(fill.data) % 16 == 0 ? fill.bytes / 16 : 0;
    const uint4 four{fill.pattern, fill.pattern, fill.pattern, fill.pattern};
    for (std::int64_t k = thread; k < wide; k += stride) static_cast<uint4*>(fill.data)[k] = four;
    for (std::int64_t k = wide * 16 + thread; k < fill.bytes; k += stride) {
      static_cast<std::uint8_t*>(fill.data)[k] = static_cast<std::uint8_t>(fill.pattern >> k % 4 * 8);
    }
  }
}

// ---- points --------------------------------------------------------------------------------------------------------

// The usual case: one cloud of dense points without a pose, a crop or lengths.
template <class T, class Index, class C>
__device__ Index locate_plain(const Call& call, const Cloud<C>& cloud, std::int64_t k, Drop& drop) {
  drop = Drop::none;
  if (k >= cloud.count) return -1;
  const T* const point = static_cast<const T*>(call.plan.points) + k * call.plan.point_stride;
  const C p[3] = {widen(point[0]), widen(point[1]), widen(point[2])};
  const Place place = all_finite(p) ? cell_of<Index>(call.plan, cloud, p) : Place{Drop::not_finite, -1};
  drop = place.drop;
  return static_cast<Index>(place.cell);
}

template <class T, class Index, bool Plain>
__global__ void __launch_bounds__(tuning::threads) voxelize_points_kernel(const __grid_constant__ Call call) {
  using C = compute_t<T>;
  constexpr int n = tuning::points_per_thread;
  const Plan& plan = call.plan;
  __shared__ Tile<C> tile;
  __shared__ int dropped[drop_reasons];
  if (threadIdx.x < drop_reasons) dropped[threadIdx.x] = 0;
  if (threadIdx.x == 0) {
    if constexpr (Plain) {
      tile.one = true;
      tile.first = blockIdx.x * tile_points;
      tile.count = tile.stored = min(tile_points, plan.points_per_cloud - tile.first);
      tile.cloud.number = tile.cloud.grid = tile.cloud.first = 0;
      tile.cloud.count = plan.points_per_cloud;
    } else {
      set_tile(plan, call.tiles_per_cloud, tile);
    }
  }
  if constexpr (!Plain) __syncthreads();
  const auto lane = static_cast<int>(threadIdx.x % warp_size);
  const std::int64_t base = static_cast<std::int64_t>(threadIdx.x / warp_size) * warp_size * n + lane;
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
      keys[k] = locate_plain<T, Index>(call, cloud, blockIdx.x * tile_points + base + k * warp_size, drops[k]);
    }
    __syncthreads();
  } else {
#pragma unroll
    for (int k = 0; k < n; ++k) {
      C p[3] = {};
      keys[k] = locate_in<T, Index>(plan, tile, base + k * warp_size, drops[k], clouds[k], p);
    }
  }

  after_earlier_work();  // the grids are filled
  if (call.given != nullptr && threadIdx.x == 0) {
    if (tile.one && tile.first == 0) {
      atomicAdd(call.given + tile.cloud.grid, static_cast<unsigned long long>(tile.cloud.count));
    }
  }
#pragma unroll
  for (int k = 0; k < n; ++k) {
    const std::int64_t at = base + k * warp_size;
    const Runs runs(keys[k]);
    if (call.keys != nullptr) {
      std::int32_t rank = 0;
      if (runs.leads) rank = atomicAdd(call.counts + keys[k], runs.length);
      rank = __shfl_sync(whole_warp, rank, runs.leader) + runs.before;
      if (at < tile.stored) {
        const std::int64_t number = number_in(plan, tile, at);
        static_cast<Index*>(call.keys)[number] = keys[k];
        call.ranks[number] = rank;
      }
    } else if (call.counts != nullptr && runs.leads) {
      atomicAdd(call.counts + keys[k], runs.length);  // nothing comes back: a reduction, which nobody waits for
    }
    if (runs.leads && plan.occupancy != nullptr) plan.occupancy[keys[k]] = 1;
    if (runs.leads && call.occupied != nullptr) call.occupied[keys[k]] = 1;
    if (call.given != nullptr && !tile.one && at < tile.count && clouds[k] >= 0) {
      if (integer(plan.offsets, clouds[k]) == tile.first + at) {
        Cloud<float> cloud;
        set_extent(plan, clouds[k], cloud);
        atomicAdd(call.given + cloud.grid, static_cast<unsigned long long>(cloud.count));
      }
    }
    if (plan.dropped != nullptr && __any_sync(whole_warp, drops[k] != Drop::none)) {
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
  let_next_begin();
  if (plan.dropped == nullptr || !tile.one) return;
  __syncthreads();
  if (threadIdx.x < drop_reasons && dropped[threadIdx.x] > 0) {
    atomicAdd(reinterpret_cast<unsigned long long*>(plan.dropped) + tile.cloud.number * drop_reasons + threadIdx.x,
              static_cast<unsigned long long>(dropped[threadIdx.x]));
  }
}

// ---- features ------------------------------------------------------------------------------------------------------

__device__ int warp_sum_before(int value, int& all) {
  const auto lane = static_cast<int>(threadIdx.x % warp_size);
  int sum = value;
#pragma unroll
  for (int step = 1; step < warp_size; step *= 2) {
    const int other = __shfl_up_sync(whole_warp, sum, step);
    if (lane >= step) sum += other;
  }
  all = __shfl_sync(whole_warp, sum, warp_size - 1);
  return sum - value;
}

__device__ __noinline__ void add_heavy(const Call& call, const Occupied& here) {
  const std::int64_t channels = call.plan.channels;
  const std::int32_t cell = atomicAdd(call.cursor + 2, 1);
  const auto chunks = static_cast<int>(divide_up(here.points, tuning::chunk));
  const std::int32_t place = atomicAdd(call.cursor + 3, chunks);
  for (int k = 0; k < chunks; ++k) {
    call.chunks[place + k] = {here.key, here.start, here.points, cell, k * tuning::chunk};
  }
  constexpr long long lowest = std::numeric_limits<std::int64_t>::min();  // below every order_of()
  for (std::int64_t c = 0; c < channels; ++c) call.heavy[cell * channels + c] = {0, lowest, lowest, 0, 0};
}

// Room for the points of every cell that has some, and a list of those cells; one atomic a block. Lanes take neighbouring
// cells, so that what they write lies together.
__global__ void __launch_bounds__(tuning::threads) voxelize_segments_kernel(const __grid_constant__ Call call) {
  constexpr int n = tuning::cells_per_thread;
  after_earlier_work();
  let_next_begin();
  __shared__ int points_before[warps];
  __shared__ int cells_before[warps];
  const auto lane = static_cast<int>(threadIdx.x % warp_size);
  const auto warp = static_cast<int>(threadIdx.x / warp_size);
  const std::int64_t first =
      (static_cast<std::int64_t>(blockIdx.x) * tuning::threads + static_cast<std::int64_t>(warp) * warp_size) * n +
      lane;
  int counts[n];
  int points = 0;
  int cells = 0;
#pragma unroll
  for (int k = 0; k < n; ++k) {
    const std::int64_t key = first + k * warp_size;
    counts[k] = key < call.all_cells ? call.counts[key] : 0;
    points += counts[k];
    cells += counts[k] > 0 ? 1 : 0;
  }
  const int warp_points = __reduce_add_sync(whole_warp, points);
  const int warp_cells = __reduce_add_sync(whole_warp, cells);
  if (lane == 0) {
    points_before[warp] = warp_points;
    cells_before[warp] = warp_cells;
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    const auto both = [&](int w) {
      return static_cast<unsigned long long>(cells_before[w]) << 32 | static_cast<unsigned>(points_before[w]);
    };
    unsigned long long all = 0;
    for (int w = 0; w < warps; ++w) all += both(w);
    unsigned long long base = all > 0 ? atomicAdd(reinterpret_cast<unsigned long long*>(call.cursor), all) : 0;
    for (int w = 0; w < warps; ++w) {
      const unsigned long long here = both(w);
      points_before[w] = static_cast<int>(base & 0xffffffffu);
      cells_before[w] = static_cast<int>(base >> 32);
      base += here;
    }
  }
  __syncthreads();
  int start = points_before[warp];
  int place = cells_before[warp];
#pragma unroll
  for (int k = 0; k < n; ++k) {
    const unsigned occupied = __ballot_sync(whole_warp, counts[k] > 0);
    if (occupied == 0) continue;
    int group = 0;
    const int before = warp_sum_before(counts[k], group);
    if (counts[k] > 0) {
      const Occupied here{first + k * warp_size, start + before, counts[k]};
      call.occupied_cells[place + __popc(occupied & ((1u << lane) - 1))] = here;
      call.counts[here.key] = here.start;
      if (counts[k] > tuning::heavy) add_heavy(call, here);
    }
    start += group;
    place += __popc(occupied);
  }
}

// Lanes that share a point: as many as it has channels, up to a warp, a power of two.
__host__ __device__ inline int lanes_of(std::int64_t channels) {
  int lanes = 1;
  while (lanes < warp_size && lanes < channels) lanes *= 2;
  return lanes;
}

template <class F, int V>
__device__ void load_features(const Plan& plan, std::int64_t number, std::int64_t channel, F (&x)[V]) {
  const F* const from =
      static_cast<const F*>(plan.features) + feature_offset(plan, number) + channel * plan.channel_stride;
  if constexpr (V == 1) {
    x[0] = from[0];
  } else {
    struct alignas(sizeof(F) * V) Pack {
      F x[V];
    };
    const Pack pack = *reinterpret_cast<const Pack*>(from);
#pragma unroll
    for (int v = 0; v < V; ++v) x[v] = pack.x[v];
  }
}

// What a channel's sums are scaled by, and back.
struct Scale {
  double to, back;
};
__device__ Scale scale_of(const Call& call, std::int64_t grid, std::int64_t channel) {
  const int exponent =
      exponent_of(call.largest[grid * call.plan.channels + channel], static_cast<std::int64_t>(call.given[grid]));
  return {power_of_two(exponent), power_of_two(-exponent)};
}
// Of one grid and not too many channels, found once for a block.
struct Scales {
  static constexpr int most = 64;
  Scale channels[most];
  __device__ static bool serve(const Plan& plan) { return plan.grids == 1 && plan.channels <= most; }
  __device__ void find(const Call& call) {
    if (serve(call.plan) && threadIdx.x < call.plan.channels) channels[threadIdx.x] = scale_of(call, 0, threadIdx.x);
    __syncthreads();
  }
};

// Every point to its place, and the largest magnitude of each channel.
template <class F, class Index, int V>
__global__ void __launch_bounds__(tuning::threads) voxelize_place_kernel(const __grid_constant__ Call call) {
  const Plan& plan = call.plan;
  after_earlier_work();
  let_next_begin();
  __shared__ std::uint32_t largest[Scales::most];
  if (threadIdx.x < Scales::most) largest[threadIdx.x] = 0;
  __syncthreads();
  const bool sums = plan.sum != nullptr || plan.mean != nullptr;
  const bool shares = Scales::serve(plan);
  const auto lane = static_cast<int>(threadIdx.x % warp_size);
  const auto vectors = static_cast<int>(plan.channels / V);
  const int lanes = lanes_of(vectors);
  const std::int64_t first = blockIdx.x * tile_points + static_cast<std::int64_t>(threadIdx.x - lane);
  for (std::int64_t group = first; group < min(first + tile_points, plan.all_points); group += tuning::threads) {
    const std::int64_t number = group + lane;
    const Index key = number < plan.all_points ? static_cast<const Index*>(call.keys)[number] : Index(-1);
    if (key >= 0) call.order[call.counts[key] + call.ranks[number]] = static_cast<std::int32_t>(number);
    if (!sums) continue;
    for (int c = lane % lanes; c < (vectors + lanes - 1) / lanes * lanes; c += lanes) {
      std::uint32_t magnitudes[V] = {};
      for (int p = lane / lanes; p < warp_size; p += warp_size / lanes) {
        const Index theirs = __shfl_sync(whole_warp, key, p);
        if (theirs < 0 || c >= vectors) continue;
        F x[V];
        load_features(plan, group + p, c * V, x);
#pragma unroll
        for (int v = 0; v < V; ++v) {
          const std::uint32_t here = magnitude_of(feature_value(x[v]));
          if (shares) {
            magnitudes[v] = max(magnitudes[v], here);
          } else {
            atomicMax(call.largest + theirs / plan.cells * plan.channels + c * V + v, here);
          }
        }
      }
#pragma unroll
      for (int v = 0; v < V; ++v) {
        if (magnitudes[v] > 0) atomicMax(largest + c * V + v, magnitudes[v]);
      }
    }
  }
  if (!sums || !shares) return;
  __syncthreads();
  if (threadIdx.x < plan.channels && largest[threadIdx.x] > 0) {
    atomicMax(call.largest + threadIdx.x, largest[threadIdx.x]);
  }
}

// V floats at once.
template <int V>
__device__ void store(float* to, const float (&values)[V]) {
  if constexpr (V == 4) {
    *reinterpret_cast<float4*>(to) = float4{values[0], values[1], values[2], values[3]};
  } else {
    for (int v = 0; v < V; ++v) to[v] = values[v];
  }
}

// V channels of one cell, for sum and mean, for max and min, or for all.
template <class F, int V, bool Sums, bool Extremes>
struct Cell {
  Sum sums[Sums ? V : 1];
  Extreme<F> most[Extremes ? V : 1], least[Extremes ? V : 1];
  Scale scales[Sums ? V : 1] = {};

  __device__ void prepare(const Call& call, const Scales& known, std::int64_t key, std::int64_t channel) {
    const std::int64_t grid = call.plan.grids == 1 ? 0 : key / call.plan.cells;
#pragma unroll
    for (int v = 0; Sums && v < V; ++v) {
      scales[v] = Scales::serve(call.plan) ? known.channels[channel + v] : scale_of(call, grid, channel + v);
    }
  }
  __device__ void add(const Plan& plan, const F (&x)[V]) {
#pragma unroll
    for (int v = 0; v < V; ++v) {
      if (Sums) sums[v].add(feature_value(x[v]), scales[v].to);
      if (Extremes && plan.max != nullptr) most[v].add(true, x[v]);
      if (Extremes && plan.min != nullptr) least[v].add(false, x[v]);
    }
  }
  __device__ void write(const Plan& plan, std::int64_t out, std::int64_t points) {
    float values[V];
    if (Sums && plan.sum != nullptr) {
#pragma unroll
      for (int v = 0; v < V; ++v) values[v] = sums[v].value(scales[v].back, 1);
      store(plan.sum + out, values);
    }
    if (Sums && plan.mean != nullptr) {
#pragma unroll
      for (int v = 0; v < V; ++v) values[v] = sums[v].value(scales[v].back, points);
      store(plan.mean + out, values);
    }
#pragma unroll
    for (int v = 0; Extremes && v < V; ++v) {
      if (plan.max != nullptr) {
        F* const to = static_cast<F*>(plan.max) + out + v;
        if (plan.accumulate) most[v].add(true, *to);
        *to = most[v].best;
      }
      if (plan.min != nullptr) {
        F* const to = static_cast<F*>(plan.min) + out + v;
        if (plan.accumulate) least[v].add(false, *to);
        *to = least[v].best;
      }
    }
  }
};

template <class F, int V, bool Sums, bool Extremes>
__global__ void __launch_bounds__(tuning::threads) voxelize_cells_kernel(const __grid_constant__ Call call) {
  const Plan& plan = call.plan;
  __shared__ Scales scales;
  after_earlier_work();
  let_next_begin();
  if constexpr (Sums) scales.find(call);
  const auto vectors = static_cast<std::uint32_t>(plan.channels / V);
  const std::uint64_t index = static_cast<std::uint64_t>(blockIdx.x) * tuning::threads + threadIdx.x;
  const std::uint64_t n = index >> 32 == 0 ? static_cast<std::uint32_t>(index) / vectors : index / vectors;
  if (n >= static_cast<std::uint64_t>(call.cursor[1])) return;
  const Occupied here = call.occupied_cells[n];
  const auto channel = static_cast<std::int64_t>(index - n * vectors) * V;
  if (channel == 0 && plan.count != nullptr) {
    plan.count[here.key] = (plan.accumulate ? plan.count[here.key] : 0) + here.points;
  }
  if (here.points > tuning::heavy) return;
  const std::int64_t out = here.key * plan.channels + channel;
  const std::int32_t* const order = call.order + here.start;
  Cell<F, V, Sums, Extremes> cell;
  cell.prepare(call, scales, here.key, channel);
#pragma unroll 4
  for (int k = 0; k < here.points; ++k) {
    F x[V];
    load_features(plan, order[k], channel, x);
    cell.add(plan, x);
  }
  cell.write(plan, out, here.points);
}

// The value that has an order_of().
template <class F>
__device__ F value_of(bool greatest, long long order) {
  constexpr std::int64_t largest = std::numeric_limits<std::int64_t>::max();
  if constexpr (std::is_integral_v<F>) {
    return static_cast<F>(greatest ? order : ~order);
  } else {
    if (order == largest) return narrow<F>(quiet_nan<float>());
    const std::int64_t key = greatest ? order : ~order;
    return narrow<F>(bit_copy<double>(key < 0 ? key ^ largest : key));
  }
}

// Cells with many points, chunk by chunk. Whoever adds the last chunk writes the cell.
template <class F>
__global__ void __launch_bounds__(tuning::threads) voxelize_heavy_kernel(const __grid_constant__ Call call) {
  const Plan& plan = call.plan;
  after_earlier_work();
  let_next_begin();
  const int lanes = lanes_of(plan.channels);
  const int lane = static_cast<int>(threadIdx.x) % lanes;
  const int row = static_cast<int>(threadIdx.x) / lanes;
  const int rows = tuning::threads / lanes;
  __shared__ Cell<F, 1, true, true> cells[tuning::threads];
  __shared__ bool last;
  __shared__ Scales scales;
  scales.find(call);
  for (int n = blockIdx.x; n < call.cursor[3]; n += gridDim.x) {
    const Chunk chunk = call.chunks[n];
    const int end = min(chunk.first + tuning::chunk, chunk.points);
    const std::int32_t* const order = call.order + chunk.start;
    Heavy* const sums = call.heavy + chunk.cell * plan.channels;
    for (std::int64_t first = 0; first < plan.channels; first += lanes) {
      const std::int64_t channel = first + lane;
      Cell<F, 1, true, true> cell;
      if (channel < plan.channels) {
        cell.prepare(call, scales, chunk.key, channel);
#pragma unroll 4
        for (int k = chunk.first + row; k < end; k += rows) {
          F x[1];
          load_features(plan, order[k], channel, x);
          cell.add(plan, x);
        }
      }
      cells[threadIdx.x] = cell;
      __syncthreads();
      if (row == 0 && channel < plan.channels) {
        for (int other = 1; other < rows; ++other) {
          const Cell<F, 1, true, true>& theirs = cells[other * lanes + lane];
          cell.sums[0].add(theirs.sums[0]);
          if (theirs.most[0].any) cell.most[0].add(true, theirs.most[0].best);
          if (theirs.least[0].any) cell.least[0].add(false, theirs.least[0].best);
        }
        const Sum& sum = cell.sums[0];
        atomicAdd(reinterpret_cast<unsigned long long*>(&sums[channel].fixed),
                  static_cast<unsigned long long>(sum.fixed));
        const int flags = (sum.is_nan ? 1 : 0) | (sum.is_up ? 2 : 0) | (sum.is_down ? 4 : 0);
        if (flags != 0) atomicOr(&sums[channel].flags, flags);
        if (cell.most[0].any) atomicMax(&sums[channel].most, static_cast<long long>(cell.most[0].order));
        if (cell.least[0].any) atomicMax(&sums[channel].least, static_cast<long long>(cell.least[0].order));
        __threadfence();
      }
      __syncthreads();
    }
    if (threadIdx.x == 0) last = atomicAdd(&sums[0].done, 1) + 1 == divide_up(chunk.points, tuning::chunk);
    __syncthreads();
    if (!last) continue;
    __threadfence();
    for (std::int64_t channel = threadIdx.x; channel < plan.channels; channel += tuning::threads) {
      Cell<F, 1, true, true> cell;
      cell.prepare(call, scales, chunk.key, channel);
      const int flags = __ldcg(&sums[channel].flags);
      cell.sums[0].fixed = __ldcg(&sums[channel].fixed);
      cell.sums[0].is_nan = (flags & 1) != 0;
      cell.sums[0].is_up = (flags & 2) != 0;
      cell.sums[0].is_down = (flags & 4) != 0;
      if (plan.max != nullptr) cell.most[0].add(true, value_of<F>(true, __ldcg(&sums[channel].most)));
      if (plan.min != nullptr) cell.least[0].add(false, value_of<F>(false, __ldcg(&sums[channel].least)));
      cell.write(plan, chunk.key * plan.channels + channel, chunk.points);
    }
  }
}

// Cells without points where they hold another number than 0, and occupancy as bits.
__global__ void __launch_bounds__(tuning::threads) voxelize_marks_kernel(const __grid_constant__ Call call) {
  const Plan& plan = call.plan;
  after_earlier_work();
  let_next_begin();
  const std::int64_t thread = static_cast<std::int64_t>(blockIdx.x) * tuning::threads + threadIdx.x;
  const std::int64_t stride = static_cast<std::int64_t>(gridDim.x) * tuning::threads;
  if (call.empties_count()) {
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

void take_scratch(Call& call, Room& room) {
  const Plan& plan = call.plan;
  if (plan.bits != nullptr) room.take(call.occupied, call.all_cells);
  if (!plan.reduces_features()) return;
  room.take(call.counts, call.all_cells);
  room.take(call.occupied_cells, std::min(plan.all_points, call.all_cells));
  auto* keys = static_cast<char*>(call.keys);
  room.take(keys, plan.all_points * (plan.is_small() ? 4 : 8));
  call.keys = keys;
  room.take(call.ranks, plan.all_points);
  room.take(call.order, plan.all_points);
  const std::int64_t most_heavy = plan.all_points / tuning::heavy + 1;
  room.take(call.chunks, most_heavy + plan.all_points / tuning::chunk);
  room.take(call.heavy, most_heavy * plan.channels);
  room.take(call.largest, plan.grids * plan.channels);
  room.take(call.given, plan.grids);
  room.take(call.cursor, 4);
}

// `empty` need be no integer where no output is one.
std::int32_t whole(double empty) { return empty >= -0x1p31 && empty < 0x1p31 ? static_cast<std::int32_t>(empty) : 0; }
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

bool is_plain(const Plan& plan) {
  return plan.is_small() && plan.source == Source::points && plan.clouds == 1 && plan.axis_stride == 1 && !plan.crops &&
         plan.poses.data == nullptr && plan.into.data == nullptr && plan.lengths.data == nullptr &&
         plan.offsets.data == nullptr;
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
    if (!features) call_.counts = plan.count;
    const std::int64_t cells = call_.all_cells;
    fill(features || !plan.accumulate ? call_.counts : nullptr, cells * 4, 0);
    fill(call_.occupied, cells, 0);
    if (!plan.accumulate) {
      fill(plan.occupancy, cells, four_times(plan.empty));
      if (features) fill_features();
    }
    fill(call_.largest, plan.grids * plan.channels * 4, 0);
    fill(call_.given, plan.grids * 8, 0);
    fill(call_.cursor, 16, 0);
    fill(plan.dropped, plan.clouds * drop_reasons * 8, 0);
    std::int64_t bytes = 0;
    for (int n = 0; n < call_.fill_count; ++n) bytes = std::max(bytes, call_.fills[n].bytes);
    launch(&voxelize_fill_kernel,
           std::clamp<std::int64_t>(divide_up(bytes, tuning::fill_bytes * tuning::threads), 1, tuning::most_blocks));

    const std::int64_t tiles = tiles_of(plan);
    with_point_type(plan, [&](auto type) {
      using T = typename decltype(type)::type;
      if constexpr (is_float_type<T>) {
        if (is_plain(plan)) return launch(&voxelize_points_kernel<T, std::int32_t, true>, tiles);
      }
      if (plan.is_small()) {
        launch(&voxelize_points_kernel<T, std::int32_t, false>, tiles);
      } else {
        launch(&voxelize_points_kernel<T, std::int64_t, false>, tiles);
      }
    });
    if (features) {
      launch(&voxelize_segments_kernel, divide_up(cells, tuning::cells_per_thread * tuning::threads));
      with_feature_type(plan, [&](auto type) { run_features<typename decltype(type)::type>(); });
    }
    if (plan.bits != nullptr || call_.empties_count()) {
      launch(&voxelize_marks_kernel,
             std::clamp<std::int64_t>(divide_up(cells, tuning::marks_per_thread * tuning::threads), 1,
                                      tuning::most_blocks));
    }
  }

 private:
  void fill_features() {
    const Plan& plan = call_.plan;
    const std::int64_t values = call_.all_cells * plan.channels;
    fill(plan.count, call_.all_cells * 4, static_cast<std::uint32_t>(whole(plan.empty)));
    fill(plan.sum, values * 4, pattern_of(DType::f32, plan.empty));
    fill(plan.mean, values * 4, pattern_of(DType::f32, plan.empty));
    const std::uint32_t pattern = pattern_of(plan.feature_dtype, plan.empty);
    fill(plan.max, values * size_of(plan.feature_dtype), pattern);
    fill(plan.min, values * size_of(plan.feature_dtype), pattern);
  }

  template <class F, int V>
  void run_features() {
    const Plan& plan = call_.plan;
    const std::int64_t tiles = divide_up(plan.all_points, tile_points);
    if (plan.is_small()) {
      launch(&voxelize_place_kernel<F, std::int32_t, V>, tiles);
    } else {
      launch(&voxelize_place_kernel<F, std::int64_t, V>, tiles);
    }
    const std::int64_t most_cells = std::min(plan.all_points, call_.all_cells);
    const std::int64_t blocks = divide_up(most_cells * (plan.channels / V), tuning::threads);
    if (plan.max == nullptr && plan.min == nullptr) {
      launch(&voxelize_cells_kernel<F, V, true, false>, blocks);
    } else if (plan.sum == nullptr && plan.mean == nullptr) {
      launch(&voxelize_cells_kernel<F, V, false, true>, blocks);
    } else {
      launch(&voxelize_cells_kernel<F, V, true, true>, blocks);
    }
  }

  template <class F>
  void run_features() {
    const Plan& plan = call_.plan;
    constexpr int wide = 4;
    std::uint64_t bits = reinterpret_cast<std::uintptr_t>(plan.features);
    for (const std::int64_t stride : {plan.feature_cloud_stride, plan.feature_stride[0], plan.feature_stride[1]}) {
      bits |= static_cast<std::uint64_t>(stride) * sizeof(F);
    }
    bool aligned = bits % (wide * sizeof(F)) == 0 && plan.channel_stride == 1 && plan.channels % wide == 0;
    for (const float* const out : {plan.sum, plan.mean}) {
      aligned = aligned && reinterpret_cast<std::uintptr_t>(out) % 16 == 0;
    }
    if (aligned) {
      run_features<F, wide>();
    } else {
      run_features<F, 1>();
    }
    launch(&voxelize_heavy_kernel<F>,
           std::min<std::int64_t>(divide_up(plan.all_points, tuning::heavy), tuning::most_heavy_blocks));
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
  call.tiles_per_cloud = tiles_per_cloud(plan);
  Room needed(nullptr);
  take_scratch(call, needed);
  const CudaScratch scratch(context.workspace, device,
                            static_cast<std::size_t>(std::max<std::int64_t>(needed.used(), 1)),
                            static_cast<cudaStream_t>(context.stream));
  Room room(static_cast<char*>(scratch.data()));
  take_scratch(call, room);
  Runner(call, context, device).run();
}

}  // namespace robocache::voxelize_op
