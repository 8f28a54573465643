// Align on a GPU. One launch per value dtype: a block takes a tile of targets of one stream. First each thread searches
// one target and leaves in shared memory where the value comes from (a Tap); then the block moves the values, 16 bytes a
// thread. What that cannot do (slerp, cubic, bins, other strides, ...) goes target by target through range.h. The first
// blocks of a launch do nothing but check the data.
#include <algorithm>
#include <type_traits>

#include "core/text.h"
#include "ops/align/cuda_tile.h"

namespace robocache::align_op {

const void* general_kernel(DType dtype, bool small);  // cuda_general.cu

namespace {

// ---- the kernel ----------------------------------------------------------------------------------------------------

// T gives the size and arithmetic of a value.
template <class T, class L>
__global__ void __launch_bounds__(tuning::threads, tuning::blocks_per_processor)
    align_kernel(const __grid_constant__ L launch) {
  if (blockIdx.x < launch.check_blocks) {
    check_all(launch);
    return;
  }
  __shared__ std::int64_t stamps[tuning::window_stamps];
  __shared__ Tap<T> taps[tuning::threads];
  const int k = stream_of(launch);
  const StreamPlan& s = launch.plans[k];
  fast_tile<T, true>(s, launch.ranges[s.first_range].method, launch.targets, launch.tilings[k],
                     tile_of(launch.tilings[k], launch.targets, blockIdx.x - launch.tilings[k].first_block), stamps,
                     taps);
}

// ---- planning a launch ---------------------------------------------------------------------------------------------

std::int64_t divide_up(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

// The largest vector that every address of the stream and its output is a multiple of; 0 where range.h must do it.
int vector_bytes(const StreamPlan& s, std::span<const Range> ranges) {
  const bool dense = (s.channel_count <= 1 || (s.channels.rank == 1 && s.channels.stride[0] == 1)) &&
                     (s.channel_count <= 1 || (s.out_channels.rank == 1 && s.out_channels.stride[0] == 1));
  if (s.range_count != 1 || s.out_dtype != s.dtype || (s.out != nullptr && !dense)) return 0;
  if (s.on_nan == OnNan::skip && is_float(s.dtype)) return 0;
  const Method method = ranges[static_cast<std::size_t>(s.first_range)].method;
  if (is_bin(method) || (!s.causal && method > Method::nearest)) return 0;
  const int size = size_of(s.dtype);
  std::uint64_t bits = reinterpret_cast<std::uintptr_t>(s.values) | reinterpret_cast<std::uintptr_t>(s.out);
  for (const std::int64_t elements :
       {s.row_stride, s.sample_stride, s.channel_count, s.out_row_stride, s.out_target_stride}) {
    bits |= static_cast<std::uint64_t>(elements * size);
  }
  if (bits % 16 == 0) return 16;
  return bits % 4 == 0 && size < 4 ? 4 : size;
}

// The kernel without range.h knows int64 stamps and no arrivals: the rest is worth no code in it.
bool has_plain_times(const StreamPlan& s, const TargetPlan& targets) {
  const Stamps& list = targets.timeline ? targets.starts : targets.times;
  return s.times.dtype == DType::i64 && s.arrivals.data == nullptr &&
         (list.data == nullptr || list.dtype == DType::i64);
}

Tiling tiling_of(const StreamPlan& s, const TargetPlan& targets, std::span<const Range> ranges) {
  Tiling tiling;
  tiling.vector_bytes = static_cast<std::int16_t>(vector_bytes(s, ranges));
  const std::int64_t unit = tiling.vector_bytes == 0 ? 1 : tiling.vector_bytes / size_of(s.dtype);
  const std::int64_t all = s.out == nullptr ? 1 : std::max<std::int64_t>(1, s.channel_count / unit);
  const std::int64_t per_block = std::int64_t{tuning::threads} * tuning::vectors_in_flight * tuning::rounds;
  tiling.vectors = static_cast<std::int32_t>(std::min(all, per_block));
  tiling.channel_tiles = static_cast<std::int32_t>(divide_up(all, tiling.vectors));
  const std::int64_t wanted = std::clamp<std::int64_t>(per_block / tiling.vectors, 1, tuning::threads);
  tiling.targets = static_cast<std::int32_t>(std::min<std::int64_t>(wanted, std::max<std::int64_t>(targets.count, 1)));
  tiling.all_vectors = static_cast<std::int32_t>(all);
  tiling.by_row =
      targets.rows == 1 || 2 * targets.count > wanted || targets.rows * targets.count >= std::int64_t{1} << 32;
  if (!tiling.by_row) tiling.targets = static_cast<std::int32_t>(wanted);
  tiling.tiles_per_row = static_cast<std::uint32_t>(divide_up(targets.count, tiling.targets));
  const std::int64_t tiles =
      tiling.by_row ? targets.rows * tiling.tiles_per_row : divide_up(targets.rows * targets.count, tiling.targets);
  const std::int64_t blocks = tiles * tiling.channel_tiles;
  if (blocks >= std::int64_t{1} << 31) {
    throw Error(ErrorKind::value, "the call is too large for one launch: split the rows");
  }
  tiling.blocks = static_cast<std::uint32_t>(blocks);
  return tiling;
}

// Integers are only copied here, so their size is all that counts.
template <class L>
const void* kernel_of(DType dtype) {
  const void* kernel = nullptr;
  with_type(dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    if constexpr (std::is_integral_v<T>) {
      kernel = reinterpret_cast<const void*>(&align_kernel<std::make_unsigned_t<T>, L>);
    } else {
      kernel = reinterpret_cast<const void*>(&align_kernel<T, L>);
    }
  });
  return kernel;
}

// One launch for streams chosen[0 .. count) of the plan, which share a dtype.
template <class L>
void launch_group(const Plan& plan, const int* chosen, int count, bool check_targets, FaultBox* box,
                  cudaStream_t stream) {
  L launch;
  launch.targets = plan.targets;
  launch.box = box;
  launch.operation = plan.operation;
  launch.streams = count;
  bool general = false;
  std::int64_t blocks = 0;
  std::int64_t to_check = 0;
  std::int32_t ranges = 0;
  for (int k = 0; k < count; ++k) {
    StreamPlan& s = launch.plans[k];
    s = plan.streams[static_cast<std::size_t>(chosen[k])];
    if (s.samples >= std::int64_t{1} << 31) {
      throw Error(ErrorKind::value,
                  concat(name_of(plan.operation), ": a row of ", s.samples, " samples; on CUDA at most 2^31 - 1"));
    }
    launch.tilings[k] = tiling_of(s, plan.targets, plan.ranges);
    blocks += launch.tilings[k].blocks;
    general = general || launch.tilings[k].vector_bytes == 0 || !has_plain_times(s, plan.targets);
    std::copy_n(plan.ranges.begin() + s.first_range, s.range_count, launch.ranges + ranges);
    s.first_range = ranges;
    ranges += s.range_count;
    to_check = std::max(to_check, StampCheck{plan.operation, &s}.count());
    launch.targets_must_rise = launch.targets_must_rise || s.bins;
  }
  if (plan.check) {
    launch.check_targets = check_targets || launch.targets_must_rise;
    if (launch.check_targets)
      to_check = std::max(to_check, TargetCheck{plan.operation, &launch.targets, false}.count());
    const std::int64_t per_block = std::int64_t{tuning::threads} * tuning::checks_per_thread;
    launch.check_blocks = static_cast<std::uint32_t>(std::clamp<std::int64_t>(divide_up(to_check, per_block), 1, 4096));
    blocks += launch.check_blocks;
  }
  if (blocks == 0) return;
  if (blocks >= std::int64_t{1} << 31)
    throw Error(ErrorKind::value, "the call is too large for one launch: split the rows");
  std::uint32_t first = launch.check_blocks;
  for (int k = 0; k < count; ++k) {
    launch.tilings[k].first_block = first;
    first += launch.tilings[k].blocks;
  }
  void* arguments[] = {&launch};
  const DType dtype = launch.plans[0].dtype;
  const void* const kernel = general ? general_kernel(dtype, std::is_same_v<L, SmallLaunch>) : kernel_of<L>(dtype);
  cuda_check(cudaLaunchKernel(kernel, dim3(static_cast<unsigned>(blocks)), dim3(tuning::threads), arguments, 0, stream),
             name_of(plan.operation));
}

}  // namespace

void run_cuda(const Plan& plan, const Context& context, int device) {
  FaultBox* const box = cuda_fault_box(device);
  const CudaDevice current(device);
  const auto stream = static_cast<cudaStream_t>(context.stream);
  bool done[max_streams] = {};
  bool check_targets = true;
  for (std::size_t first = 0; first < plan.streams.size(); ++first) {
    if (done[first]) continue;
    int chosen[max_streams];
    int count = 0;
    std::int32_t ranges = 0;
    for (std::size_t k = first; k < plan.streams.size(); ++k) {
      const StreamPlan& s = plan.streams[k];
      if (done[k] || s.dtype != plan.streams[first].dtype || ranges + s.range_count > max_ranges) continue;
      done[k] = true;
      chosen[count++] = static_cast<int>(k);
      ranges += s.range_count;
    }
    if (count <= small_streams && ranges <= small_ranges) {
      launch_group<SmallLaunch>(plan, chosen, count, check_targets, box, stream);
    } else {
      launch_group<LargeLaunch>(plan, chosen, count, check_targets, box, stream);
    }
    check_targets = false;
  }
}

}  // namespace robocache::align_op
