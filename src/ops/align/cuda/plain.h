// The plain kernel: dense int64 stamps, and values that are copied or mixed linearly, by vectors.
#pragma once

#include <type_traits>

#include "ops/align/check.h"
#include "ops/align/cuda/tiling.h"

namespace robocache::align_op {
namespace {

// A stream that the plain kernel can take, packed into three cache lines of kernel arguments.
struct alignas(64) PlainStream {
  const char* values;
  const std::int64_t* times;
  std::int64_t row_bytes, times_row_stride, latency, max_gap;
  std::uint32_t sample_bytes, samples, segments, name;

  char* out;
  std::int64_t out_row_bytes, out_target_bytes;
  std::uint32_t first_block, tiles_per_row, channel_tiles, all_vectors;
  std::uint16_t vectors, magic_low;
  std::uint8_t targets, vector_bytes, whole_rows;
  bool magic_high, by_row, batched, check_rows, causal, ragged, packed, wide_extents, wide_rows, marks;
  Method method;
  Edge edge;
  DType dtype;

  std::uint8_t* valid;
  std::int64_t* age;
  std::int64_t* index;
  std::int64_t mark_row_stride, mark_target_stride;
  const void* extents;  // lengths, or offsets where packed
  const void* rows;
};
static_assert(sizeof(PlainStream) == 192);

// The kernel is compiled for 1, for this many, and for max_streams streams in one launch.
inline constexpr int plain_streams = 4;

template <int Streams>
struct PlainLaunch {
  FaultBox* box;
  Operation operation;
  bool check;
  bool checks_follow;  // a launch of checks follows, which should run beside this one
  std::uint16_t streams;
  TargetPlan targets;
  std::uint32_t first_block[Streams];
  PlainStream plans[Streams];
};

// Everything but the addresses and strides of the values.
ROBOCACHE_HD StreamPlan unpack(const PlainStream& p) {
  StreamPlan s;
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
  s.valid = {p.valid, p.mark_row_stride, p.mark_target_stride};
  s.age = {p.age, p.mark_row_stride, p.mark_target_stride};
  s.index = {p.index, p.mark_row_stride, p.mark_target_stride};
  return s;
}

PlainStream pack(const StreamPlan& s, const TargetPlan& targets, Method method, const Tiling& tiling) {
  PlainStream p{};
  const std::int64_t size = size_of(s.dtype);
  p.values = static_cast<const char*>(s.values);
  p.times = static_cast<const std::int64_t*>(s.times.data);
  p.row_bytes = s.row_stride * size;
  p.sample_bytes = static_cast<std::uint32_t>(s.sample_stride * size);
  p.times_row_stride = s.times.row_stride;
  p.samples = static_cast<std::uint32_t>(s.samples);
  p.segments = static_cast<std::uint32_t>(s.segments);
  p.batched = s.batched;
  p.latency = s.latency;
  p.max_gap = s.max_gap;
  p.out = static_cast<char*>(s.out);
  p.out_row_bytes = s.out_row_stride * size;
  p.out_target_bytes = s.out_target_stride * size;
  p.first_block = tiling.first_block;
  p.tiles_per_row = tiling.tiles_per_row;
  p.targets = static_cast<std::uint8_t>(tiling.targets);
  p.channel_tiles = static_cast<std::uint32_t>(tiling.channel_tiles);
  p.vectors = static_cast<std::uint16_t>(tiling.vectors);
  p.all_vectors = s.channel_count == 0 || s.out == nullptr ? 0 : static_cast<std::uint32_t>(tiling.all_vectors);
  p.vector_bytes = static_cast<std::uint8_t>(tiling.vector_bytes);
  p.magic_low = static_cast<std::uint16_t>(tiling.magic);
  p.magic_high = tiling.magic >> 16 != 0;
  p.by_row = tiling.by_row;
  p.whole_rows = static_cast<std::uint8_t>(tiling.whole_rows);
  p.check_rows = checks_in_tiles(s, targets, tiling);
  p.method = method;
  p.edge = s.edge;
  p.dtype = s.dtype;
  p.causal = s.causal;
  p.packed = s.offsets.data != nullptr;
  const Integers& extents = p.packed ? s.offsets : s.lengths;
  p.extents = extents.data;
  p.wide_extents = extents.wide;
  p.rows = s.rows.data;
  p.ragged = p.extents != nullptr || p.rows != nullptr;
  p.wide_rows = s.rows.wide;
  p.valid = static_cast<std::uint8_t*>(s.valid.data);
  p.age = static_cast<std::int64_t*>(s.age.data);
  p.index = static_cast<std::int64_t*>(s.index.data);
  const StreamPlan::Mark& mark = s.valid.data != nullptr ? s.valid : (s.age.data != nullptr ? s.age : s.index);
  p.mark_row_stride = mark.row_stride;
  p.mark_target_stride = mark.target_stride;
  p.marks = mark.data != nullptr;
  p.name = s.name;
  return p;
}

// Slow paths: the full checks, and their faults. Rarely taken, so __noinline__.
__device__ __noinline__ void check_stamps(const PlainStream& p, Operation operation, std::int64_t row, int begin,
                                          int end, FaultBox* box) {
  const StreamPlan s = unpack(p);
  const StampCheck check{operation, &s};
  for (int k = begin + thread_of_block(); k < end; k += tuning::threads) {
    const Fault fault = check(row + k);
    if (fault.code != FaultCode::none) report(box, fault);
  }
}
__device__ __noinline__ void report_target(const TargetPlan& targets, Operation operation, std::int64_t b,
                                           std::int64_t t, FaultBox* box) {
  if (targets.timeline && targets.starts.data == nullptr) return;
  const std::int64_t in_list = targets.batched ? b * targets.count + t : t;
  const Fault fault = TargetCheck{operation, &targets, false}(targets.timeline ? b : in_list);
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

// __noinline__ slow path: most streams have no lengths, offsets or rows.
__device__ __noinline__ Row ragged_row(const PlainStream& p, std::uint32_t b) { return row_of(unpack(p), b); }

struct PlainStamps {
  const std::int64_t* first;
  __device__ std::int64_t operator()(std::int64_t k) const { return first[k]; }
  __device__ PlainStamps from(int k) const { return {first + k}; }
};

// Fast path of locate() and choose(): the target is on a sample of the window, or between two samples with no gap
// between them and no other sample with the stamp of either. false: some other case.
template <class C>
__device__ bool choose_fast(const PlainStream& p, const SharedStamps& shared, const Window& window, int found,
                            int count, std::int64_t x, Choice<C>& choice) {
  const bool inside = found < window.count;
  const bool at_end = window.first + window.count == count;
  if (p.causal || found < 1 || !(inside || at_end)) return false;
  const std::int64_t left = shared[found - 1];
  const std::int64_t right = shared[found];  // past the window: the largest int64
  const std::int64_t span = minus(right, left);
  const std::int64_t since = minus(x, left);
  const bool alone = shared[found + 1] != right && (found + 1 < window.count || at_end);
  const bool on_sample = since == 0;
  if (!on_sample && (!inside || !alone || span > p.max_gap)) return false;
  choice.valid = true;
  choice.age = since;
  choice.sample = choice.index = window.first + found - 1;
  choice.step = 1;
  if (p.method == Method::nearest) {
    choice.sample = choice.index = choice.sample + (on_sample || since <= minus(span, since) ? 0 : 1);
  } else if (p.method == Method::linear && !on_sample) {
    choice.w = static_cast<C>(static_cast<double>(since) / static_cast<double>(span));
    if (choice.w == C(1)) {
      choice.w = 0;
      ++choice.sample;
    }
  }
  return true;
}

// Slow path: every case.
template <class C>
__device__ __noinline__ Choice<C> choose_slow(const PlainStream& p, PlainStamps all, int count, std::int64_t upper,
                                              std::int64_t tau) {
  const StreamPlan s = unpack(p);
  return choose<C>(s, p.method, locate(s, all, NoArrivals{}, count, upper, tau, tau));
}

// Where the targets of a tile lie.
struct TargetSpan {
  std::uint32_t b = 0;       // the row, where the tile has one
  std::uint32_t first, end;  // of the tile: in its row, or among the targets of all rows

  __device__ TargetSpan(const PlainStream& p, const TargetPlan& targets, std::uint32_t tile)
      : first(tile * p.targets), end(static_cast<std::uint32_t>(targets.count)) {
    if (p.by_row) {
      b = tile / p.tiles_per_row;
      first = (tile - b * p.tiles_per_row) * p.targets;
    } else {
      end *= static_cast<std::uint32_t>(targets.rows);  // tiling_of() keeps this under 2^32
    }
  }
};

// The samples of a row.
struct RowSamples {
  std::uint32_t segment;
  std::int64_t first = 0;
  int count;

  __device__ RowSamples(const PlainStream& p, std::uint32_t b)
      : segment(p.batched ? b : 0), count(static_cast<int>(p.samples)) {
    if (!p.ragged) return;
    const Row row = ragged_row(p, b);
    segment = static_cast<std::uint32_t>(row.segment);
    first = row.first;
    count = static_cast<int>(row.count);
  }
};

// The time of a target.
__device__ std::int64_t time_of(const TargetPlan& targets, std::uint32_t b, std::uint32_t t) {
  if (targets.timeline) return target<true>(targets, b, t);
  return __ldg(static_cast<const std::int64_t*>(targets.times.data) + b * targets.times.row_stride + t);
}

// Whether the stamps of a window rise and are usable. `count`: samples of a row.
__device__ bool is_window_fine(const PlainStream& p, const StagedStamps& staged, const SharedStamps& shared,
                               const Window& window, int count) {
  bool fine = true;
  if (p.by_row) {
    fine = staged.rise(shared);  // then the row's first and last stamp bound all others
    if (window.first == 0) fine &= shared[0] > -time_limit;
    if (window.first + window.count == count) fine &= shared[window.count - 1] < time_limit;
  } else {
    fine = staged.rows_rise(shared, window.count, count);
  }
  return fine;
}

// Moves the values of a tile, once its taps are known.
template <class T>
__device__ void move_tile(const PlainStream& p, const Tap<T>* taps, std::uint32_t channel_tile, int tile_targets) {
  if (p.all_vectors == 0) return;
  const auto vectors = static_cast<int>(min(std::uint32_t{p.vectors}, p.all_vectors - channel_tile * p.vectors));
  const std::uint32_t magic = p.magic_low | (p.magic_high ? 65536u : 0u);
  move_values(taps, p.vector_bytes, tile_targets, vectors, vectors == p.vectors ? magic : magic_of(vectors));
}

// One tile, in 32-bit arithmetic where possible: no value can move before its search is done, all warps of a
// multiprocessor search at the same time, and so the search costs what its instructions cost.
template <class T, class L>
__device__ void plain_tile(const L& launch, const PlainStream& p, const SharedStamps& shared, Tap<T>* taps) {
  const TargetPlan& targets = launch.targets;
  const StreamPlan s = unpack(p);

  std::uint32_t tile = blockIdx.x - p.first_block;
  std::uint32_t channel_tile = 0;
  if (p.channel_tiles > 1) {
    channel_tile = tile % p.channel_tiles;
    tile /= p.channel_tiles;
  }
  const auto row_targets = static_cast<std::uint32_t>(targets.count);
  const TargetSpan span(p, targets, tile);
  std::uint32_t b = span.b;
  const std::uint32_t first = span.first;
  const std::uint32_t tile_targets = min(static_cast<std::uint32_t>(p.targets), span.end - first);
  const bool mine = threadIdx.x < tile_targets;
  std::uint32_t t = first + threadIdx.x;
  const std::uint32_t first_row = p.by_row ? b : first / row_targets;
  if (!p.by_row && mine) {
    b = t / row_targets;
    t -= b * row_targets;
  }

  // The samples.
  wait_on_dependent_grids();
  if (launch.checks_follow) launch_dependent_grids();
  const RowSamples samples(p, b);
  const std::uint32_t segment = samples.segment;
  const std::int64_t first_sample = samples.first;
  const int count = samples.count;
  const PlainStamps all{p.times + segment * p.times_row_stride + first_sample};

  // Load stamps and targets at once, so that their latencies overlap.
  Window window;
  const bool searches = count > 0 && (p.by_row || p.whole_rows > 0);
  if (searches && p.by_row) {
    window = window_by_place(first, p.targets, row_targets, count);
  } else if (searches) {
    window.count = static_cast<int>(tile_targets / row_targets * p.samples);
  }
  const StagedStamps staged(p.by_row ? all : PlainStamps{p.times + first_row * p.times_row_stride}, window);
  const std::int64_t tau = mine ? time_of(targets, b, t) : 0;
  const bool checks = launch.check && p.check_rows && channel_tile == 0 && (p.batched || b == 0);
  if (checks && p.extents != nullptr && first == 0 && threadIdx.x == 0) {
    check_extents(p, launch.operation, b, launch.box);
  }
  if (searches) {
    staged.put(shared);
    if (checks && !is_window_fine(p, staged, shared, window, count)) {
      const std::int64_t row_begin = static_cast<std::int64_t>(p.by_row ? segment : first_row) * p.samples;
      check_stamps(p, launch.operation, p.packed ? first_sample : row_begin, window.first, window.first + window.count,
                   launch.box);
    }
  }

  // The search, and where the values are.
  const std::int64_t channel = static_cast<std::int64_t>(channel_tile) * (p.vectors * p.vector_bytes);
  std::int64_t upper = -1;  // -1: not known
  for (bool pending = mine;;) {
    if (pending) {
      Choice<compute_t<T>> choice;
      bool fast = false;
      if (!searches) {
        upper = upper_bound(all, 0, count, search_key(s, tau, tau));
      } else if (upper < 0) {
        const std::int64_t key = search_key(s, tau, tau);
        SharedStamps stamps = shared;
        int found = 0;
        if (p.by_row) {
          found = search_window(stamps, key);
        } else {
          stamps = shared.from(static_cast<int>(b - first_row) * count);
          window.count = count;
          found = search_some(stamps, count, key);
        }
        fast = choose_fast(p, stamps, window, found, count, shifted_target(s, tau), choice);
        if (!fast && window.count > 0 && tells(window, found, count)) upper = window.first + found;
      }
      if (!fast && upper >= 0) choice = choose_slow<compute_t<T>>(p, all, count, upper, tau);
      if (fast || upper >= 0) {
        pending = false;
        if (p.marks && channel_tile == 0) write_marks(s, b, t, choice.valid, choice.age, choice.index);
        Tap<T>& tap = taps[threadIdx.x];
        tap.a = p.values + channel + segment * p.row_bytes + (first_sample + choice.sample) * p.sample_bytes;
        tap.b = tap.a + choice.step * p.sample_bytes;
        tap.w = choice.w;
        tap.out = p.out + channel + b * p.out_row_bytes + t * p.out_target_bytes;
        if (launch.check && (tau <= -time_limit || tau >= time_limit)) {
          report_target(targets, launch.operation, b, t, launch.box);
        }
      }
    }
    if (!__syncthreads_or(pending)) break;
    upper = search_by_time(all, count, search_key(s, tau, tau), static_cast<int>(tile_targets), shared);
  }
  launch_dependent_grids();  // not before: blocks of the next kernel that start early crowd onto the multiprocessors that are free first
  move_tile(p, taps, channel_tile, static_cast<int>(tile_targets));
}

// The stream that this block works on. A kernel argument with a computed address is slow to read, so where there are several
// streams the block copies its own into shared memory, a word a thread.
__device__ const PlainStream& choose_stream(const PlainLaunch<1>& launch, PlainStream&) { return launch.plans[0]; }
template <int Streams>
__device__ const PlainStream& choose_stream(const PlainLaunch<Streams>& launch, PlainStream& chosen) {
  int k = 0;
  if constexpr (Streams <= plain_streams) {
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

// T: the size and the arithmetic of a value.
template <class T, int Streams>
__global__ void __launch_bounds__(tuning::threads, tuning::blocks_per_processor)
    align_kernel(const __grid_constant__ PlainLaunch<Streams> launch) {
  __shared__ std::int64_t stamps[tuning::window_stamps];
  __shared__ Tap<T> taps[tuning::threads];
  __shared__ PlainStream chosen;
  plain_tile<T>(launch, choose_stream(launch, chosen), SharedStamps(stamps), taps);
}

}  // namespace
}  // namespace robocache::align_op
