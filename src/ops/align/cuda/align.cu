// Align on a GPU: the launches. There is one launch for each dtype of values, and a block works on a tile of targets
// of one stream. First each thread searches one target and writes to shared memory where its value comes from (a
// Tap); then the block moves the values, 16 bytes a thread. The plain kernel (cuda/plain.h) does that. Slerp, cubic,
// bins and other strides go to the general kernel (cuda/general.cu). The plain kernel checks the stamps that its
// tiles read anyway; all other stamps are checked by a launch of their own (cuda/check.cu).
#include <algorithm>

#include "core/text.h"
#include "ops/align/cuda/check.h"
#include "ops/align/cuda/plain.h"

namespace robocache::align_op {

const void* general_kernel(DType dtype);  // cuda/general.cu

namespace {

// Integers are only copied here, so a kernel for each size is enough.
template <int Streams>
const void* plain_kernel(DType dtype) {
  const void* kernel = nullptr;
  with_type(dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    if constexpr (std::is_integral_v<T>) {
      kernel = reinterpret_cast<const void*>(&align_kernel<std::make_unsigned_t<T>, Streams>);
    } else {
      kernel = reinterpret_cast<const void*>(&align_kernel<T, Streams>);
    }
  });
  return kernel;
}

// Streams of a plan that share a dtype, so that one launch takes them.
struct Group {
  const Plan* plan = nullptr;
  FaultBox* box = nullptr;
  const Workspace* workspace = nullptr;
  int device = 0;
  cudaStream_t stream = nullptr;
  int count = 0;
  int chosen[max_streams];
  Tiling tilings[max_streams];
  std::int32_t ranges = 0;
  bool plain = true;  // the plain kernel can take all of them
  bool bins = false;
  std::int64_t vectors = 0;

  const StreamPlan& operator[](int k) const { return plan->streams[static_cast<std::size_t>(chosen[k])]; }

  void add(std::size_t k) {
    const StreamPlan& s = plan->streams[k];
    if (s.samples >= std::int64_t{1} << 31) {
      throw Error(ErrorKind::value, concat(name_of(plan->operation), ": a row, or packed rows, of ", s.samples,
                                           " samples; on CUDA at most 2^31 - 1"));
    }
    const int bytes = vector_bytes(s, plan->ranges);
    tilings[count].vector_bytes = static_cast<std::int16_t>(bytes);
    plain = plain && bytes != 0 && is_plain(s, plan->targets);
    bins = bins || s.bins;
    ranges += s.range_count;
    vectors += plan->targets.rows * plan->targets.count * vectors_of(s, bytes);
    chosen[count++] = static_cast<int>(k);
  }

  // After the last add().
  void tile() {
    const std::int64_t processors = cuda_machine(device).processors;
    const std::int64_t per_tile = vectors_of_tile(vectors, processors);
    for (int k = 0; k < count; ++k) {
      const StreamPlan& s = (*this)[k];
      tilings[k] = tiling_of(s, plan->targets, tilings[k].vector_bytes, per_tile, processors);
    }
  }

  // Sets the first_block of streams [begin, begin + n). Returns all blocks.
  template <class L>
  std::int64_t place(L& launch, int begin, int n) {
    launch.streams = static_cast<std::uint16_t>(n);
    launch.targets = plan->targets;
    std::int64_t first = 0;
    for (int k = begin; k < begin + n; ++k) {
      tilings[k].first_block = static_cast<std::uint32_t>(first);
      first += tilings[k].tiles;
    }
    if (first >= std::int64_t{1} << 31) {
      throw Error(ErrorKind::value, concat(name_of(plan->operation), ": too large for one launch: split the rows"));
    }
    return first;
  }

  void run(const void* kernel, std::int64_t all, void* launch) {
    if (all == 0) return;
    launched = true;
    cuda_launch(kernel, all, tuning::threads, 0, launch, device, stream, name_of(plan->operation));
  }

