// Features of points of a plain cloud, on a GPU: reduced by bins of cells.
//
// A chain of points that lie anywhere in memory is walked at the latency of memory. So a block sorts the points of a tile by bin, in
// shared memory, and finds their largest magnitudes, while other blocks fill the grids. Later a block for each bin fetches the
// features of its points into shared memory, all at once, and makes chains of them there, one for each cell; then threads walk
// those. Features that have no room are read where they are; a bin of more points than have room for a chain goes through its
// cells in several ranges. Cells of too many points for one thread, and all cells of a bin of too many for one block, are
// listed, as those of long chains are (cuda_features.h).
#pragma once

#include <bit>
#include <cmath>

#include "ops/voxelize/cuda_features.h"

namespace robocache::voxelize_op {
namespace {

constexpr int feature_sort_warps = tuning::feature_sort_threads / warp_size;
constexpr int feature_tile = tuning::feature_sort_threads * tuning::feature_sort_points;  // points
constexpr int most_bin_channels = 16;
constexpr int most_bin_cells = 4096;
static_assert(feature_tile < 1 << 16, "extents have 16 bits for each end, entries for the number of a point");

// Of n points none is an integer of 2^(62 - bit_width(n)) (exponent_of), and a thread adds so many of a cell.
constexpr bool sums_are_small =
    62 - std::bit_width(unsigned{tuning::feature_bin_least_points}) + std::bit_width(unsigned{tuning::longest_cell}) <=
    51;

// ---- asynchronous copies -------------------------------------------------------------------------------------------

__device__ inline void prefetch_to_l2(const void* from) { asm volatile("prefetch.global.L2 [%0];" ::"l"(from)); }
// 16 bytes.
__device__ inline void begin_copy(void* to, const void* from) {
  asm volatile(
      "cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(static_cast<std::uint32_t>(__cvta_generic_to_shared(to))),
      "l"(from)
      : "memory");
}
// All that this thread has begun.
__device__ inline void await_copies() { asm volatile("cp.async.wait_all;" ::: "memory"); }

// ---- sorting -------------------------------------------------------------------------------------------------------

__device__ inline const float* features_of(const Plan& plan, std::int64_t point) {
  return static_cast<const float*>(plan.features) + point * plan.flat_feature_stride;
}

// The largest of lanes that are `lanes`, 2 * lanes, ... apart, of the first of them into shared memory, side by side.
__device__ inline void share_largest(std::uint32_t (&mine)[4], int lanes, std::uint32_t* largest) {
  const auto lane = static_cast<int>(threadIdx.x % warp_size);
#pragma unroll
  for (int v = 0; v < 4; ++v) {
    for (int step = lanes; step < warp_size; step *= 2) {
      mine[v] = max(mine[v], __shfl_xor_sync(whole_warp, mine[v], step));
    }
    if (lane < lanes && mine[v] > 0) atomicMax(largest + lane * 4 + v, mine[v]);
  }
}

struct FeatureSortShared {
  alignas(16) std::uint32_t sorted[feature_tile];
  int starts[bins];  // where each bin begins; before, how many points it has
  int totals[feature_sort_warps];
  unsigned inside[feature_tile / warp_size];  // a bit for each point
  std::uint32_t largest[most_bin_channels];
  int not_finite, outside;
};

// The last blocks sort the points of a tile by bin, the others fill.
__global__ void __launch_bounds__(tuning::feature_sort_threads, tuning::feature_sort_blocks)
    voxelize_feature_sort_kernel(const __grid_constant__ Call call) {
  constexpr int threads = tuning::feature_sort_threads;
  constexpr int n = tuning::feature_sort_points;
  constexpr int each = bins / threads;  // bins of a thread
  constexpr int flight = 8;             // vectors of features that a thread reads at once
  const Plan& plan = call.plan;
  const FeatureBins& to = call.feature_bins;
  __shared__ FeatureSortShared shared;
  const auto thread = static_cast<int>(threadIdx.x);
  const int lane = thread % warp_size;
  const int warp = thread / warp_size;
#pragma unroll
  for (int k = 0; k < each; ++k) shared.starts[thread + k * threads] = 0;
  if (thread < most_bin_channels) shared.largest[thread] = 0;
  if (thread == 0) shared.not_finite = shared.outside = 0;
  after_earlier_work();
  let_next_begin();
  if (static_cast<int>(blockIdx.x) < to.fillers) return fill_all(call, blockIdx.x, to.fillers);
  const std::int64_t tile = static_cast<int>(blockIdx.x) - to.fillers;
  const std::int64_t first = tile * feature_tile;
  const auto here = static_cast<int>(min(plan.points_per_cloud - first, std::int64_t{feature_tile}));
  const auto channels = static_cast<int>(plan.channels);
  if (plan.flat_feature_stride == channels) {
    for (int k = thread * 32; k < here * channels; k += threads * 32) prefetch_to_l2(features_of(plan, first) + k);
  }
  float p[n][3];
  const float* const points = static_cast<const float*>(plan.points) + (first + thread) * plan.point_stride;
#pragma unroll
  for (int k = 0; k < n; ++k) {
#pragma unroll
    for (int axis = 0; axis < 3; ++axis) {
      p[k][axis] = thread + k * threads < here ? points[k * threads * plan.point_stride + axis]
                                               : std::numeric_limits<float>::max();
    }
  }
  __syncthreads();
  if (tile == 0 && thread == 0) {
    *call.heavy_count = 0;
    *call.magnitudes.given = static_cast<unsigned long long>(plan.points_per_cloud);
  }

  std::uint32_t where[n];  // the bin and, in the lower half, the place there
  int ranks[n];            // among the points of the bin; -1: in none
  int outside = 0, not_finite = 0;
#pragma unroll
  for (int k = 0; k < n; ++k) {
    const int at = thread + k * threads;
    bool inside = at < here;
    const auto cell = static_cast<std::uint32_t>(call.axes.cell(p[k], inside));
    where[k] = bin_of(cell) << 16 | place_in_bin(cell) % 0x10000u;
    ranks[k] = inside ? atomicAdd(shared.starts + (where[k] >> 16), 1) : -1;
    const unsigned lanes = __ballot_sync(whole_warp, inside);
    if (lane == 0) shared.inside[at / warp_size] = lanes;
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
  int before = own;
#pragma unroll
  for (int step = 1; step < warp_size; step *= 2) {
    const int other = __shfl_up_sync(whole_warp, before, step);
    if (lane >= step) before += other;
  }
  if (lane == warp_size - 1) shared.totals[warp] = before;
  __syncthreads();
  before -= own;
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
    to.extents[std::int64_t{bin} * to.tiles + tile] = static_cast<std::uint32_t>(before | (before + counts[k]) << 16);
    before += counts[k];
  }
  __syncthreads();
#pragma unroll
  for (int k = 0; k < n; ++k) {
    if (ranks[k] < 0) continue;
    shared.sorted[shared.starts[where[k] >> 16] + ranks[k]] =
        where[k] << 16 | static_cast<std::uint32_t>(thread + k * threads);
  }
  if (call.sums) {
    const int vectors = to.vectors;
    std::uint32_t most[4] = {};
    const float* from = features_of(plan, first) + (thread & (vectors - 1)) * 4;
#pragma unroll 1
    for (int k = thread; k < here << to.log_vectors; k += flight * threads) {
      float x[flight][4] = {};
#pragma unroll
      for (int j = 0; j < flight; ++j) {
        const int point = (k + j * threads) >> to.log_vectors;
        if (point >= here || (shared.inside[point / warp_size] >> point % warp_size & 1u) == 0) continue;
        const auto pack = *reinterpret_cast<const Pack<float, 4>*>(from + point * plan.flat_feature_stride);
#pragma unroll
        for (int v = 0; v < 4; ++v) x[j][v] = pack.x[v];
      }
#pragma unroll
      for (int j = 0; j < flight; ++j) {
#pragma unroll
        for (int v = 0; v < 4; ++v) most[v] = max(most[v], magnitude_of(x[j][v]));
      }
    }
    share_largest(most, vectors, shared.largest);
  }
  __syncthreads();
  auto* const entries = reinterpret_cast<uint4*>(to.entries + tile * feature_tile);
  for (int k = thread; k < (all + 3) / 4; k += threads) entries[k] = reinterpret_cast<const uint4*>(shared.sorted)[k];
  if (call.sums && thread < channels) to.largest[tile * channels + thread] = shared.largest[thread];
  if (thread == 0) to.dropped[tile] = {shared.not_finite, shared.outside};
}

// ---- bins ----------------------------------------------------------------------------------------------------------

struct alignas(16) FeatureBinShared {
  std::uint32_t largest[most_bin_channels];
  int totals[warps];  // points of each warp's tiles
  int listed;         // cells
};
// A point without features: its cell, the next of its chain, half a cell of a list, and its number in the cloud.
constexpr int bin_point_bytes = 9;

// The features of a bin's points, by all threads of a block.
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
  const int cells = cells_of(call, bin);  // that the bin has; more have heads
  FeatureBinShared& shared;
  int* const heads;  // of each cell: the last of its points, or none
  // Points of the range of cells at hand, and what there is of each, behind the heads:
  int points = 0;
  int staged = 0;                    // the first of them, whose features are here
  Row* rows = nullptr;               // those
  std::uint32_t* numbers = nullptr;  // in the cloud, of the others
  std::uint16_t* places = nullptr;   // their cells
  std::uint16_t* next = nullptr;     // that before it in its cell, or none
  std::uint16_t* list = nullptr;     // cells of several points

