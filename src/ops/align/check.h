// What must hold of the data, one element at a time, for host and device. Each check has a number of elements, and a
// function from an element to its fault.
#pragma once

#include "core/integer_check.h"
#include "ops/align/math.h"

namespace robocache::align_op {
inline namespace ROBOCACHE_SIMD_TARGET {

// lengths, offsets and rows of a stream, one after the other.
struct IntegerCheck {
  Operation operation;
  const StreamPlan* s;
  std::int64_t output_rows;

  ROBOCACHE_HD std::int64_t count() const { return lengths() + offsets() + rows(); }

  ROBOCACHE_HD Fault operator()(std::int64_t k) const {
    Fault fault;
    fault.operation = operation;
    fault.name = s->name;
    if (k < lengths()) return outside(fault, FaultCode::length_outside, s->lengths, k, s->samples);
    k -= lengths();
    if (k < offsets()) return outside_or_falling(fault, s->offsets, k, s->samples);
    return outside(fault, FaultCode::row_outside, s->rows, k - offsets(), s->segments - 1);
  }

 private:
  ROBOCACHE_HD std::int64_t lengths() const { return s->lengths.data != nullptr ? s->segments : 0; }
  ROBOCACHE_HD std::int64_t offsets() const { return s->offsets.data != nullptr ? s->segments + 1 : 0; }
  ROBOCACHE_HD std::int64_t rows() const { return s->rows.data != nullptr ? output_rows : 0; }
};

// The segment that sample k of a packed stream is in; -1 or `segments` where it is in none.
template <class At>
ROBOCACHE_HD std::int64_t segment_of(const At& offset_at, std::int64_t segments, std::int64_t samples, std::int64_t k) {
  const double share = static_cast<double>(k) / static_cast<double>(samples);
  const auto guess = static_cast<std::int64_t>(share * static_cast<double>(segments));  // right where all are equal
  return upper_bound_about(offset_at, guess, segments + 1, k) - 1;
}

// The stamps and arrivals of a stream as they lie in memory, row after row; padding is skipped.
struct StampCheck {
  Operation operation;
  const StreamPlan* s;

  ROBOCACHE_HD std::int64_t count() const { return packed() ? s->samples : s->segments * s->samples; }

  ROBOCACHE_HD Fault operator()(std::int64_t n) const {
    const std::int64_t row = packed() ? 0 : n / s->samples;
    const std::int64_t k = packed() ? n : n - row * s->samples;
    Fault fault;
    if (s->lengths.data != nullptr && k >= integer(s->lengths, row)) return fault;
    const std::int64_t offset = row * s->times.row_stride + k * s->times.stride;
    const StampState state = state_of(s->times, offset);
    bool decreases = k > 0 && stamp(s->times, offset) < stamp(s->times, offset - s->times.stride);
    std::int64_t arrival = 0;
    StampState arrived = StampState::usable;
    if (s->arrivals.data != nullptr) {
      arrival = row * s->arrivals.row_stride + k * s->arrivals.stride;
      arrived = state_of(s->arrivals, arrival);
    }
    if (state == StampState::usable && !decreases && arrived == StampState::usable) return fault;
    if (packed()) {  // stamps may decrease from one segment to the next, and samples in no segment may be anything
      const auto at = [this](std::int64_t segment) { return integer(s->offsets, segment); };
      const std::int64_t segment = segment_of(at, s->segments, s->samples, k);
      if (segment < 0 || segment >= s->segments) return fault;
      if (at(segment) == k) decreases = false;
    }
    fault.operation = operation;
    fault.name = s->name;
    fault.row = s->batched && !packed() ? row : -1;
    fault.index = k;
    fault.dtype = s->times.dtype == DType::i64 ? DType::i64 : DType::f64;
    fault.value = raw_stamp(s->times, offset);
    if (state != StampState::usable) {
      fault.code = state == StampState::unusable ? FaultCode::time_unusable : FaultCode::float32_too_far;
    } else if (decreases) {
      fault.code = FaultCode::times_decrease;
      fault.other = raw_stamp(s->times, offset - s->times.stride);
    } else if (arrived != StampState::usable) {
      fault.code = arrived == StampState::unusable ? FaultCode::arrival_unusable : FaultCode::arrival_float32_too_far;
      fault.dtype = s->arrivals.dtype == DType::i64 ? DType::i64 : DType::f64;
      fault.value = raw_stamp(s->arrivals, arrival);
    }
    return fault;
  }

 private:
  ROBOCACHE_HD bool packed() const { return s->offsets.data != nullptr; }
};

// The times of as_of, one for each output row.
struct DecisionCheck {
  Operation operation;
  const StreamPlan* s;
  std::int64_t output_rows;

  ROBOCACHE_HD std::int64_t count() const { return s->decisions.data != nullptr ? output_rows : 0; }

  ROBOCACHE_HD Fault operator()(std::int64_t b) const {
    Fault fault;
    const Stamps& list = s->decisions;
    const std::int64_t offset = b * list.row_stride;
    const StampState state = state_of(list, offset);
    if (state == StampState::usable) return fault;
    fault.operation = operation;
    fault.name = s->as_of_name;
    fault.index = b;
    fault.dtype = list.dtype == DType::i64 ? DType::i64 : DType::f64;
    fault.value = raw_stamp(list, offset);
    fault.code = state == StampState::unusable ? FaultCode::as_of_unusable : FaultCode::as_of_float32_too_far;
    return fault;
  }
};

// The list of targets, or the starts of a timeline.
struct TargetCheck {
  Operation operation;
  const TargetPlan* targets;
  bool bins;

  ROBOCACHE_HD std::int64_t count() const {
    if (targets->timeline) return targets->starts.data != nullptr ? targets->rows : 0;
    return targets->batched ? targets->rows * targets->count : targets->count;
  }

  ROBOCACHE_HD Fault operator()(std::int64_t n) const {
    Fault fault;
    const Stamps& list = targets->timeline ? targets->starts : targets->times;
    const std::int64_t row = targets->timeline ? n : n / targets->count;
    const std::int64_t k = targets->timeline ? 0 : n - row * targets->count;
    const std::int64_t offset = row * list.row_stride + k * list.stride;
    const StampState state = state_of(list, offset);
    const bool decreases = bins && k > 0 && stamp(list, offset) < stamp(list, offset - list.stride);
    if (state == StampState::usable && !decreases) return fault;
    fault.operation = operation;
    fault.row = targets->batched && !targets->timeline ? row : -1;
    fault.index = targets->timeline ? row : k;
    fault.dtype = list.dtype == DType::i64 ? DType::i64 : DType::f64;
    fault.value = raw_stamp(list, offset);
    if (state == StampState::unusable) {
      fault.code = targets->timeline ? FaultCode::start_unusable : FaultCode::target_unusable;
    } else if (state == StampState::float32_too_far) {
      fault.code = targets->timeline ? FaultCode::start_float32_too_far : FaultCode::target_float32_too_far;
    } else {
      fault.code = FaultCode::targets_decrease;
      fault.other = raw_stamp(list, offset - list.stride);
    }
    return fault;
  }
};

inline bool has_bins(std::span<const StreamPlan> streams) {
  for (const StreamPlan& s : streams) {
    if (s.bins) return true;
  }
  return false;
}

}  // namespace ROBOCACHE_SIMD_TARGET
}  // namespace robocache::align_op
