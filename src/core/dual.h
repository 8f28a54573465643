// Dual numbers: arithmetic.h's functions run on them give a directional derivative beside the value.
#pragma once

#include "core/arithmetic.h"

namespace robocache {
inline namespace ROBOCACHE_SIMD_TARGET {

struct Dual {
  double value = 0, slope = 0;
  ROBOCACHE_HD explicit Dual(double v = 0, double s = 0) : value(v), slope(s) {}
};
ROBOCACHE_HD Dual operator+(Dual a, Dual b) { return Dual(a.value + b.value, a.slope + b.slope); }
ROBOCACHE_HD Dual operator-(Dual a, Dual b) { return Dual(a.value - b.value, a.slope - b.slope); }
ROBOCACHE_HD Dual operator*(Dual a, Dual b) { return Dual(a.value * b.value, a.value * b.slope + a.slope * b.value); }
ROBOCACHE_HD Dual operator/(Dual a, Dual b) {
  const double q = a.value / b.value;
  return Dual(q, (a.slope - q * b.slope) / b.value);
}
ROBOCACHE_HD Dual fused(Dual a, Dual b, Dual c) {
  return Dual(fused(a.value, b.value, c.value), a.value * b.slope + a.slope * b.value + c.slope);
}
ROBOCACHE_HD Dual root(Dual a) {
  const double r = root(a.value);
  return Dual(r, a.slope / (2.0 * r));
}
ROBOCACHE_HD double plain(Dual a) { return a.value; }

}  // namespace ROBOCACHE_SIMD_TARGET
}  // namespace robocache
