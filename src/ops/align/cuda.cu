// Align on a GPU. One launch per value dtype: a block takes a tile of targets of one stream. First each thread searches
// one target and leaves in shared memory where the value comes from (a Tap); then the block moves the values, 16 bytes a
// thread. What that cannot do (slerp, cubic, bins, other strides, ...) goes target by target through range.h. Stamps are
// checked by the tile that has them at hand or, where that is nobody, by blocks that do nothing else.
#include <algorithm>
#include <type_traits>

#include "core/text.h"
#include "ops/align/cuda_tile.h"

namespace robocache::align_op {

const void* general_kernel(DType dtype, bool small);  // cuda_general.cu

namespace {

// Whether the tiles of a stream see all its stamps between them, each segment once.
bool checks_in_tiles(const StreamPlan& s, const Tiling& tiling) {
  return tiling.by_row && tiling.blocks > 0 && s.rows.data == nullptr;
}

// ---- the plain launch ----------------------------------------------------------------------------------------------

// A stream that needs nothing else is packed into three cache lines of arguments; the device unpacks it into registers.
// Meant to spare a short kernel waiting for argument lines; by itself it was not seen to gain (fuse B=4: 6.1 to 6.0 us).
struct alignas(64) PlainStream {
  const void* values;
  const std::int64_t* times;
  std::int64_t row_stride, sample_stride, times_row_stride, samples, latency, max_gap;

  void* out;
  std::int64_t out_row_stride, out_target_stride;
  std::uint32_t first_block, tiles_per_row;
  std::int32_t targets, channel_tiles, vectors, all_vectors;
  std::uint8_t vector_bytes;
  std::uint16_t magic_low;
  bool magic_high, by_row, batched, check_rows;
  Method method;
  Edge edge;
  DType dtype;
  bool causal, packed, wide_extents, wide_rows;

