// Features of points into cells, on a GPU: every cell has a chain of its points.
//
// The kernel of points (cuda.cu) puts a point at the head of its cell's chain, where it remembers who was there before;
// neighbours that share a cell go there as one. It also finds the largest magnitudes, before it waits for the heads. Then
// blocks of cells walk the chains and write every cell, the empty ones too. A cell whose chain is too long for one thread is
// added up by all warps, from the points in their order, as integers in L2. Integers make the order irrelevant.
#pragma once

#include "ops/voxelize/cuda_call.h"

namespace robocache::voxelize_op {
namespace {

// Channels of which a block keeps the magnitudes, or the scales, in shared memory.
inline constexpr int most_shared_channels = 64;

// Of four bytes.
template <class T>
__device__ T first_of(std::uint32_t pattern) {
  if constexpr (sizeof(T) == 4) {
    return bit_copy<T>(pattern);
  } else if constexpr (sizeof(T) == 2) {
    return bit_copy<T>(static_cast<std::uint16_t>(pattern));
  } else {
    return static_cast<T>(pattern);
  }
}

constexpr int tile_cells = tuning::threads * tuning::cells_per_thread;
constexpr int warp_points = warp_size * tuning::points_per_thread;

// The largest magnitudes of a warp's points, of which `number` is the first and `reached` says which count.
template <class F, int V>
__device__ void find_largest(const Plan& plan, std::int64_t number, const unsigned* reached, std::uint32_t* largest) {
  const auto lane = static_cast<int>(threadIdx.x % warp_size);
  const auto vectors = static_cast<int>(plan.channels / V);
  const int lanes = lanes_of(vectors);
  for (int first = 0; first < vectors; first += lanes) {
    const int vector = first + lane % lanes;
    std::uint32_t magnitudes[V] = {};
#pragma unroll 4
    for (int p = lane / lanes; p < warp_points; p += warp_size / lanes) {
      F x[V] = {};
      if (vector < vectors && (reached[p / warp_size] >> p % warp_size & 1u) != 0) {
        load_features(plan, number + p, std::int64_t{vector} * V, x);
      }
#pragma unroll
      for (int v = 0; v < V; ++v) magnitudes[v] = max(magnitudes[v], magnitude_of(feature_value(x[v])));
    }
#pragma unroll
    for (int v = 0; v < V; ++v) {
      for (int step = lanes; step < warp_size; step *= 2) {
        magnitudes[v] = max(magnitudes[v], __shfl_xor_sync(whole_warp, magnitudes[v], step));
      }
      if (lane < lanes && magnitudes[v] > 0) atomicMax(largest + vector * V + v, magnitudes[v]);
    }
  }
}
// Called, so that the kernels of points need not be compiled for every type of features.
__device__ __noinline__ void find_largest(const Call& call, std::int64_t number, const unsigned* reached,
                                          std::uint32_t* largest) {
  const auto find = [&]<class F>(Type<F>) {
    if (call.wide) {
      find_largest<F, 4>(call.plan, number, reached, largest);
    } else {
      find_largest<F, 1>(call.plan, number, reached, largest);
    }
  };
  switch (call.plan.feature_dtype) {
    case DType::f16:
      return find(Type<f16>{});
    case DType::bf16:
      return find(Type<bf16>{});
    case DType::f32:
      return find(Type<float>{});
    default:
      return find(Type<std::uint8_t>{});
  }
}

// The same for the points of a warp whatever grids they go into: where that is one for the block, into its shared memory.
template <class Index, class C>
__device__ void find_largest(const Call& call, const Tile<C>& tile, std::int64_t at,
                             const Index (&keys)[tuning::points_per_thread], std::uint32_t* block_largest) {
  constexpr int n = tuning::points_per_thread;
  const Plan& plan = call.plan;
  __shared__ unsigned reached_by[warps][n];
  unsigned* const reached = reached_by[threadIdx.x / warp_size];
  const auto set = [&](int k, bool counts) {
    const unsigned lanes = __ballot_sync(whole_warp, counts);
    if (threadIdx.x % warp_size == 0) reached[k] = lanes;
  };
  const std::int64_t number = number_in(plan, tile, at - threadIdx.x % warp_size);
  if (tile.one || plan.grids == 1) {
#pragma unroll
    for (int k = 0; k < n; ++k) set(k, keys[k] >= 0);
    __syncwarp();
    const bool shares = plan.channels <= most_shared_channels;
    if (!shares) after_earlier_work();
    find_largest(call, number, reached,
                 shares ? block_largest : call.magnitudes.largest + (tile.one ? tile.cloud.grid : 0) * plan.channels);
    return;
  }
  after_earlier_work();
  Index grids[n];  // of the points that are still to come; -1: of none
#pragma unroll
  for (int k = 0; k < n; ++k) grids[k] = keys[k] < 0 ? Index(-1) : keys[k] / static_cast<Index>(plan.cells);
  for (;;) {
    Index grid = -1;
#pragma unroll
    for (int k = 0; k < n; ++k) {
      const unsigned left = __ballot_sync(whole_warp, grids[k] >= 0);
      if (grid < 0 && left != 0) grid = __shfl_sync(whole_warp, grids[k], __ffs(static_cast<int>(left)) - 1);
    }
    if (grid < 0) return;
#pragma unroll
    for (int k = 0; k < n; ++k) {
      set(k, grids[k] == grid);
      if (grids[k] == grid) grids[k] = -1;
    }
    __syncwarp();
    find_largest(call, number, reached, call.magnitudes.largest + grid * plan.channels);
    __syncwarp();
  }
}

// ---- cells ---------------------------------------------------------------------------------------------------------

// Of one grid and not too many channels, found once for a block.
struct Scales {
  Scale channels[most_shared_channels];
  __device__ static bool serve(const Plan& plan) { return plan.grids == 1 && plan.channels <= most_shared_channels; }
  __device__ void find(const Call& call) {
    if (serve(call.plan) && threadIdx.x < call.plan.channels) {
      channels[threadIdx.x] = scale_of<float>(call.plan, call.magnitudes, 0, threadIdx.x);
    }
    __syncthreads();
  }
  __device__ Scale of(const Call& call, std::int64_t key, std::int64_t channel) const {
    if (serve(call.plan)) return channels[channel];
    const std::int64_t grid = call.plan.grids == 1 ? 0 : key / call.plan.cells;
    return scale_of<float>(call.plan, call.magnitudes, grid, channel);
  }
};

// By the thread that has the first channel.
__device__ void write_count(const Plan& plan, std::int64_t key, std::int64_t channel, int points) {
  if (channel == 0 && plan.count != nullptr) plan.count[key] = (plan.accumulate ? plan.count[key] : 0) + points;
}

template <class F, int V, bool Sums, bool Extremes>
__device__ void write_empty(const Call& call, std::int64_t out) {
  const auto fill = [&]<class T>(T* values, std::uint32_t pattern) {
    if (values == nullptr) return;
    Pack<T, V> pack;
#pragma unroll
    for (int v = 0; v < V; ++v) pack.x[v] = first_of<T>(pattern);
    *reinterpret_cast<Pack<T, V>*>(values + out) = pack;
  };
  if constexpr (Sums) {
    fill(call.plan.sum, call.empty_float);
    fill(call.plan.mean, call.empty_float);
  }
  if constexpr (Extremes) {
    fill(static_cast<F*>(call.plan.max), call.empty_feature);
    fill(static_cast<F*>(call.plan.min), call.empty_feature);
  }
}

// Adds a chain, of which the first node and the features of its first point are read already; false where it is too long.
// How far that is depends on the nodes alone, so all channels of a cell agree.
template <class F, int V, bool Sums, bool Extremes>
__device__ bool add_chain(const Plan& plan, const Node* nodes, std::int64_t channel, const double (&scales)[V],
                          std::int64_t point, Node node, F (&x)[V], Cell<F, V, Sums, Extremes>& cell, int& points) {
  constexpr int flight = 4;
  for (int steps = 0;;) {
    cell.add(plan, x, scales);
    steps += 1 + (node.length - 1 + flight - 1) / flight;
    if (steps > tuning::longest_chain) return false;
    points += node.length;
#pragma unroll flight
    for (int k = 1; k < node.length; ++k) {
      load_features(plan, point + k, channel, x);
      cell.add(plan, x, scales);
    }
    if (node.next < 0) return true;
    point = node.next;
    node = nodes[point];
    load_features(plan, point, channel, x);
  }
}

// A cell with a long chain: the next kernel adds all its points, and the one after it writes the cell.
__device__ void add_heavy(const Call& call, std::int64_t key) {
  const std::int64_t channels = call.plan.channels;
  const std::int32_t number = atomicAdd(call.heavy_count, 1);
  call.heavy_cells[number] = {key, 0};
  for (std::int64_t c = 0; c < channels; ++c) call.heavy[number * channels + c] = Partial::none();
  call.heads[key] = -2 - number;
}

// Writes all cells. Those that have points are listed first, for the threads of a block to share: they are few, here and
// there, and cost much more than the empty ones.
template <class F, int V, bool Sums, bool Extremes>
__global__ void __launch_bounds__(tuning::threads) voxelize_cells_kernel(const __grid_constant__ Call call) {
  constexpr int n = tuning::cells_in_flight;
  const Plan& plan = call.plan;
  __shared__ Scales scales;
  __shared__ std::int32_t heads[tile_cells];
  __shared__ std::uint16_t occupied[tile_cells];
  __shared__ int occupied_count;
  const auto thread = static_cast<int>(threadIdx.x);
  const int lane = thread % warp_size;
  if (thread == 0) occupied_count = 0;
  after_earlier_work();
  let_next_begin();
  const std::int64_t tile = std::int64_t{blockIdx.x} * tile_cells;
  const auto cells = static_cast<int>(min(std::int64_t{tile_cells}, call.all_cells - tile));
  std::int32_t mine[tuning::cells_per_thread];
#pragma unroll
  for (int k = 0; k < tuning::cells_per_thread; ++k) {
    const int cell = k * tuning::threads + thread;
    mine[k] = cell < cells ? call.heads[tile + cell] : -1;
  }
  if constexpr (Sums) scales.find(call);
  __syncthreads();
#pragma unroll
  for (int k = 0; k < tuning::cells_per_thread; ++k) {
    const int cell = k * tuning::threads + thread;
    heads[cell] = mine[k];
    const bool any = mine[k] >= 0;
    const unsigned lanes = __ballot_sync(whole_warp, any);
    int place = 0;
    if (lane == 0 && lanes != 0) place = atomicAdd(&occupied_count, __popc(lanes));
    place = __shfl_sync(whole_warp, place, 0) + __popc(lanes & ((1u << lane) - 1));
    if (any) occupied[place] = static_cast<std::uint16_t>(cell);
    if (cell >= cells) continue;
    if (call.occupied != nullptr) call.occupied[tile + cell] = any ? 1 : 0;
    if (plan.occupancy != nullptr && (any || !plan.accumulate)) {
      plan.occupancy[tile + cell] = any ? std::uint8_t{1} : static_cast<std::uint8_t>(whole(plan.empty));
    }
    if (plan.count != nullptr && !any && !plan.accumulate) plan.count[tile + cell] = whole(plan.empty);
  }
  __syncthreads();
  const int all_occupied = occupied_count;

  // Threads lie side by side along the channels, as many cells as have room at once.
  const auto vectors = static_cast<int>(plan.channels / V);
  const int rows = max(tuning::threads / vectors, 1);
  const int row = thread / vectors;
  if (row >= rows) return;
  for (int vector = thread - row * vectors; vector < vectors; vector += tuning::threads) {
    const std::int64_t channel = std::int64_t{vector} * V;
    for (int cell = row; cell < cells && !plan.accumulate; cell += rows) {
      if (heads[cell] == -1) write_empty<F, V, Sums, Extremes>(call, (tile + cell) * plan.channels + channel);
    }
    for (int first = row; first < all_occupied; first += n * rows) {
      Node nodes[n];
      F x[n][V];
#pragma unroll
      for (int k = 0; k < n; ++k) {
        if (first + k * rows >= all_occupied) break;
        const std::int32_t head = heads[occupied[first + k * rows]];
        nodes[k] = call.nodes[head];
        load_features(plan, head, channel, x[k]);
      }
#pragma unroll
      for (int k = 0; k < n; ++k) {
        if (first + k * rows >= all_occupied) break;
        const int at = occupied[first + k * rows];
        const std::int64_t key = tile + at;
        double to_fixed[V] = {};
#pragma unroll
        for (int v = 0; Sums && v < V; ++v) to_fixed[v] = scales.of(call, key, channel + v).to;
        Cell<F, V, Sums, Extremes> cell;
        int points = 0;
        if (add_chain(plan, call.nodes, channel, to_fixed, heads[at], nodes[k], x[k], cell, points)) {
          double back[V] = {};
#pragma unroll
          for (int v = 0; Sums && v < V; ++v) back[v] = scales.of(call, key, channel + v).back;
          cell.write(plan, key * plan.channels + channel, back, points);
          write_count(plan, key, channel, points);
        } else if (vector == 0) {
          add_heavy(call, key);
        }
      }
    }
  }
}

// ---- cells with long chains ----------------------------------------------------------------------------------------

// What some points of such a cell, one after the other, add to a channel of it.
template <class F>
struct HeavyPart {
  std::int32_t number = -1;  // of the cell
  Cell<F, 1, true, true> cell;
  int points = 0;