  // Lines of cells come in their order, so only the last may lack some.
  __device__ static int cells_of(const Call& call, std::uint32_t bin) {
    const auto last = static_cast<std::uint32_t>(call.feature_bins.cells - warp_size);
    const auto behind = static_cast<int>(call.all_cells) - static_cast<int>(cell_in_bin(bin, last));
    return static_cast<int>(last) + max(min(behind, warp_size), 0);
  }
  __device__ BinReducer(const Call& of, uint4* memory)
      : call(of), shared(*reinterpret_cast<FeatureBinShared*>(memory)), heads(reinterpret_cast<int*>(&shared + 1)) {}

  __device__ std::uint32_t key_of(int cell) const { return cell_in_bin(bin, static_cast<std::uint32_t>(cell)); }
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

  // A warp has every tile that is a multiple of the warps from its first, so that each has some of points that come in an
  // order; a lane has every 32nd of those.
  __device__ std::uint32_t extent_of(int tile) const {
    return tile < from.tiles ? from.extents[std::int64_t{bin} * from.tiles + tile] : 0u;
  }
  __device__ static int length_of(std::uint32_t extent) { return static_cast<int>((extent >> 16) - extent % 0x10000u); }

  // Calls each(whether there is one, place in the bin, number in the cloud) for the points of the warp, all lanes at once.
  template <class Each>
  __device__ void over_points(const Each& each) const {
    constexpr int flight = 4;
#pragma unroll 1
    for (int first = warp; first < from.tiles; first += tuning::threads) {
      const std::uint32_t extent = extent_of(first + lane * warps);
      int end = length_of(extent);
#pragma unroll
      for (int step = 1; step < warp_size; step *= 2) {
        const int other = __shfl_up_sync(whole_warp, end, step);
        if (lane >= step) end += other;
      }
      const int all = __shfl_sync(whole_warp, end, warp_size - 1);
      const int shift = (first + lane * warps) * feature_tile + static_cast<int>(extent >> 16) - end;
#pragma unroll 1
      for (int base = 0; base < all; base += flight * warp_size) {
        std::uint32_t entries[flight];
        int tiles[flight];
#pragma unroll
        for (int k = 0; k < flight; ++k) {
          const int at = base + k * warp_size + lane;
          int source = 0;  // the lane whose tile it is of
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

  // The sum over all threads; totals are those of the warps.
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

  // Puts the points of cells [begin, end) into chains, and begins to fetch features. Totals tell how many each warp has.
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
      // Where some are staged all count, and the first lanes have one each.
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

  // Where a point has its cell for itself, and no sum of it need be rounded, all reductions of it are its features.
  __device__ bool is_plain_sum(float x, int exponent) const {
    const auto least = static_cast<std::uint32_t>(min(max(150 - exponent, 1), 255)) << 23;  // a multiple of 2^-exponent
    const std::uint32_t magnitude = __float_as_uint(x) & 0x7fffffffu;
    return (magnitude == 0) | (magnitude - least < 0x7f800000u - least);
  }
  __device__ bool write_plain(std::uint32_t key, const Row& row, const int (&exponents)[V]) const {
    bool plain = true;
    Row sum;
#pragma unroll
    for (int v = 0; v < V; ++v) {
      plain &= Sums ? is_plain_sum(row.x[v], exponents[v]) : !is_nan(row.x[v]);
      sum.x[v] = row.x[v] + 0.0f;  // that of -0 is 0
    }
    if (!plain) return false;
    const auto write = [&](void* values, const Row& what) {
      if (values != nullptr) static_cast<Row*>(values)[(std::int64_t{key} << from.log_vectors) + vector] = what;
    };
    if constexpr (Sums) {
      write(plan.sum, sum);
      write(plan.mean, sum);
    }
    if constexpr (Extremes) {
      write(plan.max, row);
      write(plan.min, row);
    }
    write_count(plan, key, vector, 1);
    return true;
  }
  // Any other cell; false where it has too many points for a thread.
  __device__ bool write_cell(int place, const int (&exponents)[V]) const {
    Cell<float, V, Sums, Extremes, sums_are_small> cell;
    int point = heads[place];
    int number = 0;
#pragma unroll 1
    for (; point != none && number < tuning::longest_cell; ++number) {
      const Row row = row_of(point);
      point = next[point];
      cell.add(plan, row.x, exponents);
    }
    if (point != none) return false;
    const std::uint32_t key = key_of(place);
    cell.write(plan, key * plan.channels + vector * V, exponents, number);
    write_count(plan, key, vector, number);
    return true;
  }
  // Writes the cells that have points, those of several last: they take many times as long. Returns whether some have too many,
  // which it leaves out.
  __device__ bool write_cells() {
    int exponents[V] = {};
#pragma unroll
    for (int v = 0; Sums && v < V; ++v) {
      exponents[v] = exponent_of<float>(shared.largest[vector * V + v], plan.points_per_cloud);
    }
#pragma unroll 1
    for (int item = thread; item < points << from.log_vectors; item += tuning::threads) {
      const int point = item >> from.log_vectors;
      const int place = places[point];
      if (next[point] != none) continue;  // not the first
      if (heads[place] != point) {
        if (vector == 0) list[atomicAdd(&shared.listed, 1)] = static_cast<std::uint16_t>(place);
      } else if (!write_plain(key_of(place), row_of(point), exponents)) {
        write_cell(place, exponents);
      }
    }
    __syncthreads();
    bool any_heavy = false;
#pragma unroll 1
    for (int item = thread; item < shared.listed << from.log_vectors; item += tuning::threads) {
      if (!write_cell(list[item >> from.log_vectors], exponents)) any_heavy = true;
    }
    return any_heavy;
  }

  // Leaves cells of too many points for one thread to the next kernels, which look at the heads of all cells of the bin.
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
  // All of the cells: their points are too many for one block.
  __device__ void list_all(int begin, int end) {
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

  // Of all tiles.
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

  // Before earlier work is done.
  __device__ void prepare() {
    if (thread < most_bin_channels) shared.largest[thread] = 0;
    clear();
  }

  __device__ void run() {
    int number = 0;
#pragma unroll 1
    for (int tile = warp + lane * warps; tile < from.tiles; tile += tuning::threads) {
      number += length_of(extent_of(tile));
    }
    std::uint32_t largest[V] = {};
    if constexpr (Sums) read_largest(largest);
    number = add_up(number);
    if constexpr (Sums) share_largest(largest, from.vectors, shared.largest);
    bool any_heavy = true;  // or there may be
    if (number > tuning::longest_bin) {
      list_all(0, cells);
    } else if (number > from.capacity) {
      reduce_ranges(number);
    } else {
      set_points(number, true);
      chain(0, cells);
      any_heavy = __syncthreads_or(write_cells() ? 1 : 0) != 0;
      if (any_heavy) list_heavy(0, cells);
    }
    if (thread == 0) from.heavy[bin] = any_heavy;
    if (Sums && bin == 0 && thread < plan.channels) {
      call.magnitudes.largest[thread] = shared.largest[thread];  // for the next kernels
    }
  }
  // A bin of more points than have room: some lines of cells at a time.
  __device__ void reduce_ranges(int number) {
    const int most = max(from.cells / warp_size * (from.capacity / 2) / number, 1);  // half, if all were alike
    int lines = most;
    for (int begin = 0; begin < cells;) {
      const int end = min(begin + lines * warp_size, cells);
      int own = 0;
      over_points(
          [&](bool is_point, int cell, std::uint32_t) { own += is_point && cell >= begin && cell < end ? 1 : 0; });
      __syncthreads();  // totals are read
      const int here = add_up(own);
      if (here > from.capacity && lines > 1) {
        lines /= 2;
        continue;
      }
      if (here > from.capacity) {
        list_all(begin, end);
      } else {
        set_points(here, false);
        chain(begin, end);
        write_cells();
        list_heavy(begin, end);
      }
      begin = end;
      lines = most;
      __syncthreads();
      clear();
    }
  }
};

template <bool Sums, bool Extremes>
__global__ void __launch_bounds__(tuning::threads, tuning::feature_bin_blocks)
    voxelize_feature_bins_kernel(const __grid_constant__ Call call) {
  extern __shared__ uint4 memory[];
  BinReducer<Sums, Extremes> reducer(call, memory);
  reducer.prepare();
  after_earlier_work();
  let_next_begin();
  if (const Plan& plan = call.plan; plan.dropped != nullptr && blockIdx.x == bins - 1 && threadIdx.x < warp_size) {
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
  const std::int64_t rows = divide_up(divide_up(plan.cells, 32), bins);
  const bool takes = plan.reduces_features() && plan.feature_dtype == DType::f32 &&
                     (plan.channels == 4 || plan.channels == 8 || plan.channels == 16) && is_wide<float, 4>(plan) &&
                     plan.flat_feature_stride > 0;
  if (!is_plain(plan) || plan.grids != 1 || plan.dtype != DType::f32 || !takes || plan.occupancy != nullptr ||
      plan.bits != nullptr || plan.accumulate || plan.all_points < tuning::feature_bin_least_points ||
      plan.all_points > plan.cells * tuning::feature_bin_cell_points || rows * 32 > most_bin_cells) {
    return;
  }
  // As many blocks to a multiprocessor as have room for the features of all points, where they lie anywhere, but no more
  // of them read than that; at least for their chains, but for one in a billion.
  constexpr int kept_back = 1024;  // of each block; a multiprocessor has that much more than one can ask for
  const double points = static_cast<double>(plan.all_points) / bins;
  const int fixed = static_cast<int>(sizeof(FeatureBinShared)) + static_cast<int>(rows * 32 * 4);
  const int all_bytes = machine.shared_bytes + kept_back;
  const double staged = fixed + kept_back + points * static_cast<double>(bin_point_bytes + plan.channels * 4);
  const double chained = fixed + kept_back + (points + 6 * std::sqrt(points) + 8) * bin_point_bytes;
  const auto residents = static_cast<int>(
      std::min({all_bytes / chained, std::max<double>(all_bytes / staged, tuning::feature_bin_least_blocks),
                double{tuning::feature_bin_blocks}}));
  if (residents < 2) return;
  tiles = static_cast<int>(divide_up(plan.all_points, feature_tile));
  cells = static_cast<int>(rows * 32);
  vectors = static_cast<int>(plan.channels / 4);
  log_vectors = vectors / 2;  // 0, 1 or 2
  shared_bytes = (all_bytes / residents - kept_back) / 16 * 16;
  room_bytes = shared_bytes - fixed;
  capacity = std::min(room_bytes / bin_point_bytes, BinReducer<true, true>::none);
  fillers = machine.processors;
}

}  // namespace
}  // namespace robocache::voxelize_op
