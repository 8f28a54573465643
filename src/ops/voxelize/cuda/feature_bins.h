// Features of a plain cloud on a GPU, second kernel: reduces them by bins of cells.
//
// To walk a chain of points in global memory costs one memory latency a step. So the points are sorted by bin first
// (cuda/feature_sort.h). Then a block for each bin copies the features of its points into shared memory with cp.async, makes
// a chain for each cell there, walks the chains, and writes the empty cells meanwhile. Every byte of a grid is written once,
// and nothing is filled before. Features that do not fit are read from global memory; a bin with more points than fit as
// chain nodes goes through its cells in several ranges. Cells with too many points for one thread, and all cells of a bin
// with too many points for one block, are listed as heavy cells (cuda/chains.h).
#pragma once

#include <bit>
#include <cmath>

#include "ops/voxelize/cuda/feature_sort.h"

namespace robocache::voxelize_op {
namespace {

// exponent_of() scales n points to integers below 2^(62 - bit_width(n)), and a thread adds at most longest_cell of
// them.
constexpr bool sums_are_small =
    62 - std::bit_width(unsigned{tuning::feature_bin_least_points}) + std::bit_width(unsigned{tuning::longest_cell}) <=
    51;

// cp.async of 16 bytes.
__device__ inline void begin_copy(void* to, const void* from) {
  asm volatile(
      "cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(static_cast<std::uint32_t>(__cvta_generic_to_shared(to))),
      "l"(from)
      : "memory");
}
// Waits for all copies that this thread has begun.
__device__ inline void await_copies() { asm volatile("cp.async.wait_all;" ::: "memory"); }

struct alignas(16) FeatureBinShared {
  std::uint32_t largest[most_bin_channels];
  int totals[warps];  // points of each warp's tiles
  int listed;         // cells
};
// Bytes for each point beside its features: its cell, the next point of its chain, an entry of the list of cells, and
// its number in the cloud.
constexpr int bin_point_bytes = 10;

// A block reduces the features of the points of its bin.
template <bool Sums, bool Extremes>
struct BinReducer {
  static constexpr int V = 4;
  static constexpr int none = 0xffff;
  using Row = Pack<float, V>;
  const Call& call;
  const Plan& plan = call.plan;
  const FeatureBins& from = call.feature_bins;
  const std::uint32_t bin = blockIdx.x;
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % warp_size;
  const int warp = thread / warp_size;
  const int vector = thread & (from.vectors - 1);
  const int cells = cells_of(call, bin);  // of the bin that are in the grid
  FeatureBinShared& shared;
  int* const heads;  // of each cell: the last of its points, or none
  // The points of the current range of cells. Their arrays lie after the heads in shared memory:
  int points = 0;
  int staged = 0;                    // the first points, whose features are in shared memory
  Row* rows = nullptr;               // their features
  std::uint32_t* numbers = nullptr;  // numbers in the cloud of the other points
  std::uint16_t* places = nullptr;   // the cell of each point
  std::uint16_t* next = nullptr;     // the point before it in its cell, or none
  std::uint16_t* list = nullptr;     // cells that write_plain() cannot write

  // Lines of cells are in order, so only the last may have fewer than 32.
  __device__ static int cells_of(const Call& call, std::uint32_t bin) {
    const auto last = static_cast<std::uint32_t>(call.feature_bins.cells - warp_size);
    const auto behind = static_cast<int>(call.all_cells) - static_cast<int>(FeatureBinning::cell_in_bin(bin, last));
    return static_cast<int>(last) + max(min(behind, warp_size), 0);
  }
  __device__ BinReducer(const Call& of, uint4* memory)
      : call(of), shared(*reinterpret_cast<FeatureBinShared*>(memory)), heads(reinterpret_cast<int*>(&shared + 1)) {}

  __device__ std::uint32_t key_of(int cell) const {
    return FeatureBinning::cell_in_bin(bin, static_cast<std::uint32_t>(cell));
  }
  __device__ const float* features(std::uint32_t number) const { return features_of(plan, number) + vector * V; }
  __device__ Row row_of(int point) const {
    if (point < staged) return rows[(point << from.log_vectors) + vector];
    return *reinterpret_cast<const Row*>(features(numbers[point - staged]));
  }

