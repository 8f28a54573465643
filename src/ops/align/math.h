// The arithmetic of align, once for every backend: where a target falls among the stamps, and what each method makes of
// the samples there. docs/semantics.md says the same in words.
#pragma once

#include "core/element.h"
#include "ops/align/plan.h"

namespace robocache::align_op {
inline namespace ROBOCACHE_SIMD_TARGET {

inline constexpr std::int64_t no_age = std::numeric_limits<std::int64_t>::min();
inline constexpr double float32_seconds_limit = 16384;  // a float32 second past this steps by over 1 ms
inline constexpr int mean_chunk = 256;                  // samples that count, summed in one go by a mean

// ---- time --------------------------------------------------------------------------------------------------------

// Wrapping arithmetic, because stamps may be anything before they are checked.
ROBOCACHE_HD std::int64_t plus(std::int64_t a, std::int64_t b) {
  return static_cast<std::int64_t>(static_cast<std::uint64_t>(a) + static_cast<std::uint64_t>(b));
}
ROBOCACHE_HD std::int64_t minus(std::int64_t a, std::int64_t b) {
  return static_cast<std::int64_t>(static_cast<std::uint64_t>(a) - static_cast<std::uint64_t>(b));
}

// Seconds to nanoseconds. NaN and times out of range saturate, so that a search stays inside its array.
ROBOCACHE_HD std::int64_t nanoseconds(double seconds) {
  constexpr auto limit = static_cast<double>(time_limit);
  const double ns = ::rint(seconds * 1e9);
  if (!(ns < limit)) return time_limit;
  if (!(ns > -limit)) return -time_limit;
  return static_cast<std::int64_t>(ns);
}

// Integer: all stamps are known to be int64.
template <bool Integer = false>
ROBOCACHE_HD std::int64_t stamp(const Stamps& stamps, std::int64_t offset) {
  if (Integer || stamps.dtype == DType::i64) return static_cast<const std::int64_t*>(stamps.data)[offset];
  if (stamps.dtype == DType::f64) return nanoseconds(static_cast<const double*>(stamps.data)[offset]);
  return nanoseconds(static_cast<const float*>(stamps.data)[offset]);
}

// The stamp as it is in memory, for a sentence: an integer, or the bits of a double.
ROBOCACHE_HD std::int64_t raw_stamp(const Stamps& stamps, std::int64_t offset) {
  if (stamps.dtype == DType::i64) return static_cast<const std::int64_t*>(stamps.data)[offset];
  if (stamps.dtype == DType::f64) return static_cast<const std::int64_t*>(stamps.data)[offset];
  return bit_copy<std::int64_t>(static_cast<double>(static_cast<const float*>(stamps.data)[offset]));
}

enum class StampState : std::uint8_t { usable, unusable, float32_too_far };
ROBOCACHE_HD StampState state_of(const Stamps& stamps, std::int64_t offset) {
  if (stamps.dtype == DType::f32) {
    const float seconds = static_cast<const float*>(stamps.data)[offset];
    if (is_nan(seconds)) return StampState::unusable;
    return ::fabs(static_cast<double>(seconds)) > float32_seconds_limit ? StampState::float32_too_far
                                                                        : StampState::usable;
  }
  if (stamps.dtype == DType::f64 && is_nan(static_cast<const double*>(stamps.data)[offset]))
    return StampState::unusable;
  const std::int64_t t = stamp(stamps, offset);
  return t > -time_limit && t < time_limit ? StampState::usable : StampState::unusable;
}

// tau_k of row b. k = -1 is where the first bin begins.
ROBOCACHE_HD_CALLED std::int64_t timeline_step(const TargetPlan& targets, std::int64_t k) {
  return static_cast<std::int64_t>(::rint(static_cast<double>(targets.first + k) * 1e9 / targets.rate));
}
template <bool Integer = false>
ROBOCACHE_HD std::int64_t timeline_start(const TargetPlan& targets, std::int64_t b) {
  return targets.starts.data != nullptr ? stamp<Integer>(targets.starts, b * targets.starts.row_stride) : targets.start;
}
template <bool Integer = false>
ROBOCACHE_HD std::int64_t target(const TargetPlan& targets, std::int64_t b, std::int64_t k) {
  if (targets.timeline) return plus(timeline_start<Integer>(targets, b), timeline_step(targets, k));
  return stamp<Integer>(targets.times, b * targets.times.row_stride + k * targets.times.stride);
}
ROBOCACHE_HD std::int64_t previous_target(const TargetPlan& targets, std::int64_t b, std::int64_t k) {
  if (k > 0 || targets.timeline) return target(targets, b, k - 1);
  if (targets.count < 2) return -time_limit;
  const std::int64_t first = target(targets, b, 0);
  return minus(first, minus(target(targets, b, 1), first));
}

// ---- rows --------------------------------------------------------------------------------------------------------

// The samples that output row b reads. Never outside the arrays, whatever lengths, offsets and rows hold.
struct Row {
  std::int64_t segment = 0;                                               // row of values and times in memory
  std::int64_t times_offset = 0, arrivals_offset = 0, values_offset = 0;  // of sample 0, in elements
  std::int64_t first = 0;                                                 // of sample 0 along a packed axis
  std::int64_t count = 0;
};
ROBOCACHE_HD Row row_of(const StreamPlan& s, std::int64_t b) {
  Row row;
  row.segment = s.rows.data != nullptr ? clamp_to(integer(s.rows, b), 0, s.segments - 1) : (s.batched ? b : 0);
  row.count = s.samples;
  if (s.segments == 0) {
    row.segment = 0;
    row.count = 0;
  } else if (s.offsets.data != nullptr) {
    row.first = clamp_to(integer(s.offsets, row.segment), 0, s.samples);
    row.count = clamp_to(integer(s.offsets, row.segment + 1), row.first, s.samples) - row.first;
  } else if (s.lengths.data != nullptr) {
    row.count = clamp_to(integer(s.lengths, row.segment), 0, s.samples);
  }
  row.times_offset = row.segment * s.times.row_stride + row.first * s.times.stride;
  row.arrivals_offset = row.segment * s.arrivals.row_stride + row.first * s.arrivals.stride;
  row.values_offset = row.segment * s.row_stride + row.first * s.sample_stride;
  return row;
}

ROBOCACHE_HD_CALLED std::int64_t scattered_offset(const Channels& channels, std::int64_t d) {
  std::int64_t offset = 0;
  for (int k = channels.rank - 1; k > 0; --k) {
    offset += d % channels.size[k] * channels.stride[k];
    d /= channels.size[k];
  }
  return offset + d * channels.stride[0];
}
ROBOCACHE_HD std::int64_t channel_offset(const Channels& channels, std::int64_t d) {
  return channels.rank <= 1 ? d * channels.stride[0] : scattered_offset(channels, d);
}

// ---- where a target falls ------------------------------------------------------------------------------------------

// Searches compare stamps s with tau + latency instead of s - latency with tau: the same order, one addition.
ROBOCACHE_HD std::int64_t shifted_target(const StreamPlan& s, std::int64_t tau) { return plus(tau, s.latency); }

// By when a sample must have arrived to exist for row b and target tau.
ROBOCACHE_HD std::int64_t deadline_of(const StreamPlan& s, std::int64_t b, std::int64_t tau) {
  if (!s.as_of) return tau;
  return s.decisions.data != nullptr ? stamp(s.decisions, b * s.decisions.row_stride) : s.decision;
}

// The key of the one search that a target needs: samples with stamp <= key are candidates.
ROBOCACHE_HD std::int64_t search_key(const StreamPlan& s, std::int64_t tau, std::int64_t deadline) {
  const std::int64_t x = shifted_target(s, tau);
  const bool limited = (s.causal || s.as_of) && s.arrivals.data == nullptr;
  return limited && deadline < x ? deadline : x;  // not yet arrived: stamp > deadline
}

// How many of at(lo) .. at(hi - 1), which do not decrease, are <= key, plus lo.
template <class At>
ROBOCACHE_HD std::int64_t upper_bound(const At& at, std::int64_t lo, std::int64_t hi, std::int64_t key) {
  while (lo < hi) {
    const std::int64_t middle = lo + (hi - lo) / 2;
    if (at(middle) <= key) {
      lo = middle + 1;
    } else {
      hi = middle;
    }
  }
  return lo;
}

// The same of at(0) .. at(count - 1), in growing steps from a guess.
template <class At>
ROBOCACHE_HD std::int64_t upper_bound_about(const At& at, std::int64_t guess, std::int64_t count, std::int64_t key) {
  std::int64_t low = guess;   // at(low - 1) <= key, or low is 0
  std::int64_t high = guess;  // at(high) > key, or high is the count
  for (std::int64_t step = 8; low > 0 && at(low - 1) > key; step *= 4) {
    high = low - 1;
    low = low > step ? low - step : 0;
  }
  for (std::int64_t step = 8; high < count && at(high) <= key; step *= 4) {
    low = high + 1;
    high = high + step < count ? high + step : count;
  }
  return upper_bound(at, low, high, key);
}

// The last sample that has the stamp of sample k: equal stamps are rare and few, so look ahead in doubling steps.
template <class At>
ROBOCACHE_HD_CALLED std::int64_t last_equal(At at, std::int64_t k, std::int64_t count) {
  const std::int64_t value = at(k);
  std::int64_t step = 1;
  while (k + step < count && at(k + step) <= value) step *= 2;
  return upper_bound(at, k + step / 2, k + step < count ? k + step : count, value) - 1;
}
// The first sample that has the stamp of sample k.
template <class At>
ROBOCACHE_HD_CALLED std::int64_t first_equal(At at, std::int64_t k) {
  const std::int64_t value = at(k);
  std::int64_t step = 1;
  while (k - step >= 0 && at(k - step) >= value) step *= 2;
  return upper_bound(at, k - step >= 0 ? k - step : 0, k, value - 1);
}

enum class Place : std::uint8_t {
  empty,      // no samples
  unarrived,  // causal or as_of, and nothing has arrived yet
  before,     // the first sample
  after,      // the last sample
  gap,        // strictly inside one
  stale,      // causal, or after the last sample of as_of, and the held sample is older than max_gap
  exact,      // on a stamp
  between,    // two samples
  held,       // causal, or after the last sample of as_of
};
ROBOCACHE_HD bool is_valid(Place place) { return place >= Place::exact; }

struct Location {
  Place place = Place::empty;
  std::int64_t i = -1, j = -1;  // j: only for gap and between
  std::int64_t since = 0;       // tau - t_i; before the first sample tau - t_0
  std::int64_t span = 1;        // t_j - t_i
};

// For callers that know that the stream has no arrivals.
struct NoArrivals {
  ROBOCACHE_HD std::int64_t operator()(std::int64_t) const { return 0; }
};

// The last of the samples up to i that had arrived by the deadline, or -1. Arrivals may come in any order. The arrivals
// of the host (arrival_index.h), and of as_of on a GPU (cuda/arrivals.h), skip blocks of samples that had not arrived;
// causal on a GPU walks.
template <class ArrivalAt>
ROBOCACHE_HD std::int64_t last_arrived(const ArrivalAt& arrival_at, std::int64_t i, std::int64_t deadline) {
  if constexpr (requires { arrival_at.last_arrived(i, deadline); }) {
    return arrival_at.last_arrived(i, deadline);
  } else {
    while (i >= 0 && arrival_at(i) > deadline) --i;
    return i;
  }
}

// The last of the samples up to i that exist as of the deadline, or -1. Without arrivals the stamps are the arrivals.
template <class At, class ArrivalAt>
ROBOCACHE_HD std::int64_t last_existing(const StreamPlan& s, const At& at, const ArrivalAt& arrival_at, std::int64_t i,
                                        std::int64_t deadline) {
  if (s.arrivals.data != nullptr) return last_arrived(arrival_at, i, deadline);
  return i < 0 || at(i) <= deadline ? i : upper_bound(at, 0, i, deadline) - 1;
}
// The first of the samples from i on that exists as of the deadline, or `count`.
template <class At, class ArrivalAt>
ROBOCACHE_HD std::int64_t first_existing(const StreamPlan& s, const At& at, const ArrivalAt& arrival_at, std::int64_t i,
                                         std::int64_t count, std::int64_t deadline) {
  if (s.arrivals.data == nullptr) return i < count && at(i) <= deadline ? i : count;
  if constexpr (requires { arrival_at.first_arrived(i, count, deadline); }) {
    return arrival_at.first_arrived(i, count, deadline);
  } else {
    while (i < count && arrival_at(i) > deadline) ++i;
    return i;
  }
}
// The last sample with the stamp of sample k that exists; sample k does.
template <class At, class ArrivalAt>
ROBOCACHE_HD std::int64_t last_equal_existing(const StreamPlan& s, const At& at, const ArrivalAt& arrival_at,
                                              std::int64_t k, std::int64_t count, std::int64_t deadline) {
  if (k + 1 >= count || at(k + 1) != at(k)) return k;
  return last_existing(s, at, arrival_at, last_equal(at, k + 1, count), deadline);
}

// locate() of as_of: among the samples that had arrived by the deadline. Before the first of them is a gap with that sample
// at both ends.
template <class At, class ArrivalAt>
ROBOCACHE_HD_CALLED Location locate_as_of(const StreamPlan& s, const At& at, const ArrivalAt& arrival_at,
                                          std::int64_t count, std::int64_t upper, std::int64_t tau,
                                          std::int64_t deadline) {
  Location found;
  const std::int64_t x = shifted_target(s, tau);
  const std::int64_t i = last_existing(s, at, arrival_at, upper - 1, deadline);
  if (i >= 0) {
    found.i = i;
    found.since = minus(x, at(i));
    if (found.since == 0) {
      found.place = Place::exact;
      return found;
    }
  }
  const std::int64_t next = first_existing(s, at, arrival_at, upper, count, deadline);
  if (i < 0) {
    if (next == count) {
      found.place = Place::unarrived;
    } else {
      found.place = Place::gap;
      found.i = found.j = next;
      found.since = minus(x, at(next));
    }
  } else if (next == count) {
    found.place = found.since > s.max_gap ? Place::stale : Place::held;
  } else {
    found.j = last_equal_existing(s, at, arrival_at, next, count, deadline);
    found.span = minus(at(next), at(i));
    found.place = found.span > s.max_gap ? Place::gap : Place::between;
  }
  return found;
}

// `upper` is how many stamps are <= search_key.
template <class At, class ArrivalAt>
ROBOCACHE_HD Location locate(const StreamPlan& s, const At& at, const ArrivalAt& arrival_at, std::int64_t count,
                             std::int64_t upper, std::int64_t tau, std::int64_t deadline) {
  Location found;
  if (count == 0) return found;
  if constexpr (!std::is_same_v<ArrivalAt, NoArrivals>) {
    if (s.as_of) return locate_as_of(s, at, arrival_at, count, upper, tau, deadline);
  }
  const std::int64_t x = shifted_target(s, tau);
  std::int64_t i = upper - 1;
  if (s.causal) {
    if (!std::is_same_v<ArrivalAt, NoArrivals> && s.arrivals.data != nullptr) i = last_arrived(arrival_at, i, tau);
    if (i < 0) {
      found.place = Place::unarrived;
      return found;
    }
    found.i = i;
    found.since = minus(x, at(i));
    found.place = found.since > s.max_gap ? Place::stale : Place::held;
    return found;
  }
  if (i < 0) {
    found.place = Place::before;
    found.since = minus(x, at(0));
    return found;
  }
  found.i = i;
  const std::int64_t left = at(i);
  found.since = minus(x, left);
  if (found.since == 0) {
    found.place = Place::exact;
  } else if (i == count - 1) {
    found.place = Place::after;
  } else {
    const std::int64_t right = at(i + 1);
    found.j = i + 2 < count && at(i + 2) == right ? last_equal(at, i + 2, count) : i + 1;
    found.span = minus(right, left);
    found.place = found.span > s.max_gap ? Place::gap : Place::between;
  }
  return found;
}

// The sample that `nearest` picks: the earlier on a tie.
ROBOCACHE_HD std::int64_t nearest_sample(const Location& found) {
  if (found.place == Place::before) return 0;
  if (found.place != Place::gap && found.place != Place::between) return found.i;
  return found.since <= minus(found.span, found.since) ? found.i : found.j;
}

// The sample that an invalid value is clamped to: the nearest one, but hold never answers from a later sample unless
// there is no earlier one.
ROBOCACHE_HD std::int64_t clamped_sample(Method method, const Location& found) {
  return method == Method::hold && found.place != Place::before ? found.i : nearest_sample(found);
}

// Whether no sample exists for the target: the stream is empty, or nothing has arrived.
ROBOCACHE_HD bool has_no_sample(Place place) { return place == Place::empty || place == Place::unarrived; }

ROBOCACHE_HD double weight(const Location& found) {
  return found.place == Place::between ? static_cast<double>(found.since) / static_cast<double>(found.span) : 0.0;
}

// ---- bins --------------------------------------------------------------------------------------------------------

ROBOCACHE_HD bool is_bin(Method method) { return method >= Method::mean; }

// Samples [begin, end) by stamp; under causal and as_of those that have not arrived are left out one by one.
struct Bin {
  std::int64_t begin = 0, end = 0;
};

// ---- the marks ---------------------------------------------------------------------------------------------------

ROBOCACHE_HD std::int64_t age_of(const Location& found) { return has_no_sample(found.place) ? no_age : found.since; }

// ---- methods, element by element -----------------------------------------------------------------------------------

// linear, angle and cubic are for weights strictly inside (0, 1): at the ends a sample is copied (evaluate.h, copied_sample).
template <class C>
ROBOCACHE_HD C linear(C a, C b, C w) {
  return canonical(fused(w, b, fused(-w, a, a)));
}

template <class C>
ROBOCACHE_HD C full_turn(Method method) {
  return method == Method::angle ? C(6.283185307179586) : C(360);
}
template <class C>
ROBOCACHE_HD C wrap(C x, C turn) {
  return x - turn * floor_of((x + turn / C(2)) / turn);
}
template <class C>
ROBOCACHE_HD C angle(C a, C b, C w, C turn) {
  return canonical(fused(w, wrap(b - a, turn), a));
}

// The Hermite cubic as steps between neighbours p, a | b, q: a + before (a - p) + across (b - a) + after (q - b). A
// constant stays constant to the bit. A neighbour that is missing, or beyond a gap, makes its tangent one-sided.
struct Cubic {
  double before = 0, across = 0, after = 0;
};
// Whether an interval is under 1/16 of its neighbour. The tangent between the two is then the slope of the longer one: the
// slope over a tiny interval is mostly noise, and the parabola through all three points overshoots.
ROBOCACHE_HD bool is_tiny(std::int64_t interval, std::int64_t neighbour) { return interval <= ((neighbour - 1) >> 4); }
// The tangent at one end of an interval, times the interval: `outer` times the step over the interval beyond that end, and
// `own` times the step over the interval itself.
struct Tangent {
  double outer = 0, own = 1;
};
ROBOCACHE_HD Tangent parabola_tangent(double outer, double inner) {
  return {inner * inner / (outer * (outer + inner)), outer / (outer + inner)};
}
ROBOCACHE_HD_CALLED Tangent limited_tangent(std::int64_t outer, std::int64_t inner) {
  if (outer == 0) return {};
  const auto h_outer = static_cast<double>(outer);
  const auto h_inner = static_cast<double>(inner);
  if (is_tiny(inner, outer)) return {h_inner / h_outer, 0};
  return parabola_tangent(h_outer, h_inner);
}
// h_before and h_after are 0 where there is no such interval, it is beyond a gap, or it is tiny.
ROBOCACHE_HD Cubic cubic_steps(double w, std::int64_t h_before, std::int64_t h, std::int64_t h_after) {
  const double u = 1.0 - w;
  const double into_left = w * u * u;      // weight of h m_i
  const double into_right = -(w * w * u);  // weight of h m_j
  Tangent left;
  Tangent right;
  // In one piece where nothing is special, so that a compiler divides for both sides at once.
  if (h_before != 0 && h_after != 0 && !is_tiny(h, h_before) && !is_tiny(h, h_after)) {
    left = parabola_tangent(static_cast<double>(h_before), static_cast<double>(h));
    right = parabola_tangent(static_cast<double>(h_after), static_cast<double>(h));
  } else {
    left = limited_tangent(h_before, h);
    right = limited_tangent(h_after, h);
  }
  Cubic steps;
  steps.before = into_left * left.outer;
  steps.after = into_right * right.outer;
  steps.across = fused(into_right, right.own, fused(into_left, left.own, w * w * (3.0 - 2.0 * w)));
  return steps;
}
template <class C>
ROBOCACHE_HD C cubic(C p, C a, C b, C q, C before, C across, C after) {
  C value = after != C(0) ? fused(after, q - b, a) : a;  // a step of weight 0 is left out: it may be infinite
  value = fused(across, b - a, value);
  return canonical(before != C(0) ? fused(before, a - p, value) : value);
}
// The four samples of a cubic and its steps. p = i, q = j where there is no such neighbour, or its weight is 0.
struct CubicTaps {
  std::int64_t p = -1, q = -1;
  Cubic steps;
};
template <class At, class ArrivalAt>
ROBOCACHE_HD_CALLED void set_cubic_taps(const StreamPlan& s, const At& at, const ArrivalAt& arrival_at,
                                        std::int64_t count, const Location& found, std::int64_t deadline,
                                        CubicTaps& taps) {
  taps.p = found.i;
  taps.q = found.j;
  if (found.place != Place::between) return;
  std::int64_t h_before = 0;
  std::int64_t h_after = 0;
  std::int64_t before = found.i > 0 ? first_equal(at, found.i) - 1 : -1;
  if (s.as_of) before = last_existing(s, at, arrival_at, before, deadline);
  if (before >= 0) {
    const std::int64_t h = minus(at(found.i), at(before));
    if (h <= s.max_gap && !is_tiny(h, found.span)) {
      taps.p = before;
      h_before = h;
    }
  }
  std::int64_t after = found.j + 1;
  if (s.as_of) after = first_existing(s, at, arrival_at, after, count, deadline);
  if (after < count) {
    const std::int64_t next =
        s.as_of ? last_equal_existing(s, at, arrival_at, after, count, deadline) : last_equal(at, after, count);
    const std::int64_t h = minus(at(next), at(found.j));
    if (h <= s.max_gap && !is_tiny(h, found.span)) {
      taps.q = next;
      h_after = h;
    }
  }
  taps.steps = cubic_steps(weight(found), h_before, found.span, h_after);
}

ROBOCACHE_HD double dot4(const double (&a)[4], const double (&b)[4]) {
  return fused(a[3], b[3], fused(a[2], b[2], fused(a[1], b[1], a[0] * b[0])));
}
// False where the norm is 0 or not finite; q is then left as it was.
ROBOCACHE_HD bool normalise(double (&q)[4]) {
  const double norm = root(dot4(q, q));
  if (!(norm > 0) || !is_finite(norm)) return false;
  for (double& x : q) x = x / norm;
  return true;
}
// Along the great arc from one to the other, 0 < w. NaN where a norm is 0 or not finite. Where only one sample has a
// weight, that sample is normalised, or copied where its norm is 0 or not finite.
ROBOCACHE_HD_INLINED void slerp(const double (&from)[4], const double (&to)[4], double w, double (&out)[4]) {
  double a[4] = {from[0], from[1], from[2], from[3]};
  double b[4] = {to[0], to[1], to[2], to[3]};
  bool real = normalise(a);
  real = normalise(b) && real;
  double dot = dot4(a, b);
  if (dot < 0) {
    dot = -dot;
    for (double& x : b) x = -x;
  }
  if (dot > 1.0 - 1e-9) {
    for (int k = 0; k < 4; ++k) out[k] = fused(w, b[k], fused(-w, a[k], a[k]));
    real = normalise(out) && real;
  } else {
    const double theta = arc_cosine(dot);
    const double whole = sine(theta);
    const double from_a = sine(theta * (1.0 - w)) / whole;
    const double from_b = sine(theta * w) / whole;
    for (int k = 0; k < 4; ++k) out[k] = fused(from_b, b[k], from_a * a[k]);
  }
  if (!real) {
    for (double& x : out) x = quiet_nan<double>();
  }
}

}  // namespace ROBOCACHE_SIMD_TARGET
}  // namespace robocache::align_op
