// The exponential of a vector of float32.
#pragma once

#include "ops/attention/cpu/product.h"

namespace robocache::attention_op {
inline namespace ROBOCACHE_SIMD_TARGET {
namespace {

// exp(x) within 2 units in the last place. It is 0 where the result is below the smallest normal number, exactly 1 for 0, and
// NaN for NaN.
HWY_INLINE Vector exponential(Vector x) {
  const Floats d;
  const hn::Rebind<std::int32_t, Floats> whole;
  constexpr float lowest = -87.33654F;
  constexpr float highest = 88.37626F;
  const auto vanishes = hn::Lt(x, hn::Set(d, lowest));
  x = hn::Max(hn::Set(d, lowest), hn::Min(hn::Set(d, highest), x));  // this order keeps a NaN
  const auto power = hn::NearestInt(hn::Mul(x, hn::Set(d, 1.44269504F)));
  const Vector n = hn::ConvertTo(d, power);
  // ln 2 in two parts. The first has trailing zeros, so that its product with n is exact.
  const Vector r = hn::NegMulAdd(n, hn::Set(d, -2.12194440e-4F), hn::NegMulAdd(n, hn::Set(d, 0.693359375F), x));
  Vector sum = hn::Set(d, 1.9875691500e-4F);  // Cephes, expf
  sum = hn::MulAdd(sum, r, hn::Set(d, 1.3981999507e-3F));
  sum = hn::MulAdd(sum, r, hn::Set(d, 8.3334519073e-3F));
  sum = hn::MulAdd(sum, r, hn::Set(d, 4.1665795894e-2F));
  sum = hn::MulAdd(sum, r, hn::Set(d, 1.6666665459e-1F));
  sum = hn::MulAdd(sum, r, hn::Set(d, 5.0000001201e-1F));
  sum = hn::Add(hn::MulAdd(sum, hn::Mul(r, r), r), hn::Set(d, 1.0F));
  const auto scale = hn::BitCast(d, hn::ShiftLeft<23>(hn::Add(power, hn::Set(whole, 127))));
  return hn::IfThenZeroElse(vanishes, hn::Mul(sum, scale));
}
HWY_INLINE float exponential(float x) { return hn::GetLane(exponential(hn::Set(Floats(), x))); }

}  // namespace
}  // namespace ROBOCACHE_SIMD_TARGET
}  // namespace robocache::attention_op
