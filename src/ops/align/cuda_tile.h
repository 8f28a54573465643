// What the kernels of align share: the launch, the search, and the way of values from samples to the output.
#pragma once

#include "core/cuda.h"
#include "ops/align/range.h"
#include "ops/align/tuning.h"

namespace robocache::align_op {
namespace {

// ---- the launch, as the kernel sees it -----------------------------------------------------------------------------

struct Tiling {
  std::int32_t targets = 1;        // of a tile, which is a block's work
  std::int32_t channel_tiles = 1;  // tiles that share their targets
  std::int32_t vectors = 0;        // of a sample, in one channel tile
  std::int32_t all_vectors = 0;    // of a sample
  std::uint32_t tiles_per_row = 1;
  std::uint32_t magic = 0;        // k / vectors = k * magic >> 16, for k up to the threads of a block
  std::int16_t vector_bytes = 0;  // 0: through range.h
  bool wide = false;              // through range.h, and groups of wide_channels() are aligned
  bool by_row = true;             // a tile lies in one row; else it runs over rows' ends, or has `whole_rows`
  std::int32_t whole_rows = 0;
  std::uint32_t tiles = 0;
  std::uint32_t first_block = 0;
};

// Channels of a float stream that range.h's results are made of at a time.
constexpr int wide_channels(int element_size) { return element_size == 8 ? 2 : 4; }

// Streams of one launch of the general kernel.
inline constexpr int general_streams = 4;

struct GeneralLaunch {
  TargetPlan targets;
  int streams = 0;
  bool checks_follow = false;  // a launch of checks, which should run beside this one
  Tiling tilings[general_streams];
  StreamPlan plans[general_streams];
  Range ranges[max_ranges];
};
static_assert(sizeof(GeneralLaunch) <= 4096, "every launch copies its arguments");

__device__ inline int thread_of_block() { return static_cast<int>(threadIdx.x); }

// ---- searching -----------------------------------------------------------------------------------------------------

// Stamps in shared memory, by an address that the compiler keeps instead of computing it anew each time.
class SharedStamps {
 public:
  __device__ explicit SharedStamps(std::int64_t* stamps)
      : address_(static_cast<std::uint32_t>(__cvta_generic_to_shared(stamps))) {
    asm("" : "+r"(address_));
  }
  __device__ std::int64_t operator[](int k) const {
    std::int64_t stamp;
    asm volatile("ld.shared.s64 %0, [%1];" : "=l"(stamp) : "r"(address_ + 8 * static_cast<std::uint32_t>(k)));
    return stamp;
  }
  __device__ SharedStamps from(int k) const {
    SharedStamps later = *this;
    later.address_ += 8 * static_cast<std::uint32_t>(k);
    return later;
  }
  __device__ void put(int k, std::int64_t stamp) const {
    asm volatile("st.shared.s64 [%0], %1;" ::"r"(address_ + 8 * static_cast<std::uint32_t>(k)), "l"(stamp) : "memory");
  }

