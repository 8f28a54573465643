// Evaluates one method range at one target: whether it is valid, which samples it takes, and the value of each
// channel. Scalar code for host and device: the reference backend is loops around it, and the fast backends call it
// where they have nothing faster.
#pragma once

#include "ops/align/math.h"

namespace robocache::align_op {
inline namespace ROBOCACHE_SIMD_TARGET {

// The stamps or arrivals of one row.
struct StampsAt {
  const Stamps* stamps;
  std::int64_t offset;
  ROBOCACHE_HD std::int64_t operator()(std::int64_t k) const { return stamp(*stamps, offset + k * stamps->stride); }
  ROBOCACHE_HD StampsAt from(std::int64_t k) const { return {stamps, offset + k * stamps->stride}; }
};

// The values of one row.
template <class T>
struct Samples {
  const T* data;
  const StreamPlan* plan;
  ROBOCACHE_HD Samples(const StreamPlan& s, const T* first) : data(first), plan(&s) {}
  ROBOCACHE_HD Samples(const StreamPlan& s, const Row& row)
      : Samples(s, static_cast<const T*>(s.values) + row.values_offset) {}
  ROBOCACHE_HD T operator()(std::int64_t sample, std::int64_t d) const {
    return data[sample * plan->sample_stride + channel_offset(plan->channels, d)];
  }
};

// Everything about one target that its ranges share.
struct Target {
  std::int64_t tau = 0;
  std::int64_t deadline = 0;  // deadline_of()
  Location found;
  Bin bin;
};

template <class At, class ArrivalAt>
ROBOCACHE_HD bool has_arrived(const StreamPlan& s, const At& at, const ArrivalAt& arrival_at, std::int64_t k,
                              std::int64_t deadline) {
  return !(s.causal || s.as_of) || (s.arrivals.data != nullptr ? arrival_at(k) : at(k)) <= deadline;
}

// Where target t of row b falls; a backend that has searched already gives `upper`, how many stamps are <= search_key.
template <class At, class ArrivalAt>
ROBOCACHE_HD Target target_at(const StreamPlan& s, const TargetPlan& targets, const At& at, const ArrivalAt& arrival_at,
                              std::int64_t count, std::int64_t b, std::int64_t t, std::int64_t tau,
                              std::int64_t deadline, std::int64_t upper) {
  Target here;
  here.tau = tau;
  here.deadline = deadline;
  here.found = locate(s, at, arrival_at, count, upper, tau, deadline);
  if (s.bins) {
    const std::int64_t previous = shifted_target(s, previous_target(targets, b, t));
    here.bin = {upper_bound_about(at, upper, upper, previous), upper};
  }
  return here;
}
template <class At, class ArrivalAt>
ROBOCACHE_HD Target target_at(const StreamPlan& s, const TargetPlan& targets, const At& at, const ArrivalAt& arrival_at,
                              std::int64_t count, std::int64_t b, std::int64_t t) {
  const std::int64_t tau = target(targets, b, t);
  const std::int64_t deadline = deadline_of(s, b, tau);
  const std::int64_t upper = upper_bound(at, 0, count, search_key(s, tau, deadline));
  return target_at(s, targets, at, arrival_at, count, b, t, tau, deadline, upper);
}

// Channels d .. d + 3 of a sample.
template <class T>
ROBOCACHE_HD void get_group(const Samples<T>& samples, std::int64_t k, std::int64_t d, double (&q)[4]) {
  for (int c = 0; c < 4; ++c) q[c] = static_cast<double>(widen(samples(k, d + c)));
}

template <class T>
ROBOCACHE_HD_CALLED bool sample_is_finite(const Samples<T>& samples, const Range& range, std::int64_t k) {
  if constexpr (is_float_type<T>) {
    for (std::int64_t d = range.begin; d < range.end; ++d) {
      if (!is_finite(widen(samples(k, d)))) return false;
    }
    if (range.method == Method::slerp) {
      for (std::int64_t d = range.begin; d < range.end; d += 4) {
        double q[4];
        get_group(samples, k, d, q);
        if (!normalise(q)) return false;
      }
    }
  }
  return true;
}

// Whether sample k of a bin counts.
template <class T, class At, class ArrivalAt>
ROBOCACHE_HD bool counts(const StreamPlan& s, const Samples<T>& samples, const Range& range, const At& at,
                         const ArrivalAt& arrival_at, std::int64_t k, std::int64_t deadline) {
  return has_arrived(s, at, arrival_at, k, deadline) &&
         (s.on_nan == OnNan::propagate || sample_is_finite(samples, range, k));
}

// Whether all samples of a bin count, so that counts() need not be called.
ROBOCACHE_HD bool all_count(const StreamPlan& s) { return !s.causal && !s.as_of && s.on_nan == OnNan::propagate; }

// The verdict on a range at a target.
struct Verdict {
  bool valid = false;
  std::int64_t source = -1;  // the sample to copy where the value is a copy; -1: none, the value is NaN or 0
  std::int64_t index = -1;
  CubicTaps cubic;
};

// The sample that a valid, interpolating range copies bit for bit (slerp: normalises); -1 where it mixes several.
template <class C>
ROBOCACHE_HD std::int64_t copied_sample(Method method, const Location& found, C w) {
  if (method == Method::nearest) return nearest_sample(found);
  if (found.place == Place::held || method == Method::hold) return found.i;
  if (method == Method::slerp) return found.place == Place::between ? -1 : found.i;  // its weight is not rounded to C
  if (w == C(0)) return found.i;
  return w == C(1) && (method == Method::linear || method == Method::cubic) ? found.j : -1;
}

template <class T, class At, class ArrivalAt>
ROBOCACHE_HD_INLINED Verdict judge(const StreamPlan& s, const Samples<T>& samples, const Range& range, const At& at,
                                   const ArrivalAt& arrival_at, std::int64_t count, const Target& target) {
  using C = compute_t<T>;
  const Location& found = target.found;
  Verdict verdict;
  if (is_bin(range.method)) {
    const bool all = all_count(s);
    const auto counted = [&](std::int64_t k) {
      return all || counts(s, samples, range, at, arrival_at, k, target.deadline);
    };
    if (range.method == Method::last) {
      std::int64_t k = target.bin.end - 1;
      while (k >= target.bin.begin && !counted(k)) --k;
      verdict.valid = k >= target.bin.begin;
      if (verdict.valid) verdict.source = verdict.index = k;
    } else {
      for (std::int64_t k = target.bin.begin; k < target.bin.end && !verdict.valid; ++k) verdict.valid = counted(k);
      if (verdict.valid) verdict.index = found.i;
    }
    if (verdict.valid) return verdict;
    std::int64_t before = target.bin.begin - 1;
    if ((s.causal || s.as_of) && s.arrivals.data != nullptr) {  // otherwise all samples before the bin had arrived
      before = last_arrived(arrival_at, before, target.deadline);
    }
    if (before < 0 && s.as_of) {  // the first sample that exists
      const std::int64_t first = first_existing(s, at, arrival_at, target.bin.begin, count, target.deadline);
      before = first < count ? first : -1;
    }
    if (before < 0 && !s.causal && !s.as_of && count > 0) before = 0;
    verdict.source = before;
  } else {
    if (has_no_sample(found.place)) return verdict;
    const auto w = static_cast<C>(weight(found));
    verdict.valid = is_valid(found.place);
    if (range.method == Method::cubic) {
      set_cubic_taps(s, at, arrival_at, count, found, target.deadline, verdict.cubic);
    }
    const std::int64_t copied = copied_sample(range.method, found, w);
    if (verdict.valid && s.on_nan == OnNan::skip) {
      if (copied >= 0 || found.place != Place::between) {
        verdict.valid = sample_is_finite(samples, range, copied >= 0 ? copied : found.i);
      } else {
        verdict.valid = sample_is_finite(samples, range, found.i) && sample_is_finite(samples, range, found.j);
        if (range.method == Method::cubic) {
          verdict.valid = verdict.valid && sample_is_finite(samples, range, verdict.cubic.p) &&
                          sample_is_finite(samples, range, verdict.cubic.q);
        }
      }
    }
    if (verdict.valid) {
      verdict.index = range.method == Method::nearest ? copied : found.i;
      verdict.source = copied;
      return verdict;
    }
    verdict.source = clamped_sample(range.method, found);
  }
  // Not valid: the edge decides. If the stream is empty or nothing has arrived, this function has returned above
  // without a source.
  if (s.edge != Edge::clamp) verdict.source = -1;
  verdict.index = verdict.source;
  return verdict;
}

// Whether a value without a source is NaN. Under clamp it is 0, since a NaN that is masked out is still NaN in a loss.
ROBOCACHE_HD bool fills_nan(const StreamPlan& s) { return s.edge == Edge::nan; }

// A range at a target, resolved to the samples and weights that every channel uses. A GPU computes it once for a
// target and keeps it in memory for all channels.
template <class T>
struct Resolved {
  enum class Kind : std::uint8_t { zero, nan, copy, compute };
  const T* values = nullptr;             // of the row's first sample
  std::int64_t times = 0, arrivals = 0;  // offsets of its stamps
  std::int64_t first = 0;                // first_sample()
  std::int64_t out = 0;                  // offset of the target in the output
  std::int64_t deadline = 0;
  std::int32_t a = 0, b = 0, p = 0, q = 0;  // samples: a is copied, a and b mixed, p and q a cubic's; a bin is [a, b)
  double w = 0;
  compute_t<T> before = 0, across = 0, after = 0;
  Kind kind = Kind::zero;
};
// The number of a row's first sample among all samples in memory.
ROBOCACHE_HD std::int64_t first_sample(const StreamPlan& s, const Row& row) {
  return s.offsets.data != nullptr ? row.first : row.segment * s.samples;
}

// Set field by field: a GPU would copy a whole struct byte by byte.
template <class T>
ROBOCACHE_HD void resolve(Resolved<T>& resolved, const StreamPlan& s, const Range& range, const Row& row,
                          const Target& target, const Verdict& verdict, std::int64_t b, std::int64_t t) {
  using C = compute_t<T>;
  using Kind = typename Resolved<T>::Kind;
  const bool bin = is_bin(range.method);
  const bool copies = verdict.source >= 0;
  const std::int64_t i = bin ? target.bin.begin : target.found.i;
  const std::int64_t j = bin ? target.bin.end : (target.found.place == Place::between ? target.found.j : i);
  resolved.values = static_cast<const T*>(s.values) + row.values_offset;
  resolved.times = row.times_offset;
  resolved.arrivals = row.arrivals_offset;
  resolved.first = first_sample(s, row);
  resolved.out = b * s.out_row_stride + t * s.out_target_stride;
  resolved.deadline = target.deadline;
  resolved.a = static_cast<std::int32_t>(copies ? verdict.source : i);
  resolved.b = static_cast<std::int32_t>(j);
  resolved.p = static_cast<std::int32_t>(verdict.cubic.p);
  resolved.q = static_cast<std::int32_t>(verdict.cubic.q);
  resolved.w = copies ? 0.0 : weight(target.found);
  resolved.before = static_cast<C>(verdict.cubic.steps.before);
  resolved.across = static_cast<C>(verdict.cubic.steps.across);
  resolved.after = static_cast<C>(verdict.cubic.steps.after);
  const Kind filled = fills_nan(s) ? Kind::nan : Kind::zero;
  resolved.kind = copies ? Kind::copy : (verdict.valid ? Kind::compute : filled);
}

// The mean of channel d over the bin, before it is rounded.
template <class T, class At, class ArrivalAt>
ROBOCACHE_HD_CALLED double mean_of(const StreamPlan& s, const Samples<T>& samples, const Range& range, const At& at,
                                   const ArrivalAt& arrival_at, const Target& target, std::int64_t d) {
  double sum = -0.0;
  double partial = -0.0;
  std::int64_t counted = 0;
  for (std::int64_t k = target.bin.begin; k < target.bin.end; ++k) {
    if (!all_count(s) && !counts(s, samples, range, at, arrival_at, k, target.deadline)) continue;
    partial += static_cast<double>(widen(samples(k, d)));
    if (++counted % mean_chunk != 0) continue;
    sum += partial;
    partial = -0.0;
  }
  sum += partial;
  return sum / static_cast<double>(counted);
}

// linear, angle or cubic of channel d, where neither end is copied.
template <class T>
ROBOCACHE_HD compute_t<T> interpolate(const Samples<T>& samples, Method method, const Location& found,
                                      const CubicTaps& taps, std::int64_t d) {
  using C = compute_t<T>;
  const auto w = static_cast<C>(weight(found));
  const C a = widen(samples(found.i, d));
  const C b = widen(samples(found.j, d));
  if (method == Method::linear) return linear(a, b, w);
  if (method == Method::cubic) {
    return cubic(widen(samples(taps.p, d)), a, b, widen(samples(taps.q, d)), static_cast<C>(taps.steps.before),
                 static_cast<C>(taps.steps.across), static_cast<C>(taps.steps.after));
  }
  return angle(a, b, w, full_turn<C>(method));
}

// The sample that max and min take for channel d.
template <class T, class At, class ArrivalAt>
ROBOCACHE_HD_CALLED std::int64_t picked(const StreamPlan& s, const Samples<T>& samples, const Range& range,
                                        const At& at, const ArrivalAt& arrival_at, const Target& target,
                                        std::int64_t d) {
  std::int64_t best = -1;
  std::int64_t best_order = 0;
  for (std::int64_t k = target.bin.begin; k < target.bin.end; ++k) {
    if (!all_count(s) && !counts(s, samples, range, at, arrival_at, k, target.deadline)) continue;
    const std::int64_t order = order_of(range.method == Method::max, samples(k, d));
    if (best < 0 || order > best_order) {
      best = k;
      best_order = order;
    }
  }
  return best;
}

// Channels d .. d + 3 of a slerp range: of the sample `source`, or between two where that is -1. False where they are to be
// copied, because the norm of `source` is 0 or not finite.
template <class T>
ROBOCACHE_HD_CALLED bool slerp_group(const Samples<T>& samples, const Location& found, std::int64_t source,
                                     std::int64_t d, double (&out)[4]) {
  if (source >= 0) {
    get_group(samples, source, d, out);
    return normalise(out);
  }
  double a[4];
  double b[4];
  get_group(samples, found.i, d, a);
  get_group(samples, found.j, d, b);
  slerp(a, b, weight(found), out);
  return true;
}

// Copies one element as it is, or rounds it once into another dtype.
template <class T>
ROBOCACHE_HD void store_copy(const StreamPlan& s, std::int64_t offset, T x) {
  if (s.out_dtype == s.dtype) {
    static_cast<T*>(s.out)[offset] = x;
  } else {
    store_as(s.out_dtype, s.out, offset, x);
  }
}

// Writes channel d of a range, at `out` elements from s.out; slerp writes the 4 channels from d.
template <class T, class At, class ArrivalAt>
ROBOCACHE_HD void write_channel(const StreamPlan& s, const Samples<T>& samples, const Range& range, const At& at,
                                const ArrivalAt& arrival_at, const Target& target, const Verdict& verdict,
                                std::int64_t d, std::int64_t out) {
  using C = compute_t<T>;
  const std::int64_t offset = out + channel_offset(s.out_channels, d);
  if constexpr (is_float_type<T>) {
    double q[4];
    if (range.method == Method::slerp && (verdict.valid || verdict.source >= 0) &&
        slerp_group(samples, target.found, verdict.source, d, q)) {
      for (int c = 0; c < 4; ++c) {
        store_as(s.out_dtype, s.out, out + channel_offset(s.out_channels, d + c), q[c]);
      }
      return;
    }
  }
  if (!verdict.valid || verdict.source >= 0) {
    const int channels = range.method == Method::slerp ? 4 : 1;
    for (int c = 0; c < channels; ++c) {
      const std::int64_t here = c == 0 ? offset : out + channel_offset(s.out_channels, d + c);
      if (verdict.source >= 0) {
        store_copy(s, here, samples(verdict.source, d + c));
      } else if constexpr (is_float_type<T>) {
        store_as(s.out_dtype, s.out, here, fills_nan(s) ? quiet_nan<C>() : C(0));
      } else {
        store_as(s.out_dtype, s.out, here, T(0));
      }
    }
    return;
  }
  if (range.method == Method::max || range.method == Method::min) {
    store_copy(s, offset, samples(picked(s, samples, range, at, arrival_at, target, d), d));
    return;
  }
  if constexpr (is_float_type<T>) {
    if (range.method == Method::mean) {
      store_as(s.out_dtype, s.out, offset, mean_of(s, samples, range, at, arrival_at, target, d));
    } else {
      store_as(s.out_dtype, s.out, offset, interpolate(samples, range.method, target.found, verdict.cubic, d));
    }
  }
}

ROBOCACHE_HD void write_marks(const StreamPlan& s, std::int64_t b, std::int64_t t, bool valid, std::int64_t age,
                              std::int64_t index) {
  const auto at = [&](const StreamPlan::Mark& mark) { return b * mark.row_stride + t * mark.target_stride; };
  if (s.valid.data != nullptr) static_cast<std::uint8_t*>(s.valid.data)[at(s.valid)] = valid ? 1 : 0;
  if (s.age.data != nullptr) static_cast<std::int64_t*>(s.age.data)[at(s.age)] = age;
  if (s.index.data != nullptr) static_cast<std::int64_t*>(s.index.data)[at(s.index)] = index;
}

}  // namespace ROBOCACHE_SIMD_TARGET
}  // namespace robocache::align_op
