// Loads of queries, keys and values into shared memory, for all warps of a block: by cp.async, by TMA, and element by element
// where rows are not aligned.
#pragma once

#include "gpu/cp_async.h"
#include "gpu/shared_memory.h"
#include "gpu/tma.h"
#include "ops/attention/cuda/mask.h"
#include "ops/attention/cuda/tiles.h"

namespace robocache::attention_op {
namespace {

// Copies eight elements whose address has any alignment; zeros where it is nullptr.
template <class T>
__device__ void copy_unaligned(std::uint32_t to, const T* from) {
  std::uint32_t words[4] = {};
  if (from != nullptr) {
    const auto* const bits = reinterpret_cast<const std::uint16_t*>(from);
#pragma unroll
    for (int k = 0; k < 4; ++k) words[k] = bits[2 * k] | static_cast<std::uint32_t>(bits[2 * k + 1]) << 16;
  }
  st_shared(to, words);
}

// The eight columns of the rows first, first + step ... that a thread copies, among all threads of a block or some of them.
template <int D>
struct CopyThread {
  static constexpr int lanes = D <= 32 ? 4 : (D <= 64 ? 8 : (D <= 128 ? 16 : 32));  // for a row
  static constexpr int rows = warp_size / lanes;                                    // of a warp at a time
  int column, first, step;

  __device__ CopyThread() : CopyThread(static_cast<int>(threadIdx.x), static_cast<int>(blockDim.x)) {}
  __device__ CopyThread(int thread, int threads)
      : column(thread % lanes * 8), first(thread / lanes), step(threads / lanes) {}
};

// Key j of a sequence, or its values.
template <class T>
__device__ const T* key_at(const Plan& plan, const Sequence& s, int kv_head, bool values, std::int64_t j) {
  const Place place = place_of(plan, s, j);
  const Segment& segment = plan.segments[place.segment];
  const Vectors& vectors = values ? segment.values : segment.keys;
  return static_cast<const T*>(vectors.data) + offset_of(vectors, s.number, kv_head, place.n);
}

// The slow path of KeyLoader: rows in several segments, and rows that are not aligned. Not inlined, so that the common path
// stays short.
template <class T, int D, class KeyTile>
__device__ __noinline__ void load_keys_slow_path(const Plan& plan, Sequence s, int kv_head, int first, int left,
                                                 KeyTile keys, KeyTile values, int rows, bool aligned) {
  const CopyThread<D> copier;
  if (copier.column >= D) return;
  for (int row = copier.first; row < rows; row += copier.step) {
    const bool real = row < left && copier.column < plan.head_dim;
    const T* const key = real ? key_at<T>(plan, s, kv_head, false, first + row) + copier.column : nullptr;
    const T* const value = real ? key_at<T>(plan, s, kv_head, true, first + row) + copier.column : nullptr;
    if (aligned) {
      cp_async_16(keys.address(row, copier.column), key, real);
      cp_async_16(values.address(row, copier.column), value, real);
    } else {
      copy_unaligned(keys.address(row, copier.column), key);
      copy_unaligned(values.address(row, copier.column), value);
    }
  }
}

// Loads keys and values of one head stage after stage, and looks up their segment once. Calls must go forwards.
template <class T, int D, class KeyTile>
class KeyLoader {
 public:
  __device__ KeyLoader(const Plan& plan, const Sequence& s, int kv_head, bool aligned)
      : plan_(plan), s_(s), kv_head_(kv_head), aligned_(aligned), end_(static_cast<int>(s.cached)) {
    if (plan.segment_count == 1) end_ = static_cast<int>(s.keys);
    set_segment();
  }

  // Loads rows [first, first + rows) by cp.async. Those from `end` on become zeros.
  __device__ void load(int first, int end, const KeyTile& keys, const KeyTile& values, int rows) {
    const int left = min(end - first, rows);
    if (!is_contiguous(first, left)) {
      return load_keys_slow_path<T, D, KeyTile>(plan_, s_, kv_head_, first, left, keys, values, rows, aligned_);
    }
    if (copier_.column >= D) return;
    const int real = copier_.column < plan_.head_dim ? left : 0;
    const T* key = key_ + (first - begin_) * key_row_;
    const T* value = value_ + (first - begin_) * value_row_;
    constexpr int together = 4;  // each with registers of its own for addresses, so that none waits for another
    for (int row = copier_.first; row < rows; row += together * copier_.step) {
#pragma unroll
      for (int k = 0; k < together; ++k) {
        const int here = row + k * copier_.step;
        if (here < rows) {
          cp_async_16(keys.address(here, copier_.column), key + k * copier_.step * key_row_, here < real);
          cp_async_16(values.address(here, copier_.column), value + k * copier_.step * value_row_, here < real);
        }
      }
      key += together * copier_.step * key_row_;
      value += together * copier_.step * value_row_;
    }
  }

