// How a block searches: it stages the part of a row's stamps that its targets fall into, the window, in shared memory, and
// each thread searches its own target there.
#pragma once

#include <algorithm>

#include "ops/align/cuda/vectors.h"

namespace robocache::align_op {
namespace {

// ---- searching -----------------------------------------------------------------------------------------------------

// Stamps in shared memory by their 32-bit address: it stays in a register, and the compiler does not recompute it.
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

// Stamps [first, first + count) of a row, in shared memory.
struct Window {
  int first = 0;
  int count = 0;
};

// Stamps [begin, end) of a row of `count`, and `margin` more on both sides; empty where they do not fit.
__device__ inline Window window_about(int begin, int end, int margin, int count) {
  Window window;
  window.first = max(begin - margin, 0);
  window.count = min(end, count - margin) + margin - window.first;
  if (window.count >= tuning::window_stamps) window.count = 0;
  return window;
}

// A guess: the stamps around a tile's targets if targets and stamps are evenly spaced over the same time. The windows
// of a row's tiles cover all its stamps.
__device__ inline Window window_by_place(std::uint32_t first_target, std::uint32_t tile_targets, std::uint32_t targets,
                                         int count) {
  const float pace = static_cast<float>(count) * __frcp_rn(static_cast<float>(targets));
  const auto place = [&](std::uint32_t t) { return min(__float2int_rz(static_cast<float>(t) * pace), count); };
  const std::uint32_t end = first_target + tile_targets;
  return window_about(place(first_target), end < targets ? place(end) : count, tuning::narrow_margin, count);
}

// Where a key falls if the row's stamps are evenly spaced.
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

// The stamps that a thread stages: the constructor loads them into registers, put() stores them in the window. Past
// the end of the window lies the largest int64.
struct StagedStamps {
  static constexpr int most = tuning::window_stamps / tuning::threads;
  std::int64_t stamps[most];

  StagedStamps() = default;
  template <class All>
  __device__ StagedStamps(const All& all, const Window& window) {
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

  // Whether none of this thread's stamps is smaller than the one before it.
  __device__ bool rise(const SharedStamps& shared) const {
    bool fall = shared[max(thread_of_block() - 1, 0)] > stamps[0];
#pragma unroll
    for (int k = 1; k < most; ++k) fall |= shared[thread_of_block() + k * tuning::threads - 1] > stamps[k];
    return !fall;
  }
  // The same for several rows of `samples` stamps, one after the other; also checks that the stamps are within the
  // time limit.
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

// How many of the first `count` stamps are <= key.
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
// Whether the result of search_window() gives the row's: the key is not beyond an end of the window that is no end of
// the row.
__device__ inline bool tells(const Window& window, int found, int count) {
  return (found > 0 || window.first == 0) && (found < window.count || window.first + window.count == count);
}

// Slow path: how many stamps are <= key, with a window around the keys of the tile's first and last target. All
// threads of the block must call it; those without a target may give any key.
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
  StagedStamps(all, window).put(shared);
  const int found = search_window(shared, key);
  if (window.count > 0 && tells(window, found, count)) return window.first + found;
  return upper_bound_about(all, even.place(key), count, key);
}

}  // namespace
}  // namespace robocache::align_op
