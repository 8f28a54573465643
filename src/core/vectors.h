// Vectors as wide as the target's, with the types of memory and rounding of core/arithmetic.h. Highway, dispatched at
// compile time: this header belongs to the cpu/simd.cpp of an op alone.
#pragma once

// GCC's -march=haswell leaves AES out, which Highway would otherwise ask of AVX2. Nothing here uses it.
#define HWY_DISABLE_PCLMUL_AES
#if defined(__aarch64__)
// Highway 1.0 takes runtime dispatch for granted where GCC has <sys/auxv.h>, and compiles NEON for "+crypto". Such a function
// cannot be inlined into ours, and a Raspberry Pi 4 has no AES either. We dispatch by ourselves (core/simd.h).
#define TOOLCHAIN_MISS_SYS_AUXV_H
#endif
#include <hwy/highway.h>

#include "core/element.h"

static_assert(HWY_NATIVE_FMA && !HWY_HAVE_SCALABLE, "a SIMD target needs a hardware fma and vectors of a known width");

namespace robocache {
inline namespace ROBOCACHE_SIMD_TARGET {

namespace hn = hwy::HWY_NAMESPACE;

// Calls f(tag, k) for vectors of C at channels k of [k, n): full ones, then halves of them down to single channels.
template <class C, std::size_t lanes = HWY_LANES(C), class F>
HWY_INLINE void over_channels(std::int64_t n, const F& f, std::int64_t k = 0) {
  constexpr auto step = static_cast<std::int64_t>(lanes);
  for (; k + step <= n; k += step) f(hn::CappedTag<C, lanes>(), k);
  if constexpr (lanes > 1) over_channels<C, lanes / 2>(n, f, k);
}

// ---- elements from memory to the type they are computed in, and back ----------------------------------------------

template <class D>
HWY_INLINE hn::Vec<D> load(D d, const float* from) {
  if constexpr (std::is_same_v<hn::TFromD<D>, double>) {
    return hn::PromoteTo(d, hn::LoadU(hn::Rebind<float, D>(), from));
  } else {
    return hn::LoadU(d, from);
  }
}
template <class D>
HWY_INLINE hn::Vec<D> load(D d, const double* from) {
  return hn::LoadU(d, from);
}
template <class D>
HWY_INLINE hn::Vec<D> load(D d, const bf16* from) {
  if constexpr (std::is_same_v<hn::TFromD<D>, double>) {
    return hn::PromoteTo(d, load(hn::Rebind<float, D>(), from));
  } else {
    const hn::Rebind<std::uint16_t, D> narrow_bits;
    const hn::Rebind<std::uint32_t, D> bits;
    const auto loaded = hn::LoadU(narrow_bits, reinterpret_cast<const std::uint16_t*>(from));
    return hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(bits, loaded)));
  }
}
template <class D>
HWY_INLINE hn::Vec<D> load(D d, const f16* from) {
  if constexpr (std::is_same_v<hn::TFromD<D>, double>) {
    return hn::PromoteTo(d, load(hn::Rebind<float, D>(), from));
  } else {
    return hn::PromoteTo(d, hn::LoadU(hn::Rebind<hwy::float16_t, D>(), reinterpret_cast<const hwy::float16_t*>(from)));
  }
}

// As narrow(): rounded once, NaN canonical.
template <class D>
HWY_INLINE hn::Vec<D> canonical_vector(D d, hn::Vec<D> x) {
  return hn::IfThenElse(hn::IsNaN(x), hn::Set(d, quiet_nan<hn::TFromD<D>>()), x);
}
template <class D>
HWY_INLINE void store(D d, hn::Vec<D> x, hn::TFromD<D>* to) {
  hn::StoreU(canonical_vector(d, x), d, to);
}
template <class D>
HWY_INLINE void store(D d, hn::Vec<D> x, f16* to) {
  const hn::Rebind<hwy::float16_t, D> half;
  hn::StoreU(hn::DemoteTo(half, canonical_vector(d, x)), half, reinterpret_cast<hwy::float16_t*>(to));
}
template <class D>
HWY_INLINE void store(D d, hn::Vec<D> x, bf16* to) {
  const hn::Rebind<std::uint16_t, D> half;
  const hn::Rebind<std::int32_t, D> signed_bits;
  const hn::Rebind<std::uint32_t, D> whole;
  const auto bits = hn::BitCast(whole, canonical_vector(d, x));
  const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(whole, 1u));
  const auto rounded = hn::ShiftRight<16>(hn::Add(bits, hn::Add(odd, hn::Set(whole, 0x7fffu))));
  hn::StoreU(hn::DemoteTo(half, hn::BitCast(signed_bits, rounded)), half, reinterpret_cast<std::uint16_t*>(to));
}

}  // namespace ROBOCACHE_SIMD_TARGET
}  // namespace robocache
