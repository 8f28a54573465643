// Dense results on a GPU: the launches.
//
// Counts and occupancy: one kernel fills the grids, the next adds the points (cuda/point_kernels.h); a warp first
// combines neighbouring points that share a cell. Many points in no order are sorted into bins and counted there
// (cuda/count_bins.h). Features: the points of a cell form a chain, and a kernel reduces the chains (cuda/chains.h);
// features of plain clouds are reduced by bins (cuda/feature_bins.h). Depth images have kernels of their own
// (cuda/images.h).
#include <algorithm>

#include "ops/voxelize/cuda/count_bins.h"
#include "ops/voxelize/cuda/feature_bins.h"
#include "ops/voxelize/cuda/images.h"
#include "ops/voxelize/cuda/point_kernels.h"

namespace robocache::voxelize_op {
namespace {

// ---- planning ------------------------------------------------------------------------------------------------------

// An upper bound on the cells that run_heavy() must reduce: cells with more points than a chain may have steps, and
// all cells of a bin, or of a line of 32 cells, that has too many points.
std::int64_t most_heavy(const Call& call) {
  const std::int64_t points = call.plan.all_points;
  const FeatureBins& by = call.feature_bins;
  return points / (tuning::longest_chain + 1) + points / (tuning::longest_bin + 1) * by.cells +
         points / (by.capacity + 1) * (by.tiles > 0 ? warp_size : 0);
}

void place_scratch(Call& call, BumpAllocator& arrays) {
  const Plan& plan = call.plan;
  if (call.bins.tiles > 0) {
    arrays.allocate(call.bins.scattered, 1);
    arrays.allocate(call.bins.dropped, std::int64_t{call.bins.sorters} * drop_reasons);
    arrays.allocate(call.bins.places, std::int64_t{call.bins.tiles} * bin_places);
    arrays.allocate(call.bins.extents, std::int64_t{call.bins.tiles} * bins);
  }
  if (plan.bits != nullptr) arrays.allocate(call.occupied, call.all_cells);
  if (!plan.reduces_features()) return;
  if (FeatureBins& bins_of = call.feature_bins; bins_of.tiles > 0) {
    arrays.allocate(bins_of.heavy, feature_bin_count);
    arrays.allocate(bins_of.dropped, bins_of.tiles);
    arrays.allocate(bins_of.entries, std::int64_t{bins_of.tiles} * feature_tile);
    arrays.allocate(bins_of.extents, std::int64_t{bins_of.tiles} * feature_bin_count);
    arrays.allocate(bins_of.largest, bins_of.tiles * plan.channels);
  }
  arrays.allocate(call.heads, call.all_cells);
  if (call.feature_bins.tiles == 0) arrays.allocate(call.nodes, plan.all_points);
  auto* keys = static_cast<char*>(call.keys);
  arrays.allocate(keys, plan.all_points * (plan.is_small() ? 4 : 8));
  call.keys = keys;
  arrays.allocate(call.magnitudes.largest, plan.grids * plan.channels);
  arrays.allocate(call.magnitudes.given, plan.grids);
  arrays.allocate(call.heavy_count, 1);
  arrays.allocate(call.heavy_cells, most_heavy(call));
  arrays.allocate(call.heavy, most_heavy(call) * plan.channels);
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
             std::clamp<std::int64_t>(divide_up(bytes, tuning::fill_bytes * tuning::threads), 1, most_blocks()));
      if (features) {
        with_feature_type(plan, [&](auto type) { run_features<typename decltype(type)::type>(); });
      } else {
        run_points<false>();
      }
    }
    if (plan.bits != nullptr || empties_count(call_)) {
      launch(&voxelize_marks_kernel,
             std::clamp<std::int64_t>(divide_up(cells, tuning::marks_per_thread * tuning::threads), 1, most_blocks()));
    }
  }

 private:
  std::int64_t most_blocks() const {
    return std::int64_t{tuning::blocks_per_processor} * cuda_machine(device_).processors;
  }
  std::int64_t most_heavy_blocks() const {
    return std::int64_t{tuning::heavy_blocks_per_processor} * cuda_machine(device_).processors;
  }

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

  // Counts of many points: the sort kernel asks whether they are scattered, and does nothing but fill the grids where
  // they are not.
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

  // Cells with too many points for one thread.
  template <class F>
  void run_heavy() const {
    const Plan& plan = call_.plan;
    if (most_heavy(call_) == 0) return;
    const std::int64_t spans = divide_up(plan.all_points, std::int64_t{tuning::heavy_span} * warps);
    const std::int64_t blocks = std::min(spans, most_heavy_blocks());
    if (plan.is_small()) {
      launch(&voxelize_heavy_points_kernel<F, std::int32_t>, blocks);
    } else {
      launch(&voxelize_heavy_points_kernel<F, std::int64_t>, blocks);
    }
    launch(&voxelize_heavy_cells_kernel<F>,
           std::min(divide_up(most_heavy(call_) * plan.channels, tuning::threads), most_heavy_blocks()));
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
  call.tiling = tiling_of(plan, cuda_machine(device), !is_plain(plan) || !plan.reduces_features());
  call.axes = Axes(plan);
  if (call.axes.quick) {
    call.bins = Bins(plan, cuda_machine(device));
    call.feature_bins = FeatureBins(plan, cuda_machine(device));
  }
  if (is_image(plan)) {
    call.width = Division(static_cast<std::uint32_t>(plan.width));
    call.readings = FloatReadings(plan);
    if (call.axes.quick) call.fixed = FixedAxes(call.axes);
    call.image_tiling = ImageTiling(plan, cuda_machine(device));
  }
  const PlacedScratch scratch(context.workspace, device, static_cast<cudaStream_t>(context.stream),
                              [&](BumpAllocator& arrays) { place_scratch(call, arrays); });
  Runner(call, context, device).run();
}

}  // namespace robocache::voxelize_op