  std::uint8_t* valid;
  std::int64_t* age;
  std::int64_t* index;
  std::int64_t mark_row_stride, mark_target_stride;
  const void* extents;  // lengths, or offsets where packed
  const void* rows;
  std::uint32_t name;
  std::uint32_t segments;
};
static_assert(sizeof(PlainStream) == 192);

template <int Streams>
struct PlainLaunch {
  FaultBox* box;
  Operation operation;
  bool check;
  std::uint16_t streams;
  std::uint32_t check_blocks;
  TargetPlan targets;
  std::uint32_t first_block[Streams];
  PlainStream plans[Streams];
};

ROBOCACHE_HD StreamPlan unpack(const PlainStream& p) {
  StreamPlan s;
  s.values = p.values;
  s.row_stride = p.row_stride;
  s.sample_stride = p.sample_stride;
  s.channel_count = p.all_vectors;  // only asked whether it is 0
  s.times = {p.times, p.times_row_stride, 1, DType::i64};
  if (p.packed) {
    s.offsets = {p.extents, 1, p.wide_extents};
  } else {
    s.lengths = {p.extents, 1, p.wide_extents};
  }
  s.rows = {p.rows, 1, p.wide_rows};
  s.samples = p.samples;
  s.segments = p.segments;
  s.batched = p.batched;
  s.latency = p.latency;
  s.max_gap = p.max_gap;
  s.dtype = s.out_dtype = p.dtype;
  s.edge = p.edge;
  s.causal = p.causal;
  s.name = p.name;
  s.out = p.out;
  s.out_row_stride = p.out_row_stride;
  s.out_target_stride = p.out_target_stride;
  s.valid = {p.valid, p.mark_row_stride, p.mark_target_stride};
  s.age = {p.age, p.mark_row_stride, p.mark_target_stride};
  s.index = {p.index, p.mark_row_stride, p.mark_target_stride};
  return s;
}

PlainStream pack(const StreamPlan& s, Method method, const Tiling& tiling) {
  PlainStream p{};
  p.values = s.values;
  p.times = static_cast<const std::int64_t*>(s.times.data);
  p.row_stride = s.row_stride;
  p.sample_stride = s.sample_stride;
  p.times_row_stride = s.times.row_stride;
  p.samples = s.samples;
  p.segments = static_cast<std::uint32_t>(s.segments);
  p.batched = s.batched;
  p.latency = s.latency;
  p.max_gap = s.max_gap;
  p.out = s.out;
  p.out_row_stride = s.out_row_stride;
  p.out_target_stride = s.out_target_stride;
  p.first_block = tiling.first_block;
  p.tiles_per_row = tiling.tiles_per_row;
  p.targets = tiling.targets;
  p.channel_tiles = tiling.channel_tiles;
  p.vectors = tiling.vectors;
  p.all_vectors = s.channel_count == 0 ? 0 : tiling.all_vectors;
  p.vector_bytes = static_cast<std::uint8_t>(tiling.vector_bytes);
  p.magic_low = static_cast<std::uint16_t>(tiling.magic);
  p.magic_high = tiling.magic >> 16 != 0;
  p.by_row = tiling.by_row;
  p.check_rows = checks_in_tiles(s, tiling);
  p.method = method;
  p.edge = s.edge;
  p.dtype = s.dtype;
  p.causal = s.causal;
  p.packed = s.offsets.data != nullptr;
  const Integers& extents = p.packed ? s.offsets : s.lengths;
  p.extents = extents.data;
  p.wide_extents = extents.wide;
  p.rows = s.rows.data;
  p.wide_rows = s.rows.wide;
  p.valid = static_cast<std::uint8_t*>(s.valid.data);
  p.age = static_cast<std::int64_t*>(s.age.data);
  p.index = static_cast<std::int64_t*>(s.index.data);
  const StreamPlan::Mark& mark = s.valid.data != nullptr ? s.valid : (s.age.data != nullptr ? s.age : s.index);
  p.mark_row_stride = mark.row_stride;
  p.mark_target_stride = mark.target_stride;
  p.name = s.name;
  return p;
}

// Checks in full, and what they say: rarely called, so out of the way.
__device__ __noinline__ void check_stamps(const PlainStream& p, Operation operation, std::int64_t row, int begin,
                                          int end, FaultBox* box) {
  const StreamPlan s = unpack(p);
  const StampCheck check{operation, &s};
  for (int k = begin + static_cast<int>(threadIdx.x); k < end; k += tuning::threads) {
    const Fault fault = check(row + k);
    if (fault.code != FaultCode::none) report(box, fault);
  }
}
__device__ __noinline__ void report_target(const TargetPlan& targets, Operation operation, std::int64_t n,
                                           FaultBox* box) {
  const Fault fault = TargetCheck{operation, &targets, false}(n);
  if (fault.code != FaultCode::none) report(box, fault);
}
__device__ __noinline__ void check_extents(const PlainStream& p, Operation operation, std::int64_t row, FaultBox* box) {
  const StreamPlan s = unpack(p);
  const IntegerCheck check{operation, &s, 0};
  for (std::int64_t k = row; k < row + 2 && k < check.count(); ++k) {
    const Fault fault = check(k);
    if (fault.code != FaultCode::none) report(box, fault);
  }
}

// The tile's share of its row's stamps: they are on their way to this multiprocessor anyway.
template <class L>
struct PlainCheck {
  const L* launch;
  const PlainStream* p;
  const Tile* tile;

  __device__ void target(const Searched<true>& here) const {
    if (!launch->check || !here.mine || (here.tau > -time_limit && here.tau < time_limit)) return;
    const TargetPlan& targets = launch->targets;
    if (targets.timeline && targets.starts.data == nullptr) return;
    const std::int64_t in_list = targets.batched ? here.b * targets.count + here.t : here.t;
    report_target(targets, launch->operation, targets.timeline ? here.b : in_list, launch->box);
  }