 private:
  std::uint32_t address_;
};

// The stamps of one row in memory, by their type.
__device__ inline std::int64_t as_nanoseconds(std::int64_t stamp) { return stamp; }
__device__ inline std::int64_t as_nanoseconds(double stamp) { return nanoseconds(stamp); }
template <class X>
struct RowStamps {
  const X* first;
  std::int64_t stride;
  __device__ std::int64_t operator()(std::int64_t k) const { return as_nanoseconds(first[k * stride]); }
  __device__ RowStamps from(int k) const { return {first + k * stride, stride}; }
};
// Calls f with the RowStamps that begin at an offset.
template <class F>
__device__ void with_row_stamps(const Stamps& stamps, std::int64_t offset, const F& f) {
  if (stamps.dtype == DType::i64) {
    f(RowStamps<std::int64_t>{static_cast<const std::int64_t*>(stamps.data) + offset, stamps.stride});
  } else if (stamps.dtype == DType::f64) {
    f(RowStamps<double>{static_cast<const double*>(stamps.data) + offset, stamps.stride});
  } else {
    f(RowStamps<float>{static_cast<const float*>(stamps.data) + offset, stamps.stride});
  }
}

// Stamps first .. first + count of a row, in shared memory.
struct Window {
  int first = 0;
  int count = 0;
};

// Stamps [begin, end) of a row of `count`, and `margin` more on both sides; none where they are too many.
__device__ inline Window window_about(int begin, int end, int margin, int count) {
  Window window;
  window.first = max(begin - margin, 0);
  window.count = min(end, count - margin) + margin - window.first;
  if (window.count >= tuning::window_stamps) window.count = 0;
  return window;
}

// The stamps that a tile's targets fall among if targets and stamps run evenly over the same time. The windows of a row's
// tiles cover all its stamps.
__device__ inline Window window_by_place(std::uint32_t first_target, std::uint32_t tile_targets, std::uint32_t targets,
                                         int count) {
  const float pace = static_cast<float>(count) * __frcp_rn(static_cast<float>(targets));
  const auto place = [&](std::uint32_t t) { return min(__float2int_rz(static_cast<float>(t) * pace), count); };
  const std::uint32_t end = first_target + tile_targets;
  return window_about(place(first_target), end < targets ? place(end) : count, tuning::narrow_margin, count);
}

// Where a key falls if the row's stamps are even.
struct EvenStamps {
  std::int64_t first;
  double scale;
  int count;
  __device__ EvenStamps(std::int64_t first_stamp, std::int64_t last_stamp, int stamps)
      : first(first_stamp),
        scale((stamps - 1) / fmax(static_cast<double>(minus(last_stamp, first_stamp)), 1.0)),
        count(stamps) {}
  __device__ int place(std::int64_t key) const {
    return min(max(__double2int_rz(static_cast<double>(minus(key, first)) * scale), 0), count - 1);
  }
};

// What a thread brings into the window: on its way when this is made, there after put(). What lies behind the window is
// put down as the end of time.
struct Brought {
  static constexpr int most = tuning::window_stamps / tuning::threads;
  std::int64_t stamps[most];

  Brought() = default;
  template <class All>
  __device__ Brought(const All& all, const Window& window) {
    const int rest = window.count - thread_of_block();
    const auto from = all.from(window.first + thread_of_block());
#pragma unroll
    for (int k = 0; k < most; ++k) {
      stamps[k] = std::numeric_limits<std::int64_t>::max();
      if (k * tuning::threads < rest) stamps[k] = from(k * tuning::threads);
    }
  }

  __device__ void put(const SharedStamps& shared) const {
#pragma unroll
    for (int k = 0; k < most; ++k) shared.put(thread_of_block() + k * tuning::threads, stamps[k]);
    __syncthreads();
  }

