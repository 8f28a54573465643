// The gradient of one channel of one target: which samples it goes to, with which factors. Shared by every backend; the
// order in which `add` is called is the order of the sum.
#pragma once

#include "core/dual.h"
#include "ops/align/range.h"

namespace robocache::align_op {
inline namespace ROBOCACHE_SIMD_TARGET {

// Of sample 0 of a row, counted in samples from the start of the (dense) gradient.
ROBOCACHE_HD std::int64_t first_sample(const StreamPlan& s, const Row& row) {
  return s.offsets.data != nullptr ? row.first : row.segment * s.samples;
}

template <class T>
ROBOCACHE_HD double output_gradient(const StreamPlan& s, std::int64_t offset) {
  switch (s.out_dtype) {
    case DType::f16:
      return static_cast<double>(widen(static_cast<const f16*>(s.out)[offset]));
    case DType::bf16:
      return static_cast<double>(widen(static_cast<const bf16*>(s.out)[offset]));
    case DType::f32:
      return static_cast<double>(static_cast<const float*>(s.out)[offset]);
    default:
      return static_cast<const double*>(s.out)[offset];
  }
}

// Calls add(sample, gradient) for each sample that channel d of this target was made from.
template <class T, class At, class ArrivalAt, class Add>
ROBOCACHE_HD_CALLED void spread(const StreamPlan& s, const Samples<T>& samples, const Range& range, const At& at,
                                const ArrivalAt& arrival_at, const Target& target, const Verdict& verdict,
                                std::int64_t d, std::int64_t out, const Add& add) {
  using C = compute_t<T>;
  if (!verdict.valid && verdict.source < 0) return;
  const double g = output_gradient<T>(s, out + channel_offset(s.out_channels, d));
  if (verdict.source >= 0) {
    add(verdict.source, g);
    return;
  }
  const Location& found = target.found;
  const auto w = static_cast<double>(static_cast<C>(weight(found)));
  switch (range.method) {
    case Method::mean: {
      std::int64_t counted = 0;
      for (std::int64_t k = target.bin.begin; k < target.bin.end; ++k) {
        if (counts(s, samples, range, at, arrival_at, k, target.tau)) ++counted;
      }
      const double share = g / static_cast<double>(counted);
      for (std::int64_t k = target.bin.begin; k < target.bin.end; ++k) {
        if (counts(s, samples, range, at, arrival_at, k, target.tau)) add(k, share);
      }
      return;
    }
    case Method::max:
    case Method::min:
    case Method::last:
      add(picked(s, samples, range, at, arrival_at, target, d), g);
      return;
    case Method::cubic: {
      const CubicTaps& taps = verdict.cubic;
      const auto before = static_cast<double>(static_cast<C>(taps.steps.before));
      const auto across = static_cast<double>(static_cast<C>(taps.steps.across));
      const auto after = static_cast<double>(static_cast<C>(taps.steps.after));
      if (taps.p != found.i) add(taps.p, -before * g);
      add(found.i, (1.0 + before - across) * g);
      add(found.j, (across - after) * g);
      if (taps.q != found.j) add(taps.q, after * g);
      return;
    }
    case Method::slerp: {
      // Channel d as an input: the derivative of all four outputs along it, times their gradients.
      const std::int64_t group = d - (d - range.begin) % 4;
      const bool between = found.place == Place::between;
      for (int tap = 0; tap < (between ? 2 : 1); ++tap) {
        Dual a[4];
        Dual b[4];
        for (int c = 0; c < 4; ++c) {
          const double along = group + c == d ? 1.0 : 0.0;
          a[c] = Dual(static_cast<double>(widen(samples(found.i, group + c))), tap == 0 ? along : 0.0);
          b[c] = between ? Dual(static_cast<double>(widen(samples(found.j, group + c))), tap == 1 ? along : 0.0) : a[c];
        }
        Dual q[4];
        slerp(a, b, weight(found), q);
        double sum = 0;
        for (int c = 0; c < 4; ++c) {
          sum += q[c].slope * output_gradient<T>(s, out + channel_offset(s.out_channels, group + c));
        }
        add(tap == 0 ? found.i : found.j, sum);
      }
      return;
    }
    default:  // linear and the angles
      add(found.i, (1.0 - w) * g);
      add(found.j, w * g);
      return;
  }
}

}  // namespace ROBOCACHE_SIMD_TARGET
}  // namespace robocache::align_op