  // Loads them by TMA, which one warp starts; what rows from `end` on become is undefined. False: they are not all in one
  // segment, and nothing is loaded.
  __device__ bool load_by_tma(int first, int end, std::uint32_t stage, int warps, const CUtensorMap (*maps)[2],
                              const Mbarrier& mbarrier) {
    using Stage = KeyTile;
    const int left = min(end - first, warps * Stage::keys);
    if (!is_contiguous(first, left)) return false;
    if (threadIdx.x >= warp_size) return true;
    const int copies = (left + Stage::keys - 1) / Stage::keys * 2 * Stage::blocks;
    if (threadIdx.x == 0) mbarrier.arrive_expect_tx(copies * Stage::block_bytes);
    const int row = static_cast<int>(segment_ == 0 ? s_.first_key : 0) + first - begin_;
    const auto sequence = static_cast<int>(plan_.is_packed() ? 0 : s_.number);
    for (int k = static_cast<int>(threadIdx.x); k < copies; k += warp_size) {
      const int block = k % Stage::blocks;
      const int half = k / Stage::blocks;  // even: keys, odd: values
      tma_load_5d(stage + k * Stage::block_bytes, maps[segment_][half % 2], block * 64, row + half / 2 * Stage::keys, 0,
                  kv_head_, sequence, mbarrier);
    }
    return true;
  }

 private:
  // Whether all rows lie in one segment and are aligned. Advances to the segment of `first`.
  __device__ bool is_contiguous(int first, int left) {
    while (first >= end_ && segment_ + 1 < plan_.segment_count) {
      begin_ = end_;
      ++segment_;
      end_ = begin_ + static_cast<int>(plan_.segments[segment_].count);
      set_segment();
    }
    return aligned_ && first + left <= end_;
  }
  __device__ void set_segment() {
    const Segment& segment = plan_.segments[segment_];
    const std::int64_t place = (segment_ == 0 ? s_.first_key : 0) + copier_.first;
    key_row_ = segment.keys.row;
    value_row_ = segment.values.row;
    key_ =
        static_cast<const T*>(segment.keys.data) + offset_of(segment.keys, s_.number, kv_head_, place) + copier_.column;
    value_ = static_cast<const T*>(segment.values.data) + offset_of(segment.values, s_.number, kv_head_, place) +
             copier_.column;
  }

  const Plan& plan_;
  const Sequence& s_;
  int kv_head_;
  bool aligned_;
  CopyThread<D> copier_;
  int segment_ = 0;
  int begin_ = 0, end_;  // the segment's keys, by their numbers in the sequence
  const T* key_;         // this thread's part of the segment's first row
  const T* value_;
  std::int64_t key_row_, value_row_;
};

// Loads rows of queries, outputs or their gradients; zeros behind the last row.
template <class T, int D, class RowTile>
__device__ void load_rows(const Plan& plan, const Vectors& vectors, const Rows& rows, const RowTile& tile, int count,
                          bool aligned, CopyThread<D> copier = {}) {
  if (copier.column >= D) return;
  const T* const base = static_cast<const T*>(vectors.data) + rows.base(vectors) + copier.column;
  const int real = copier.column < plan.head_dim ? min(count, rows.count - rows.first) : 0;
#pragma unroll 4
  for (int row = copier.first; row < count; row += copier.step) {
    const T* const from = base + (row < real ? rows.within(vectors, row) : 0);
    if (aligned) {
      cp_async_16(tile.address(row, copier.column), from, row < real);
    } else {
      copy_unaligned(tile.address(row, copier.column), row < real ? from : nullptr);
    }
  }
}

// Zeroes the values of fully masked keys: they may be NaN, which a weight of 0 does not stop. masked: bits of rows from `first`.
template <int D, int keys>
__device__ void zero_masked_values(const SwizzledTile<D, keys>& values, unsigned masked, int first) {
  const auto lane = static_cast<int>(threadIdx.x % warp_size);
  while (masked != 0) {
    const int row = first + __ffs(static_cast<int>(masked)) - 1;
    masked &= masked - 1;
    if (lane < D / 8) st_shared_zero_16(values.address(row, lane * 8));
  }
}
// Zeroes the rows from `first` on, by the whole block: TMA has loaded whatever follows the last key.
template <int D, int keys>
__device__ void zero_rows(const SwizzledTile<D, keys>& values, int first, int rows) {
  for (int k = static_cast<int>(threadIdx.x); k < (rows - first) * (D / 8); k += static_cast<int>(blockDim.x)) {
    copy_unaligned<bf16>(values.address(first + k / (D / 8), k % (D / 8) * 8), nullptr);
  }
}

}  // namespace
}  // namespace robocache::attention_op
