// The gradient of one channel of one target: which samples it goes to, with which factors. Shared by every backend; the
// order in which `add` is called is the order of the sum.
#pragma once

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

// Of slerp, with respect to one component of either end; 0 where slerp has no value. The ends are normalised to u and v,
// the result is A u + B v, and A and B depend on u and v through their dot product.
struct SlerpGradient {
  double from = 0, to = 0;
};
ROBOCACHE_HD_CALLED SlerpGradient slerp_gradient(const double (&from)[4], const double (&to)[4], double w,
                                                 const double (&g)[4], int component) {
  double u[4] = {from[0], from[1], from[2], from[3]};
  double v[4] = {to[0], to[1], to[2], to[3]};
  const double u_norm = root(dot4(u, u));
  const double v_norm = root(dot4(v, v));
  SlerpGradient gradient;
  if (!normalise(u) || (w != 0.0 && !normalise(v))) return gradient;
  double du[4] = {g[0], g[1], g[2], g[3]};  // with respect to u and v; at w = 0 the result is u
  double dv[4] = {0, 0, 0, 0};
  double sign = 1;
  if (w != 0.0) {
    double dot = dot4(u, v);
    if (dot < 0) {
      sign = -1;
      dot = -dot;
      for (double& x : v) x = -x;
    }
    if (dot > 1.0 - 1e-9) {  // the linear mix z, normalised
      double z[4];
      for (int c = 0; c < 4; ++c) z[c] = fused(w, v[c], fused(-w, u[c], u[c]));
      const double z_norm = root(dot4(z, z));
      for (double& x : z) x = x / z_norm;
      const double along = dot4(g, z);
      for (int c = 0; c < 4; ++c) {
        const double dz = (g[c] - along * z[c]) / z_norm;
        du[c] = (1.0 - w) * dz;
        dv[c] = w * dz;
      }
    } else {
      const double theta = arc_cosine(dot);
      const double whole = sine(theta);
      const double sine_a = sine(theta * (1.0 - w));
      const double sine_b = sine(theta * w);
      const double cosine_a = root(1.0 - sine_a * sine_a);  // the angles are at most a right one
      const double cosine_b = root(1.0 - sine_b * sine_b);
      // Derivatives by the dot product, of which theta's is -1 / sine(theta).
      const double cube = whole * whole * whole;
      const double da = (sine_a * dot - (1.0 - w) * cosine_a * whole) / cube;
      const double db = (sine_b * dot - w * cosine_b * whole) / cube;
      const double by_dot = da * dot4(g, u) + db * dot4(g, v);
      for (int c = 0; c < 4; ++c) {
        du[c] = sine_a / whole * g[c] + by_dot * v[c];
        dv[c] = sine_b / whole * g[c] + by_dot * u[c];
      }
    }
  }
  gradient.from = (du[component] - dot4(du, u) * u[component]) / u_norm;
  if (w != 0.0) gradient.to = sign * ((dv[component] - dot4(dv, v) * v[component]) / v_norm);
  return gradient;
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
      const std::int64_t group = d - (d - range.begin) % 4;
      double from[4];
      double to[4];
      double upstream[4];
      const bool between = found.place == Place::between;
      for (int c = 0; c < 4; ++c) {
        from[c] = static_cast<double>(widen(samples(found.i, group + c)));
        to[c] = between ? static_cast<double>(widen(samples(found.j, group + c))) : from[c];
        upstream[c] = output_gradient<T>(s, out + channel_offset(s.out_channels, group + c));
      }
      const SlerpGradient gradient = slerp_gradient(from, to, weight(found), upstream, static_cast<int>(d - group));
      add(found.i, gradient.from);
      if (between) add(found.j, gradient.to);
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