  // Of the same cell and channel, by lanes that are `lanes`, 2 * lanes, ... apart.
  __device__ void add_up(int lanes) {
    cell.set(over_lanes(cell.partial(), lanes));
    for (int step = lanes; step < warp_size; step *= 2) points += __shfl_xor_sync(whole_warp, points, step);
  }
  __device__ void flush(const Call& call, std::int64_t channel) {
    if (number < 0 || channel >= call.plan.channels) return;
    call.heavy[number * call.plan.channels + channel].add_atomically(cell.partial());
    if (channel == 0) atomicAdd(&call.heavy_cells[number].points, points);
  }
};

// All points of heavy cells into them. A warp takes a span of points; side by side its lanes take channels, and where
// those are few, parts of the span. What follows each other in a cell is added before it goes to L2.
template <class F, class Index>
__global__ void __launch_bounds__(tuning::threads) voxelize_heavy_points_kernel(const __grid_constant__ Call call) {
  constexpr int span = tuning::heavy_span;
  constexpr int flight = 4;
  const Plan& plan = call.plan;
  after_earlier_work();
  let_next_begin();
  if (*call.heavy_count == 0) return;
  __shared__ Scales scales;
  __shared__ std::int32_t numbers_of[warps][span];
  scales.find(call);
  const auto lane = static_cast<int>(threadIdx.x % warp_size);
  const auto warp = static_cast<int>(threadIdx.x / warp_size);
  std::int32_t* const numbers = numbers_of[warp];
  const int lanes = lanes_of(plan.channels);
  const int each = span / (warp_size / lanes);
  const int begin = lane / lanes * each;
  for (std::int64_t first = (std::int64_t{blockIdx.x} * warps + warp) * span; first < plan.all_points;
       first += std::int64_t{gridDim.x} * warps * span) {
    Index keys[span / warp_size];
    std::int32_t heads[span / warp_size];
    bool any = false;
#pragma unroll
    for (int k = 0; k < span / warp_size; ++k) {
      const std::int64_t point = first + k * warp_size + lane;
      keys[k] = point < plan.all_points ? static_cast<const Index*>(call.keys)[point] : Index(-1);
    }
#pragma unroll
    for (int k = 0; k < span / warp_size; ++k) heads[k] = keys[k] >= 0 ? call.heads[keys[k]] : -1;
#pragma unroll
    for (int k = 0; k < span / warp_size; ++k) {
      numbers[k * warp_size + lane] = heads[k] < -1 ? -2 - heads[k] : -1;
      any = any || heads[k] < -1;
    }
    __syncwarp();
    if (__any_sync(whole_warp, any)) {
      for (std::int64_t channel = lane % lanes; channel - lane % lanes < plan.channels; channel += lanes) {
        HeavyPart<F> part;
        double scale[1] = {};
        for (int p = begin; p < begin + each; p += flight) {
          F x[flight][1] = {};
#pragma unroll
          for (int k = 0; k < flight; ++k) {
            if (numbers[p + k] >= 0 && channel < plan.channels) load_features(plan, first + p + k, channel, x[k]);
          }
#pragma unroll
          for (int k = 0; k < flight; ++k) {
            const std::int32_t number = numbers[p + k];
            if (number < 0) continue;
            if (number != part.number) {
              part.flush(call, channel);
              part = {};
              part.number = number;
              if (call.sums && channel < plan.channels)
                scale[0] = scales.of(call, call.heavy_cells[number].key, channel).to;
            }
            part.cell.add(plan, x[k], scale);
            ++part.points;
          }
        }
        int same = 0;
        __match_all_sync(whole_warp, part.number, &same);
        if (same != 0) part.add_up(lanes);
        if (same == 0 || lane < lanes) part.flush(call, channel);
      }
    }
    __syncwarp();  // the numbers are read
  }
}

template <class F>
__global__ void __launch_bounds__(tuning::threads) voxelize_heavy_cells_kernel(const __grid_constant__ Call call) {
  const Plan& plan = call.plan;
  after_earlier_work();
  let_next_begin();
  const std::int64_t values = *call.heavy_count * plan.channels;
  if (values == 0) return;
  __shared__ Scales scales;
  scales.find(call);
  for (std::int64_t k = std::int64_t{blockIdx.x} * tuning::threads + threadIdx.x; k < values;
       k += std::int64_t{gridDim.x} * tuning::threads) {
    const HeavyCell& from = call.heavy_cells[k / plan.channels];
    const std::int64_t channel = k % plan.channels;
    const Partial& heavy = call.heavy[k];
    Cell<F, 1, true, true> cell;
    cell.set(heavy);
    const double back[1] = {call.sums ? scales.of(call, from.key, channel).back : 1};
    cell.write(plan, from.key * plan.channels + channel, back, from.points);
    write_count(plan, from.key, channel, from.points);
  }
}

}  // namespace
}  // namespace robocache::voxelize_op