  __device__ void set_points(int number, bool stages) {
    points = number;
    const int row_bytes = static_cast<int>(sizeof(Row)) << from.log_vectors;
    staged = stages ? min((from.room_bytes - number * bin_point_bytes) / (row_bytes - 4), number) : 0;
    rows = reinterpret_cast<Row*>(heads + from.cells);
    numbers = reinterpret_cast<std::uint32_t*>(rows + (staged << from.log_vectors));
    places = reinterpret_cast<std::uint16_t*>(numbers + (number - staged));
    next = places + number;
    list = next + number;
  }
  __device__ void clear() {
#pragma unroll 4
    for (int k = thread; k < from.cells / 4; k += tuning::threads) {
      reinterpret_cast<int4*>(heads)[k] = {none, none, none, none};
    }
    if (thread == 0) shared.listed = 0;
  }

  // A warp takes every `warps`-th tile, so that points in an order spread over all warps; a lane takes every 32nd of
  // the warp's tiles.
  __device__ std::uint32_t extent_of(int tile) const {
    return tile < from.tiles ? from.extents[tile * feature_bin_count + static_cast<int>(bin)] : 0u;
  }
  __device__ static int length_of(std::uint32_t extent) { return static_cast<int>((extent >> 16) - extent % 0x10000u); }

  // Calls each(whether there is one, place in the bin, number in the cloud) for the points of the warp, all lanes at once.
  template <class Each>
  __device__ void over_points(const Each& each) const {
    constexpr int flight = 4;
#pragma unroll 1
    for (int first = warp; first < from.tiles; first += tuning::threads) {
      const std::uint32_t extent = extent_of(first + lane * warps);
      const int end = warp_inclusive_sum(length_of(extent));
      const int all = __shfl_sync(whole_warp, end, warp_size - 1);
      const int shift = (first + lane * warps) * feature_tile + static_cast<int>(extent >> 16) - end;
#pragma unroll 1
      for (int base = 0; base < all; base += flight * warp_size) {
        std::uint32_t entries[flight];
        int tiles[flight];
#pragma unroll
        for (int k = 0; k < flight; ++k) {
          const int at = base + k * warp_size + lane;
          int source = 0;  // the lane that has the point's tile
#pragma unroll
          for (int step = warp_size / 2; step > 0; step /= 2) {
            if (__shfl_sync(whole_warp, end, source + step - 1) <= at) source += step;
          }
          tiles[k] = first + source * warps;
          const int entry = __shfl_sync(whole_warp, shift, source) + at;
          entries[k] = at < all ? from.entries[entry] : 0u;
        }
#pragma unroll
        for (int k = 0; k < flight; ++k) {
          if (base + k * warp_size >= all) break;
          each(base + k * warp_size + lane < all, static_cast<int>(entries[k] >> 16),
               static_cast<std::uint32_t>(tiles[k]) * feature_tile + entries[k] % 0x10000u);
        }
      }
    }
  }

  // The sum over all threads of the block; leaves the sum of each warp in shared.totals.
  __device__ int add_up(int number) {
#pragma unroll
    for (int step = 1; step < warp_size; step *= 2) number += __shfl_xor_sync(whole_warp, number, step);
    if (lane == 0) shared.totals[warp] = number;
    __syncthreads();
    number = 0;
#pragma unroll
    for (int k = 0; k < warps; ++k) number += shared.totals[k];
    return number;
  }

  // Puts the points of cells [begin, end) into chains, and copies features into shared memory. shared.totals holds
  // the number of points of each warp.
  __device__ void chain(int begin, int end) {
    const unsigned before = (1u << lane) - 1;
    int first = 0;
    for (int k = 0; k < warp; ++k) first += shared.totals[k];
    over_points([&](bool is_point, int cell, std::uint32_t number) {
      const bool counts = is_point && cell >= begin && cell < end;
      const unsigned counted = __ballot_sync(whole_warp, counts);
      if (counts) {
        const int point = first + __popc(counted & before);
        places[point] = static_cast<std::uint16_t>(cell);
        next[point] = static_cast<std::uint16_t>(atomicExch(heads + cell, point));
        if (point >= staged) numbers[point - staged] = number;
      }
      // If features are staged, all points count, and the first lanes have one each.
      const int here = min(__popc(counted), staged - first);
#pragma unroll 1
      for (int k = 0; k < here << from.log_vectors; k += warp_size) {
        const int source = (k + lane) >> from.log_vectors;
        const std::uint32_t its = __shfl_sync(whole_warp, number, source);
        if (source < here) begin_copy(rows + ((first + source) << from.log_vectors) + vector, features(its));
      }
      first += __popc(counted);
    });
    await_copies();
    __syncthreads();
  }

