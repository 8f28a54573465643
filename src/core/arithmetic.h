// Arithmetic that is equal to the bit on host and device: half types, canonical NaN, exact conversions, and the
// trigonometry we need, built from operations that IEEE 754 rounds correctly.
//
// Everything lives in an inline namespace named after the SIMD target that compiles it, so that a function compiled
// with wide instructions can never be linked into code for a narrower CPU.
#pragma once

#include <robocache/tensor.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

#if defined(__CUDACC__)
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#define ROBOCACHE_HD __host__ __device__ __forceinline__
#define ROBOCACHE_HD_CALLED inline __host__ __device__ __noinline__  // large, or called from many places
#define ROBOCACHE_HD_INLINED ROBOCACHE_HD  // large, but a call on a GPU would pass its arguments through local memory
#else
#define ROBOCACHE_HD inline __attribute__((always_inline))
#define ROBOCACHE_HD_CALLED inline
#define ROBOCACHE_HD_INLINED inline
#endif
#ifndef ROBOCACHE_SIMD_TARGET
#define ROBOCACHE_SIMD_TARGET baseline
#endif

namespace robocache {
inline namespace ROBOCACHE_SIMD_TARGET {

struct f16 {
  std::uint16_t bits;
};
struct bf16 {
  std::uint16_t bits;
};

template <class To, class From>
ROBOCACHE_HD To bit_copy(const From& from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  memcpy(&to, &from, sizeof(To));
  return to;
}

ROBOCACHE_HD float fused(float a, float b, float c) { return ::fmaf(a, b, c); }
ROBOCACHE_HD double fused(double a, double b, double c) { return ::fma(a, b, c); }
ROBOCACHE_HD double root(double x) { return ::sqrt(x); }
ROBOCACHE_HD float floor_of(float x) { return ::floorf(x); }
ROBOCACHE_HD double floor_of(double x) { return ::floor(x); }

// Not std::isnan: a compiler may not fold these away.
ROBOCACHE_HD bool is_nan(float x) { return (bit_copy<std::uint32_t>(x) & 0x7fffffffu) > 0x7f800000u; }
ROBOCACHE_HD bool is_nan(double x) {
  return (bit_copy<std::uint64_t>(x) & 0x7fffffffffffffffull) > 0x7ff0000000000000ull;
}
ROBOCACHE_HD bool is_finite(float x) { return (bit_copy<std::uint32_t>(x) & 0x7f800000u) != 0x7f800000u; }
ROBOCACHE_HD bool is_finite(double x) {
  return (bit_copy<std::uint64_t>(x) & 0x7ff0000000000000ull) != 0x7ff0000000000000ull;
}

template <class C>
ROBOCACHE_HD C quiet_nan();
template <>
ROBOCACHE_HD float quiet_nan<float>() {
  return bit_copy<float>(0x7fc00000u);
}
template <>
ROBOCACHE_HD double quiet_nan<double>() {
  return bit_copy<double>(0x7ff8000000000000ull);
}
// Hardware differs in which NaN an operation returns; we return one.
template <class C>
ROBOCACHE_HD C canonical(C x) {
  return is_nan(x) ? quiet_nan<C>() : x;
}

ROBOCACHE_HD float widen(f16 h) {
#if defined(__CUDA_ARCH__)
  return __half2float(__ushort_as_half(h.bits));
#else
  const std::uint32_t sign = static_cast<std::uint32_t>(h.bits & 0x8000u) << 16;
  const std::uint32_t rest = h.bits & 0x7fffu;
  if (rest >= 0x7c00u) return bit_copy<float>(sign | 0x7f800000u | (rest & 0x3ffu) << 13);
  if (rest >= 0x0400u) return bit_copy<float>(sign | ((rest << 13) + 0x38000000u));
  // A subnormal is its integer times 2^-24, exactly.
  return bit_copy<float>(sign | bit_copy<std::uint32_t>(static_cast<float>(rest) * 0x1p-24f));
#endif
}
ROBOCACHE_HD float widen(bf16 h) { return bit_copy<float>(static_cast<std::uint32_t>(h.bits) << 16); }
ROBOCACHE_HD float widen(float x) { return x; }
ROBOCACHE_HD double widen(double x) { return x; }

// The nearest float16 or bfloat16, ties to even; a NaN becomes the canonical one.
ROBOCACHE_HD f16 round_to_f16(float x) {
  if (is_nan(x)) return f16{0x7e00u};
#if defined(__CUDA_ARCH__)
  return f16{__half_as_ushort(__float2half_rn(x))};
#else
  const std::uint32_t bits = bit_copy<std::uint32_t>(x);
  const auto sign = static_cast<std::uint16_t>(bits >> 16 & 0x8000u);
  const std::uint32_t rest = bits & 0x7fffffffu;
  if (rest >= 0x477ff000u) return f16{static_cast<std::uint16_t>(sign | 0x7c00u)};  // 65520 and up round to infinity
  if (rest < 0x38800000u) {  // below 2^-14: adding 1/2 puts the subnormal's unit at the float's last bit
    const float shifted = bit_copy<float>(rest) + 0.5f;
    return f16{static_cast<std::uint16_t>(sign | (bit_copy<std::uint32_t>(shifted) - 0x3f000000u))};
  }
  const std::uint32_t rounded = rest + 0xfffu + (rest >> 13 & 1u);
  return f16{static_cast<std::uint16_t>(sign | ((rounded - 0x38000000u) >> 13))};
#endif
}
ROBOCACHE_HD bf16 round_to_bf16(float x) {
  if (is_nan(x)) return bf16{0x7fc0u};
  const std::uint32_t bits = bit_copy<std::uint32_t>(x);
  return bf16{static_cast<std::uint16_t>((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16)};
}

// A double as a float rounded to odd: rounding that once more to a half type gives the nearest half to the double.
ROBOCACHE_HD float round_to_odd(double x) {
  const auto nearest = static_cast<float>(x);
  if (static_cast<double>(nearest) == x || is_nan(x)) return nearest;
  std::uint32_t bits = bit_copy<std::uint32_t>(nearest);
  const bool away = ::fabs(static_cast<double>(nearest)) > ::fabs(x);
  if (away) bits -= 1;
  return bit_copy<float>(bits | 1u);
}
// An int64 as a double that rounds to any narrower float as the integer itself would.
ROBOCACHE_HD double round_to_odd(std::int64_t value) {
  const std::uint64_t magnitude =
      value < 0 ? 0u - static_cast<std::uint64_t>(value) : static_cast<std::uint64_t>(value);
  if (magnitude >> 53 == 0) return static_cast<double>(value);
  const std::uint64_t sticky = (magnitude & 0x7ffu) != 0 ? 0x800u : 0u;
  const auto kept = static_cast<double>((magnitude & ~std::uint64_t{0x7ff}) | sticky);
  return value < 0 ? -kept : kept;
}

// A computed value in the type it is stored as: rounded once, NaN canonical.
template <class T, class C>
ROBOCACHE_HD T narrow(C x) {
  if constexpr (std::is_same_v<T, f16> && std::is_same_v<C, double>) {
    return round_to_f16(round_to_odd(x));
  } else if constexpr (std::is_same_v<T, bf16> && std::is_same_v<C, double>) {
    return round_to_bf16(round_to_odd(x));
  } else if constexpr (std::is_same_v<T, f16>) {
    return round_to_f16(x);
  } else if constexpr (std::is_same_v<T, bf16>) {
    return round_to_bf16(x);
  } else {
    return canonical(static_cast<T>(x));
  }
}

template <class T>
struct compute_type {
  using type = float;
};
template <>
struct compute_type<double> {
  using type = double;
};
template <class T>
using compute_t = typename compute_type<T>::type;

// Sine of x in [0, pi/2], by its Taylor series to x^21: the remainder is under 2e-18.
ROBOCACHE_HD double sine(double x) {
  constexpr double c[] = {-1.0 / 6,
                          1.0 / 120,
                          -1.0 / 5040,
                          1.0 / 362880,
                          -1.0 / 39916800,
                          1.0 / 6227020800,
                          -1.0 / 1307674368000,
                          1.0 / 355687428096000,
                          -1.0 / 121645100408832000,
                          1.0 / 51090942171709440000.0};
  const double y = x * x;
  double sum = c[9];
  for (int k = 8; k >= 0; --k) sum = fused(sum, y, c[k]);
  return fused(sum * y, x, x);
}

// Arc cosine of x in [0, 1]: three halvings of the angle bring its tangent under 0.2, where 13 terms of the series for
// the arc tangent leave less than 1e-18.
ROBOCACHE_HD double arc_cosine(double x) {
  const double tangent_quarter = root((1.0 - x) * 0.5) / (1.0 + root((1.0 + x) * 0.5));
  const double t = tangent_quarter / (1.0 + root(fused(tangent_quarter, tangent_quarter, 1.0)));
  const double y = -(t * t);
  double sum = 1.0 / 27;
  for (int k = 12; k >= 1; --k) sum = fused(sum, y, 1.0 / (2 * k + 1));
  return 8.0 * fused(sum * y, t, t);
}

}  // namespace ROBOCACHE_SIMD_TARGET
}  // namespace robocache
