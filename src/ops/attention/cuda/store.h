// Stores of output rows to global memory, and of new keys and values to the cache.
#pragma once

#include "gpu/mma.h"
#include "ops/attention/cuda/work_tile.h"

namespace robocache::attention_op {
namespace {

// Stores four elements of a row. aligned: to eight bytes.
template <class T>
__device__ void store_quad(T* to, bool aligned, const float (&x)[4]) {
  const std::uint32_t words[2] = {pack<T>(x[0], x[1]), pack<T>(x[2], x[3])};
  if (aligned) {
    *reinterpret_cast<uint2*>(to) = uint2{words[0], words[1]};
  } else {
#pragma unroll
    for (int k = 0; k < 4; ++k) to[k].bits = static_cast<std::uint16_t>(words[k / 2] >> k % 2 * 16);
  }
}

// Stores two elements of a row. aligned: to four bytes.
template <class T>
__device__ void store_pair(T* to, bool aligned, float low, float high) {
  const std::uint32_t both = pack<T>(low, high);
  if (aligned) {
    *reinterpret_cast<std::uint32_t*>(to) = both;
  } else {
    to[0].bits = static_cast<std::uint16_t>(both);
    to[1].bits = static_cast<std::uint16_t>(both >> 16);
  }
}
// Stores a thread's elements of one row of accumulator fragments, times a factor. half: of the fragments' two rows, which.
template <class T, int D>
__device__ void store_row(T* row, const float (&sums)[D / 8][4], int half, float factor, int head_dim, bool aligned) {
  row += threadIdx.x % 4 * 2;
#pragma unroll
  for (int n = 0; n < D / 8; ++n) {
    if (n * 8 < head_dim) {
      store_pair(row + n * 8, aligned, sums[n][2 * half] * factor, sums[n][2 * half + 1] * factor);
    }
  }
}

// The same for a row that begins at a multiple of 16 bytes. The four threads of a row exchange elements, so that each stores 16
// bytes at a time. All threads of a warp must call it.
template <class T, int D>
__device__ void store_aligned_row(T* row, const float (&sums)[D / 8][4], int half, float factor, int head_dim,
                                  bool exists) {
  const unsigned quarter = threadIdx.x % 4;
#pragma unroll
  for (int first = 0; first < D / 8; first += 4) {
    std::uint32_t words[4];
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const int n = first + k < D / 8 ? first + k : first;
      words[k] = pack<T>(sums[n][2 * half] * factor, sums[n][2 * half + 1] * factor);
    }
#pragma unroll
    for (int bit = 1; bit < 4; bit *= 2) {  // word k of thread q becomes word q of thread k
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        if ((k & bit) != 0) continue;
        const bool upper = (quarter & static_cast<unsigned>(bit)) != 0;
        const std::uint32_t other = __shfl_xor_sync(whole_warp, upper ? words[k] : words[k | bit], bit);
        (upper ? words[k] : words[k | bit]) = other;
      }
    }
    const int column = (first + static_cast<int>(quarter)) * 8;
    if (exists && column < head_dim) {
      *reinterpret_cast<uint4*>(row + column) = uint4{words[0], words[1], words[2], words[3]};
    }
  }
}

// Writes new keys and values to the cache, behind what it holds. This launch reads them where they came from, never in the
// cache; TMA may load some of them with the cache's last tile, where they are masked. `threads` threads of each of `split`
// blocks share the work. Not inlined: few calls append.
template <class T>
__device__ __noinline__ void append_keys_slow_path(const Plan& plan, std::int64_t sequence, std::int64_t cached,
                                                   int kv_head, int rank, int split, int threads) {
  const Segment& cache = plan.segments[0];
  const Segment& fresh = plan.segments[1];
  const auto head_dim = static_cast<unsigned>(plan.head_dim);
  for (std::int64_t n = rank; n < fresh.count; n += split) {
    const std::int64_t place = cached + n;
    for (unsigned d = threadIdx.x; d < head_dim; d += static_cast<unsigned>(threads)) {
      static_cast<T*>(cache.keys.data)[offset_of(cache.keys, sequence, kv_head, place) + d] =
          static_cast<const T*>(fresh.keys.data)[offset_of(fresh.keys, sequence, kv_head, n) + d];
      static_cast<T*>(cache.values.data)[offset_of(cache.values, sequence, kv_head, place) + d] =
          static_cast<const T*>(fresh.values.data)[offset_of(fresh.values, sequence, kv_head, n) + d];
    }
  }
}
template <class T>
__device__ void append_keys(const Plan& plan, const Rows& rows, int rank, int split, int threads) {
  append_keys_slow_path<T>(plan, rows.s.number, rows.s.cached, rows.kv_head, rank, split, threads);
}

}  // namespace
}  // namespace robocache::attention_op