  // The index of this thread's four channels of a cell, in units of four channels.
  __device__ std::uint32_t at(int cell) const {
    return (key_of(cell) << from.log_vectors) + static_cast<std::uint32_t>(vector);
  }
  // Writes the cells of [begin, end) that have no chain.
  __device__ void write_empty(int begin, int end) const {
    const int log_line = 5 + from.log_vectors;  // log2 of the threads that write a line of 32 cells
    const int in_line = thread & ((1 << log_line) - 1);
    const int shift = in_line >> from.log_vectors;
    const auto line_bytes = static_cast<std::uint32_t>(sizeof(uint4)) << log_line;
    const auto write = [&](void* values, std::uint32_t pattern) {
      if (values == nullptr) return;
      char* const to = static_cast<char*>(values) + in_line * sizeof(uint4);
      const uint4 four{pattern, pattern, pattern, pattern};
#pragma unroll 4
      for (int cell = begin + (thread >> log_line) * warp_size + shift; cell < end;
           cell += tuning::threads >> from.log_vectors) {
        const std::uint32_t line = key_of(cell) / warp_size;
        char* const here = to + std::uint64_t{line} * line_bytes;
        if (heads[cell] == none) __stcs(reinterpret_cast<uint4*>(here), four);
      }
    };
    if constexpr (Sums) {
      write(plan.sum, call.empty_float);
      write(plan.mean, call.empty_float);
    }
    if constexpr (Extremes) {
      write(plan.max, call.empty_feature);
      write(plan.min, call.empty_feature);
    }
    if (plan.count == nullptr) return;
#pragma unroll 1
    for (int cell = begin + thread; cell < end; cell += tuning::threads) {
      if (heads[cell] == none) plan.count[key_of(cell)] = whole(plan.empty);
    }
  }

  // If a point is alone in its cell and its sum is not rounded, each reduction equals its features. false: that is
  // not so, and nothing was written. No rounding: every feature is 0 or at least `least`.
  __device__ bool write_plain(int cell, const Row& row, const Row& least) const {
    bool plain = true;
    Row sum;
#pragma unroll
    for (int v = 0; v < V; ++v) {
      const float x = row.x[v];
      const float magnitude = fabsf(x);
      if constexpr (Sums) {
        plain &= ((magnitude >= least.x[v]) | (x == 0)) & (magnitude <= std::numeric_limits<float>::max());
      } else {
        plain &= !is_nan(x);
      }
      sum.x[v] = x + 0.0f;  // turns -0 into 0
    }
    if (!plain) return false;
    const auto write = [&](void* values, const Row& what) {
      if (values != nullptr) static_cast<Row*>(values)[at(cell)] = what;
    };
    if constexpr (Sums) {
      write(plan.sum, sum);
      write(plan.mean, sum);
    }
    if constexpr (Extremes) {
      write(plan.max, row);
      write(plan.min, row);
    }
    write_count(plan, key_of(cell), vector, 1);
    return true;
  }
  // Writes any other cell with a chain. false: the chain is too long for one thread.
  __device__ bool write_cell(int cell) const {
    int exponents[V] = {};
#pragma unroll
    for (int v = 0; Sums && v < V; ++v) exponents[v] = exponent(v);
    Cell<float, V, Sums, Extremes, sums_are_small> reduced;
    int point = heads[cell];
    Row row = row_of(point);
    int number = 0;
#pragma unroll 1
    do {
      const Row here = row;
      point = next[point];
      if (point != none) row = row_of(point);  // prefetched
      reduced.add(plan, here.x, exponents);
    } while (++number < tuning::longest_cell && point != none);
    if (point != none) return false;
    reduced.write(plan, std::int64_t{at(cell)} * V, exponents, number);
    write_count(plan, key_of(cell), vector, number);
    return true;
  }
  __device__ int exponent(int v) const {
    return exponent_of<float>(shared.largest[vector * V + v], plan.points_per_cloud);
  }
  // Writes cells [begin, end). Empty cells and cells of one point alternate, so that the memory system is always
  // busy; cells of several points, which take much longer, come last. Returns whether some cells have too many
  // points; those are left out.
  __device__ bool write_cells(int begin, int end) {
    Row least;  // magnitudes from here on are multiples of 2^-exponent
#pragma unroll
    for (int v = 0; Sums && v < V; ++v) {
      least.x[v] = __uint_as_float(static_cast<std::uint32_t>(min(max(150 - exponent(v), 1), 255)) << 23);
    }
    const unsigned earlier = ((1u << vector) - 1) << (lane - vector);  // lanes of the point with lower channels
    const int slice = 4 * tuning::threads >> from.log_vectors;         // cells for each step
#pragma unroll 1
    for (int first = 0; first < points << from.log_vectors || begin < end; first += tuning::threads, begin += slice) {
      write_empty(begin, min(begin + slice, end));
      const int point = (first + thread) >> from.log_vectors;
      int cell = 0;
      bool lists = false;
      if (point < points && next[point] == none) {  // the oldest point of its cell
        cell = places[point];
        lists = heads[cell] != point || !write_plain(cell, row_of(point), least);
      }
      const unsigned listing = __ballot_sync(whole_warp, lists);
      if (lists && (listing & earlier) == 0) list[atomicAdd(&shared.listed, 1)] = static_cast<std::uint16_t>(cell);
    }
    __syncthreads();
    bool any_heavy = false;
#pragma unroll 1
    for (int item = thread; item < shared.listed << from.log_vectors; item += tuning::threads) {
      any_heavy |= !write_cell(list[item >> from.log_vectors]);
    }
    return any_heavy;
  }

