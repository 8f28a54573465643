// The kernels of sparse results: keys of points, rows of sorted points, and the features of rows.
#pragma once

#include <cstdint>
#include <iterator>

#include "ops/voxelize/cuda/reduce.h"

namespace robocache::voxelize_op {
namespace {

struct SparseCall {
  Plan plan;
  FaultBox* box = nullptr;
  Tiling tiling;
  Axes axes;
  std::int64_t all_cells = 0;  // of all grids; also the key of points without a cell

  std::uint32_t* zeros = nullptr;  // the part of the scratch that must start at 0
  std::int64_t zero_words = 0;
  // Scratch. Keys are uint32 where the plan is small, else uint64.
  void* keys = nullptr;              // of each point
  void* sorted = nullptr;            // keys in their order
  std::int32_t* numbers = nullptr;   // of the points: 0, 1, 2, ...
  std::int32_t* order = nullptr;     // in the order of the keys
  std::int32_t* row_ends = nullptr;  // how many rows have begun, for each sorted point
  std::int32_t* starts = nullptr;    // of each row among the sorted points; one more at the end
  void* located = nullptr;           // points in the grid's frame
  Magnitudes magnitudes;
  Partial* partials = nullptr;
  std::int64_t* totals = nullptr;  // voxels, points in them
  long long* bounds = nullptr;     // lowest and highest cell of a lattice

  std::int64_t place_threads =
      0;  // threads of voxelize_rows_kernel that run write_place(); the others run write_first()

