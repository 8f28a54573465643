// The checks that read the data, on the host: before anything is written, in parallel, the first fault wins.
#include <atomic>

#include "core/parallel.h"
#include "ops/align/check.h"
#include "ops/align/range.h"

namespace robocache::align_op {
namespace {

constexpr std::int64_t samples_per_piece = 1 << 16;

Fault check_integers(const Plan& plan, const StreamPlan& s) {
  const IntegerCheck check{plan.operation, &s, plan.targets.rows};
  for (std::int64_t k = 0; k < check.count(); ++k) {
    const Fault fault = check(k);
    if (fault.code != FaultCode::none) return fault;
  }
  return {};
}

// The first fault of check(k), k in [0, count).
template <class Check>
Fault first_fault(std::int64_t count, const Check& check) {
  std::atomic<std::int64_t> first{count};
  parallel_for(count, samples_per_piece, [&](std::int64_t begin, std::int64_t end) {
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

// Whether dense int64 stamps are all fine: the usual case, at the speed of memory. False says only: look closely.
bool surely_fine(const StreamPlan& s) {
  if (s.times.dtype != DType::i64 || s.times.stride != 1 || s.arrivals.data != nullptr) return false;
  const auto* const times = static_cast<const std::int64_t*>(s.times.data);
  std::atomic<bool> fine{true};
  const auto segment_is_fine = [&](std::int64_t segment, auto&& inner) {
    std::int64_t begin = segment * s.times.row_stride;
    std::int64_t count = s.samples;
    if (s.offsets.data != nullptr) {
      begin = integer(s.offsets, segment);
      count = integer(s.offsets, segment + 1) - begin;
    } else if (s.lengths.data != nullptr) {
      count = integer(s.lengths, segment);
    }
    if (count == 0) return;
    const std::int64_t* const row = times + begin;
    if (row[0] <= -time_limit || row[count - 1] >= time_limit) fine = false;
    inner(count - 1, [&](std::int64_t first, std::int64_t last) {
      if (!in_order(row, first + 1, last + 1)) fine = false;
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

}  // namespace

Fault check_data(const Plan& plan) {
  for (const StreamPlan& s : plan.streams) {
    Fault fault = check_integers(plan, s);
    if (fault.code == FaultCode::none && !surely_fine(s)) {
      const StampCheck check{plan.operation, &s};
      fault = first_fault(check.count(), check);
    }
    if (fault.code != FaultCode::none) return fault;
  }
  const TargetCheck check{plan.operation, &plan.targets, has_bins(plan.streams)};
  return first_fault(check.count(), check);
}

}  // namespace robocache::align_op