  // Lists cells with too many points for one thread for the heavy cells' kernels, which read the heads of all cells
  // of the bin.
  __device__ void list_heavy(int begin, int end) {
#pragma unroll 1
    for (int cell = begin + thread; cell < end; cell += tuning::threads) call.heads[key_of(cell)] = -1;
    __syncthreads();
#pragma unroll 1
    for (int k = thread; k < shared.listed; k += tuning::threads) {
      int point = heads[list[k]];
#pragma unroll 1
      for (int number = 0; point != none && number < tuning::longest_cell; ++number) point = next[point];
      if (point != none) add_heavy(call, key_of(list[k]));
    }
  }
  // Lists all of the cells, which have no chains, because their points are too many for one block. Some may be empty,
  // so it writes them as empty, too.
  __device__ void list_all(int begin, int end) {
    write_empty(begin, end);
    __syncthreads();
    if (thread == 0) shared.listed = atomicAdd(call.heavy_count, end - begin);
    __syncthreads();
    const int first = shared.listed;
#pragma unroll 1
    for (int cell = thread; cell < end - begin; cell += tuning::threads) {
      const std::uint32_t key = key_of(begin + cell);
      call.heavy_cells[first + cell] = {static_cast<std::int64_t>(key), 0};
      call.heads[key] = -2 - (first + cell);
    }
#pragma unroll 1
    for (std::int64_t k = thread; k < (end - begin) * plan.channels; k += tuning::threads) {
      call.heavy[first * plan.channels + k] = Partial::none();
    }
  }

  // The largest magnitudes over all tiles.
  __device__ void read_largest(std::uint32_t (&mine)[V]) const {
#pragma unroll 2
    for (int k = thread; k < from.tiles << from.log_vectors; k += tuning::threads) {
      const uint4 four = reinterpret_cast<const uint4*>(from.largest)[k];
      mine[0] = max(mine[0], four.x);
      mine[1] = max(mine[1], four.y);
      mine[2] = max(mine[2], four.z);
      mine[3] = max(mine[3], four.w);
    }
  }

  // Runs before wait_on_dependent_grids(): touches shared memory only.
  __device__ void prepare() {
    if (thread < most_bin_channels) shared.largest[thread] = 0;
    clear();
  }

