// The gradient of one channel of one target: the samples that it goes to, and their factors. Shared by every backend.
// The order in which `add` is called is the order of the sum.
#pragma once

#include "ops/align/evaluate.h"

namespace robocache::align_op {
inline namespace ROBOCACHE_SIMD_TARGET {

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

// The gradient of slerp with respect to one component of either end; 0 where slerp has no value. The ends are
// normalised to u and v, the result is A u + B v, and A and B depend on u and v through their dot product. At w = 0
// the result is u, or a copy where `from` cannot be normalised.
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
  if (!normalise(u) || (w != 0.0 && !normalise(v))) {
    if (w == 0.0) gradient.from = g[component];
    return gradient;
  }
  double du[4] = {g[0], g[1], g[2], g[3]};  // with respect to u and v
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

// A value as a weighted sum of samples: p, a, b and q of a Resolved, in this order; -1: not used. known = false: the
// value is not such a sum, use spread().
struct Weights {
  static constexpr int most = 4;
  bool known = true;
  std::int32_t samples[most] = {-1, -1, -1, -1};
  double factors[most] = {};
};
template <class T>
ROBOCACHE_HD Weights weights_of(const Resolved<T>& resolved, Method method) {
  Weights weights;
  if (resolved.kind == Resolved<T>::Kind::copy) {
    weights.known = method != Method::slerp;
    weights.samples[1] = resolved.a;
    weights.factors[1] = 1.0;
  } else if (resolved.kind == Resolved<T>::Kind::compute) {
    weights.known = method != Method::slerp && !is_bin(method);
    const auto w = static_cast<double>(static_cast<compute_t<T>>(resolved.w));
    weights.samples[1] = resolved.a;
    weights.factors[1] = 1.0 - w;
    weights.samples[2] = resolved.b;
    weights.factors[2] = w;
    if (method == Method::cubic) {
      const auto before = static_cast<double>(resolved.before);
      const auto across = static_cast<double>(resolved.across);
      const auto after = static_cast<double>(resolved.after);
      weights.samples[0] = resolved.p != resolved.a ? resolved.p : -1;
      weights.factors[0] = -before;
      weights.factors[1] = 1.0 + before - across;
      weights.factors[2] = across - after;
      weights.samples[3] = resolved.q != resolved.b ? resolved.q : -1;
      weights.factors[3] = after;
    }
  }
  return weights;
}

// The range of samples [first, last] that a Resolved may use; last < first: none.
struct Reach {
  std::int64_t first = std::numeric_limits<std::int64_t>::max(), last = -1;
};
template <class T>
ROBOCACHE_HD Reach reach_of(const Resolved<T>& resolved, Method method) {
  if (resolved.kind == Resolved<T>::Kind::copy) return {resolved.first + resolved.a, resolved.first + resolved.a};
  if (resolved.kind != Resolved<T>::Kind::compute) return {};
  if (is_bin(method)) return {resolved.first + resolved.a, resolved.first + resolved.b - 1};
  if (method == Method::cubic) return {resolved.first + resolved.p, resolved.first + resolved.q};
  return {resolved.first + resolved.a, resolved.first + resolved.b};
}

// Calls add(sample, gradient) for each sample of the row that channel d was made from, where weights_of() does not
// know the weights.
template <class T, class Add>
ROBOCACHE_HD_CALLED void spread(const StreamPlan& s, const Range& range, const Resolved<T>& resolved, std::int64_t d,
                                const Add& add) {
  const Samples<T> samples(s, resolved.values);
  const StampsAt at{&s.times, resolved.times};
  const StampsAt arrival_at{&s.arrivals, resolved.arrivals};
  const double g = output_gradient<T>(s, resolved.out + channel_offset(s.out_channels, d));
  if (range.method == Method::slerp) {
    const std::int64_t group = d - (d - range.begin) % 4;
    const bool copies = resolved.kind == Resolved<T>::Kind::copy;
    double from[4];
    double to[4];
    double upstream[4];
    get_group(samples, resolved.a, group, from);
    get_group(samples, copies ? resolved.a : resolved.b, group, to);
    for (int c = 0; c < 4; ++c) {
      upstream[c] = output_gradient<T>(s, resolved.out + channel_offset(s.out_channels, group + c));
    }
    const SlerpGradient gradient = slerp_gradient(from, to, resolved.w, upstream, static_cast<int>(d - group));
    add(resolved.a, gradient.from);
    if (!copies) add(resolved.b, gradient.to);
  } else if (range.method == Method::mean) {
    const auto counted = [&](std::int64_t k) {
      return all_count(s) || counts(s, samples, range, at, arrival_at, k, resolved.deadline);
    };
    std::int64_t count = 0;
    for (std::int64_t k = resolved.a; k < resolved.b; ++k) count += counted(k) ? 1 : 0;
    const double share = g / static_cast<double>(count);
    for (std::int64_t k = resolved.a; k < resolved.b; ++k) {
      if (counted(k)) add(k, share);
    }
  } else {
    Target target;
    target.deadline = resolved.deadline;
    target.bin = {resolved.a, resolved.b};
    add(picked(s, samples, range, at, arrival_at, target, d), g);
  }
}

}  // namespace ROBOCACHE_SIMD_TARGET
}  // namespace robocache::align_op
