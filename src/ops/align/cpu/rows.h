// What math.h says of one channel, for a run of channels that lie side by side in memory, as wide as the target's
// vectors are: this header belongs to cpu/simd.cpp alone.
#pragma once

#include "core/vectors.h"
#include "ops/align/math.h"

namespace robocache::align_op {
inline namespace ROBOCACHE_SIMD_TARGET {

// ---- methods -----------------------------------------------------------------------------------------------------

// Floats that a float holds: the pairs that convert_row and linear_row take are those, and double to double.
template <class T>
inline constexpr bool fits_float = std::is_same_v<T, f16> || std::is_same_v<T, bf16> || std::is_same_v<T, float>;
template <class T, class O>
inline constexpr bool in_one_width = (fits_float<T> && fits_float<O>) ||
                                     (std::is_same_v<T, double> && std::is_same_v<O, T>);

template <class T, class O>
HWY_INLINE void convert_row(const T* from, O* to, std::int64_t n) {
  over_channels<float>(n, [=](auto d, std::int64_t k) HWY_ATTR { store(d, load(d, from + k), to + k); });
}

// 0 < w < 1
template <class D>
HWY_INLINE hn::Vec<D> linear_vector(D d, hn::Vec<D> a, hn::Vec<D> b, hn::TFromD<D> w) {
  const auto share = hn::Set(d, w);
  return hn::MulAdd(share, b, hn::NegMulAdd(share, a, a));
}
template <class T, class O, class C = compute_t<T>>
HWY_INLINE void linear_row(const T* from_a, const T* from_b, C w, O* to, std::int64_t n) {
#if HWY_TARGET <= HWY_AVX3
  if constexpr (std::is_same_v<T, C> && std::is_same_v<O, C>) {
    const hn::ScalableTag<C> d;
    const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
    std::int64_t k = 0;
    for (; k + lanes <= n; k += lanes) store(d, linear_vector(d, load(d, from_a + k), load(d, from_b + k), w), to + k);
    if (k < n) {  // one masked vector for the last channels, in place of a half, a quarter, ...
      const auto rest = hn::FirstN(d, static_cast<std::size_t>(n - k));
      const auto value = linear_vector(d, hn::MaskedLoad(rest, d, from_a + k), hn::MaskedLoad(rest, d, from_b + k), w);
      hn::BlendedStore(canonical_vector(d, value), rest, d, to + k);
    }
    return;
  }
#endif
  over_channels<C>(n, [=](auto d, std::int64_t k) HWY_ATTR {
    store(d, linear_vector(d, load(d, from_a + k), load(d, from_b + k), w), to + k);
  });
}

template <class T, class C = compute_t<T>>
HWY_INLINE void angle_row(const T* from_a, const T* from_b, C w, C turn, T* to, std::int64_t n) {
  over_channels<C>(n, [=](auto d, std::int64_t k) HWY_ATTR {
    const auto a = load(d, from_a + k);
    const auto x = hn::Sub(load(d, from_b + k), a);
    const auto period = hn::Set(d, turn);
    const auto turns = hn::Floor(hn::Div(hn::Add(x, hn::Set(d, turn / C(2))), period));
    store(d, hn::MulAdd(hn::Set(d, w), hn::Sub(x, hn::Mul(period, turns)), a), to + k);
  });
}

template <class T, class C = compute_t<T>>
HWY_INLINE void cubic_row(const T* from_p, const T* from_a, const T* from_b, const T* from_q, const Cubic& steps, T* to,
                          std::int64_t n) {
  const auto before = static_cast<C>(steps.before);
  const auto across = static_cast<C>(steps.across);
  const auto after = static_cast<C>(steps.after);
  over_channels<C>(n, [=](auto d, std::int64_t k) HWY_ATTR {
    const auto a = load(d, from_a + k);
    const auto b = load(d, from_b + k);
    auto value = after != C(0) ? hn::MulAdd(hn::Set(d, after), hn::Sub(load(d, from_q + k), b), a) : a;
    value = hn::MulAdd(hn::Set(d, across), hn::Sub(b, a), value);
    if (before != C(0)) value = hn::MulAdd(hn::Set(d, before), hn::Sub(a, load(d, from_p + k)), value);
    store(d, value, to + k);
  });
}

template <class T>
HWY_INLINE void add_row(const T* from, double* sums, std::int64_t n) {
  over_channels<double>(n, [=](auto d, std::int64_t k) HWY_ATTR {
    hn::StoreU(hn::Add(hn::LoadU(d, sums + k), load(d, from + k)), d, sums + k);
  });
}

// What max and min compare: integers as they are; floats as the integers that their bits are, negative ones turned round,
// so that -0 < +0, and a NaN beyond all. The order is that of order_of(): widening keeps it.
template <class T>
struct Ordered {
  using type = T;
};
template <>
struct Ordered<f16> {
  using type = std::int16_t;
  static constexpr type infinity = 0x7c00;
};
template <>
struct Ordered<bf16> {
  using type = std::int16_t;
  static constexpr type infinity = 0x7f80;
};
template <>
struct Ordered<float> {
  using type = std::int32_t;
  static constexpr type infinity = 0x7f800000;
};
template <>
struct Ordered<double> {
  using type = std::int64_t;
  static constexpr type infinity = 0x7ff0000000000000;
};
template <class T, bool largest, class D>
HWY_INLINE hn::Vec<D> order(D d, hn::Vec<D> bits) {
  if constexpr (is_float_type<T>) {
    using Limits = std::numeric_limits<typename Ordered<T>::type>;
    const auto all_but_sign = hn::Set(d, Limits::max());
    const auto nan = hn::Gt(hn::And(bits, all_but_sign), hn::Set(d, Ordered<T>::infinity));
    const auto key = hn::Xor(bits, hn::And(hn::BroadcastSignBit(bits), all_but_sign));
    return hn::IfThenElse(nan, hn::Set(d, largest ? Limits::max() : Limits::min()), key);
  } else {
    return bits;
  }
}

// Each channel's winner so far against one more sample; the earlier of equals stays.
template <bool largest, class T>
HWY_INLINE void compete_row(const T* from, T* winners, std::int64_t n) {
  using Bits = typename Ordered<T>::type;
  const auto* const challengers = reinterpret_cast<const Bits*>(from);
  auto* const holders = reinterpret_cast<Bits*>(winners);
  over_channels<Bits>(n, [=](auto d, std::int64_t k) HWY_ATTR {
    const auto challenger = hn::LoadU(d, challengers + k);
    const auto holder = hn::LoadU(d, holders + k);
    const auto mine = order<T, largest>(d, challenger);
    const auto theirs = order<T, largest>(d, holder);
    const auto beaten = largest ? hn::Gt(mine, theirs) : hn::Lt(mine, theirs);
    hn::StoreU(hn::IfThenElse(beaten, challenger, holder), d, holders + k);
  });
}

}  // namespace ROBOCACHE_SIMD_TARGET
}  // namespace robocache::align_op