  bool small = false;  // plan.is_small()
  __device__ std::int64_t key_at(const void* from, std::int64_t k) const {
    return small ? static_cast<std::int64_t>(static_cast<const std::uint32_t*>(from)[k])
                 : static_cast<const std::int64_t*>(from)[k];
  }
  __device__ std::int64_t grid_of(std::int64_t sorted_point) const {
    return plan.grids == 1 ? 0 : key_at(sorted, sorted_point) / plan.cells;
  }
  __device__ std::int64_t kept() const { return min(totals[0], plan.rows); }
};

constexpr int threads = tuning::threads;

// The number of a thread and of all threads.
__device__ std::int64_t thread_number() { return static_cast<std::int64_t>(blockIdx.x) * threads + threadIdx.x; }
__device__ std::int64_t thread_count() { return static_cast<std::int64_t>(gridDim.x) * threads; }

// a / b. Numbers below 2^32, which most are, take far fewer instructions.
__device__ std::int64_t quotient(std::int64_t a, std::int64_t b) {
  return (a | b) >> 32 == 0 ? static_cast<std::uint32_t>(a) / static_cast<std::uint32_t>(b) : a / b;
}

// The work item of a thread: item `part` of the `each` items of `owner`.
struct WorkItem {
  std::int64_t owner, part;
  __device__ WorkItem(std::int64_t thread, std::int64_t each)
      : owner(quotient(thread, each)), part(thread - owner * each) {}
  __device__ explicit WorkItem(std::int64_t each) : WorkItem(thread_number(), each) {}
};

// Clears counters.
__global__ void __launch_bounds__(threads) voxelize_clear_kernel(const __grid_constant__ SparseCall call) {
  wait_on_dependent_grids();
  launch_dependent_grids();
  for (std::int64_t k = thread_number(); k < call.zero_words; k += thread_count()) call.zeros[k] = 0;
  if (call.plan.dropped == nullptr) return;
  for (std::int64_t k = thread_number(); k < call.plan.clouds * drop_reasons; k += thread_count()) {
    call.plan.dropped[k] = 0;
  }
}

// ---- keys ----------------------------------------------------------------------------------------------------------

template <class T>
__global__ void __launch_bounds__(threads) voxelize_bounds_kernel(const __grid_constant__ SparseCall call) {
  using C = compute_t<T>;
  const Plan& plan = call.plan;
  __shared__ Tile<C> tile;
  wait_on_dependent_grids();
  launch_dependent_grids();
  check_data<tuning::threads>(plan, call.box);
  if (threadIdx.x == 0) set_tile(plan, call.tiling, tile);
  __syncthreads();
  long long low[3] = {farthest, farthest, farthest};
  long long high[3] = {-farthest, -farthest, -farthest};
  for (std::int64_t k = threadIdx.x; k < tile.count; k += threads) {
    C p[3] = {};
    std::int64_t cell[3];
    Drop drop = Drop::outside;
    bool near = false;
    if (tile.one) {
      drop = to_grid_frame<T>(plan, tile.cloud, tile.first + k, p);
      near = drop == Drop::none && lattice_cell(tile.cloud, p, cell);
    } else if (const std::int64_t number = cloud_at(plan, tile.first + k); number >= 0) {
      const auto cloud = cloud_of<C>(plan, number);
      drop = to_grid_frame<T>(plan, cloud, tile.first + k - cloud.first, p);
      near = drop == Drop::none && lattice_cell(cloud, p, cell);
    }
    for (int axis = 0; near && axis < 3; ++axis) {
      low[axis] = min(low[axis], static_cast<long long>(cell[axis]));
      high[axis] = max(high[axis], static_cast<long long>(cell[axis]));
    }
  }
  for (int axis = 0; axis < 3; ++axis) {
    for (int step = 1; step < warp_size; step *= 2) {
      low[axis] = min(low[axis], __shfl_xor_sync(whole_warp, low[axis], step));
      high[axis] = max(high[axis], __shfl_xor_sync(whole_warp, high[axis], step));
    }
    if (threadIdx.x % warp_size != 0 || low[axis] > high[axis]) continue;
    atomicMin(call.bounds + axis, low[axis]);
    atomicMax(call.bounds + 3 + axis, high[axis]);
  }
}

template <class T, class Key>
__global__ void __launch_bounds__(threads) voxelize_keys_kernel(const __grid_constant__ SparseCall call) {
  using C = compute_t<T>;
  using Index = std::make_signed_t<Key>;
  const Plan& plan = call.plan;
  __shared__ Tile<C> tile;
  __shared__ int dropped[drop_reasons];
  wait_on_dependent_grids();
  launch_dependent_grids();
  check_data<tuning::threads>(plan, call.box);
  if (threadIdx.x < drop_reasons) dropped[threadIdx.x] = 0;
  if (threadIdx.x == 0) set_tile(plan, call.tiling, tile);
  __syncthreads();
  if (threadIdx.x == 0 && tile.one && tile.first == 0) {
    atomicAdd(call.magnitudes.given + tile.cloud.grid, static_cast<unsigned long long>(tile.cloud.count));
  }
  for (std::int64_t k = threadIdx.x; k < tile.stored; k += threads) {
    C p[3] = {};
    Drop drop = Drop::none;
    std::int64_t cloud_number = -1;
    const Index key = locate_in<T, Index>(plan, call.axes, tile, k, drop, cloud_number, p);
    const std::int64_t number = number_in(plan, tile, k);
    static_cast<Key*>(call.keys)[number] = key < 0 ? static_cast<Key>(call.all_cells) : static_cast<Key>(key);
    call.numbers[number] = static_cast<std::int32_t>(number);
    if (call.located != nullptr) {
      for (int axis = 0; axis < 3; ++axis) static_cast<C*>(call.located)[number * 3 + axis] = p[axis];
    }
    if (!tile.one && cloud_number >= 0 && integer(plan.offsets, cloud_number) == tile.first + k) {
      Cloud<float> cloud;
      set_extent(plan, cloud_number, cloud);
      atomicAdd(call.magnitudes.given + cloud.grid, static_cast<unsigned long long>(cloud.count));
    }
    if (plan.dropped == nullptr || drop == Drop::none) continue;
    if (tile.one) {
      atomicAdd(dropped + static_cast<int>(drop), 1);
    } else {
      atomicAdd(
          reinterpret_cast<unsigned long long*>(plan.dropped) + cloud_number * drop_reasons + static_cast<int>(drop),
          1ull);
    }
  }
  if (plan.dropped == nullptr || !tile.one) return;
  __syncthreads();
  if (threadIdx.x < drop_reasons && dropped[threadIdx.x] > 0) {
    atomicAdd(reinterpret_cast<unsigned long long*>(plan.dropped) + tile.cloud.number * drop_reasons + threadIdx.x,
              static_cast<unsigned long long>(dropped[threadIdx.x]));
  }
}

// ---- rows ----------------------------------------------------------------------------------------------------------

// 1 where a row begins at a sorted point.
template <class Key>
struct BeginsRow {
  const Key* keys;
  Key none;
  __device__ std::int32_t operator()(std::int64_t k) const {
    return keys[k] != none && (k == 0 || keys[k - 1] != keys[k]) ? 1 : 0;
  }
};

// The output iterator of the scan over BeginsRow: stores for each sorted point how many rows have begun. It also
// stores where each row begins, and, at the last point that is in a voxel, the totals.
template <class Key>
struct RowEnds {
  using iterator_category = std::random_access_iterator_tag;
  using value_type = std::int32_t;
  using difference_type = std::int64_t;
  using pointer = void;

