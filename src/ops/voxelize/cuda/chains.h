// Features on a GPU: every cell has a linked list of its points, its chain.
//
// The points kernel (cuda/point_kernels.h) makes a point the head of its cell's chain by an atomicExch, and stores
// the old head as the next node; neighbouring points that share a cell are one node. It also finds the largest
// magnitudes, before it waits until the heads are filled. Then each block of the cells kernel walks the chains of its
// cells and writes all its cells, the empty ones too. A heavy cell, whose chain is too long for one thread, is added
// up by all warps with integer atomics in L2. Integer sums do not depend on the order.
#pragma once

#include "ops/voxelize/cuda/count_bins.h"

namespace robocache::voxelize_op {
namespace {

using FeatureBinning = InterleavedBins<feature_bin_count>;  // cuda/feature_bins.h

// Most channels for which a block keeps magnitudes or exponents in shared memory.
inline constexpr int most_shared_channels = 64;

// The value at the start of a pattern of four bytes.
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

// The largest magnitudes of a warp's points from `number` on; `reached` has a bit for each point that counts.
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
// __noinline__, so that the points kernels need not be compiled for every type of features.
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

// The same for points that may go into several grids. Where the block has one grid, the result goes to its shared
// memory.
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
    if (!shares) wait_on_dependent_grids();
    find_largest(call, number, reached,
                 shares ? block_largest : call.magnitudes.largest + (tile.one ? tile.cloud.grid : 0) * plan.channels);
    return;
  }
  wait_on_dependent_grids();
  Index grids[n];  // of the points that remain; -1: none
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

__device__ int exponent_of_cell(const Call& call, std::int64_t key, std::int64_t channel) {
  const std::int64_t grid = call.plan.grids == 1 ? 0 : key / call.plan.cells;
  return exponent_in<float>(call.plan, call.magnitudes, grid, channel);
}

// Done by the thread with the first channel.
__device__ void write_count(const Plan& plan, std::int64_t key, std::int64_t channel, int points) {
  if (channel == 0 && plan.count != nullptr) plan.count[key] = (plan.accumulate ? plan.count[key] : 0) + points;
}

// Lists a heavy cell: the next kernel adds all its points, and the one after that writes the cell.
__device__ __noinline__ void add_heavy(const Call& call, std::int64_t key) {
  const std::int64_t channels = call.plan.channels;
  const std::int32_t number = atomicAdd(call.heavy_count, 1);
  call.heavy_cells[number] = {key, 0};
  for (std::int64_t c = 0; c < channels; ++c) call.heavy[number * channels + c] = Partial::none();
  call.heads[key] = -2 - number;
}

// The cells of a block, in shared memory.
struct CellTile {
  std::int32_t heads[tile_cells];
  std::uint16_t occupied[tile_cells];  // the cells that have points, in any order
  int occupied_count;
  std::int64_t first;
  int count;

  // Each thread reads cells_per_thread neighbouring cells.
  __device__ void read(const Call& call) {
    constexpr int n = tuning::cells_per_thread;
    const auto thread = static_cast<int>(threadIdx.x);
    const int lane = thread % warp_size;
    if (thread == 0) {
      occupied_count = 0;
      first = std::int64_t{blockIdx.x} * tile_cells;
      count = static_cast<int>(min(std::int64_t{tile_cells}, call.all_cells - first));
    }
    __syncthreads();
    std::int32_t mine[n];
    if (thread * n + n <= count) {
      const auto pack = *reinterpret_cast<const Pack<std::int32_t, n>*>(call.heads + first + thread * n);
#pragma unroll
      for (int k = 0; k < n; ++k) mine[k] = pack.x[k];
    } else {
#pragma unroll
      for (int k = 0; k < n; ++k) mine[k] = thread * n + k < count ? call.heads[first + thread * n + k] : -1;
    }
    int own = 0;
#pragma unroll
    for (int k = 0; k < n; ++k) {
      heads[thread * n + k] = mine[k];
      own += mine[k] >= 0 ? 1 : 0;
    }
    int place = warp_inclusive_sum(own);
    int base = 0;
    if (lane == warp_size - 1 && place > 0) base = atomicAdd(&occupied_count, place);
    place += __shfl_sync(whole_warp, base, warp_size - 1) - own;
#pragma unroll
    for (int k = 0; k < n; ++k) {
      if (mine[k] >= 0) occupied[place++] = static_cast<std::uint16_t>(thread * n + k);
    }
    __syncthreads();
  }
};

// Writes occupancy, and the counts of empty cells.
__device__ void write_marks(const Call& call, const CellTile& tile) {
  const Plan& plan = call.plan;
  if (call.occupied == nullptr && plan.occupancy == nullptr && (plan.count == nullptr || plan.accumulate)) return;
  for (auto cell = static_cast<int>(threadIdx.x); cell < tile.count; cell += tuning::threads) {
    const std::int64_t key = tile.first + cell;
    const bool any = tile.heads[cell] >= 0;
    if (call.occupied != nullptr) call.occupied[key] = any ? 1 : 0;
    if (plan.occupancy != nullptr && (any || !plan.accumulate)) {
      plan.occupancy[key] = any ? std::uint8_t{1} : static_cast<std::uint8_t>(whole(plan.empty));
    }
    if (plan.count != nullptr && !any && !plan.accumulate) plan.count[key] = whole(plan.empty);
  }
}

// Writes V channels of every empty cell: cells row, row + rows, ...
template <int V, class T>
__device__ void write_empty(const CellTile& tile, T* values, std::uint32_t pattern, int row, int rows,
                            std::int64_t channels, std::int64_t channel) {
  if (values == nullptr) return;
  Pack<T, V> pack;
#pragma unroll
  for (int v = 0; v < V; ++v) pack.x[v] = first_of<T>(pattern);
  T* to = values + (tile.first + row) * channels + channel;
#pragma unroll 4
  for (int cell = row; cell < tile.count; cell += rows, to += rows * channels) {
    if (tile.heads[cell] == -1) *reinterpret_cast<Pack<T, V>*>(to) = pack;
  }
}

// A node of a chain in registers, and V channels of the features of its first point.
template <class F, int V>
struct Link {
  std::int32_t point = 0;
  Node node{};
  F x[V] = {};

