// The reference backend: every target, range and channel one after the other.
#include "core/interrupt.h"
#include "ops/align/arrival_index.h"
#include "ops/align/segments.h"

namespace robocache::align_op {
namespace {

template <class T>
void run_stream(const Plan& plan, StreamRows& rows) {
  const StreamPlan& s = *rows;
  const TargetPlan& targets = plan.targets;
  const Range* const ranges = plan.ranges.data() + s.first_range;
  for (std::int64_t b = 0; b < targets.rows; ++b) {
    rows.go_to(b);
    const Row row = row_of(s, b);
    const StampsAt at{&s.times, row.times_offset};
    const HostArrivals arrival_at(plan, s, row, rows.segment(b));
    const Samples<T> samples(s, row);
    for (std::int64_t t = 0; t < targets.count; ++t) {
      check_interrupt();
      const Target here = target_at(s, targets, at, arrival_at, row.count, b, t);
      bool valid = true;
      std::int64_t index = -1;
      for (std::int32_t r = 0; r < s.range_count; ++r) {
        const Range& range = ranges[r];
        const Verdict verdict = judge(s, samples, range, at, arrival_at, row.count, here);
        valid = valid && verdict.valid;
        if (r == 0) index = verdict.index;
        if (s.out == nullptr) continue;
        const std::int64_t out = b * s.out_row_stride + t * s.out_target_stride;
        const std::int64_t step = range.method == Method::slerp ? 4 : 1;
        for (std::int64_t d = range.begin; d < range.end; d += step) {
          write_channel(s, samples, range, at, arrival_at, here, verdict, d, out);
        }
      }
      write_marks(s, b, t, valid, age_of(here.found), index);
    }
  }
}

}  // namespace

void run_reference(const Plan& plan, Segments segments) {
  for (std::size_t k = 0; k < plan.streams.size(); ++k) {
    StreamRows rows(plan.streams[k], k, segments);
    with_type(plan.streams[k].dtype, [&](auto type) { run_stream<typename decltype(type)::type>(plan, rows); });
  }
}
void run_reference(const Plan& plan) { run_reference(plan, nullptr); }

}  // namespace robocache::align_op
