// What the kernels of align share: the launch, the search, and the way of values from samples to the output.
#pragma once

#include "core/cuda.h"
#include "ops/align/check.h"
#include "ops/align/range.h"
#include "ops/align/tuning.h"

namespace robocache::align_op {
namespace {

// ---- the launch, as the kernel sees it -----------------------------------------------------------------------------

struct Tiling {
  std::int32_t targets = 1;        // of a block
  std::int32_t channel_tiles = 1;  // blocks that share a tile of targets
  std::int32_t vectors = 0;        // of a sample, in one channel tile
  std::int32_t all_vectors = 0;    // of a sample
  std::uint32_t tiles_per_row = 1;
  std::uint32_t magic = 0;        // k / vectors = k * magic >> 16, for k up to the threads of a block
  std::int16_t vector_bytes = 0;  // 0: through range.h
  bool by_row = true;             // a tile lies in one row; else tiles run over the rows' ends
  std::uint32_t first_block = 0;
  std::uint32_t blocks = 0;
};

template <int Streams, int Ranges>
struct Launch {
  TargetPlan targets;
  FaultBox* box = nullptr;
  Operation operation = Operation::align;
  bool targets_must_rise = false;
  std::uint32_t check_blocks = 0;
  int streams = 0;
  Tiling tilings[Streams];
  StreamPlan plans[Streams];
  Range ranges[Ranges];
};
inline constexpr int small_streams = 4;
inline constexpr int small_ranges = 16;
using SmallLaunch = Launch<small_streams, small_ranges>;
using LargeLaunch = Launch<max_streams, max_ranges>;
static_assert(sizeof(LargeLaunch) <= 32764, "a kernel's arguments end there");

// ---- searching -----------------------------------------------------------------------------------------------------

// Stamps of a row in shared memory: count of them, 2^shift apart, from sample `first` on.
struct Window {
  int first = 0;
  int count = 0;
  int shift = 0;
};

// Where the targets between two keys should fall if the row's stamps were even. Stamps that are not only make the window
// miss, and a search that leaves it slower.
__device__ inline Window window_between(std::int64_t low_key, std::int64_t high_key, std::int64_t first_stamp,
                                        std::int64_t last_stamp, int count) {
  const float scale = static_cast<float>(count - 1) / fmaxf(static_cast<float>(minus(last_stamp, first_stamp)), 1.0F);
  const auto place = [&](std::int64_t key) {
    return min(max(__float2int_rz(static_cast<float>(minus(key, first_stamp)) * scale), 0), count - 1);
  };
  const int margin = tuning::window_margin + (count >> 10);
  const int low = place(low_key);
  const int high = place(high_key);
  Window window;
  window.first = max(min(low, high) - margin, 0);
  const int reach = min(max(low, high), count - 1 - margin) + margin + 1 - window.first;
  while (((reach - 1) >> window.shift) >= tuning::window_stamps) ++window.shift;
  window.count = ((reach - 1) >> window.shift) + 1;
  return window;
}

// The stamps of a row on the device: from shared memory where the window has them.
template <bool Integer>
struct DeviceStamps {
  StampsAt<Integer> all;
  const std::int64_t* shared;
  Window window;
  __device__ std::int64_t operator()(std::int64_t k) const {
    const auto inside = static_cast<std::uint64_t>(k - window.first);
    return window.shift == 0 && inside < static_cast<std::uint64_t>(window.count) ? shared[inside] : all(k);
  }
};
template <bool Integer>
__device__ StampsAt<Integer> rarely(const DeviceStamps<Integer>& at) {
  return at.all;
}

template <bool Integer>
__device__ __noinline__ std::int64_t search_beside(StampsAt<Integer> at, std::int64_t lo, std::int64_t hi,
                                                   std::int64_t key) {
  return upper_bound(at, lo, hi, key);
}

// How many of the row's stamps are <= key.
template <bool Integer>
__device__ std::int64_t search(const DeviceStamps<Integer>& at, std::int64_t count, std::int64_t key) {
  const Window& window = at.window;
  int lo = 0;
  int hi = window.count;
  while (lo < hi) {
    const int middle = (lo + hi) >> 1;
    if (at.shared[middle] <= key) {
      lo = middle + 1;
    } else {
      hi = middle;
    }
  }
  // The answer lies after stamp lo - 1 of the window and not after stamp lo: known where these are neighbours, or at the
  // row's ends.
  const std::int64_t above = window.first + (static_cast<std::int64_t>(lo) << window.shift);
  const std::int64_t from = lo == 0 ? 0 : above - (1 << window.shift) + 1;
  const std::int64_t to = lo == window.count ? count : above;
  return from >= to ? to : search_beside(at.all, from, to, key);
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
    float sum = 0;
#pragma unroll
    for (int k = 0; k < count; ++k) {
      const float2 x = widen_pair<T>(a.words[k]);
      const float2 y = widen_pair<T>(b.words[k]);
      const float2 z{mix(x.x, y.x, w), mix(x.y, y.y, w)};
      out.words[k] = narrow_pair<T>(z);
      sum += z.x + z.y;
    }
    if (is_nan(sum)) out = with_canonical_nan<T>(out);
  } else if constexpr (is_float_type<T> && Bytes == 2) {
    out.words[0] = narrow<T>(mix(widen(T{a.words[0]}), widen(T{b.words[0]}), w)).bits;
  }
  return out;
}

// What an invalid value is read from.
template <class T>
struct Fill {
  static constexpr unsigned nan() {
    if (std::is_same_v<T, float>) return 0x7fc00000u;
    if (std::is_same_v<T, f16>) return 0x7e007e00u;
    return std::is_same_v<T, bf16> ? 0x7fc07fc0u : 0;
  }
  static constexpr unsigned nan_high() { return std::is_same_v<T, double> ? 0x7ff80000u : nan(); }
};
template <class T>
__device__ const uint4 fills[2] = {{0, 0, 0, 0},
                                   {Fill<T>::nan(), Fill<T>::nan_high(), Fill<T>::nan(), Fill<T>::nan_high()}};

// Where the value of a target comes from, in bytes from the stream's values and its output.
template <class T>
struct Tap {
  std::int64_t a;  // < 0: no sample; -1 is zero, -2 is NaN
  std::int64_t b;  // read where w != 0
  std::int64_t out;
  compute_t<T> w;
};

// Walks over the (target, vector) pairs of a tile, tuning::threads apart, without a division a step.
struct Walk {
  int target, vector;
  int target_step, vector_step;
  __device__ Walk(int vectors, std::uint32_t magic)
      : target(static_cast<int>(threadIdx.x * magic >> 16)),
        vector(static_cast<int>(threadIdx.x) - target * vectors),
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

template <class T, int Bytes>
__device__ void move_values(const StreamPlan& s, const Tap<T>* taps, int targets, int first_vector, int vectors,
                            std::uint32_t magic) {
  constexpr int n = tuning::vectors_in_flight;
  const auto* const from = static_cast<const char*>(s.values) + static_cast<std::int64_t>(first_vector) * Bytes;
  auto* const to = static_cast<char*>(s.out) + static_cast<std::int64_t>(first_vector) * Bytes;
  Walk walk(vectors, magic);
  while (walk.target < targets) {
    Vector<Bytes> a[n];
    Vector<Bytes> b[n];
    Walk reading = walk;
#pragma unroll
    for (int k = 0; k < n; ++k, reading.step(vectors)) {
      if (reading.target >= targets) continue;  // not break: the arrays must stay in registers
      const Tap<T>& tap = taps[reading.target];
      const std::int64_t here = reading.vector * Bytes;
      a[k] = load<Bytes>(tap.a >= 0 ? from + tap.a + here : reinterpret_cast<const char*>(&fills<T>[-1 - tap.a]));
      if (is_float_type<T> && tap.w != 0) b[k] = load<Bytes>(from + tap.b + here);
    }
#pragma unroll
    for (int k = 0; k < n; ++k, walk.step(vectors)) {
      if (walk.target >= targets) continue;
      const Tap<T>& tap = taps[walk.target];
      const Vector<Bytes> value = tap.w != 0 ? blend<T, Bytes>(a[k], b[k], tap.w) : a[k];
      save(to + tap.out + walk.vector * Bytes, value);
    }
  }
}

template <class T>
__device__ void move_values(const StreamPlan& s, int vector_bytes, const Tap<T>* taps, int targets, int first_vector,
                            int vectors, std::uint32_t magic) {
  constexpr int size = sizeof(T);
  if (vector_bytes == 16) {
    move_values<T, 16>(s, taps, targets, first_vector, vectors, magic);
  } else if (size < 4 && vector_bytes == 4) {
    move_values<T, (size < 4 ? 4 : size)>(s, taps, targets, first_vector, vectors, magic);
  } else {
    move_values<T, size>(s, taps, targets, first_vector, vectors, magic);
  }
}

// ---- one tile of one stream ----------------------------------------------------------------------------------------

struct Tile {
  std::int64_t row = 0, first = 0;  // by row: the row and its first target; else `first` counts over all rows
  int targets = 0;
  int channel_tile = 0;
};
__device__ inline Tile tile_of(const Tiling& tiling, const TargetPlan& targets, std::uint32_t block) {
  Tile tile;
  std::uint32_t place = block;
  if (tiling.channel_tiles > 1) {
    place = block / static_cast<std::uint32_t>(tiling.channel_tiles);
    tile.channel_tile = static_cast<int>(block - place * static_cast<std::uint32_t>(tiling.channel_tiles));
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

// What a thread knows of its target after the search. Threads without one take part in bringing the stamps.
template <bool Integer>
struct Searched {
  bool mine = false;
  std::int64_t b = 0, t = 0, tau = 0;
  Row row;
  DeviceStamps<Integer> at{};
  std::int64_t upper = 0;
};

template <bool Integer>
__device__ Searched<Integer> search_tile(const StreamPlan& s, const TargetPlan& targets, const Tiling& tiling,
                                         const Tile& tile, std::int64_t* shared) {
  Searched<Integer> result;
  const auto thread = static_cast<int>(threadIdx.x);
  result.mine = thread < tile.targets;
  result.b = tile.row;
  result.t = tile.first + thread;
  if (!tiling.by_row && result.mine) {  // the planner keeps this under 2^32
    const auto flat = static_cast<std::uint32_t>(result.t);
    const std::uint32_t b = flat / static_cast<std::uint32_t>(targets.count);
    result.b = b;
    result.t = flat - b * static_cast<std::uint32_t>(targets.count);
  }
  if (result.mine) result.tau = target<Integer>(targets, result.b, result.t);
  result.row = row_of(s, result.b);
  result.at.all = stamps_at<Integer>(s.times, result.row.times_offset);
  result.at.shared = shared;
  if (tiling.by_row && result.row.count > 0) {
    const auto count = static_cast<int>(result.row.count);
    Window& window = result.at.window;
    if (count <= tuning::window_stamps) {
      window.count = count;
    } else {
      const auto key = [&](std::int64_t t) { return search_key(s, target<Integer>(targets, result.b, t)); };
      window = window_between(key(tile.first), key(tile.first + tile.targets - 1), result.at.all(0),
                              result.at.all(count - 1), count);
    }
    constexpr int share = tuning::window_stamps / tuning::threads;
    std::int64_t brought[share];  // all in flight before the first is put down
#pragma unroll
    for (int k = 0; k < share; ++k) {
      const int at = thread + k * tuning::threads;
      if (at < window.count) brought[k] = result.at.all(window.first + (static_cast<std::int64_t>(at) << window.shift));
    }
#pragma unroll
    for (int k = 0; k < share; ++k) {
      const int at = thread + k * tuning::threads;
      if (at < window.count) shared[at] = brought[k];
    }
    __syncthreads();
  }
  if (result.mine) result.upper = search(result.at, result.row.count, search_key(s, result.tau));
  return result;
}

// What may be checked on the way: a target, and the stamps that the search has brought in.
struct NoCheck {
  template <class Found>
  __device__ void target(const Found&) const {}
  template <class Found>
  __device__ void stamps(const Found&) const {}
};
template <class T, bool Integer, class TileCheck = NoCheck>
__device__ void fast_tile(const StreamPlan& s, Method method, const TargetPlan& targets, const Tiling& tiling,
                          const Tile& tile, std::int64_t* shared, Tap<T>* taps, const TileCheck& check = {}) {
  const Searched<Integer> here = search_tile<Integer>(s, targets, tiling, tile, shared);
  if (here.mine) {
    using ArrivalAt = std::conditional_t<Integer, NoArrivals, StampsAt<>>;
    ArrivalAt arrival_at{};
    if constexpr (!Integer) arrival_at = {&s.arrivals, here.row.arrivals_offset};
    const Location found = locate(s, here.at, arrival_at, here.row.count, here.upper, here.tau);
    using C = compute_t<T>;
    const auto w = static_cast<C>(weight(found));
    const bool valid = is_valid(found.place);
    const bool real = found.place != Place::empty && found.place != Place::unarrived;
    std::int64_t source = -1;
    if (valid) {
      source = copied_sample(method, found, w);
    } else if (real && s.edge == Edge::clamp) {
      source = nearest_sample(found);
    }
    if (tile.channel_tile == 0) {
      const std::int64_t index = valid && method != Method::nearest ? found.i : source;
      write_marks(s, here.b, here.t, valid, age_of(found), index);
    }
    Tap<T> tap;
    tap.w = 0;
    tap.b = 0;
    tap.out = (here.b * s.out_row_stride + here.t * s.out_target_stride) * static_cast<std::int64_t>(sizeof(T));
    const auto bytes_of = [&](std::int64_t sample) {
      return (here.row.values_offset + sample * s.sample_stride) * static_cast<std::int64_t>(sizeof(T));
    };
    if (source >= 0) {
      tap.a = bytes_of(source);
    } else if (valid) {
      tap.a = bytes_of(found.i);
      tap.b = bytes_of(found.j);
      tap.w = w;
    } else {
      tap.a = fills_nan(s, found.place) ? -2 : -1;
    }
    taps[threadIdx.x] = tap;
    check.target(here);
  }
  check.stamps(here);
  __syncthreads();
  if (s.out != nullptr && s.channel_count != 0) {
    const int first_vector = tile.channel_tile * tiling.vectors;
    const int vectors = min(tiling.vectors, tiling.all_vectors - first_vector);
    move_values(s, tiling.vector_bytes, taps, tile.targets, first_vector, vectors,
                vectors == tiling.vectors ? tiling.magic : magic_of(vectors));
  }
}

// The stream that this block works for.
template <class L>
__device__ int stream_of(const L& launch) {
  int k = 0;
  while (k + 1 < launch.streams && blockIdx.x >= launch.tilings[k + 1].first_block) ++k;
  return k;
}

// ---- checks --------------------------------------------------------------------------------------------------------

template <class Check>
__device__ __noinline__ void check_share(Check check, std::uint32_t blocks, FaultBox* box) {
  const std::int64_t count = check.count();
  const std::int64_t stride = static_cast<std::int64_t>(blocks) * tuning::threads;
#pragma unroll 1
  for (std::int64_t k = static_cast<std::int64_t>(blockIdx.x) * tuning::threads + threadIdx.x; k < count; k += stride) {
    const Fault fault = check(k);
    if (fault.code != FaultCode::none) report(box, fault);
  }
}

// Whether this block's share of dense int64 stamps is surely fine: the usual case, several loads in flight.
__device__ inline bool surely_fine(const StreamPlan& s, std::uint32_t blocks) {
  if (s.times.dtype != DType::i64 || s.times.stride != 1 || s.times.row_stride != s.samples) return false;
  if (s.arrivals.data != nullptr || s.lengths.data != nullptr || s.offsets.data != nullptr) return false;
  if (s.segments * s.samples >= std::int64_t{1} << 31) return false;
  const auto* const times = static_cast<const std::int64_t*>(s.times.data);
  const auto count = static_cast<std::uint32_t>(s.segments * s.samples);
  const auto samples = static_cast<std::uint32_t>(s.samples);
  bool fine = true;
#pragma unroll 4
  for (std::uint32_t k = blockIdx.x * tuning::threads + threadIdx.x; k < count; k += blocks * tuning::threads) {
    const std::int64_t here = __ldg(times + k);
    const std::int64_t before = k % samples != 0 ? __ldg(times + k - 1) : -time_limit + 1;
    fine = fine && here >= before && here < time_limit;
  }
  return fine;
}

template <class L>
__device__ void check_all(const L& launch) {
  for (int k = 0; k < launch.streams; ++k) {
    const StreamPlan& s = launch.plans[k];
    if (!surely_fine(s, launch.check_blocks)) {
      check_share(StampCheck{launch.operation, &s}, launch.check_blocks, launch.box);
    }
    if (s.lengths.data != nullptr || s.offsets.data != nullptr || s.rows.data != nullptr) {
      check_share(IntegerCheck{launch.operation, &s, launch.targets.rows}, launch.check_blocks, launch.box);
    }
  }
  check_share(TargetCheck{launch.operation, &launch.targets, launch.targets_must_rise}, launch.check_blocks,
              launch.box);
}

}  // namespace
}  // namespace robocache::align_op