  // Whether no stamp of the window is smaller than the one before it: as far as this thread sees.
  __device__ bool rise(const SharedStamps& shared) const {
    bool fall = shared[max(thread_of_block() - 1, 0)] > stamps[0];
#pragma unroll
    for (int k = 1; k < most; ++k) fall |= shared[thread_of_block() + k * tuning::threads - 1] > stamps[k];
    return !fall;
  }
  // The same of rows of `samples` one after the other, and whether their stamps are times at all.
  __device__ bool rows_rise(const SharedStamps& shared, int count, int samples) const {
    bool fine = true;
#pragma unroll
    for (int k = 0; k < most; ++k) {
      const int at = thread_of_block() + k * tuning::threads;
      if (at >= count) continue;
      const std::int64_t before = at % samples == 0 ? 1 - time_limit : shared[at - 1];
      fine &= stamps[k] >= before && stamps[k] < time_limit;
    }
    return fine;
  }
};

// How many of the first `count` are <= key.
__device__ inline int search_some(const SharedStamps& shared, int count, std::int64_t key) {
  int found = 0;
  for (int step = 1 << (31 - __clz(count)); step > 0; step >>= 1) {
    if (found + step <= count && shared[found + step - 1] <= key) found += step;
  }
  return found;
}

// How many of the window's stamps are <= key.
__device__ inline int search_window(const SharedStamps& shared, std::int64_t key) {
  int found = 0;
#pragma unroll
  for (int step = tuning::window_stamps / 2; step > 0; step /= 2) {
    if (shared[found + step - 1] <= key) found += step;
  }
  return found;
}
// Whether that tells how many of the row's are.
__device__ inline bool tells(const Window& window, int found, int count) {
  return (found > 0 || window.first == 0) && (found < window.count || window.first + window.count == count);
}

// How many stamps are <= key, by a window about the keys of the tile's first and last target. For all threads of a block;
// those without a target have any key.
template <class All>
__device__ __noinline__ std::int64_t search_by_time(All all, int count, std::int64_t key, int targets,
                                                    SharedStamps shared) {
  __syncthreads();
  if (thread_of_block() == 0) shared.put(0, key);
  if (thread_of_block() == targets - 1) shared.put(1, key);
  __syncthreads();
  const EvenStamps even(all(0), all(count - 1), count);
  const int low = even.place(shared[0]);
  const int high = even.place(shared[1]);
  const Window window = window_about(min(low, high), max(low, high) + 1, tuning::wide_margin, count);
  __syncthreads();
  Brought(all, window).put(shared);
  const int found = search_window(shared, key);
  if (window.count > 0 && tells(window, found, count)) return window.first + found;
  return upper_bound_about(all, even.place(key), count, key);
}

// ---- vectors -------------------------------------------------------------------------------------------------------

// 32-bit words, or one narrower one: what the compiler keeps in registers.
template <int Bytes>
struct alignas(Bytes) Vector {
  using Word =
      std::conditional_t<Bytes >= 4, std::uint32_t, std::conditional_t<Bytes == 2, std::uint16_t, std::uint8_t>>;
  static constexpr int count = Bytes >= 4 ? Bytes / 4 : 1;
  Word words[count];
};
template <int Bytes>
__device__ Vector<Bytes> load(const char* from) {
  using Word =
      std::conditional_t<Bytes == 16, uint4, std::conditional_t<Bytes == 8, uint2, typename Vector<Bytes>::Word>>;
  return bit_copy<Vector<Bytes>>(__ldg(reinterpret_cast<const Word*>(from)));
}
template <int Bytes>
__device__ void save(char* to, const Vector<Bytes>& vector) {
  using Word =
      std::conditional_t<Bytes == 16, uint4, std::conditional_t<Bytes == 8, uint2, typename Vector<Bytes>::Word>>;
  __builtin_assume(__isGlobal(to));
  *reinterpret_cast<Word*>(to) = bit_copy<Word>(vector);
}

template <class C>
__device__ C mix(C a, C b, C w) {
  return fused(w, b, fused(-w, a, a));
}

// Two 16-bit values as the floats that they are, and back with one instruction, which rounds to nearest even as narrow()
// does but has a NaN of its own.
template <class T>
__device__ float2 widen_pair(std::uint32_t word) {
  return {widen(T{static_cast<std::uint16_t>(word)}), widen(T{static_cast<std::uint16_t>(word >> 16)})};
}
template <class T>
__device__ std::uint32_t narrow_pair(float2 pair) {
  if constexpr (std::is_same_v<T, bf16>) {
    return bit_copy<std::uint32_t>(__floats2bfloat162_rn(pair.x, pair.y));
  } else {
    return bit_copy<std::uint32_t>(__floats2half2_rn(pair.x, pair.y));
  }
}

template <class T, int Bytes>
__device__ __noinline__ Vector<Bytes> with_canonical_nan(Vector<Bytes> vector) {
#pragma unroll
  for (std::uint32_t& word : vector.words) {
    if constexpr (std::is_same_v<T, float>) {
      word = __float_as_uint(canonical(__uint_as_float(word)));
    } else {
      const float2 z = widen_pair<T>(word);
      word = narrow<T>(z.x).bits | static_cast<std::uint32_t>(narrow<T>(z.y).bits) << 16;
    }
  }
  return vector;
}

// The sum of all results tells whether one of them may be NaN: then, and it is rare, each is looked at.
template <class T, int Bytes>
__device__ Vector<Bytes> blend(const Vector<Bytes>& a, const Vector<Bytes>& b, compute_t<T> w) {
  Vector<Bytes> out = a;
  constexpr int count = Vector<Bytes>::count;
  if constexpr (std::is_same_v<T, double>) {
#pragma unroll
    for (int k = 0; k + 1 < count; k += 2) {
      const double x = __hiloint2double(static_cast<int>(a.words[k + 1]), static_cast<int>(a.words[k]));
      const double y = __hiloint2double(static_cast<int>(b.words[k + 1]), static_cast<int>(b.words[k]));
      const double z = canonical(mix(x, y, w));
      out.words[k] = static_cast<std::uint32_t>(__double2loint(z));
      out.words[k + 1] = static_cast<std::uint32_t>(__double2hiint(z));
    }
  } else if constexpr (std::is_same_v<T, float> && Bytes >= 4) {
    float sum = 0;
#pragma unroll
    for (int k = 0; k < count; ++k) {
      const float z = mix(__uint_as_float(a.words[k]), __uint_as_float(b.words[k]), w);
      out.words[k] = __float_as_uint(z);
      sum += z;
    }
    if (is_nan(sum)) out = with_canonical_nan<T>(out);
  } else if constexpr (is_float_type<T> && Bytes >= 4) {
    using Pair = std::conditional_t<std::is_same_v<T, bf16>, __nv_bfloat162, __half2>;
    Pair sum{};
#pragma unroll
    for (int k = 0; k < count; ++k) {
      const float2 x = widen_pair<T>(a.words[k]);
      const float2 y = widen_pair<T>(b.words[k]);
      const float2 z{mix(x.x, y.x, w), mix(x.y, y.y, w)};
      out.words[k] = narrow_pair<T>(z);
      const auto pair = bit_copy<Pair>(out.words[k]);
      sum = k == 0 ? pair : __hadd2(sum, pair);
    }
    if (!__hbeq2(sum, sum)) out = with_canonical_nan<T>(out);
  } else if constexpr (is_float_type<T> && Bytes == 2) {
    out.words[0] = narrow<T>(mix(widen(T{a.words[0]}), widen(T{b.words[0]}), w)).bits;
  }
  return out;
}

// Where the value of a target comes from and goes to, at the tile's first channel.
template <class T>
struct alignas(16) Tap {
  const char* a;
  const char* b;
  char* out;
  compute_t<T> w;  // of b; 0: a alone; < 0: no sample, one of the two below
};
inline constexpr int fill_zero = -1;
inline constexpr int fill_nan = -2;

// An invalid value without a sample.
template <class T, int Bytes>
__device__ __noinline__ Vector<Bytes> filled(bool with_nan) {
  constexpr unsigned low = std::is_same_v<T, float> ? 0x7fc00000u
                           : std::is_same_v<T, f16> ? 0x7e007e00u
                                                    : (std::is_same_v<T, bf16> ? 0x7fc07fc0u : 0);
  constexpr unsigned high = std::is_same_v<T, double> ? 0x7ff80000u : low;
  Vector<Bytes> vector;
#pragma unroll
  for (int k = 0; k < Vector<Bytes>::count; ++k) {
    vector.words[k] = static_cast<typename Vector<Bytes>::Word>(with_nan ? (k % 2 == 0 ? low : high) : 0);
  }
  return vector;
}

// Walks over the (target, vector) pairs of a tile, tuning::threads apart, without a division a step.
struct Walk {
  int target, vector;
  int target_step, vector_step;
  __device__ Walk(int vectors, std::uint32_t magic)
      : target(static_cast<int>(threadIdx.x * magic >> 16)),
        vector(thread_of_block() - target * vectors),
        target_step(static_cast<int>(tuning::threads * magic >> 16)),
        vector_step(tuning::threads - target_step * vectors) {}
  __device__ void step(int vectors) {
    target += target_step;
    vector += vector_step;
    if (vector >= vectors) {
      vector -= vectors;
      ++target;
    }
  }
};
constexpr std::uint32_t magic_of(int vectors) {
  return (65535u + static_cast<std::uint32_t>(vectors)) / static_cast<std::uint32_t>(vectors);
}

// Vectors that a thread has under way.
template <class T, int Bytes>
class Flight {
 public:
  __device__ void begin(const Tap<T>* taps, int targets, int vectors, Walk& walk) {
#pragma unroll
    for (int k = 0; k < n; ++k, walk.step(vectors)) {
      const Tap<T> tap = taps[min(walk.target, targets - 1)];  // behind the last: read again, for nobody
      const int here = walk.vector * Bytes;
      w_[k] = tap.w;
      out_[k] = walk.target < targets ? tap.out + here : nullptr;
      if (tap.w >= 0) a_[k] = load<Bytes>(tap.a + here);
      if (is_float_type<T> && tap.w > 0) b_[k] = load<Bytes>(tap.b + here);
    }
  }
  __device__ void end() {
#pragma unroll
    for (int k = 0; k < n; ++k) {
      if (w_[k] > 0) {
        a_[k] = blend<T, Bytes>(a_[k], b_[k], w_[k]);
      } else if (w_[k] < 0) {
        a_[k] = filled<T, Bytes>(w_[k] == fill_nan);
      }
      if (out_[k] != nullptr) save(out_[k], a_[k]);
    }
  }

