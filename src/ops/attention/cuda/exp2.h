// The softmax works in base 2: weights by ex2, maxima in units of log2.
#pragma once

#include "core/arithmetic.h"

namespace robocache::attention_op {
namespace {

constexpr float log2_e = 1.4426950408889634f;
constexpr float ln_2 = 0.6931471805599453f;

__device__ float minus_infinity() { return __int_as_float(static_cast<int>(0xff800000u)); }
__device__ float exp2_approx(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// The probability of a score, in the backward pass: lse is in units of log2. The exponent is clamped to 1: a probability is at
// most a little over 1, and behind the last key, where scores are 0, it stays finite. A NaN stays NaN.
__device__ float probability(float score, float scale, float lse) {
  float exponent;
  asm("min.NaN.f32 %0, %1, 0f3f800000;" : "=f"(exponent) : "f"(fmaf(score, scale, -lse)));
  return exp2_approx(exponent);
}

}  // namespace
}  // namespace robocache::attention_op
