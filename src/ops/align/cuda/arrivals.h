// The arrivals of as_of on a GPU: the blocks of arrival_blocks.h, and for each output row the last sample that exists. A
// launch before the call's own computes them.
#pragma once

#include <array>
#include <optional>

#include "gpu/scratch.h"
#include "ops/align/arrival_blocks.h"
#include "ops/align/evaluate.h"

namespace robocache::align_op {

// The least arrivals of blocks of a stream's samples. Samples are numbered in the order of memory, row after row. With
// as_of also, for each output row, the last sample that had arrived by the row's decision, or -1: several output rows may
// read the same samples and decide at different times.
struct ArrivalLevels {
  static constexpr int most = 4;  // 2^31 samples are 128 blocks of 64^4
  std::int64_t* least[most] = {};
  std::int64_t* last = nullptr;  // nullptr: not known
  int count = 0;
};

// The arrivals of output row b. Short rows have no levels; the search then goes sample by sample.
struct RowArrivals {
  StampsAt at;
  const ArrivalLevels* levels;
  std::int64_t first;  // first_sample()
  std::int64_t last;   // no later sample of the row exists

  ROBOCACHE_HD RowArrivals(const StreamPlan& s, const Row& row, const ArrivalLevels& of_stream, std::int64_t b)
      : at{&s.arrivals, row.arrivals_offset},
        levels(&of_stream),
        first(first_sample(s, row)),
        last(of_stream.last != nullptr ? of_stream.last[b] : row.count) {}

  ROBOCACHE_HD std::int64_t operator()(std::int64_t k) const { return at(k); }

  // With as_of the deadline is always the row's decision.
  ROBOCACHE_HD std::int64_t last_arrived(std::int64_t i, std::int64_t deadline) const {
    if (i > last) i = last;
    for (int k = 0; k < few || levels->count == 0; ++k, --i) {
      if (i < 0 || at(i) <= deadline) return i;
    }
    return i < 0 ? i : last_in_blocks(*this, levels->count, first, first + i, deadline) - first;
  }
  ROBOCACHE_HD std::int64_t first_arrived(std::int64_t i, std::int64_t count, std::int64_t deadline) const {
    if (i > last) return count;
    for (int k = 0; k < few || levels->count == 0; ++k, ++i) {
      if (i >= count || at(i) <= deadline) return i;
    }
    return i >= count ? i : first_in_blocks(*this, levels->count, first + i, first + count, deadline) - first;
  }

  // The least arrival of an entry, for arrival_blocks.h.
  ROBOCACHE_HD std::int64_t operator()(int level, std::int64_t entry) const {
    return level == 0 ? at(entry - first) : levels->least[level - 1][entry];
  }

 private:
  static constexpr int few = 8;  // samples that are tried before the blocks
};

// The arrivals of some streams of a call, in scratch memory that is freed after the kernels that use it.
class CudaArrivals {
 public:
  static constexpr std::size_t most_streams = 4;

  // Launches the kernels for `rows` output rows; none for streams without as_of or arrivals, or with very short rows.
  CudaArrivals(std::span<const StreamPlan* const> streams, std::int64_t rows, Operation operation,
               const Workspace& workspace, int device, cudaStream_t stream);
  const ArrivalLevels& operator[](int k) const { return levels_[static_cast<std::size_t>(k)]; }
  bool launched() const { return launched_; }

 private:
  std::array<ArrivalLevels, most_streams> levels_;
  std::optional<CudaScratch> scratch_;
  bool launched_ = false;
};

}  // namespace robocache::align_op