 private:
  static constexpr int n = tuning::vectors_in_flight;
  Vector<Bytes> a_[n];
  Vector<Bytes> b_[n];
  compute_t<T> w_[n];
  char* out_[n];
};

// Two flights, so that one is under way while the other ends.
template <class T, int Bytes>
__device__ void move_values(const Tap<T>* taps, int targets, int vectors, std::uint32_t magic) {
  Walk walk(vectors, magic);
  Flight<T, Bytes> even;
  Flight<T, Bytes> odd;
  even.begin(taps, targets, vectors, walk);
  for (;;) {
    const bool another = walk.target < targets;
    if (another) odd.begin(taps, targets, vectors, walk);
    even.end();
    if (!another) return;
    const bool a_third = walk.target < targets;
    if (a_third) even.begin(taps, targets, vectors, walk);
    odd.end();
    if (!a_third) return;
  }
}

template <class T>
__device__ void move_values(const Tap<T>* taps, int vector_bytes, int targets, int vectors, std::uint32_t magic) {
  constexpr int size = sizeof(T);
  if (vector_bytes == 16) {
    move_values<T, 16>(taps, targets, vectors, magic);
  } else if (size < 8 && vector_bytes == 8) {
    move_values<T, (size < 8 ? 8 : size)>(taps, targets, vectors, magic);
  } else if (size < 4 && vector_bytes == 4) {
    move_values<T, (size < 4 ? 4 : size)>(taps, targets, vectors, magic);
  } else {
    move_values<T, size>(taps, targets, vectors, magic);
  }
}

// ---- one tile of one stream ----------------------------------------------------------------------------------------

struct Tile {
  std::int64_t row = 0, first = 0;  // by row: the row and its first target; else `first` counts over all rows
  int targets = 0;
  int channel_tile = 0;
};
__device__ inline Tile tile_of(const Tiling& tiling, const TargetPlan& targets, std::uint32_t number) {
  Tile tile;
  std::uint32_t place = number;
  if (tiling.channel_tiles > 1) {
    place = number / static_cast<std::uint32_t>(tiling.channel_tiles);
    tile.channel_tile = static_cast<int>(number - place * static_cast<std::uint32_t>(tiling.channel_tiles));
  }
  std::int64_t end = targets.count;
  if (tiling.by_row) {
    const std::uint32_t row = place / tiling.tiles_per_row;
    tile.row = row;
    tile.first = static_cast<std::int64_t>(place - row * tiling.tiles_per_row) * tiling.targets;
  } else {
    tile.first = static_cast<std::int64_t>(place) * tiling.targets;
    end *= targets.rows;
  }
  tile.targets = static_cast<int>(end - tile.first < tiling.targets ? end - tile.first : tiling.targets);
  return tile;
}

// What a thread knows of its target after the search.
struct Searched {
  bool mine;
  std::uint32_t b, t;
  std::int64_t tau;
  Row row;
  int upper;            // how many stamps are <= search_key
  SharedStamps stamps;  // those of the window
  Window window;
};
__device__ __forceinline__ Searched search_tile(const StreamPlan& s, const TargetPlan& targets, const Tiling& tiling,
                                                const Tile& tile, const SharedStamps& shared) {
  const bool mine = thread_of_block() < tile.targets;
  const auto row_targets = static_cast<std::uint32_t>(targets.count);
  auto b = static_cast<std::uint32_t>(tile.row);
  std::uint32_t t = static_cast<std::uint32_t>(tile.first) + threadIdx.x;
  std::uint32_t first_row = b;
  if (!tiling.by_row) {  // the planner keeps this under 2^32
    first_row = static_cast<std::uint32_t>(tile.first) / row_targets;
    const std::uint32_t flat = mine ? t : static_cast<std::uint32_t>(tile.first);
    b = flat / row_targets;
    t = flat - b * row_targets;
  }
  const Row row = row_of(s, b);
  const auto count = static_cast<int>(row.count);

  // The stamps and the targets come together: nothing waits for the one before the other is on its way.
  Window window;
  const bool whole_rows = !tiling.by_row && tiling.whole_rows > 0;
  if (tiling.by_row && count > 0) {
    window = window_by_place(t - threadIdx.x, static_cast<std::uint32_t>(tiling.targets), row_targets, count);
  } else if (whole_rows) {
    window.count = static_cast<int>(static_cast<std::uint32_t>(tile.targets) / row_targets) * count;
  }
  Brought brought;
  if (window.count > 0) {
    const std::int64_t from = whole_rows ? first_row * s.times.row_stride : row.times_offset;
    with_row_stamps(s.times, from, [&](const auto& all) { brought = Brought(all, window); });
  }
  std::int64_t tau = 0;
  if (mine) tau = target(targets, b, t);
  const std::int64_t key = search_key(s, tau);
  int upper = -1;  // not known
  SharedStamps stamps = shared;
  if (window.count > 0) {
    brought.put(shared);
    int found = 0;
    if (whole_rows) {
      stamps = shared.from(static_cast<int>(b - first_row) * count);
      window.count = count;
      found = search_some(stamps, count, key);
    } else {
      found = search_window(shared, key);
    }
    if (tells(window, found, count)) upper = window.first + found;
  }
  if (tiling.by_row && count > 0) {
    if (__syncthreads_or(mine && upper < 0)) {
      window.count = 0;
      with_row_stamps(s.times, row.times_offset, [&](const auto& all) {
        upper = static_cast<int>(search_by_time(all, count, key, tile.targets, shared));
      });
    }
  } else if (upper < 0) {
    upper = mine ? static_cast<int>(upper_bound(StampsAt{&s.times, row.times_offset}, 0, count, key)) : 0;
  }
  return {mine, b, t, tau, row, upper, stamps, window};
}

// A target on a sample, or between two that are alone with their stamps and have no gap between them: the usual cases of
// locate(), from the window where it has all the stamps they need.
struct EasyPlace {
  bool easy = false;
  std::int64_t since = 0, span = 1;    // as in Location; since is 0 on a sample
  std::int64_t before = 0, after = 0;  // the intervals before and after it, if `neighbours`; 0: none
};
__device__ inline EasyPlace easy_place(const StreamPlan& s, const Searched& here, bool neighbours) {
  EasyPlace place;
  const int i = here.upper - 1;
  const auto last = static_cast<int>(here.row.count) - 1;
  if (s.causal || i < 0) return place;
  const int from = neighbours ? max(i - 1, 0) : i;
  const int to = min(i + (neighbours ? 3 : 2), last);
  std::int64_t stamps[5];  // i - 1 .. i + 3, or the nearest that is needed
  if (from >= here.window.first && to < here.window.first + here.window.count) {
#pragma unroll
    for (int k = 0; k < 5; ++k) stamps[k] = here.stamps[min(max(i - 1 + k, from), to) - here.window.first];
  } else {
#pragma unroll
    for (int k = 0; k < 5; ++k) {
      stamps[k] = stamp(s.times, here.row.times_offset + min(max(i - 1 + k, from), to) * s.times.stride);
    }
  }
  place.since = minus(shifted_target(s, here.tau), stamps[1]);
  place.easy = place.since == 0;
  if (place.easy || i == last) return place;
  place.span = minus(stamps[2], stamps[1]);
  place.easy = place.span <= s.max_gap && (i + 2 > last || stamps[3] != stamps[2]);
  if (neighbours) {
    place.before = minus(stamps[1], stamps[0]);
    place.after = minus(stamps[3], stamps[2]);
    place.easy = place.easy && (i == 0 || place.before != 0) && (i + 3 > last || stamps[4] != stamps[3]);
  }
  return place;
}

// What a plain method makes of a target.
template <class C>
struct Choice {
  bool valid = false;
  std::int64_t age = no_age, index = -1;
  std::int64_t sample = -1;  // to copy, or to mix with the one `step` after it
  std::int64_t step = 0;
  C w = 0;  // as in a Tap
};
template <class C>
__device__ Choice<C> choose(const StreamPlan& s, Method method, const Location& found) {
  Choice<C> choice;
  choice.valid = is_valid(found.place);
  choice.age = age_of(found);
  const auto w = static_cast<C>(weight(found));
  if (choice.valid) {
    choice.sample = copied_sample(method, found, w);
  } else if (!has_no_sample(found.place) && s.edge == Edge::clamp) {
    choice.sample = clamped_sample(method, found);
  }
  choice.index = choice.valid && method != Method::nearest ? found.i : choice.sample;
  if (choice.sample >= 0) return choice;
  choice.sample = found.i;
  choice.step = found.j - found.i;
  choice.w = choice.valid ? w : C(fills_nan(s) ? fill_nan : fill_zero);
  return choice;
}

template <class T>
__device__ void fast_tile(const StreamPlan& s, Method method, const Tiling& tiling, const Tile& tile,
                          const Searched& here, Tap<T>* taps) {
  if (here.mine) {
    const StampsAt at{&s.times, here.row.times_offset};
    const StampsAt arrival_at{&s.arrivals, here.row.arrivals_offset};
    const auto choice =
        choose<compute_t<T>>(s, method, locate(s, at, arrival_at, here.row.count, here.upper, here.tau));
    if (tile.channel_tile == 0) write_marks(s, here.b, here.t, choice.valid, choice.age, choice.index);
    const std::int64_t channel = static_cast<std::int64_t>(tile.channel_tile) * tiling.vectors * tiling.vector_bytes;
    Tap<T>& tap = taps[threadIdx.x];
    tap.a = static_cast<const char*>(s.values) + channel +
            (here.row.values_offset + choice.sample * s.sample_stride) * static_cast<std::int64_t>(sizeof(T));
    tap.b = tap.a + choice.step * s.sample_stride * static_cast<std::int64_t>(sizeof(T));
    tap.w = choice.w;
    tap.out = static_cast<char*>(s.out) + channel +
              (here.b * s.out_row_stride + here.t * s.out_target_stride) * static_cast<std::int64_t>(sizeof(T));
  }
  __syncthreads();
  if (s.out != nullptr && s.channel_count != 0) {
    const int vectors = min(tiling.vectors, tiling.all_vectors - tile.channel_tile * tiling.vectors);
    move_values(taps, tiling.vector_bytes, tile.targets, vectors,
                vectors == tiling.vectors ? tiling.magic : magic_of(vectors));
  }
}

// The stream that this block works for.
__device__ inline int stream_of(const GeneralLaunch& launch) {
  int k = 0;
  while (k + 1 < launch.streams && blockIdx.x >= launch.tilings[k + 1].first_block) ++k;
  return k;
}

}  // namespace
}  // namespace robocache::align_op