  __device__ void read(const Call& call, std::int32_t first, std::int64_t channel) {
    point = first;
    node = call.nodes[first];
    load_features(call.plan, first, channel, x);
  }
};

// Adds a chain. false: it is too long. That depends on the nodes alone, so all channels of a cell agree.
template <class F, int V, bool Sums, bool Extremes>
__device__ bool add_chain(const Call& call, Link<F, V> at, std::int64_t channel, const int (&exponents)[V],
                          Cell<F, V, Sums, Extremes>& cell, int& points) {
  constexpr int flight = tuning::chain_flight;  // points of a run that are loaded at once; one step
  for (int steps = 0;;) {
    cell.add(call.plan, at.x, exponents);
    steps += 1 + (at.node.length - 1 + flight - 1) / flight;
    if (steps > tuning::longest_chain) return false;
    points += at.node.length;
#pragma unroll 1
    for (int k = 1; k < at.node.length; k += flight) {
      F x[flight][V];
#pragma unroll
      for (int n = 0; n < flight; ++n) {
        load_features(call.plan, at.point + min(k + n, at.node.length - 1), channel, x[n]);
      }
#pragma unroll
      for (int n = 0; n < flight; ++n) {
        if (k + n < at.node.length) cell.add(call.plan, x[n], exponents);
      }
    }
    if (at.node.next < 0) return true;
    at.read(call, at.node.next, channel);
  }
}

// Writes all cells. First it lists the cells that have points, so that the threads of a block share them evenly: they
// are few and scattered, and cost much more than empty ones. While a thread adds up one chain, it loads the head of
// the next.
template <class F, int V, bool Sums, bool Extremes>
__global__ void __launch_bounds__(tuning::threads, tuning::cells_blocks)
    voxelize_cells_kernel(const __grid_constant__ Call call) {
  const Plan& plan = call.plan;
  __shared__ CellTile tile;
  __shared__ int of_grid[Sums ? most_shared_channels : 1];  // exponents; used where there is one grid
  wait_on_dependent_grids();
  launch_dependent_grids();
  const bool shares = Sums && plan.grids == 1 && plan.channels <= most_shared_channels;
  if (shares && threadIdx.x < plan.channels) of_grid[threadIdx.x] = exponent_of_cell(call, 0, threadIdx.x);
  tile.read(call);
  write_marks(call, tile);
  // Neighbouring threads take neighbouring channels of a cell; a block takes as many cells at once as it has threads
  // for.
  const auto vectors = static_cast<int>(plan.channels / V);
  const int rows = max(tuning::threads / vectors, 1);
  const int row = static_cast<int>(threadIdx.x) / vectors;
  if (row >= rows) return;
  for (int vector = static_cast<int>(threadIdx.x) - row * vectors; vector < vectors; vector += tuning::threads) {
    const std::int64_t channel = std::int64_t{vector} * V;
    Link<F, V> next;
    if (row < tile.occupied_count) next.read(call, tile.heads[tile.occupied[row]], channel);
    if (!plan.accumulate) {
      if constexpr (Sums) {
        write_empty<V>(tile, plan.sum, call.empty_float, row, rows, plan.channels, channel);
        write_empty<V>(tile, plan.mean, call.empty_float, row, rows, plan.channels, channel);
      }
      if constexpr (Extremes) {
        write_empty<V>(tile, static_cast<F*>(plan.max), call.empty_feature, row, rows, plan.channels, channel);
        write_empty<V>(tile, static_cast<F*>(plan.min), call.empty_feature, row, rows, plan.channels, channel);
      }
    }
    std::int64_t grid = shares ? 0 : -1;
    int exponents[V] = {};
#pragma unroll
    for (int v = 0; shares && v < V; ++v) exponents[v] = of_grid[channel + v];
    for (int number = row; number < tile.occupied_count; number += rows) {
      const Link<F, V> at = next;
      if (number + rows < tile.occupied_count) next.read(call, tile.heads[tile.occupied[number + rows]], channel);
      const std::int64_t key = tile.first + tile.occupied[number];
      if constexpr (Sums) {
        if (const std::int64_t here = plan.grids == 1 ? 0 : key / plan.cells; here != grid) {
          grid = here;
#pragma unroll
          for (int v = 0; v < V; ++v) exponents[v] = exponent_in<float>(plan, call.magnitudes, grid, channel + v);
        }
      }
      Cell<F, V, Sums, Extremes> cell;
      int points = 0;
      if (add_chain(call, at, channel, exponents, cell, points)) {
        cell.write(plan, key * plan.channels + channel, exponents, points);
        write_count(plan, key, channel, points);
      } else if (vector == 0) {
        add_heavy(call, key);
      }
    }
  }
}

// ---- cells with long chains ----------------------------------------------------------------------------------------

// The sum of some consecutive points of a heavy cell, for one channel.
template <class F>
struct HeavyPart {
  std::int32_t number = -1;  // of the cell
  Cell<F, 1, true, true> cell;
  int points = 0;

