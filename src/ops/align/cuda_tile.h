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
  std::int16_t vector_bytes = 0;   // 0: through range.h
  bool by_row = true;              // a tile lies in one row; else tiles run over the rows' ends
  std::uint32_t first_block = 0;
  std::uint32_t blocks = 0;
};

template <int Streams, int Ranges>
struct Launch {
  TargetPlan targets;
  FaultBox* box = nullptr;
  Operation operation = Operation::align;
  bool check_targets = false, targets_must_rise = false;
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

// The stamps of a row on the device: from shared memory where the whole row is there.
struct DeviceStamps {
  const Stamps* stamps;
  std::int64_t offset;
  const std::int64_t* shared;  // nullptr: in global memory
  __device__ std::int64_t operator()(std::int64_t k) const {
    return shared != nullptr ? shared[k] : stamp(*stamps, offset + k * stamps->stride);
  }
};

struct SharedStamps {
  std::int64_t values[tuning::stamps_in_shared];
};

// Brings in the row's stamps, or pivots of them. All threads of the block call it; a barrier must follow.
__device__ std::int64_t pivot_step(std::int64_t count) {
  return count <= tuning::stamps_in_shared ? 1 : (count + tuning::pivots - 1) / tuning::pivots;
}
__device__ void bring_stamps(const StreamPlan& s, const Row& row, SharedStamps& shared) {
  const std::int64_t step = pivot_step(row.count);
  const auto n = static_cast<int>((row.count + step - 1) / step);
  for (int k = static_cast<int>(threadIdx.x); k < n; k += tuning::threads) {
    shared.values[k] = stamp(s.times, row.times_offset + k * step * s.times.stride);
  }
}

// How many stamps are <= key, given what bring_stamps left.
__device__ std::int64_t search(const StreamPlan& s, const Row& row, const SharedStamps& shared, std::int64_t key) {
  const std::int64_t step = pivot_step(row.count);
  const auto n = static_cast<std::int64_t>((row.count + step - 1) / step);
  const auto at_pivot = [&](std::int64_t k) { return shared.values[k]; };
  const std::int64_t upper = upper_bound(at_pivot, 0, n, key);
  if (step == 1 || upper == 0) return upper;
  std::int64_t lo = (upper - 1) * step + 1;
  std::int64_t hi = upper * step < row.count ? upper * step : row.count;
  const StampsAt at{&s.times, row.times_offset};
  while (hi - lo > tuning::stamps_at_once) {
    const std::int64_t middle = lo + (hi - lo) / 2;
    if (at(middle) <= key) {
      lo = middle + 1;
    } else {
      hi = middle;
    }
  }
  int below = 0;
  if (s.times.dtype == DType::i64) {
    const auto* const stamps = static_cast<const std::int64_t*>(s.times.data) + row.times_offset;
#pragma unroll
    for (int k = 0; k < tuning::stamps_at_once; ++k) {
      if (lo + k < hi) below += __ldg(stamps + (lo + k) * s.times.stride) <= key ? 1 : 0;
    }
  } else {
    while (lo + below < hi && at(lo + below) <= key) ++below;
  }
  return lo + below;
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

template <class T>
__device__ T mix(T a, T b, compute_t<T> w) {
  const auto p = widen(a);
  return narrow<T>(fused(w, widen(b), fused(-w, p, p)));
}

template <class T, int Bytes>
__device__ Vector<Bytes> blend(const Vector<Bytes>& a, const Vector<Bytes>& b, compute_t<T> w) {
  Vector<Bytes> out = a;
  if constexpr (std::is_same_v<T, double>) {
#pragma unroll
    for (int k = 0; k + 1 < Vector<Bytes>::count; k += 2) {
      const double x = __hiloint2double(static_cast<int>(a.words[k + 1]), static_cast<int>(a.words[k]));
      const double y = __hiloint2double(static_cast<int>(b.words[k + 1]), static_cast<int>(b.words[k]));
      const double z = mix(x, y, w);
      out.words[k] = static_cast<std::uint32_t>(__double2loint(z));
      out.words[k + 1] = static_cast<std::uint32_t>(__double2hiint(z));
    }
  } else if constexpr (std::is_same_v<T, float> && Bytes >= 4) {
#pragma unroll
    for (int k = 0; k < Vector<Bytes>::count; ++k) {
      out.words[k] = __float_as_uint(mix(__uint_as_float(a.words[k]), __uint_as_float(b.words[k]), w));
    }
  } else if constexpr (is_float_type<T> && Bytes >= 4) {
#pragma unroll
    for (int k = 0; k < Vector<Bytes>::count; ++k) {
      const T low = mix(T{static_cast<std::uint16_t>(a.words[k])}, T{static_cast<std::uint16_t>(b.words[k])}, w);
      const T high =
          mix(T{static_cast<std::uint16_t>(a.words[k] >> 16)}, T{static_cast<std::uint16_t>(b.words[k] >> 16)}, w);
      out.words[k] = low.bits | static_cast<std::uint32_t>(high.bits) << 16;
    }
  } else if constexpr (is_float_type<T> && Bytes == 2) {
    out.words[0] = mix(T{a.words[0]}, T{b.words[0]}, w).bits;
  }
  return out;
}

template <class T, int Bytes>
__device__ Vector<Bytes> fill(bool with_nan) {
  Vector<Bytes> out{};
  if constexpr (is_float_type<T>) {
    if (with_nan) {
      const T nan = narrow<T>(quiet_nan<compute_t<T>>());
#pragma unroll
      for (int k = 0; k < Vector<Bytes>::count; ++k) {
        if constexpr (std::is_same_v<T, double>) {
          out.words[k] = static_cast<std::uint32_t>(k % 2 == 0 ? __double2loint(nan) : __double2hiint(nan));
        } else if constexpr (std::is_same_v<T, float>) {
          out.words[k] = __float_as_uint(nan);
        } else {
          out.words[k] = static_cast<typename Vector<Bytes>::Word>(nan.bits * 0x00010001u);
        }
      }
    }
  }
  return out;
}

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
  __device__ explicit Walk(int vectors)
      : target(static_cast<int>(threadIdx.x) / vectors), vector(static_cast<int>(threadIdx.x) - target * vectors) {}
  __device__ void step(int vectors) {
    const int targets = tuning::threads / vectors;
    target += targets;
    vector += tuning::threads - targets * vectors;
    if (vector >= vectors) {
      vector -= vectors;
      ++target;
    }
  }
};

template <class T, int Bytes>
__device__ void move_values(const StreamPlan& s, const Tap<T>* taps, int targets, int first_vector, int vectors) {
  constexpr int n = tuning::vectors_per_thread;
  const auto* const from = static_cast<const char*>(s.values) + static_cast<std::int64_t>(first_vector) * Bytes;
  auto* const to = static_cast<char*>(s.out) + static_cast<std::int64_t>(first_vector) * Bytes;
  Walk walk(vectors);
  while (walk.target < targets) {
    Vector<Bytes> a[n];
    Vector<Bytes> b[n];
    Walk reading = walk;
#pragma unroll
    for (int k = 0; k < n; ++k, reading.step(vectors)) {
      if (reading.target >= targets) continue;  // not break: the arrays must stay in registers
      const Tap<T>& tap = taps[reading.target];
      const std::int64_t here = reading.vector * Bytes;
      a[k] = tap.a >= 0 ? load<Bytes>(from + tap.a + here) : fill<T, Bytes>(tap.a == -2);
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
                            int vectors) {
  constexpr int size = sizeof(T);
  if (vector_bytes == 16) {
    move_values<T, 16>(s, taps, targets, first_vector, vectors);
  } else if (size < 4 && vector_bytes == 4) {
    move_values<T, (size < 4 ? 4 : size)>(s, taps, targets, first_vector, vectors);
  } else {
    move_values<T, size>(s, taps, targets, first_vector, vectors);
  }
}

// ---- one tile of one stream ----------------------------------------------------------------------------------------

struct Tile {
  std::int64_t first = 0;  // of its targets, counted over all rows
  int targets = 0;
  int channel_tile = 0;
};
__device__ Tile tile_of(const Tiling& tiling, const TargetPlan& targets, std::uint32_t block) {
  Tile tile;
  const std::uint32_t place = block / static_cast<std::uint32_t>(tiling.channel_tiles);
  tile.channel_tile = static_cast<int>(block - place * static_cast<std::uint32_t>(tiling.channel_tiles));
  if (tiling.by_row) {
    const auto tiles = static_cast<std::uint32_t>((targets.count + tiling.targets - 1) / tiling.targets);
    const std::uint32_t row = place / tiles;
    const std::int64_t t = static_cast<std::int64_t>(place - row * tiles) * tiling.targets;
    tile.first = row * targets.count + t;
    tile.targets = static_cast<int>(targets.count - t < tiling.targets ? targets.count - t : tiling.targets);
  } else {
    tile.first = static_cast<std::int64_t>(place) * tiling.targets;
    const std::int64_t left = targets.rows * targets.count - tile.first;
    tile.targets = static_cast<int>(left < tiling.targets ? left : tiling.targets);
  }
  return tile;
}

// The target that this thread has, and its row.
struct TargetPlace {
  std::int64_t b, t;
};
__device__ TargetPlace place_of(const TargetPlan& targets, std::int64_t flat) {
  if (flat < 0x7fffffff && targets.count < 0x7fffffff) {
    const std::uint32_t b = static_cast<std::uint32_t>(flat) / static_cast<std::uint32_t>(targets.count);
    return {b, flat - b * targets.count};
  }
  const std::int64_t b = flat / targets.count;
  return {b, flat - b * targets.count};
}

template <class T>
__device__ void fast_tile(const StreamPlan& s, Method method, const TargetPlan& targets, const Tiling& tiling,
                          const Tile& tile, SharedStamps& shared, Tap<T>* taps) {
  const auto thread = static_cast<int>(threadIdx.x);
  const bool mine = thread < tile.targets;
  TargetPlace place{0, 0};
  if (mine || tiling.by_row) place = place_of(targets, tile.first + (tiling.by_row && !mine ? 0 : thread));
  std::int64_t tau = 0;
  if (mine) tau = target(targets, place.b, place.t);
  const Row row = row_of(s, place.b);
  if (tiling.by_row) {
    bring_stamps(s, row, shared);
    __syncthreads();
  }
  if (mine) {
    const bool whole = tiling.by_row && row.count <= tuning::stamps_in_shared;
    const DeviceStamps at{&s.times, row.times_offset, whole ? shared.values : nullptr};
    const StampsAt arrival_at{&s.arrivals, row.arrivals_offset};
    const std::int64_t key = search_key(s, tau);
    const std::int64_t upper = tiling.by_row ? search(s, row, shared, key) : upper_bound(at, 0, row.count, key);
    const Location found = locate(s, at, arrival_at, row.count, upper, tau);
    using C = compute_t<T>;
    const auto w = static_cast<C>(weight(found));
    const bool valid = is_valid(found.place);
    std::int64_t source = -1;
    if (valid) {
      source = copied_sample(method, found, w);
    } else if (found.place != Place::empty && found.place != Place::unarrived && s.edge == Edge::clamp) {
      source = nearest_sample(found);
    }
    if (tile.channel_tile == 0) {
      const std::int64_t index = valid ? (method == Method::nearest ? source : found.i) : source;
      write_marks(s, place.b, place.t, valid, age_of(found), index);
    }
    Tap<T> tap;
    tap.w = 0;
    tap.b = 0;
    tap.out = (place.b * s.out_row_stride + place.t * s.out_target_stride) * static_cast<std::int64_t>(sizeof(T));
    const auto bytes_of = [&](std::int64_t sample) {
      return (row.values_offset + sample * s.sample_stride) * static_cast<std::int64_t>(sizeof(T));
    };
    if (source >= 0) {
      tap.a = bytes_of(source);
    } else if (valid) {
      tap.a = bytes_of(found.i);
      tap.b = bytes_of(found.j);
      tap.w = w;
    } else {
      Target here;
      here.found = found;
      tap.a = fills_nan(s, here) ? -2 : -1;
    }
    taps[thread] = tap;
  }
  __syncthreads();
  if (s.out == nullptr || s.channel_count == 0) return;
  const int first_vector = tile.channel_tile * tiling.vectors;
  const auto all = static_cast<int>(s.channel_count * static_cast<std::int64_t>(sizeof(T)) / tiling.vector_bytes);
  const int vectors = min(tiling.vectors, all - first_vector);
  move_values(s, tiling.vector_bytes, taps, tile.targets, first_vector, vectors);
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
__device__ void check_share(const Check& check, std::uint32_t block, std::uint32_t blocks, FaultBox* box) {
  const std::int64_t count = check.count();
  const std::int64_t stride = static_cast<std::int64_t>(blocks) * tuning::threads;
#pragma unroll 4
  for (std::int64_t k = static_cast<std::int64_t>(block) * tuning::threads + threadIdx.x; k < count; k += stride) {
    const Fault fault = check(k);
    if (fault.code != FaultCode::none) report(box, fault);
  }
}

template <class L>
__device__ void check_all(const L& launch) {
  const std::uint32_t block = blockIdx.x;
  for (int k = 0; k < launch.streams; ++k) {
    check_share(StampCheck{launch.operation, &launch.plans[k]}, block, launch.check_blocks, launch.box);
    check_share(IntegerCheck{launch.operation, &launch.plans[k], launch.targets.rows}, block, launch.check_blocks,
                launch.box);
  }
  if (launch.check_targets) {
    check_share(TargetCheck{launch.operation, &launch.targets, launch.targets_must_rise}, block, launch.check_blocks,
                launch.box);
  }
}

}  // namespace
}  // namespace robocache::align_op
