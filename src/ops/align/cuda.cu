// Align on a GPU. One launch per value dtype: a block takes a tile of targets of one stream. First each thread searches
// one target and leaves in shared memory where the value comes from (a Tap); then the block moves the values, 16 bytes a
// thread. What that cannot do (slerp, cubic, bins, other strides, ...) is for cuda_general.cu. Where the
// tiles of a stream see all its stamps, they check them; all other stamps get a launch of their own (cuda_check.cu).
#include <algorithm>
#include <type_traits>

#include "core/text.h"
#include "ops/align/cuda_check.h"
#include "ops/align/cuda_tile.h"

namespace robocache::align_op {

const void* general_kernel(DType dtype);  // cuda_general.cu

namespace {

// Stamps of a tile's share, beside the window's margins.
constexpr std::int64_t window_room = tuning::window_stamps - 2 * tuning::narrow_margin - 3;

// Whether the tiles of a stream see all its stamps between them, each segment once, and have them in their windows.
bool checks_in_tiles(const StreamPlan& s, const TargetPlan& targets, const Tiling& tiling) {
  if (tiling.tiles == 0 || s.rows.data != nullptr) return false;
  if (!tiling.by_row) return tiling.whole_rows > 0;
  if (s.samples > std::int64_t{1} << 21) return false;  // a window's place is a float
  return s.samples < tuning::window_stamps || window_room * targets.count >= s.samples * tiling.targets;
}

// ---- the plain launch ----------------------------------------------------------------------------------------------

// A stream that needs nothing else, packed into three cache lines of arguments.
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

// Forms of a plain launch have room for 1, these many, or all streams.
inline constexpr int plain_streams = 4;

template <int Streams>
struct PlainLaunch {
  FaultBox* box;
  Operation operation;
  bool check;
  bool checks_follow;  // a launch of checks, which should run beside this one
  std::uint16_t streams;
  TargetPlan targets;
  std::uint32_t first_block[Streams];
  PlainStream plans[Streams];
};

// All but what tells where values lie.
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

// Checks in full, and what they say: rarely called, so out of the way.
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

// Its own function, because most streams have no lengths, offsets or rows.
__device__ __noinline__ Row ragged_row(const PlainStream& p, std::uint32_t b) { return row_of(unpack(p), b); }

struct PlainStamps {
  const std::int64_t* first;
  __device__ std::int64_t operator()(std::int64_t k) const { return first[k]; }
  __device__ PlainStamps from(int k) const { return {first + k}; }
};

// The usual cases of locate() and choose(): a target on a sample of the window, or between two that have no twin and no
// gap between them. False where it is another.
template <class C>
__device__ bool choose_easily(const PlainStream& p, const SharedStamps& shared, const Window& window, int found,
                              int count, std::int64_t x, Choice<C>& choice) {
  const bool inside = found < window.count;
  const bool at_end = window.first + window.count == count;
  if (p.causal || found < 1 || !(inside || at_end)) return false;
  const std::int64_t left = shared[found - 1];
  const std::int64_t right = shared[found];  // behind the window: the end of time
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

// Every case. Its own function, because few targets need it.
template <class C>
__device__ __noinline__ Choice<C> choose_carefully(const PlainStream& p, PlainStamps all, int count, std::int64_t upper,
                                                   std::int64_t tau) {
  const StreamPlan s = unpack(p);
  return choose<C>(s, p.method, locate(s, all, NoArrivals{}, count, upper, tau));
}

// One tile, in 32-bit arithmetic as far as it goes: before the first value can move, all warps of a multiprocessor go
// through the search together, and it costs what its instructions cost.
template <class T, class L>
__device__ void plain_tile(const L& launch, const PlainStream& p, const SharedStamps& shared, Tap<T>* taps) {
  const TargetPlan& targets = launch.targets;
  const StreamPlan s = unpack(p);

  // The targets: one a thread.
  std::uint32_t tile = blockIdx.x - p.first_block;
  std::uint32_t channel_tile = 0;
  if (p.channel_tiles > 1) {
    channel_tile = tile % p.channel_tiles;
    tile /= p.channel_tiles;
  }
  const auto row_targets = static_cast<std::uint32_t>(targets.count);
  std::uint32_t b = 0;
  std::uint32_t first = tile * p.targets;
  std::uint32_t end = row_targets;
  if (p.by_row) {
    b = tile / p.tiles_per_row;
    first = (tile - b * p.tiles_per_row) * p.targets;
  } else {
    end *= static_cast<std::uint32_t>(targets.rows);  // the planner keeps this under 2^32
  }
  const std::uint32_t tile_targets = min(static_cast<std::uint32_t>(p.targets), end - first);
  const bool mine = threadIdx.x < tile_targets;
  std::uint32_t t = first + threadIdx.x;
  const std::uint32_t first_row = p.by_row ? b : first / row_targets;
  if (!p.by_row && mine) {
    b = t / row_targets;
    t -= b * row_targets;
  }

  // The samples.
  after_earlier_work();
  if (launch.checks_follow) let_next_begin();
  std::uint32_t segment = p.batched ? b : 0;
  std::int64_t first_sample = 0;
  auto count = static_cast<int>(p.samples);
  if (p.ragged) {
    const Row row = ragged_row(p, b);
    segment = static_cast<std::uint32_t>(row.segment);
    first_sample = row.first;
    count = static_cast<int>(row.count);
  }
  const PlainStamps all{p.times + segment * p.times_row_stride + first_sample};

  // The stamps and the targets come together: nothing waits for the one before the other is on its way.
  Window window;
  const bool searches = count > 0 && (p.by_row || p.whole_rows > 0);
  if (searches && p.by_row) {
    window = window_by_place(first, p.targets, row_targets, count);
  } else if (searches) {
    window.count = static_cast<int>(tile_targets / row_targets * p.samples);
  }
  const Brought brought(p.by_row ? all : PlainStamps{p.times + first_row * p.times_row_stride}, window);
  std::int64_t tau = 0;
  if (mine) {
    if (targets.timeline) {
      tau = target<true>(targets, b, t);
    } else {
      tau = __ldg(static_cast<const std::int64_t*>(targets.times.data) + b * targets.times.row_stride + t);
    }
  }
  const bool checks = launch.check && p.check_rows && channel_tile == 0 && (p.batched || b == 0);
  if (checks && p.extents != nullptr && first == 0 && threadIdx.x == 0) {
    check_extents(p, launch.operation, b, launch.box);
  }
  if (searches) {
    brought.put(shared);
    if (checks) {
      bool fine = true;
      if (p.by_row) {
        fine = brought.rise(shared);  // then the row's first and last tell of all
        if (window.first == 0) fine &= shared[0] > -time_limit;
        if (window.first + window.count == count) fine &= shared[window.count - 1] < time_limit;
      } else {
        fine = brought.rows_rise(shared, window.count, count);
      }
      if (!fine) {
        const std::int64_t row_begin = static_cast<std::int64_t>(p.by_row ? segment : first_row) * p.samples;
        check_stamps(p, launch.operation, p.packed ? first_sample : row_begin, window.first,
                     window.first + window.count, launch.box);
      }
    }
  }

  // The search, and where the values are.
  const std::int64_t channel = static_cast<std::int64_t>(channel_tile) * (p.vectors * p.vector_bytes);
  std::int64_t upper = -1;  // not known
  for (bool pending = mine;;) {
    if (pending) {
      Choice<compute_t<T>> choice;
      bool easy = false;
      if (!searches) {
        upper = upper_bound(all, 0, count, search_key(s, tau));
      } else if (upper < 0) {
        const std::int64_t key = search_key(s, tau);
        SharedStamps stamps = shared;
        int found = 0;
        if (p.by_row) {
          found = search_window(stamps, key);
        } else {
          stamps = shared.from(static_cast<int>(b - first_row) * count);
          window.count = count;
          found = search_some(stamps, count, key);
        }
        easy = choose_easily(p, stamps, window, found, count, shifted_target(s, tau), choice);
        if (!easy && window.count > 0 && tells(window, found, count)) upper = window.first + found;
      }
      if (!easy && upper >= 0) choice = choose_carefully<compute_t<T>>(p, all, count, upper, tau);
      if (easy || upper >= 0) {
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
    upper = search_by_time(all, count, search_key(s, tau), static_cast<int>(tile_targets), shared);
  }
  let_next_begin();  // not before: blocks that come early crowd on the multiprocessors that are first to be free
  if (p.all_vectors == 0) return;
  const auto vectors = static_cast<int>(min(std::uint32_t{p.vectors}, p.all_vectors - channel_tile * p.vectors));
  const std::uint32_t magic = p.magic_low | (p.magic_high ? 65536u : 0u);
  move_values(taps, p.vector_bytes, static_cast<int>(tile_targets), vectors,
              vectors == p.vectors ? magic : magic_of(vectors));
}

// The stream that this block works for. An argument whose address is computed is slow to read, so of several streams the
// block's own is brought into shared memory, a word a thread.
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

// T gives the size and arithmetic of a value.
template <class T, int Streams>
__global__ void __launch_bounds__(tuning::threads, tuning::blocks_per_processor)
    align_kernel(const __grid_constant__ PlainLaunch<Streams> launch) {
  __shared__ std::int64_t stamps[tuning::window_stamps];
  __shared__ Tap<T> taps[tuning::threads];
  __shared__ PlainStream chosen;
  plain_tile<T>(launch, choose_stream(launch, chosen), SharedStamps(stamps), taps);
}

// ---- planning a launch ---------------------------------------------------------------------------------------------

// The largest vector that every address of the stream and its output is a multiple of; 0 where values are not dense, or
// converted.
int aligned_bytes(const StreamPlan& s) {
  const bool dense = (s.channel_count <= 1 || (s.channels.rank == 1 && s.channels.stride[0] == 1)) &&
                     (s.channel_count <= 1 || (s.out_channels.rank == 1 && s.out_channels.stride[0] == 1));
  if (s.out_dtype != s.dtype || (s.out != nullptr && !dense)) return 0;
  const int size = size_of(s.dtype);
  std::uint64_t bits = reinterpret_cast<std::uintptr_t>(s.values) | reinterpret_cast<std::uintptr_t>(s.out);
  for (const std::int64_t elements :
       {s.row_stride, s.sample_stride, s.channel_count, s.out_row_stride, s.out_target_stride}) {
    bits |= static_cast<std::uint64_t>(elements * size);
  }
  for (const int bytes : {16, 8, 4}) {
    if (bytes > size && bits % static_cast<unsigned>(bytes) == 0) return bytes;
  }
  return size;
}

// That, for a stream that is moved by vectors; 0 where range.h must do it.
int vector_bytes(const StreamPlan& s, std::span<const Range> ranges) {
  if (s.range_count != 1 || (s.on_nan == OnNan::skip && is_float(s.dtype))) return 0;
  const Method method = ranges[static_cast<std::size_t>(s.first_range)].method;
  if (is_bin(method) || method == Method::slerp || (!s.causal && method > Method::nearest)) return 0;
  return aligned_bytes(s);
}

// Whether the plain kernel can take the stream: dense int64 stamps, no arrivals, marks that share their strides.
bool is_plain(const StreamPlan& s, const TargetPlan& targets) {
  const Stamps& list = targets.timeline ? targets.starts : targets.times;
  if (list.data != nullptr && list.dtype != DType::i64) return false;
  if (s.times.dtype != DType::i64 || s.times.stride != 1 || s.arrivals.data != nullptr) return false;
  constexpr std::int64_t most = std::numeric_limits<std::int32_t>::max();
  if (s.segments > most || targets.rows > most || targets.count > most) return false;
  if (s.sample_stride < 0 || s.sample_stride * size_of(s.dtype) > most) return false;
  if (!targets.timeline && targets.times.stride != 1) return false;
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

std::int64_t vectors_of(const StreamPlan& s, int vector_bytes) {
  const std::int64_t unit = vector_bytes == 0 ? 1 : vector_bytes / size_of(s.dtype);
  return s.out == nullptr ? 1 : std::max<std::int64_t>(1, s.channel_count / unit);
}

// How many vectors a tile should have where a launch has that many: as many as make one wave of blocks, within limits.
std::int64_t vectors_of_tile(std::int64_t vectors) {
  std::int64_t per_tile = std::int64_t{tuning::threads} * tuning::fewest_vectors;
  while (per_tile < std::int64_t{tuning::threads} * tuning::most_vectors && vectors > per_tile * tuning::one_wave) {
    per_tile *= 2;
  }
  while (per_tile > tuning::threads && vectors < per_tile * tuning::least_tiles) per_tile /= 2;
  return per_tile;
}

Tiling tiling_of(const StreamPlan& s, const TargetPlan& targets, int vector_bytes, std::int64_t per_tile) {
  Tiling tiling;
  tiling.vector_bytes = static_cast<std::int16_t>(vector_bytes);
  const std::int64_t all = vectors_of(s, vector_bytes);
  std::int64_t widest = per_tile;
  const std::int64_t samples = s.offsets.data != nullptr ? divide_up(s.samples, s.segments) : s.samples;
  if (vector_bytes == 0) {
    const int together = wide_channels(size_of(s.dtype));
    tiling.wide = is_float(s.dtype) && aligned_bytes(s) >= together * size_of(s.dtype);
    std::int64_t steps = tuning::general_steps;
    if (s.bins) {
      steps =
          std::clamp<std::int64_t>(tuning::bin_samples * targets.count / std::max<std::int64_t>(samples, 1), 1, steps);
    }
    per_tile = steps * tuning::threads * (tiling.wide ? together : 1);
    widest = tuning::general_channels;
  }
  tiling.vectors = static_cast<std::int32_t>(std::min(all, widest));
  tiling.channel_tiles = static_cast<std::int32_t>(divide_up(all, tiling.vectors));
  tiling.magic = magic_of(tiling.vectors);
  tiling.all_vectors = static_cast<std::int32_t>(all);
  const std::int64_t cells = targets.rows * targets.count;
  std::int64_t wanted = std::clamp<std::int64_t>(per_tile / tiling.vectors, 1, tuning::threads);
  while (vector_bytes == 0 && wanted > 4 && cells * tiling.channel_tiles < wanted * tuning::least_tiles) wanted /= 2;
  // Of a long row, as many as have their stamps in one window, if that is not too few.
  const std::int64_t fit = samples < tuning::window_stamps ? wanted : window_room * targets.count / samples;
  if (fit >= tuning::fewest_targets) wanted = std::min(wanted, fit);
  // Of every row, tiles of about a size; of short rows, several in a tile, with all their stamps where they lie together.
  tiling.targets =
      static_cast<std::int32_t>(std::max<std::int64_t>(1, divide_up(targets.count, divide_up(targets.count, wanted))));
  tiling.by_row = targets.rows == 1 || 2 * targets.count > wanted || cells >= std::int64_t{1} << 32;
  if (!tiling.by_row) {
    tiling.targets = static_cast<std::int32_t>(wanted);
    const bool ragged = s.lengths.data != nullptr || s.offsets.data != nullptr || s.rows.data != nullptr;
    const bool together = s.batched && !ragged && s.times.row_stride == s.samples * s.times.stride;
    if (together && samples > 0 && targets.count > 0) {
      const std::int64_t rows = std::min(wanted / targets.count, (tuning::window_stamps - 2) / samples);
      tiling.whole_rows = static_cast<std::int32_t>(rows);
      if (rows > 0) tiling.targets = static_cast<std::int32_t>(rows * targets.count);
    }
  }
  tiling.tiles_per_row = static_cast<std::uint32_t>(divide_up(targets.count, tiling.targets));
  const std::int64_t tiles =
      tiling.channel_tiles * (tiling.by_row ? targets.rows * tiling.tiles_per_row : divide_up(cells, tiling.targets));
  if (tiles >= std::int64_t{1} << 31) {
    throw Error(ErrorKind::value, "the call is too large for one launch: split the rows");
  }
  tiling.tiles = static_cast<std::uint32_t>(tiles);
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
  int device = 0;
  cudaStream_t stream = nullptr;
  int count = 0;
  int chosen[max_streams];
  Tiling tilings[max_streams];
  std::int32_t ranges = 0;
  bool plain = true;  // all of them go without range.h
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
    const std::int64_t per_tile = vectors_of_tile(vectors);
    for (int k = 0; k < count; ++k) {
      const StreamPlan& s = (*this)[k];
      tilings[k] = tiling_of(s, plan->targets, tilings[k].vector_bytes, per_tile);
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
    for (int k = 0; k < n; ++k) {
      StreamPlan& s = launch.plans[k];
      s = (*this)[begin + k];
      launch.tilings[k] = tilings[begin + k];
      std::copy_n(plan->ranges.begin() + s.first_range, s.range_count, launch.ranges + range);
      s.first_range = range;
      range += s.range_count;
    }
    run(general_kernel((*this)[begin].dtype), all, &launch);
  }

  // Whether something is left that no tile checks.
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
      // A plain tile checks its targets, but of a start and a step only the sum.
      launch.check_targets =
          !targets_checked && (!plain || launch.check_targets || plan->targets.timeline || tilings[k].tiles == 0);
      launch.plans[launch.streams++] = s;
      if (launch.streams == checked_streams) run_checks(launch);
    }
    if (launch.streams > 0) run_checks(launch);
  }

 private:
  bool launched = false;         // something, after which checks may begin early
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