  template <int Streams>
  void launch_plain() {
    PlainLaunch<Streams> launch;
    launch.check = plan->check;
    launch.checks_follow = checks_follow();
    launch.box = box;
    launch.operation = plan->operation;
    const std::int64_t all = place(launch, 0, count);
    std::fill_n(launch.first_block, Streams, ~0u);
    for (int k = 0; k < count; ++k) {
      const StreamPlan& s = (*this)[k];
      launch.first_block[k] = tilings[k].first_block;
      launch.plans[k] =
          pack(s, plan->targets, plan->ranges[static_cast<std::size_t>(s.first_range)].method, tilings[k]);
    }
    run(plain_kernel<Streams>((*this)[0].dtype), all, &launch);
  }

  // Streams [begin, begin + n).
  void launch_general(int begin, int n) {
    GeneralLaunch launch;
    launch.checks_follow = plan->check;
    const std::int64_t all = place(launch, begin, n);
    std::int32_t range = 0;
    const StreamPlan* streams[general_streams];
    for (int k = 0; k < n; ++k) streams[k] = &(*this)[begin + k];
    const CudaArrivals arrivals({streams, static_cast<std::size_t>(n)}, plan->targets.rows, plan->operation, *workspace,
                                device, stream);
    launch.follows_arrivals = arrivals.launched();
    for (int k = 0; k < n; ++k) {
      StreamPlan& s = launch.plans[k];
      s = *streams[k];
      launch.arrivals[k] = arrivals[k];
      launch.tilings[k] = tilings[begin + k];
      std::copy_n(plan->ranges.begin() + s.first_range, s.range_count, launch.ranges + range);
      s.first_range = range;
      range += s.range_count;
    }
    run(general_kernel((*this)[begin].dtype), all, &launch);
  }

  // Whether some stamps, targets or integers are not checked by a tile.
  bool checks_follow() const {
    if (!plan->check) return false;
    for (int k = 0; k < count; ++k) {
      if (!plain || !checks_in_tiles((*this)[k], plan->targets, tilings[k])) return true;
    }
    return false;
  }

  void check() {
    CheckLaunch launch;
    launch.targets = plan->targets;
    launch.box = box;
    launch.operation = plan->operation;
    launch.targets_must_rise = bins;
    for (int k = 0; k < count; ++k) {
      const StreamPlan& s = (*this)[k];
      if (plain && checks_in_tiles(s, plan->targets, tilings[k])) continue;
      // A plain tile checks its targets. Of a timeline it checks only start + step, not the start itself.
      launch.check_targets =
          !targets_checked && (!plain || launch.check_targets || plan->targets.timeline || tilings[k].tiles == 0);
      launch.plans[launch.streams++] = s;
      if (launch.streams == checked_streams) run_checks(launch);
    }
    if (launch.streams > 0) run_checks(launch);
  }

 private:
  bool launched = false;         // a kernel of this call; checks after it may begin early
  bool targets_checked = false;  // by a launch of checks

  void run_checks(CheckLaunch& launch) {
    launch.follows = launched;
    launched = launch_checks(launch, device, stream) || launched;
    targets_checked = targets_checked || launch.check_targets;
    launch.check_targets = false;
    launch.streams = 0;
  }
};

}  // namespace

void run_cuda(const Plan& plan, const Context& context, int device) {
  FaultBox* const box = cuda_fault_box(device);
  const CudaDevice current(device);
  bool done[max_streams] = {};
  for (std::size_t first = 0; first < plan.streams.size(); ++first) {
    if (done[first]) continue;
    Group group;
    group.plan = &plan;
    group.box = box;
    group.workspace = &context.workspace;
    group.device = device;
    group.stream = static_cast<cudaStream_t>(context.stream);
    for (std::size_t k = first; k < plan.streams.size(); ++k) {
      const StreamPlan& s = plan.streams[k];
      if (done[k] || s.dtype != plan.streams[first].dtype || group.ranges + s.range_count > max_ranges) continue;
      done[k] = true;
      group.add(k);
    }
    group.tile();
    if (group.plain && group.count == 1) {
      group.launch_plain<1>();
    } else if (group.plain && group.count <= plain_streams) {
      group.launch_plain<plain_streams>();
    } else if (group.plain) {
      group.launch_plain<max_streams>();
    } else {
      for (int k = 0; k < group.count; k += general_streams) {
        group.launch_general(k, std::min(general_streams, group.count - k));
      }
    }
    if (plan.check) group.check();
  }
}

}  // namespace robocache::align_op