  __device__ void stamps(const Searched<true>& here) const {
    if (!launch->check || !p->check_rows || tile->channel_tile != 0 || (!p->batched && tile->row != 0)) return;
    const auto part = static_cast<std::uint32_t>(tile->first) / static_cast<std::uint32_t>(p->targets);
    if (p->extents != nullptr && part == 0 && threadIdx.x == 0) {
      check_extents(*p, launch->operation, here.b, launch->box);
    }
    const auto count = static_cast<int>(here.row.count);
    const int share = static_cast<int>((static_cast<std::uint32_t>(count) + p->tiles_per_row - 1) / p->tiles_per_row);
    const int begin = static_cast<int>(part) * share;
    const int end = min(count, begin + share);
    const Window& window = here.at.window;
    bool fine = true;
    int first = begin;  // of what is not in the window
    if (window.shift == 0) {
      first = max(begin, min(end, window.first + window.count));
      fine = window.first == 0 || window.first < begin;
      for (int k = max(begin, window.first) + static_cast<int>(threadIdx.x); k < first; k += tuning::threads) {
        const std::int64_t* const stamp = here.at.shared + (k - window.first);
        fine = fine && *stamp < time_limit && *stamp >= (k > 0 ? stamp[-1] : 1 - time_limit);
      }
    }
    if (!fine) first = begin;
    if (first < end) {
      check_stamps(*p, launch->operation, (p->packed ? here.row.first : here.row.segment * p->samples), first, end,
                   launch->box);
    }
  }
};

// Streams whose stamps no tile checks: many rows may read one segment, or a tile lies in many rows.
template <class L>
__device__ __noinline__ void check_plain(const L& launch) {
  for (int k = 0; k < launch.streams; ++k) {
    if (launch.plans[k].check_rows) continue;
    const StreamPlan s = unpack(launch.plans[k]);
    if (!surely_fine(s, launch.check_blocks)) {
      check_share(StampCheck{launch.operation, &s}, launch.check_blocks, launch.box);
    }
    check_share(IntegerCheck{launch.operation, &s, launch.targets.rows}, launch.check_blocks, launch.box);
  }
  check_share(TargetCheck{launch.operation, &launch.targets, false}, launch.check_blocks, launch.box);
}

// The stream that this block works for. An argument whose address is computed is slow to read, so of several streams the
// block's own is brought into shared memory, a word a thread.
__device__ const PlainStream& choose_stream(const PlainLaunch<1>& launch, PlainStream&) { return launch.plans[0]; }
template <int Streams>
__device__ const PlainStream& choose_stream(const PlainLaunch<Streams>& launch, PlainStream& chosen) {
  int k = 0;
  if constexpr (Streams <= small_streams) {
#pragma unroll
    for (int other = 1; other < Streams; ++other) k += blockIdx.x >= launch.first_block[other] ? 1 : 0;
  } else {
    while (k + 1 < launch.streams && blockIdx.x >= launch.first_block[k + 1]) ++k;
  }
  constexpr int words = sizeof(PlainStream) / sizeof(std::uint64_t);
  if (threadIdx.x < words) {
    reinterpret_cast<std::uint64_t*>(&chosen)[threadIdx.x] =
        reinterpret_cast<const std::uint64_t*>(&launch.plans[k])[threadIdx.x];
  }
  __syncthreads();
  return chosen;
}

// T gives the size and arithmetic of a value.
template <class T, int Streams>
__global__ void __launch_bounds__(tuning::threads, tuning::blocks_per_processor)
    align_kernel(const __grid_constant__ PlainLaunch<Streams> launch) {
  if (blockIdx.x < launch.check_blocks) {
    check_plain(launch);
    return;
  }
  __shared__ std::int64_t stamps[tuning::window_stamps];
  __shared__ Tap<T> taps[tuning::threads];
  __shared__ PlainStream chosen;
  const PlainStream& p = choose_stream(launch, chosen);
  const StreamPlan s = unpack(p);
  Tiling tiling;
  tiling.targets = p.targets;
  tiling.channel_tiles = p.channel_tiles;
  tiling.vectors = p.vectors;
  tiling.all_vectors = p.all_vectors;
  tiling.tiles_per_row = p.tiles_per_row;
  tiling.magic = p.magic_low | (p.magic_high ? 65536u : 0u);
  tiling.vector_bytes = static_cast<std::int16_t>(p.vector_bytes);
  tiling.by_row = p.by_row;
  const Tile tile = tile_of(tiling, launch.targets, blockIdx.x - p.first_block);
  fast_tile<T, true>(s, p.method, launch.targets, tiling, tile, stamps, taps,
                     PlainCheck<PlainLaunch<Streams>>{&launch, &p, &tile});
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

// Whether the plain kernel can take the stream: dense int64 stamps, no arrivals, marks that share their strides.
bool is_plain(const StreamPlan& s, const TargetPlan& targets) {
  const Stamps& list = targets.timeline ? targets.starts : targets.times;
  if (list.data != nullptr && list.dtype != DType::i64) return false;
  if (s.times.dtype != DType::i64 || s.times.stride != 1 || s.arrivals.data != nullptr) return false;
  if (s.segments >= std::int64_t{1} << 32) return false;
  for (const Integers& integers : {s.lengths, s.offsets, s.rows}) {
    if (integers.data != nullptr && integers.stride != 1) return false;
  }
  const StreamPlan::Mark* same = nullptr;
  for (const StreamPlan::Mark* mark : {&s.valid, &s.age, &s.index}) {
    if (mark->data == nullptr) continue;
    if (same != nullptr && (mark->row_stride != same->row_stride || mark->target_stride != same->target_stride))
      return false;
    same = mark;
  }
  return true;
}

Tiling tiling_of(const StreamPlan& s, const TargetPlan& targets, std::span<const Range> ranges) {
  Tiling tiling;
  tiling.vector_bytes = static_cast<std::int16_t>(vector_bytes(s, ranges));
  const std::int64_t unit = tiling.vector_bytes == 0 ? 1 : tiling.vector_bytes / size_of(s.dtype);
  const std::int64_t all = s.out == nullptr ? 1 : std::max<std::int64_t>(1, s.channel_count / unit);
  // As many vectors a thread as leave enough blocks to fill the device.
  std::int64_t per_block = std::int64_t{tuning::threads} * tuning::most_vectors;
  const std::int64_t vectors = targets.rows * targets.count * all;
  while (per_block > std::int64_t{tuning::threads} * tuning::fewest_vectors &&
         vectors < per_block * tuning::enough_blocks) {
    per_block /= 2;
  }
  tiling.vectors = static_cast<std::int32_t>(std::min(all, per_block));
  tiling.channel_tiles = static_cast<std::int32_t>(divide_up(all, tiling.vectors));
  tiling.magic = magic_of(tiling.vectors);
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
  cudaStream_t stream = nullptr;
  int count = 0;
  int chosen[max_streams];
  Tiling tilings[max_streams];
  std::int32_t ranges = 0;
  bool plain = true;  // all of them go without range.h
  bool bins = false;
  std::int64_t blocks = 0;  // but for the checks'
  std::int64_t to_check = 0;

  const StreamPlan& operator[](int k) const { return plan->streams[static_cast<std::size_t>(chosen[k])]; }

  void add(std::size_t k) {
    const StreamPlan& s = plan->streams[k];
    if (s.samples >= std::int64_t{1} << 31) {
      throw Error(ErrorKind::value, concat(name_of(plan->operation), ": a row, or packed rows, of ", s.samples,
                                           " samples; on CUDA at most 2^31 - 1"));
    }
    Tiling& tiling = tilings[count];
    tiling = tiling_of(s, plan->targets, plan->ranges);
    plain = plain && tiling.vector_bytes != 0 && is_plain(s, plan->targets);
    bins = bins || s.bins;
    blocks += tiling.blocks;
    ranges += s.range_count;
    if (!checks_in_tiles(s, tiling)) count_stamps(s);
    chosen[count++] = static_cast<int>(k);
  }

  void count_stamps(const StreamPlan& s) {
    to_check = std::max({to_check, StampCheck{plan->operation, &s}.count(), std::int64_t{1}});
  }

  // Sets check_blocks, and each tiling's first_block after them. Returns all blocks.
  template <class L>
  std::int64_t place(L& launch) {
    launch.box = box;
    launch.operation = plan->operation;
    launch.streams = static_cast<std::uint16_t>(count);
    launch.targets = plan->targets;
    launch.check_blocks = 0;
    if (plan->check && to_check > 0) {
      const std::int64_t per_block = std::int64_t{tuning::threads} * tuning::checks_per_thread;
      launch.check_blocks =
          static_cast<std::uint32_t>(std::clamp<std::int64_t>(divide_up(to_check, per_block), 1, 4096));
    }
    std::int64_t first = launch.check_blocks;
    for (int k = 0; k < count; ++k) {
      tilings[k].first_block = static_cast<std::uint32_t>(first);
      first += tilings[k].blocks;
    }
    if (first >= std::int64_t{1} << 31) {
      throw Error(ErrorKind::value, concat(name_of(plan->operation), ": too large for one launch: split the rows"));
    }
    return first;
  }

  void run(const void* kernel, std::int64_t all, void* launch) const {
    if (all == 0) return;
    void* arguments[] = {launch};
    cuda_check(cudaLaunchKernel(kernel, dim3(static_cast<unsigned>(all)), dim3(tuning::threads), arguments, 0, stream),
               name_of(plan->operation));
  }

  template <int Streams>
  void launch_plain() {
    PlainLaunch<Streams> launch;
    const std::int64_t all = place(launch);
    launch.check = plan->check;
    std::fill_n(launch.first_block, Streams, ~0u);
    for (int k = 0; k < count; ++k) {
      const StreamPlan& s = (*this)[k];
      launch.first_block[k] = tilings[k].first_block;
      launch.plans[k] = pack(s, plan->ranges[static_cast<std::size_t>(s.first_range)].method, tilings[k]);
    }
    run(plain_kernel<Streams>((*this)[0].dtype), all, &launch);
  }

  template <class L>
  void launch_general() {
    L launch;
    for (int k = 0; k < count; ++k) count_stamps((*this)[k]);
    to_check = std::max(to_check, TargetCheck{plan->operation, &plan->targets, false}.count());
    const std::int64_t all = place(launch);
    launch.targets_must_rise = bins;
    std::int32_t range = 0;
    for (int k = 0; k < count; ++k) {
      StreamPlan& s = launch.plans[k];
      s = (*this)[k];
      launch.tilings[k] = tilings[k];
      std::copy_n(plan->ranges.begin() + s.first_range, s.range_count, launch.ranges + range);
      s.first_range = range;
      range += s.range_count;
    }
    run(general_kernel((*this)[0].dtype, std::is_same_v<L, SmallLaunch>), all, &launch);
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
    group.stream = static_cast<cudaStream_t>(context.stream);
    for (std::size_t k = first; k < plan.streams.size(); ++k) {
      const StreamPlan& s = plan.streams[k];
      if (done[k] || s.dtype != plan.streams[first].dtype || group.ranges + s.range_count > max_ranges) continue;
      done[k] = true;
      group.add(k);
    }
    if (group.plain && group.count == 1) {
      group.launch_plain<1>();
    } else if (group.plain && group.count <= small_streams) {
      group.launch_plain<small_streams>();
    } else if (group.plain) {
      group.launch_plain<max_streams>();
    } else if (group.count <= small_streams && group.ranges <= small_ranges) {
      group.launch_general<SmallLaunch>();
    } else {
      group.launch_general<LargeLaunch>();
    }
  }
}

}  // namespace robocache::align_op
