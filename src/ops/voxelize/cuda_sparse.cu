// Sparse results on a GPU: points are sorted by key, the first of each key begins a row, and rows are written from the
// points that lie side by side in the sorted order.
#include <thrust/iterator/counting_iterator.h>
#include <thrust/iterator/transform_iterator.h>

#include <cub/device/device_radix_sort.cuh>
#include <cub/device/device_scan.cuh>

#include "ops/voxelize/cuda_cells.h"
#include "ops/voxelize/room.h"

namespace robocache::voxelize_op {
namespace {

struct SparseCall {
  Plan plan;
  FaultBox* box = nullptr;
  Tiling tiling;
  Axes axes;
  std::int64_t all_cells = 0;  // of all grids; also the key of points that are in none

  std::uint32_t* zeros = nullptr;  // scratch that starts at 0
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

  std::int64_t place_threads = 0;  // that write what is not first points

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

// Of numbers that are mostly small, for which it takes far fewer instructions.
__device__ std::int64_t quotient(std::int64_t a, std::int64_t b) {
  return (a | b) >> 32 == 0 ? static_cast<std::uint32_t>(a) / static_cast<std::uint32_t>(b) : a / b;
}

// Which of `each` things that follow one another a thread has to do, and of which owner.
struct Share {
  std::int64_t owner, part;
  __device__ Share(std::int64_t thread, std::int64_t each)
      : owner(quotient(thread, each)), part(thread - owner * each) {}
  __device__ explicit Share(std::int64_t each) : Share(thread_number(), each) {}
};

// What is counted in begins at 0.
__global__ void __launch_bounds__(threads) voxelize_clear_kernel(const __grid_constant__ SparseCall call) {
  after_earlier_work();
  let_next_begin();
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
  after_earlier_work();
  let_next_begin();
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
      drop = bring<T>(plan, tile.cloud, tile.first + k, p);
      near = drop == Drop::none && lattice_cell(tile.cloud, p, cell);
    } else if (const std::int64_t number = cloud_at(plan, tile.first + k); number >= 0) {
      const auto cloud = cloud_of<C>(plan, number);
      drop = bring<T>(plan, cloud, tile.first + k - cloud.first, p);
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
  after_earlier_work();
  let_next_begin();
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

// 1 where a sorted point begins a row.
template <class Key>
struct BeginsRow {
  const Key* keys;
  Key none;
  __device__ std::int32_t operator()(std::int64_t k) const {
    return keys[k] != none && (k == 0 || keys[k - 1] != keys[k]) ? 1 : 0;
  }
};

// Where the scan writes how many rows have begun up to each sorted point. It also notes where each of them begins, and at
// the last point that is in a voxel how many there are.
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

// What a row without a voxel holds.
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

// The first points of each row, and zeros behind them: a thread for each number of a point, so that those of a point are
// read and written together.
template <class F, class C>
__device__ void write_first(const SparseCall& call, std::int64_t thread) {
  const Plan& plan = call.plan;
  const std::int64_t width = 3 + plan.channels;
  const auto [row, column] = Share(thread, width);
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

// All else that needs no sums: a thread for each sorted point, and for each row.
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
  after_earlier_work();
  let_next_begin();
  if (const std::int64_t thread = thread_number(); thread < call.place_threads) {
    write_place(call, thread);
  } else {
    write_first<F, C>(call, thread - call.place_threads);
  }
}

// ---- features ------------------------------------------------------------------------------------------------------

// The largest magnitude of each grid and channel. A thread stays with its V channels.
template <class F, int V>
__global__ void __launch_bounds__(threads) voxelize_magnitudes_kernel(const __grid_constant__ SparseCall call) {
  constexpr int most = 128;  // channels of which a block keeps the largest
  constexpr int flight = 4;  // points under way
  const Plan& plan = call.plan;
  __shared__ std::uint32_t of_block[most];
  if (threadIdx.x < most) of_block[threadIdx.x] = 0;
  __syncthreads();
  after_earlier_work();
  let_next_begin();
  const std::int64_t vectors = plan.channels / V;
  const bool shares = plan.grids == 1 && plan.channels <= most;
  const std::int64_t stride = thread_count() / vectors;  // points
  const auto [begin, vector] = Share(vectors);
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

// A thread for each row and V channels. Where a row is long, it only makes ready what others add to.
template <class F, int V, bool Sums, bool Extremes>
__global__ void __launch_bounds__(threads) voxelize_reduce_kernel(const __grid_constant__ SparseCall call) {
  const Plan& plan = call.plan;
  after_earlier_work();
  let_next_begin();
  const auto [row, vector] = Share(plan.channels / V);
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

// Long rows: a warp for as many points as a long row has at least, in which at most two of them lie; channels across
// lanes. Only one long row can begin there, so its number is that of the warp.
template <class F, bool Sums, bool Extremes>
__global__ void __launch_bounds__(threads) voxelize_long_kernel(const __grid_constant__ SparseCall call) {
  const Plan& plan = call.plan;
  after_earlier_work();
  let_next_begin();
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
  after_earlier_work();
  let_next_begin();
  const auto [slot, channel] = Share(plan.channels);
  const std::int64_t last = min((slot + 1) * tuning::long_row, call.totals[1]) - 1;
  if (slot * tuning::long_row > last) return;
  const std::int64_t row = call.row_ends[last] - 1;  // the one that reaches into the next slot
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

// ---- planning ------------------------------------------------------------------------------------------------------

class SparseRunner {
 public:
  SparseRunner(const Plan& plan, const SetRows& set_rows, const Context& context, int device)
      : set_rows_(set_rows), context_(context), device_(device), stream_(static_cast<cudaStream_t>(context.stream)) {
    call_.plan = plan;
    call_.box = cuda_fault_box(device);
    call_.tiling = tiling_of(plan, !is_plain(plan));
    call_.axes = Axes(plan);
  }

  void run() {
    check_capture();
    if (call_.plan.lattice) find_lattice();
    if (call_.plan.is_small()) {
      run<std::uint32_t>();
    } else {
      run<std::uint64_t>();
    }
  }

 private:
  const char* name() const { return name_of(call_.plan.operation); }

  // A graph cannot wait for a number of voxels.
  void check_capture() const {
    if (call_.plan.max_voxels >= 0) return;
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    cuda_check(cudaStreamIsCapturing(stream_, &status), name());
    if (status == cudaStreamCaptureStatusNone) return;
    throw Error(ErrorKind::value, std::string(name()) +
                                      ": the number of voxels is only known after waiting, which a CUDA graph cannot; "
                                      "give max_voxels");
  }

  template <class Kernel>
  void launch(Kernel kernel, std::int64_t blocks) {
    if (blocks == 0) return;
    if (blocks >= std::int64_t{1} << 31)
      throw Error(ErrorKind::value, std::string(name()) + ": too large for one launch");
    cuda_launch(reinterpret_cast<const void*>(kernel), blocks, threads, 0, &call_, device_, stream_, name());
  }
  template <class Kernel>
  void launch_for(Kernel kernel, std::int64_t count) {
    launch(kernel, divide_up(count, threads));
  }
  void clear(void* data, std::int64_t bytes) {
    if (data != nullptr && bytes > 0) {
      cuda_check(cudaMemsetAsync(data, 0, static_cast<std::size_t>(bytes), stream_), name());
    }
  }
  // Waits for what was launched.
  void fetch(void* to, const void* from, std::size_t bytes) {
    cuda_check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, stream_), name());
    cuda_check(cudaStreamSynchronize(stream_), name());
    cuda_fault_box(device_);  // what the checks found is known now
  }

  void find_lattice() {
    long long bounds[6] = {farthest, farthest, farthest, -farthest, -farthest, -farthest};
    const CudaScratch scratch(context_.workspace, device_, sizeof bounds, stream_);
    call_.bounds = static_cast<long long*>(scratch.data());
    cuda_check(cudaMemcpyAsync(call_.bounds, bounds, sizeof bounds, cudaMemcpyHostToDevice, stream_), name());
    with_point_type(call_.plan, [&](auto type) {
      launch(&voxelize_bounds_kernel<typename decltype(type)::type>, call_.tiling.tiles);
    });
    fetch(bounds, call_.bounds, sizeof bounds);
    const std::int64_t low[] = {bounds[0], bounds[1], bounds[2]};
    const std::int64_t high[] = {bounds[3], bounds[4], bounds[5]};
    set_lattice(call_.plan, low, high);
  }

  template <class Key>
  void take_scratch(Room& room, std::size_t temporary_bytes) {
    const Plan& plan = call_.plan;
    const std::int64_t points = plan.all_points;
    room.take(call_.totals, 2);
    room.take(call_.magnitudes.given, plan.grids);
    room.take(call_.magnitudes.largest, plan.grids * most_channels());
    call_.zero_words = room.used() / 4;
    Key* keys = nullptr;
    Key* sorted = nullptr;
    room.take(keys, points);
    room.take(sorted, points);
    call_.keys = keys;
    call_.sorted = sorted;
    room.take(call_.numbers, points);
    room.take(call_.order, points);
    room.take(call_.row_ends, points);
    room.take(call_.starts, points + 1);
    char* located = nullptr;
    room.take(located, plan.locates() ? points * plan.located_bytes() : 0);
    call_.located = plan.locates() ? located : nullptr;
    room.take(call_.partials, (points / tuning::long_row + 1) * most_channels());
    room.take(temporary_, static_cast<std::int64_t>(temporary_bytes));
  }
  std::int64_t most_channels() const { return std::max<std::int64_t>(call_.plan.channels, call_.plan.lattice ? 3 : 0); }

  // Sorts the points by key and counts the rows; without memory it says how much it needs.
  template <class Key>
  std::size_t sort(void* temporary, std::size_t bytes) {
    const auto points = static_cast<std::int32_t>(call_.plan.all_points);
    const auto* const keys = static_cast<const Key*>(call_.keys);
    auto* const sorted = static_cast<Key*>(call_.sorted);
    const int bits = bit_width(static_cast<std::uint64_t>(call_.all_cells));
    std::size_t sort_bytes = bytes;
    cuda_check(cub::DeviceRadixSort::SortPairs(temporary, sort_bytes, keys, sorted, call_.numbers, call_.order, points,
                                               0, bits, stream_),
               name());
    const auto begins = thrust::make_transform_iterator(thrust::make_counting_iterator(std::int64_t{0}),
                                                        BeginsRow<Key>{sorted, static_cast<Key>(call_.all_cells)});
    std::size_t scan_bytes = bytes;
    const RowEnds<Key> ends{
        {sorted, static_cast<Key>(call_.all_cells)}, points, call_.row_ends, call_.starts, call_.totals};
    cuda_check(cub::DeviceScan::InclusiveSum(temporary, scan_bytes, begins, ends, points, stream_), name());
    return std::max(sort_bytes, scan_bytes);
  }

  template <class Key>
  void run() {
    Plan& plan = call_.plan;
    call_.all_cells = plan.grids * plan.cells;
    call_.small = plan.is_small();
    const std::size_t temporary_bytes = plan.all_points > 0 ? sort<Key>(nullptr, 0) : 0;
    Room needed(nullptr);
    take_scratch<Key>(needed, temporary_bytes);
    const CudaScratch scratch(context_.workspace, device_, static_cast<std::size_t>(needed.used()), stream_);
    Room room(static_cast<char*>(scratch.data()));
    take_scratch<Key>(room, temporary_bytes);
    call_.zeros = static_cast<std::uint32_t*>(scratch.data());
    launch(&voxelize_clear_kernel,
           std::clamp<std::int64_t>(divide_up(call_.zero_words, threads), 1, tuning::most_blocks));
    with_point_type(plan, [&](auto type) {
      launch(&voxelize_keys_kernel<typename decltype(type)::type, Key>, call_.tiling.tiles);
    });
    if (plan.all_points > 0) sort<Key>(temporary_, temporary_bytes);
    std::int64_t voxels = 0;
    if (plan.max_voxels < 0) fetch(&voxels, call_.totals, sizeof voxels);
    set_rows_(plan, voxels);

    const bool wide = plan.dtype == DType::f64;
    call_.place_threads = divide_up(std::max({plan.all_points, plan.rows, std::int64_t{1}}), threads) * threads;
    const std::int64_t numbers = plan.first != nullptr ? plan.rows * (3 + plan.channels) : 0;
    with_feature_type(plan, [&](auto type) {
      using F = typename decltype(type)::type;
      launch_for(wide ? &voxelize_rows_kernel<F, double> : &voxelize_rows_kernel<F, float>,
                 call_.place_threads + numbers);
    });
    if (plan.reduces_features()) {
      with_feature_type(plan, [&](auto type) { reduce<typename decltype(type)::type>(); });
    }
    if (plan.point_means == nullptr) return;
    if (plan.reduces_features()) clear(call_.magnitudes.largest, plan.grids * plan.channels * 4);
    plan = with_point_means(plan, call_.located);
    if (wide) {
      reduce<double>();
    } else {
      reduce<float>();
    }
  }

  template <class F>
  void reduce() {
    const Plan& plan = call_.plan;
    if (plan.all_points == 0) return;
    constexpr bool is_point = std::is_same_v<F, double>;  // of which only the mean is taken
    if (!is_point && is_wide<F, 4>(plan)) {
      if constexpr (!is_point) reduce<F, 4>();
    } else {
      reduce<F, 1>();
    }
  }
  template <class F, int V>
  void reduce() {
    const Plan& plan = call_.plan;
    if (plan.sums()) {
      const std::int64_t vectors = plan.channels / V;
      const std::int64_t blocks = divide_up(plan.all_points * vectors, threads * tuning::magnitudes_per_thread);
      launch(&voxelize_magnitudes_kernel<F, V>,
             std::max(std::min<std::int64_t>(blocks, tuning::magnitudes_blocks), divide_up(vectors, threads)));
    }
    const bool extremes = plan.max != nullptr || plan.min != nullptr;
    if (!extremes) {
      reduce<F, V, true, false>();
    } else if constexpr (!std::is_same_v<F, double>) {
      plan.sums() ? reduce<F, V, true, true>() : reduce<F, V, false, true>();
    }
  }
  template <class F, int V, bool Sums, bool Extremes>
  void reduce() {
    const Plan& plan = call_.plan;
    launch_for(&voxelize_reduce_kernel<F, V, Sums, Extremes>, std::min(plan.rows, plan.all_points) * plan.channels / V);
    const std::int64_t slots = divide_up(plan.all_points, tuning::long_row);
    launch_for(&voxelize_long_kernel<F, Sums, Extremes>, slots * warp_size);
    launch_for(&voxelize_write_long_kernel<F, Sums, Extremes>, slots * plan.channels);
  }

  SparseCall call_;
  const SetRows& set_rows_;
  const Context& context_;
  int device_;
  cudaStream_t stream_;
  char* temporary_ = nullptr;
};

}  // namespace

void run_sparse_cuda(const Plan& plan, const SetRows& set_rows, const Context& context, int device) {
  const CudaDevice current(device);
  SparseRunner(plan, set_rows, context, device).run();
}

}  // namespace robocache::voxelize_op