  // Adds up lanes that are a multiple of `lanes` apart and have the same cell and channel.
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

// Adds all points of heavy cells. A warp takes a span of points; neighbouring lanes take channels, and where channels
// are few, groups of lanes take parts of the span. Consecutive points of one cell are added in registers before an
// atomic in L2.
template <class F, class Index>
__global__ void __launch_bounds__(tuning::threads) voxelize_heavy_points_kernel(const __grid_constant__ Call call) {
  constexpr int span = tuning::heavy_span;
  constexpr int flight = 4;
  const Plan& plan = call.plan;
  wait_on_dependent_grids();
  launch_dependent_grids();
  if (*call.heavy_count == 0) return;
  __shared__ std::int32_t numbers_of[warps][span];
  const auto lane = static_cast<int>(threadIdx.x % warp_size);
  const auto warp = static_cast<int>(threadIdx.x / warp_size);
  std::int32_t* const numbers = numbers_of[warp];
  const bool by_bins = call.feature_bins.tiles > 0;
  const auto has_head = [&](Index key) {
    return key >= 0 && (!by_bins || call.feature_bins.heavy[FeatureBinning::bin_of(static_cast<std::uint32_t>(key))]);
  };
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
    for (int k = 0; k < span / warp_size; ++k) heads[k] = has_head(keys[k]) ? call.heads[keys[k]] : -1;
#pragma unroll
    for (int k = 0; k < span / warp_size; ++k) {
      numbers[k * warp_size + lane] = heads[k] < -1 ? -2 - heads[k] : -1;
      any = any || heads[k] < -1;
    }
    __syncwarp();
    if (__any_sync(whole_warp, any)) {
      for (std::int64_t channel = lane % lanes; channel - lane % lanes < plan.channels; channel += lanes) {
        HeavyPart<F> part;
        int exponent[1] = {};
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
              if (call.sums && channel < plan.channels) {
                exponent[0] = exponent_of_cell(call, call.heavy_cells[number].key, channel);
              }
            }
            part.cell.add(plan, x[k], exponent);
            ++part.points;
          }
        }
        int same = 0;
        __match_all_sync(whole_warp, part.number, &same);
        if (same != 0) part.add_up(lanes);
        if (same == 0 || lane < lanes) part.flush(call, channel);
      }
    }
    __syncwarp();  // all lanes have read the numbers
  }
}

template <class F>
__global__ void __launch_bounds__(tuning::threads) voxelize_heavy_cells_kernel(const __grid_constant__ Call call) {
  const Plan& plan = call.plan;
  wait_on_dependent_grids();
  launch_dependent_grids();
  const std::int64_t values = *call.heavy_count * plan.channels;
  if (values == 0) return;
  for (std::int64_t k = std::int64_t{blockIdx.x} * tuning::threads + threadIdx.x; k < values;
       k += std::int64_t{gridDim.x} * tuning::threads) {
    const HeavyCell& from = call.heavy_cells[k / plan.channels];
    const std::int64_t channel = k % plan.channels;
    if (from.points == 0) continue;  // an empty cell of a bin all of whose cells are listed: it is written already
    const Partial& heavy = call.heavy[k];
    Cell<F, 1, true, true> cell;
    cell.set(heavy);
    const int exponents[1] = {call.sums ? exponent_of_cell(call, from.key, channel) : 0};
    cell.write(plan, from.key * plan.channels + channel, exponents, from.points);
    write_count(plan, from.key, channel, from.points);
  }
}

}  // namespace
}  // namespace robocache::voxelize_op