  __device__ void run() {
    int all = 0;  // points
#pragma unroll 1
    for (int tile = warp + lane * warps; tile < from.tiles; tile += tuning::threads) all += length_of(extent_of(tile));
    std::uint32_t largest[V] = {};
    if constexpr (Sums) read_largest(largest);
    all = add_up(all);
    if constexpr (Sums) share_largest(largest, from.vectors, shared.largest);
    // All cells at once where their points fit; else ranges of lines: half of the lines that would fit if all had
    // equally many points.
    const bool at_once = all <= from.capacity || all > tuning::longest_bin;
    const int most = at_once ? from.cells : max(from.cells / warp_size * (from.capacity / 2) / all, 1) * warp_size;
    int number = most;
    bool any_heavy = false;
    for (int begin = 0; begin < cells;) {
      const int end = min(begin + number, cells);
      const int here = at_once ? all : count(begin, end);
      if (here > from.capacity && !at_once && number > warp_size) {
        number = max(number / (2 * warp_size), 1) * warp_size;
        continue;
      }
      if (here > from.capacity) {
        any_heavy = true;
        list_all(begin, end);
      } else {
        set_points(here, at_once);
        chain(begin, end);
        any_heavy |= __syncthreads_or(write_cells(begin, end) ? 1 : 0) != 0;
        if (any_heavy || !at_once) list_heavy(begin, end);
      }
      begin = end;
      number = most;
      if (begin == cells) break;
      __syncthreads();
      clear();
    }
    if (thread == 0) from.heavy[bin] = any_heavy || !at_once;
    if (Sums && bin == 0 && thread < plan.channels) {
      call.magnitudes.largest[thread] = shared.largest[thread];  // for the next kernels
    }
  }
  // Counts the points of cells [begin, end).
  __device__ int count(int begin, int end) {
    int own = 0;
    over_points(
        [&](bool is_point, int cell, std::uint32_t) { own += is_point && cell >= begin && cell < end ? 1 : 0; });
    __syncthreads();  // all threads have read shared.totals
    return add_up(own);
  }
};

template <bool Sums, bool Extremes>
__global__ void __launch_bounds__(tuning::threads, tuning::feature_bin_blocks)
    voxelize_feature_bins_kernel(const __grid_constant__ Call call) {
  extern __shared__ uint4 memory[];
  BinReducer<Sums, Extremes> reducer(call, memory);
  reducer.prepare();
  wait_on_dependent_grids();
  launch_dependent_grids();
  if (const Plan& plan = call.plan;
      plan.dropped != nullptr && blockIdx.x == feature_bin_count - 1 && threadIdx.x < warp_size) {
    int not_finite = 0, outside = 0;
#pragma unroll 2
    for (auto tile = static_cast<int>(threadIdx.x); tile < call.feature_bins.tiles; tile += warp_size) {
      const int2 here = call.feature_bins.dropped[tile];
      not_finite += here.x;
      outside += here.y;
    }
    for (int step = 1; step < warp_size; step *= 2) {
      not_finite += __shfl_xor_sync(whole_warp, not_finite, step);
      outside += __shfl_xor_sync(whole_warp, outside, step);
    }
    if (const auto reason = static_cast<int>(threadIdx.x); reason < drop_reasons) {
      plan.dropped[reason] = reason == static_cast<int>(Drop::not_finite) ? not_finite
                             : reason == static_cast<int>(Drop::outside)  ? outside
                                                                          : 0;
    }
  }
  reducer.run();
}

FeatureBins::FeatureBins(const Plan& plan, const CudaMachine& machine) {
  const std::int64_t rows = divide_up(divide_up(plan.cells, 32), feature_bin_count);
  const bool takes = plan.reduces_features() && plan.feature_dtype == DType::f32 &&
                     (plan.channels == 4 || plan.channels == 8 || plan.channels == 16) && is_wide<float, 4>(plan) &&
                     plan.flat_feature_stride > 0;
  if (!is_plain(plan) || plan.grids != 1 || plan.dtype != DType::f32 || !takes || plan.occupancy != nullptr ||
      plan.bits != nullptr || plan.accumulate || plan.all_points < tuning::feature_bin_least_points ||
      plan.all_points > plan.cells * tuning::feature_bin_cell_points || plan.cells > tuning::feature_bin_most_cells) {
    return;
  }
  // The number of blocks on a multiprocessor: as many as leave each block shared memory for the features of 1 /
  // feature_bin_staged of its points and for the chains of all of them, with a margin of six standard deviations for
  // uniformly spread points.
  constexpr int kept_back = 1024;  // bytes that CUDA reserves for itself in each block
  const double points = static_cast<double>(plan.all_points) / feature_bin_count;
  const int fixed = static_cast<int>(sizeof(FeatureBinShared)) + static_cast<int>(rows * 32 * 4);
  const int all_bytes = machine.shared_bytes + kept_back;
  const double staged = points / tuning::feature_bin_staged * static_cast<double>(plan.channels * 4 - 4);
  const double spread = 6 * std::sqrt(points) + 8;
  const double needed = fixed + kept_back + points * bin_point_bytes + std::max(staged, spread * bin_point_bytes);
  const auto residents = static_cast<int>(std::min<double>(all_bytes / needed, tuning::feature_bin_blocks));
  if (residents < 2) return;
  tiles = static_cast<int>(divide_up(plan.all_points, feature_tile));
  cells = static_cast<int>(rows * 32);
  vectors = static_cast<int>(plan.channels / 4);
  log_vectors = vectors / 2;  // 0, 1 or 2
  shared_bytes = all_bytes / residents / 128 * 128 - kept_back;
  room_bytes = shared_bytes - fixed;
  capacity = std::min(room_bytes / bin_point_bytes, BinReducer<true, true>::none);
}

}  // namespace
}  // namespace robocache::voxelize_op