  struct Slot {
    const RowEnds& to;
    std::int64_t k;
    __device__ void operator=(std::int32_t begun) const {
      to.row_ends[k] = begun;
      if (to.begins.keys[k] == to.begins.none) return;
      if (to.begins(k) != 0) to.starts[begun - 1] = static_cast<std::int32_t>(k);
      if (k + 1 == to.points || to.begins.keys[k + 1] == to.begins.none) {
        to.starts[begun] = static_cast<std::int32_t>(k + 1);
        to.totals[0] = begun;
        to.totals[1] = k + 1;
      }
    }
  };
  using reference = Slot;

  BeginsRow<Key> begins;
  std::int64_t points;
  std::int32_t* row_ends;
  std::int32_t* starts;
  std::int64_t* totals;
  std::int64_t first = 0;

  __host__ __device__ RowEnds operator+(std::int64_t n) const {
    RowEnds moved = *this;
    moved.first += n;
    return moved;
  }
  __device__ Slot operator[](std::int64_t n) const { return {*this, first + n}; }
  __device__ Slot operator*() const { return {*this, first}; }
};

// Fills a row without a voxel.
__device__ void write_rest(const Plan& plan, std::int64_t row) {
  for (int k = 0; plan.coordinates != nullptr && k < 4; ++k) plan.coordinates[row * 4 + k] = -1;
  if (plan.counts != nullptr) plan.counts[row] = 0;
  if (plan.first_counts != nullptr) plan.first_counts[row] = 0;
  if (plan.count != nullptr) plan.count[row] = static_cast<std::int32_t>(plan.empty);
  if (plan.occupancy != nullptr) plan.occupancy[row] = static_cast<std::uint8_t>(plan.empty);
  for (std::int64_t k = row * plan.channels; k < (row + 1) * plan.channels; ++k) {
    if (plan.sum != nullptr) plan.sum[k] = narrow<float>(plan.empty);
    if (plan.mean != nullptr) plan.mean[k] = narrow<float>(plan.empty);
    for (void* const values : {plan.max, plan.min}) {
      if (values == nullptr) continue;
      if (plan.feature_dtype == DType::u8) {
        static_cast<std::uint8_t*>(values)[k] = static_cast<std::uint8_t>(plan.empty);
      } else {
        store_as(plan.feature_dtype, values, k, plan.empty);
      }
    }
  }
}

// The first points of each row, and zeros after them. A thread for each number of a point, so that the accesses to a
// point are coalesced.
template <class F, class C>
__device__ void write_first(const SparseCall& call, std::int64_t thread) {
  const Plan& plan = call.plan;
  const std::int64_t width = 3 + plan.channels;
  const auto [row, column] = WorkItem(thread, width);
  if (row >= plan.rows) return;
  const bool kept = row < call.kept();
  const std::int64_t start = kept ? call.starts[row] : 0;
  const std::int64_t count = kept ? call.starts[row + 1] - start : 0;
  C* to = static_cast<C*>(plan.first) + row * plan.first_points * width + column;
  for (std::int64_t rank = 0; rank < plan.first_points; ++rank, to += width) {
    C value = 0;
    if (rank < count) {
      const std::int64_t number = call.order[start + rank];
      if (column < 3) {
        value = static_cast<const C*>(call.located)[number * 3 + column];
      } else {
        F x[1];
        load_features(plan, number, column - 3, x);
        value = feature_as<C>(x[0]);
      }
    }
    *to = value;
  }
}

// Everything else that needs no sums: a thread for each sorted point and for each row.
__device__ void write_place(const SparseCall& call, std::int64_t k) {
  const Plan& plan = call.plan;
  const std::int64_t kept = call.kept();
  if (k == 0 && plan.found != nullptr) {
    plan.found[0] = kept;
    plan.found[1] = call.totals[0] - kept;
  }
  if (k >= kept && k < plan.rows) write_rest(plan, k);
  if (k >= plan.all_points) return;
  const std::int64_t row = k < call.totals[1] ? call.row_ends[k] - 1 : kept;
  const std::int64_t number = call.order[k];
  if (plan.point_to_voxel != nullptr) plan.point_to_voxel[number] = row < kept ? row : -1;
  if (row >= kept) return;
  const std::int32_t start = call.starts[row];
  if (k != start) return;
  const std::int32_t count = call.starts[row + 1] - start;
  if (plan.coordinates != nullptr) {
    std::int64_t four[4];
    const std::int64_t key = call.key_at(call.sorted, k);
    call.small ? write_coordinates<std::uint32_t>(plan, key, four) : write_coordinates(plan, key, four);
    std::int64_t* const to = plan.coordinates + row * 4;
    if (reinterpret_cast<std::uintptr_t>(to) % 16 == 0) {
      reinterpret_cast<longlong2*>(to)[0] = longlong2{four[0], four[1]};
      reinterpret_cast<longlong2*>(to)[1] = longlong2{four[2], four[3]};
    } else {
      for (int axis = 0; axis < 4; ++axis) to[axis] = four[axis];
    }
  }
  if (plan.counts != nullptr) plan.counts[row] = count;
  if (plan.first_counts != nullptr)
    plan.first_counts[row] = static_cast<std::int32_t>(min(std::int64_t{count}, plan.first_points));
  if (plan.count != nullptr) plan.count[row] = count;
  if (plan.occupancy != nullptr) plan.occupancy[row] = 1;
}

template <class F, class C>
__global__ void __launch_bounds__(threads) voxelize_rows_kernel(const __grid_constant__ SparseCall call) {
  wait_on_dependent_grids();
  launch_dependent_grids();
  if (const std::int64_t thread = thread_number(); thread < call.place_threads) {
    write_place(call, thread);
  } else {
    write_first<F, C>(call, thread - call.place_threads);
  }
}

// ---- features ------------------------------------------------------------------------------------------------------

// The largest magnitude of each grid and channel. A thread keeps its V channels for the whole loop.
template <class F, int V>
__global__ void __launch_bounds__(threads) voxelize_magnitudes_kernel(const __grid_constant__ SparseCall call) {
  constexpr int most = 128;  // most channels for which a block keeps the largest in shared memory
  constexpr int flight = 4;  // points that are loaded before the first is used
  const Plan& plan = call.plan;
  __shared__ std::uint32_t of_block[most];
  if (threadIdx.x < most) of_block[threadIdx.x] = 0;
  __syncthreads();
  wait_on_dependent_grids();
  launch_dependent_grids();
  const std::int64_t vectors = plan.channels / V;
  const bool shares = plan.grids == 1 && plan.channels <= most;
  const std::int64_t stride = thread_count() / vectors;  // points
  const auto [begin, vector] = WorkItem(vectors);
  std::uint32_t largest[V] = {};
  std::int64_t grid = 0;
  const auto flush = [&] {
    std::uint32_t* const to = shares ? of_block : call.magnitudes.largest + grid * plan.channels;
#pragma unroll
    for (int v = 0; v < V; ++v) {
      if (largest[v] > 0) atomicMax(to + vector * V + v, largest[v]);
      largest[v] = 0;
    }
  };
  for (std::int64_t first = begin; begin < stride && first < plan.all_points; first += stride * flight) {
    std::int64_t keys[flight];
    F x[flight][V] = {};
#pragma unroll
    for (int k = 0; k < flight; ++k) {
      const std::int64_t number = first + k * stride;
      keys[k] = number < plan.all_points ? call.key_at(call.keys, number) : call.all_cells;
    }
#pragma unroll
    for (int k = 0; k < flight; ++k) {
      if (keys[k] != call.all_cells) load_features(plan, first + k * stride, vector * V, x[k]);
    }
#pragma unroll
    for (int k = 0; k < flight; ++k) {
      if (plan.grids > 1 && keys[k] != call.all_cells && keys[k] / plan.cells != grid) {
        flush();
        grid = keys[k] / plan.cells;
      }
#pragma unroll
      for (int v = 0; v < V; ++v) largest[v] = max(largest[v], magnitude_of(feature_value(x[k][v])));
    }
  }
  flush();
  if (!shares) return;
  __syncthreads();
  if (threadIdx.x < plan.channels && of_block[threadIdx.x] > 0) {
    atomicMax(call.magnitudes.largest + threadIdx.x, of_block[threadIdx.x]);
  }
}

// A thread for each row and V channels. For a long row it only clears the partial sums that the next kernel adds to.
template <class F, int V, bool Sums, bool Extremes>
__global__ void __launch_bounds__(threads) voxelize_reduce_kernel(const __grid_constant__ SparseCall call) {
  const Plan& plan = call.plan;
  wait_on_dependent_grids();
  launch_dependent_grids();
  const auto [row, vector] = WorkItem(plan.channels / V);
  if (row >= call.kept()) return;
  const std::int64_t channel = vector * V;
  const std::int32_t start = call.starts[row];
  const std::int32_t end = call.starts[row + 1];
  if (end - start > tuning::long_row) {
    Partial* const partials = call.partials + start / tuning::long_row * plan.channels + channel;
    for (int v = 0; v < V; ++v) partials[v] = Partial::none();
    return;
  }
  int exponents[V] = {};
  const std::int64_t grid = call.grid_of(start);
#pragma unroll
  for (int v = 0; Sums && v < V; ++v) exponents[v] = exponent_in<F>(plan, call.magnitudes, grid, channel + v);
  Cell<F, V, Sums, Extremes> cell;
#pragma unroll 2
  for (std::int32_t k = start; k < end; ++k) {
    F x[V];
    load_features(plan, call.order[k], channel, x);
    cell.add(plan, x, exponents);
  }
  cell.write(plan, row * plan.channels + channel, exponents, end - start);
}

// Long rows: a warp for each span of tuning::long_row sorted points. A long row has more points than a span, so at
// most two of them meet a span, and at most one begins there: its partial sums have the number of that span. Channels
// across lanes.
template <class F, bool Sums, bool Extremes>
__global__ void __launch_bounds__(threads) voxelize_long_kernel(const __grid_constant__ SparseCall call) {
  const Plan& plan = call.plan;
  wait_on_dependent_grids();
  launch_dependent_grids();
  const std::int64_t first = thread_number() / warp_size * tuning::long_row;
  const std::int64_t last = min(first + tuning::long_row, call.totals[1]) - 1;
  if (first > last) return;
  const int lanes = lanes_of(plan.channels);
  const auto lane = static_cast<int>(threadIdx.x % warp_size);
  for (int which = 0; which < 2; ++which) {
    const std::int64_t row = call.row_ends[which == 0 ? first : last] - 1;
    if (which == 1 && row == call.row_ends[first] - 1) return;
    if (row >= call.kept()) return;
    const std::int32_t start = call.starts[row];
    const std::int32_t end = call.starts[row + 1];
    if (end - start <= tuning::long_row) continue;
    const std::int64_t grid = call.grid_of(start);
    for (std::int64_t c = 0; c < plan.channels; c += lanes) {
      const std::int64_t channel = c + lane % lanes;
      Cell<F, 1, Sums, Extremes> cell;
      if (channel < plan.channels) {
        int exponents[1] = {};
        if constexpr (Sums) exponents[0] = exponent_in<F>(plan, call.magnitudes, grid, channel);
        const std::int64_t stop = min(last + 1, std::int64_t{end});
#pragma unroll 4
        for (std::int64_t k = max(first, std::int64_t{start}) + lane / lanes; k < stop; k += warp_size / lanes) {
          F x[1];
          load_features(plan, call.order[k], channel, x);
          cell.add(plan, x, exponents);
        }
      }
      const Partial here = over_lanes(cell.partial(), lanes);
      if (lane < lanes && channel < plan.channels) {
        call.partials[start / tuning::long_row * plan.channels + channel].add_atomically(here);
      }
    }
  }
}

template <class F, bool Sums, bool Extremes>
__global__ void __launch_bounds__(threads) voxelize_write_long_kernel(const __grid_constant__ SparseCall call) {
  const Plan& plan = call.plan;
  wait_on_dependent_grids();
  launch_dependent_grids();
  const auto [slot, channel] = WorkItem(plan.channels);
  const std::int64_t last = min((slot + 1) * tuning::long_row, call.totals[1]) - 1;
  if (slot * tuning::long_row > last) return;
  const std::int64_t row = call.row_ends[last] - 1;  // the row that reaches into the next span
  if (row >= call.kept()) return;
  const std::int32_t start = call.starts[row];
  const std::int32_t end = call.starts[row + 1];
  if (end - start <= tuning::long_row || start / tuning::long_row != slot) return;
  const std::int64_t grid = call.grid_of(start);
  int exponents[1] = {};
  if constexpr (Sums) exponents[0] = exponent_in<F>(plan, call.magnitudes, grid, channel);
  Cell<F, 1, Sums, Extremes> cell;
  cell.set(call.partials[slot * plan.channels + channel]);
  cell.write(plan, row * plan.channels + channel, exponents, end - start);
}

}  // namespace
}  // namespace robocache::voxelize_op
