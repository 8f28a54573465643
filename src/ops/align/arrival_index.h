// Finds samples by their arrival on the host, with the blocks of arrival_blocks.h for the rows that need them.
#pragma once

#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <tuple>
#include <vector>

#include "ops/align/arrival_blocks.h"
#include "ops/align/evaluate.h"

namespace robocache::align_op {

// The arrivals of one row, with the least arrival of every block of 64 samples, of 64 such blocks, and so on.
class ArrivalBlocks {
 public:
  ArrivalBlocks(const Stamps& arrivals, std::int64_t offset, std::int64_t count);
  // The last of the samples up to i that had arrived by `deadline`, or -1.
  std::int64_t last_arrived(std::int64_t i, std::int64_t deadline) const;
  // The first of the samples from i on that had arrived by `deadline`, or the number of samples.
  std::int64_t first_arrived(std::int64_t i, std::int64_t deadline) const;

 private:
  std::int64_t arrival(int level, std::int64_t k) const;
  int levels() const { return static_cast<int>(levels_.size()); }

  Stamps arrivals_;
  std::int64_t offset_, count_;
  std::vector<std::vector<std::int64_t>> levels_;  // levels_[k][b]: the least of entries 64 b .. 64 b + 63 of level k
};

// The samples of one stream that a row of align_segments() reads (segments.h): dense, with int64 stamps.
struct Segment {
  const void* values = nullptr;
  const std::int64_t* times = nullptr;
  const std::int64_t* arrivals = nullptr;
  std::int64_t count = 0, latency = 0;
  // A guess of a stamp's place: sample (stamp - first_time) * samples_per_ns. A search begins there.
  std::int64_t first_time = 0;
  double samples_per_ns = 0;
  const ArrivalBlocks* blocks = nullptr;  // of the arrivals; nullptr: they do not decrease
};

// The blocks of a call's rows. Those of a row are made when its first target needs them; all threads share them.
class ArrivalIndex {
 public:
  ArrivalIndex();
  ~ArrivalIndex();
  ArrivalIndex(const ArrivalIndex&) = delete;
  ArrivalIndex& operator=(const ArrivalIndex&) = delete;

  // The blocks of the arrivals from `offset` on.
  const ArrivalBlocks& blocks(const Stamps& arrivals, std::int64_t offset, std::int64_t count);

 private:
  std::mutex mutex_;
  using Key = std::tuple<const void*, std::int64_t, std::int64_t, DType>;  // first arrival, stride, count
  std::map<Key, std::unique_ptr<const ArrivalBlocks>> rows_;
};

inline namespace ROBOCACHE_SIMD_TARGET {

// The arrivals of one row. If arrivals are on the stream's clock, nearly all samples have arrived, so a few samples are
// tried before any block is made.
class HostArrivals {
 public:
  HostArrivals(const Plan& plan, const StreamPlan& s, const Row& row, const Segment* segment = nullptr)
      : at_{&s.arrivals, row.arrivals_offset},
        index_(plan.arrivals),
        row_(&row),
        blocks_(segment != nullptr ? segment->blocks : nullptr),
        is_in_order_(segment != nullptr && segment->blocks == nullptr) {}

  std::int64_t operator()(std::int64_t k) const { return at_(k); }
  // Targets with as_of have one deadline and mostly come in order, so a search ends where the one before it began.
  std::int64_t last_arrived(std::int64_t i, std::int64_t deadline) const {
    if (is_in_order_) return i < 0 || at_(i) <= deadline ? i : upper_bound(at_, 0, i, deadline) - 1;
    const bool same = deadline == last_.deadline;
    std::int64_t k = i;
    for (std::int64_t tried = 0;; ++tried, --k) {
      if (same && k >= last_.found && k <= last_.from) {
        k = last_.found;
        break;
      }
      if (k < 0 || at_(k) <= deadline) break;
      if (tried == few) {
        k = blocks().last_arrived(k, deadline);
        break;
      }
    }
    last_ = {deadline, i, k};
    return k;
  }
  std::int64_t first_arrived(std::int64_t i, std::int64_t count, std::int64_t deadline) const {
    if (is_in_order_) return i < count && at_(i) <= deadline ? i : count;
    const bool same = deadline == first_.deadline;
    std::int64_t k = i;
    for (std::int64_t tried = 0;; ++tried, ++k) {
      if (same && k >= first_.from && k <= first_.found) {
        k = first_.found;
        break;
      }
      if (k >= count || at_(k) <= deadline) break;
      if (tried == few) {
        k = blocks().first_arrived(k, deadline);
        break;
      }
    }
    first_ = {deadline, i, k};
    return k;
  }

 private:
  static constexpr std::int64_t few = 32;

  // Of the samples from `from` to `found`, only `found` had arrived by the deadline.
  struct LastSearch {
    std::int64_t deadline, from, found;
  };

  const ArrivalBlocks& blocks() const {
    if (blocks_ == nullptr) blocks_ = &index_->blocks(*at_.stamps, at_.offset, row_->count);
    return *blocks_;
  }

  StampsAt at_;
  ArrivalIndex* index_;
  const Row* row_;
  mutable const ArrivalBlocks* blocks_;
  bool is_in_order_;
  mutable LastSearch last_{0, -2, std::numeric_limits<std::int64_t>::max()};
  mutable LastSearch first_{0, std::numeric_limits<std::int64_t>::max(), -2};
};

}  // namespace ROBOCACHE_SIMD_TARGET
}  // namespace robocache::align_op
