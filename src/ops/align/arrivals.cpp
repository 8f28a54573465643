#include "ops/align/arrivals.h"

#include <algorithm>

namespace robocache::align_op {
namespace {

constexpr std::int64_t block = 64;

}  // namespace

ArrivalBlocks::ArrivalBlocks(const Stamps& arrivals, std::int64_t offset, std::int64_t count)
    : arrivals_(arrivals), offset_(offset) {
  for (std::size_t level = 0; count > block; ++level) {
    std::vector<std::int64_t> least(static_cast<std::size_t>((count - 1) / block + 1));
    for (std::int64_t b = 0; b * block < count; ++b) {
      std::int64_t lowest = arrival(level, b * block);
      for (std::int64_t k = b * block + 1; k < std::min(count, (b + 1) * block); ++k) {
        lowest = std::min(lowest, arrival(level, k));
      }
      least[static_cast<std::size_t>(b)] = lowest;
    }
    count = static_cast<std::int64_t>(least.size());
    levels_.push_back(std::move(least));
  }
}

// Entry k of a level; level 0 is the samples themselves.
std::int64_t ArrivalBlocks::arrival(std::size_t level, std::int64_t k) const {
  if (level == 0) return stamp(arrivals_, offset_ + k * arrivals_.stride);
  return levels_[level - 1][static_cast<std::size_t>(k)];
}

std::int64_t ArrivalBlocks::last_arrived(std::int64_t i, std::int64_t tau) const {
  std::int64_t end = i + 1;
  std::size_t level = 0;
  std::int64_t found = -1;
  for (;; ++level) {  // up: the rest of a block, then the blocks before it
    const std::int64_t begin = level == levels_.size() ? 0 : end / block * block;
    for (found = end - 1; found >= begin && arrival(level, found) > tau; --found) {
    }
    if (found >= begin) break;
    if (begin == 0) return -1;
    end = begin / block;
  }
  for (; level > 0; --level) {  // down: the last entry of the block that had arrived
    found = found * block + block - 1;
    while (arrival(level - 1, found) > tau) --found;
  }
  return found;
}

ArrivalIndex::ArrivalIndex() = default;
ArrivalIndex::~ArrivalIndex() = default;

const ArrivalBlocks& ArrivalIndex::blocks(const StreamPlan& s, std::int64_t segment, std::int64_t offset,
                                          std::int64_t count) {
  const std::lock_guard lock(mutex_);
  std::unique_ptr<const ArrivalBlocks>& row = rows_[{&s, segment}];
  if (row == nullptr) row = std::make_unique<const ArrivalBlocks>(s.arrivals, offset, count);
  return *row;
}

}  // namespace robocache::align_op
