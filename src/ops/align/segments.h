// Rows of a call on the host that lie anywhere in memory, such as the episodes of a cache in its shards.
#pragma once

#include <robocache/context.h>

#include "ops/align/arrival_index.h"
#include "ops/align/plan.h"

namespace robocache::align_op {

// Row b reads segments[b][k] of stream k. Rows may share segments.
using Segments = const Segment* const*;

// As robocache::align. `streams` have no samples: they give the options, dtypes and trailing shapes. They need arrivals,
// int64 stamps, and targets with rows; latencies are those of the segments.
void align_segments(const Context& context, std::span<const Stream> streams, const Targets& targets,
                    const AlignOptions& options, Segments segments, std::span<const Aligned> outputs);

// The backends, and the checks of the data. `segments` is nullptr if the rows lie where the plan says.
void run_reference(const Plan& plan, Segments segments);
void run_cpu(const Plan& plan, Segments segments);
Fault check_data(const Plan& plan, Segments segments);

inline namespace ROBOCACHE_SIMD_TARGET {

// A stream of the plan, row by row, for row_of() and all code after it.
class StreamRows {
 public:
  StreamRows(const StreamPlan& s, std::size_t stream, Segments segments)
      : plan_(&s), segments_(segments), stream_(stream) {
    if (segments == nullptr) return;
    own_ = s;
    own_.segments = 1;
    plan_ = &own_;
  }
  StreamRows(const StreamRows&) = delete;
  StreamRows& operator=(const StreamRows&) = delete;

  const StreamPlan& operator*() const { return *plan_; }
  const Segment* segment(std::int64_t b) const { return segments_ != nullptr ? &segments_[b][stream_] : nullptr; }
  // Sets the members that differ in row b.
  void go_to(std::int64_t b) {
    if (const Segment* const here = segment(b)) go_to(*here);
  }
  void go_to(const Segment& here) {
    own_.values = here.values;
    own_.times.data = here.times;
    own_.arrivals.data = here.arrivals;
    own_.samples = here.count;
    own_.latency = here.latency;
  }

 private:
  const StreamPlan* plan_;
  Segments segments_;
  std::size_t stream_;
  StreamPlan own_;
};

}  // namespace ROBOCACHE_SIMD_TARGET
}  // namespace robocache::align_op
