#include "ops/align/arrival_index.h"

#include <algorithm>

namespace robocache::align_op {
ArrivalBlocks::ArrivalBlocks(const Stamps& arrivals, std::int64_t offset, std::int64_t count)
    : arrivals_(arrivals), offset_(offset), count_(count) {
  for (int level = 0; count > arrival_block; ++level) {
    std::vector<std::int64_t> least(static_cast<std::size_t>((count - 1) / arrival_block + 1));
    for (std::int64_t b = 0; b * arrival_block < count; ++b) {
      std::int64_t lowest = arrival(level, b * arrival_block);
      for (std::int64_t k = b * arrival_block + 1; k < std::min(count, (b + 1) * arrival_block); ++k) {
        lowest = std::min(lowest, arrival(level, k));
      }
      least[static_cast<std::size_t>(b)] = lowest;
    }
    count = static_cast<std::int64_t>(least.size());
    levels_.push_back(std::move(least));
  }
}

// Entry k of a level; level 0 is the samples themselves.
std::int64_t ArrivalBlocks::arrival(int level, std::int64_t k) const {
  if (level == 0) return stamp(arrivals_, offset_ + k * arrivals_.stride);
  return levels_[static_cast<std::size_t>(level) - 1][static_cast<std::size_t>(k)];
}

std::int64_t ArrivalBlocks::last_arrived(std::int64_t i, std::int64_t deadline) const {
  return last_in_blocks([this](int level, std::int64_t k) { return arrival(level, k); }, levels(), 0, i, deadline);
}

std::int64_t ArrivalBlocks::first_arrived(std::int64_t i, std::int64_t deadline) const {
  return first_in_blocks([this](int level, std::int64_t k) { return arrival(level, k); }, levels(), i, count_,
                         deadline);
}

ArrivalIndex::ArrivalIndex() = default;
ArrivalIndex::~ArrivalIndex() = default;

const ArrivalBlocks& ArrivalIndex::blocks(const Stamps& arrivals, std::int64_t offset, std::int64_t count) {
  const void* const first = static_cast<const std::byte*>(arrivals.data) + offset * size_of(arrivals.dtype);
  const std::lock_guard lock(mutex_);
  std::unique_ptr<const ArrivalBlocks>& row = rows_[{first, arrivals.stride, count, arrivals.dtype}];
  if (row == nullptr) row = std::make_unique<const ArrivalBlocks>(arrivals, offset, count);
  return *row;
}

}  // namespace robocache::align_op
