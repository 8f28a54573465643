// Sparse results on a GPU: the launches. Points are sorted by key, the first point of each key begins a row, and a
// row is written from its points, which are neighbours in the sorted order (cuda/sparse_kernels.h).
#include <thrust/iterator/counting_iterator.h>
#include <thrust/iterator/transform_iterator.h>

#include <cub/device/device_radix_sort.cuh>
#include <cub/device/device_scan.cuh>

#include "ops/voxelize/cuda/sparse_kernels.h"

namespace robocache::voxelize_op {
namespace {

// ---- planning ------------------------------------------------------------------------------------------------------

class SparseRunner {
 public:
  SparseRunner(const Plan& plan, const SetRows& set_rows, const Context& context, int device)
      : set_rows_(set_rows), context_(context), device_(device), stream_(static_cast<cudaStream_t>(context.stream)) {
    call_.plan = plan;
    call_.box = cuda_fault_box(device);
    call_.tiling = tiling_of(plan, cuda_machine(device), !is_plain(plan));
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

  // In a CUDA graph the host cannot wait for the number of voxels.
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
  // Copies to the host and waits for all that was launched.
  void fetch(void* to, const void* from, std::size_t bytes) {
    cuda_check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, stream_), name());
    cuda_check(cudaStreamSynchronize(stream_), name());
    cuda_fault_box(device_);  // throws what the checks found, which is known now
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
  void place_scratch(BumpAllocator& arrays, std::size_t temporary_bytes) {
    const Plan& plan = call_.plan;
    const std::int64_t points = plan.all_points;
    arrays.allocate(call_.totals, 2);
    arrays.allocate(call_.magnitudes.given, plan.grids);
    arrays.allocate(call_.magnitudes.largest, plan.grids * most_channels());
    call_.zero_words = arrays.used() / 4;
    Key* keys = nullptr;
    Key* sorted = nullptr;
    arrays.allocate(keys, points);
    arrays.allocate(sorted, points);
    call_.keys = keys;
    call_.sorted = sorted;
    arrays.allocate(call_.numbers, points);
    arrays.allocate(call_.order, points);
    arrays.allocate(call_.row_ends, points);
    arrays.allocate(call_.starts, points + 1);
    char* located = nullptr;
    arrays.allocate(located, plan.locates() ? points * plan.located_bytes() : 0);
    call_.located = plan.locates() ? located : nullptr;
    arrays.allocate(call_.partials, (points / tuning::long_row + 1) * most_channels());
    arrays.allocate(temporary_, static_cast<std::int64_t>(temporary_bytes));
  }
  std::int64_t most_channels() const { return std::max<std::int64_t>(call_.plan.channels, call_.plan.lattice ? 3 : 0); }

  // Sorts the points by key and counts the rows. With temporary = nullptr it only returns the bytes that it needs.
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
    const PlacedScratch scratch(context_.workspace, device_, stream_,
                                [&](BumpAllocator& arrays) { place_scratch<Key>(arrays, temporary_bytes); });
    call_.zeros = static_cast<std::uint32_t*>(scratch.data());
    launch(&voxelize_clear_kernel,
           std::clamp<std::int64_t>(divide_up(call_.zero_words, threads), 1,
                                    std::int64_t{tuning::blocks_per_processor} * cuda_machine(device_).processors));
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
    constexpr bool is_point = std::is_same_v<F, double>;  // points themselves: only their mean is taken
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
             std::max(std::min(blocks, std::int64_t{tuning::magnitudes_blocks_per_processor} *
                                           cuda_machine(device_).processors),
                      divide_up(vectors, threads)));
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
