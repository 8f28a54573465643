// Searches for a sample by its arrival, in blocks. Arrivals may come in any order, and hundreds of thousands of samples
// may not have arrived by the deadline. Going through them one by one for every target would be quadratic, so blocks of
// samples are skipped by their least arrival. The code is for host and device.
//
// `least(level, k)`: level 0 is the samples; entry k of a higher level is the least of entries 64 k .. 64 k + 63 of the
// level below it. `levels` is the number of levels above the samples. One search reads at most 128 entries of each level
// but the highest.
#pragma once

#include "ops/align/math.h"

namespace robocache::align_op {
inline namespace ROBOCACHE_SIMD_TARGET {

inline constexpr std::int64_t arrival_block = 64;

// The last of samples [low, i] that had arrived by `deadline`, or low - 1. Blocks may begin before `low`.
template <class Least>
ROBOCACHE_HD_CALLED std::int64_t last_in_blocks(const Least& least, int levels, std::int64_t low, std::int64_t i,
                                                std::int64_t deadline) {
  std::int64_t lowest = low;  // the entry that has sample `low`
  std::int64_t end = i + 1;
  std::int64_t found = -1;
  int level = 0;
  for (;; ++level) {  // up: the rest of a block, then the blocks before it
    const std::int64_t block = end / arrival_block * arrival_block;
    const std::int64_t begin = level == levels || block < lowest ? lowest : block;
    for (found = end - 1; found >= begin && least(level, found) > deadline; --found) {
    }
    if (found >= begin) break;
    if (begin == lowest) return low - 1;
    end = begin / arrival_block;
    lowest /= arrival_block;
  }
  for (; level > 0; --level) {  // down: the last entry of the block that had arrived
    found = found * arrival_block + arrival_block - 1;
    while ((level > 1 || found >= low) && least(level - 1, found) > deadline) --found;
  }
  return found >= low ? found : low - 1;
}

// The first of samples [i, high) that had arrived by `deadline`, or high. Blocks may end after `high`.
template <class Least>
ROBOCACHE_HD_CALLED std::int64_t first_in_blocks(const Least& least, int levels, std::int64_t i, std::int64_t high,
                                                 std::int64_t deadline) {
  std::int64_t limit = high;  // past the entry that has sample high - 1
  std::int64_t begin = i;
  std::int64_t found = -1;
  int level = 0;
  for (;; ++level) {  // up: the rest of a block, then the blocks after it
    const std::int64_t block = (begin + arrival_block - 1) / arrival_block * arrival_block;
    const std::int64_t end = level == levels || block > limit ? limit : block;
    for (found = begin; found < end && least(level, found) > deadline; ++found) {
    }
    if (found < end) break;
    if (end == limit) return high;
    begin = end / arrival_block;
    limit = (limit + arrival_block - 1) / arrival_block;
  }
  for (; level > 0; --level) {  // down: the first entry of the block that had arrived
    found *= arrival_block;
    while ((level > 1 || found < high) && least(level - 1, found) > deadline) ++found;
  }
  return found < high ? found : high;
}

}  // namespace ROBOCACHE_SIMD_TARGET
}  // namespace robocache::align_op
