// The checks that read the data, on the host. They run in parallel, before anything is written, and the first fault
// is the one that is thrown.
#include <algorithm>
#include <atomic>
#include <utility>
#include <vector>

#include "core/parallel.h"
#include "ops/align/check.h"
#include "ops/align/evaluate.h"
#include "ops/align/segments.h"

namespace robocache::align_op {
namespace {

constexpr std::int64_t samples_per_piece = 1 << 16;

template <class Check>
Fault first_fault_of_few(const Check& check) {
  for (std::int64_t k = 0; k < check.count(); ++k) {
    const Fault fault = check(k);
    if (fault.code != FaultCode::none) return fault;
  }
  return {};
}

// The first fault of check(k), k in [0, count).
template <class Check>
Fault first_fault(std::int64_t count, const Check& check, std::int64_t grain = samples_per_piece) {
  std::atomic<std::int64_t> first{count};
  parallel_for(count, grain, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t k = begin; k < end && k < first.load(std::memory_order_relaxed); ++k) {
      if (check(k).code == FaultCode::none) continue;
      std::int64_t known = first.load();
      while (k < known && !first.compare_exchange_weak(known, k)) {
      }
      return;
    }
  });
  return first < count ? check(first) : Fault{};
}

bool in_order(const std::int64_t* times, std::int64_t begin, std::int64_t end) {
  bool falls = false;
  for (std::int64_t k = begin; k < end; ++k) falls |= times[k] < times[k - 1];
  return !falls;
}

bool in_limits(const std::int64_t* arrivals, std::int64_t begin, std::int64_t end) {
  bool outside = false;
  for (std::int64_t k = begin; k < end; ++k) {
    outside |= (arrivals[k] <= -time_limit) | (arrivals[k] >= time_limit);
  }
  return !outside;
}

bool are_dense(const Stamps& stamps) { return stamps.dtype == DType::i64 && stamps.stride == 1; }

// Fast path for dense int64 stamps, at the speed of memory. true: all are valid; false: some may not be, run the full
// check.
bool surely_fine(const StreamPlan& s) {
  if (!are_dense(s.times) || (s.arrivals.data != nullptr && !are_dense(s.arrivals))) return false;
  const auto* const times = static_cast<const std::int64_t*>(s.times.data);
  const auto* const arrivals = static_cast<const std::int64_t*>(s.arrivals.data);
  std::atomic<bool> fine{true};
  const auto segment_is_fine = [&](std::int64_t segment, auto&& inner) {
    std::int64_t begin = 0;
    std::int64_t count = s.samples;
    if (s.offsets.data != nullptr) {
      begin = integer(s.offsets, segment);
      count = integer(s.offsets, segment + 1) - begin;
    } else if (s.lengths.data != nullptr) {
      count = integer(s.lengths, segment);
    }
    if (count == 0) return;
    const std::int64_t* const row = times + segment * s.times.row_stride + begin;
    if (row[0] <= -time_limit || row[count - 1] >= time_limit) fine = false;
    inner(count - 1, [&](std::int64_t first, std::int64_t last) {
      if (!in_order(row, first + 1, last + 1)) fine = false;
    });
    if (arrivals == nullptr) return;
    inner(count, [&](std::int64_t first, std::int64_t last) {
      if (!in_limits(arrivals + segment * s.arrivals.row_stride + begin, first, last)) fine = false;
    });
  };
  if (s.segments > num_threads()) {
    const std::int64_t grain = samples_per_piece * s.segments / (StampCheck{{}, &s}.count() + 1) + 1;
    parallel_for(s.segments, grain, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t g = begin; g < end; ++g) segment_is_fine(g, [](std::int64_t n, auto f) { f(0, n); });
    });
  } else {
    for (std::int64_t g = 0; g < s.segments; ++g) {
      segment_is_fine(g, [](std::int64_t n, auto f) { parallel_for(n, samples_per_piece, f); });
    }
  }
  return fine;
}

Fault check_stamps(Operation operation, const StreamPlan& s) {
  if (surely_fine(s)) return {};
  const StampCheck check{operation, &s};
  return first_fault(check.count(), check);
}

// Each segment once, the first row's first.
Fault check_segments(const Plan& plan, std::size_t stream, Segments segments) {
  using Use = std::pair<const Segment*, std::int64_t>;  // with the first row that reads it
  std::vector<Use> uses;
  for (std::int64_t b = 0; b < plan.targets.rows; ++b) uses.emplace_back(&segments[b][stream], b);
  std::sort(uses.begin(), uses.end());
  const auto is_again = [](const Use& a, const Use& b) { return a.first == b.first; };
  uses.erase(std::unique(uses.begin(), uses.end(), is_again), uses.end());
  std::sort(uses.begin(), uses.end(), [](const Use& a, const Use& b) { return a.second < b.second; });
  std::int64_t samples = 0;
  for (const Use& use : uses) samples += use.first->count;
  const auto count = static_cast<std::int64_t>(uses.size());
  const auto check = [&](std::int64_t k) {
    StreamRows rows(plan.streams[stream], stream, segments);
    rows.go_to(*uses[static_cast<std::size_t>(k)].first);
    Fault fault = check_stamps(plan.operation, *rows);
    if (fault.code != FaultCode::none) fault.row = uses[static_cast<std::size_t>(k)].second;
    return fault;
  };
  return first_fault(count, check, samples_per_piece * count / (samples + 1) + 1);
}

}  // namespace

Fault check_data(const Plan& plan, Segments segments) {
  for (std::size_t k = 0; k < plan.streams.size(); ++k) {
    const StreamPlan& s = plan.streams[k];
    Fault fault = first_fault_of_few(IntegerCheck{plan.operation, &s, plan.targets.rows});
    if (fault.code == FaultCode::none) {
      fault = first_fault_of_few(DecisionCheck{plan.operation, &s, plan.targets.rows});
    }
    if (fault.code == FaultCode::none) {
      fault = segments != nullptr ? check_segments(plan, k, segments) : check_stamps(plan.operation, s);
    }
    if (fault.code != FaultCode::none) return fault;
  }
  const TargetCheck check{plan.operation, &plan.targets, has_bins(plan.streams)};
  return first_fault(check.count(), check);
}
Fault check_data(const Plan& plan) { return check_data(plan, nullptr); }

}  // namespace robocache::align_op
