// Which sample was the last to arrive, on the host. Arrivals may come in any order, and where they are on another clock
// hundreds of thousands of samples have not arrived. Walking over them for every target would be quadratic, so they are
// skipped in blocks by their least arrival.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "ops/align/range.h"

namespace robocache::align_op {

// The arrivals of one row, with the least arrival of every block of 64 samples, of 64 such blocks, and so on.
class ArrivalBlocks {
 public:
  ArrivalBlocks(const Stamps& arrivals, std::int64_t offset, std::int64_t count);
  // The last of the samples up to i that had arrived by tau, or -1. Reads at most 128 arrivals of each level.
  std::int64_t last_arrived(std::int64_t i, std::int64_t tau) const;

 private:
  std::int64_t arrival(std::size_t level, std::int64_t k) const;

  Stamps arrivals_;
  std::int64_t offset_;
  std::vector<std::vector<std::int64_t>> levels_;  // levels_[k][b]: the least of entries 64 b .. 64 b + 63 of level k
};

// The blocks of the rows that a call needs them for, made when the first target needs them and shared by its threads.
class ArrivalIndex {
 public:
  ArrivalIndex();
  ~ArrivalIndex();
  ArrivalIndex(const ArrivalIndex&) = delete;
  ArrivalIndex& operator=(const ArrivalIndex&) = delete;

  const ArrivalBlocks& blocks(const StreamPlan& s, std::int64_t segment, std::int64_t offset, std::int64_t count);

 private:
  std::mutex mutex_;
  std::map<std::pair<const StreamPlan*, std::int64_t>, std::unique_ptr<const ArrivalBlocks>> rows_;
};

inline namespace ROBOCACHE_SIMD_TARGET {

// The arrivals of one row. A sample that has not arrived is rare where arrivals are on the stream's clock, so a few are
// looked at before any block is made.
class HostArrivals {
 public:
  HostArrivals(const Plan& plan, const StreamPlan& s, const Row& row)
      : at_{&s.arrivals, row.arrivals_offset}, index_(plan.arrivals), s_(&s), row_(&row) {}

  std::int64_t operator()(std::int64_t k) const { return at_(k); }
  std::int64_t last_arrived(std::int64_t i, std::int64_t tau) const {
    constexpr std::int64_t few = 32;
    for (std::int64_t k = 0; k < few; ++k, --i) {
      if (i < 0 || at_(i) <= tau) return i;
    }
    if (i < 0) return i;
    if (blocks_ == nullptr) blocks_ = &index_->blocks(*s_, row_->segment, row_->arrivals_offset, row_->count);
    return blocks_->last_arrived(i, tau);
  }

 private:
  StampsAt at_;
  ArrivalIndex* index_;
  const StreamPlan* s_;
  const Row* row_;
  mutable const ArrivalBlocks* blocks_ = nullptr;
};

}  // namespace ROBOCACHE_SIMD_TARGET
}  // namespace robocache::align_op
