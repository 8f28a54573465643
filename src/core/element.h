// Elements of any dtype: from memory to the type they are computed in, and back.
#pragma once

#include "core/arithmetic.h"

namespace robocache {
inline namespace ROBOCACHE_SIMD_TARGET {

template <class T>
inline constexpr bool is_float_type =
    std::is_same_v<T, f16> || std::is_same_v<T, bf16> || std::is_same_v<T, float> || std::is_same_v<T, double>;

template <class T>
struct Type {
  using type = T;
};

// Calls f(Type<T>{}) with the C++ type of a dtype. bool is a byte of 0 or 1.
template <class F>
inline void with_type(DType dtype, const F& f) {
  switch (dtype) {
    case DType::boolean:
    case DType::u8:
      return f(Type<std::uint8_t>{});
    case DType::u16:
      return f(Type<std::uint16_t>{});
    case DType::u32:
      return f(Type<std::uint32_t>{});
    case DType::u64:
      return f(Type<std::uint64_t>{});
    case DType::i8:
      return f(Type<std::int8_t>{});
    case DType::i16:
      return f(Type<std::int16_t>{});
    case DType::i32:
      return f(Type<std::int32_t>{});
    case DType::i64:
      return f(Type<std::int64_t>{});
    case DType::f16:
      return f(Type<f16>{});
    case DType::bf16:
      return f(Type<bf16>{});
    case DType::f32:
      return f(Type<float>{});
    case DType::f64:
      return f(Type<double>{});
  }
}

// An integer as a double that rounds to every narrower float as the integer itself would.
template <class T>
ROBOCACHE_HD double to_double_odd(T x) {
  if constexpr (std::is_same_v<T, std::uint64_t>) {
    return x >> 63 == 0 ? round_to_odd(static_cast<std::int64_t>(x))
                        : 2.0 * round_to_odd(static_cast<std::int64_t>(x >> 1 | (x & 1u)));
  } else {
    return round_to_odd(static_cast<std::int64_t>(x));
  }
}

// The order of max (greatest: true) and min as an integer: the greatest is taken. NaN is beyond all, -0 below +0.
template <class T>
ROBOCACHE_HD std::int64_t order_of(bool greatest, T x) {
  std::int64_t key = 0;
  if constexpr (is_float_type<T>) {
    const auto value = static_cast<double>(widen(x));
    if (is_nan(value)) return std::numeric_limits<std::int64_t>::max();
    const auto bits = bit_copy<std::int64_t>(value);
    key = bits < 0 ? bits ^ std::numeric_limits<std::int64_t>::max() : bits;
  } else if constexpr (std::is_same_v<T, std::uint64_t>) {
    key = static_cast<std::int64_t>(x ^ std::uint64_t{1} << 63);
  } else {
    key = static_cast<std::int64_t>(x);
  }
  return greatest ? key : ~key;
}

// Writes x to element `offset` of an array of another (or the same) dtype, rounded once.
template <class T>
ROBOCACHE_HD void store_as(DType dtype, void* data, std::int64_t offset, T x) {
  if constexpr (std::is_same_v<T, float> || std::is_same_v<T, double>) {
    switch (dtype) {
      case DType::f16:
        static_cast<f16*>(data)[offset] = narrow<f16>(x);
        return;
      case DType::bf16:
        static_cast<bf16*>(data)[offset] = narrow<bf16>(x);
        return;
      case DType::f32:
        static_cast<float*>(data)[offset] = narrow<float>(x);
        return;
      default:
        static_cast<double*>(data)[offset] = narrow<double>(x);
        return;
    }
  } else if constexpr (is_float_type<T>) {
    store_as(dtype, data, offset, widen(x));
  } else {
    switch (dtype) {
      case DType::f16:
      case DType::bf16:
      case DType::f32:
        store_as(dtype, data, offset, to_double_odd(x));
        return;
      case DType::f64:
        static_cast<double*>(data)[offset] = static_cast<double>(x);
        return;
      case DType::boolean:
      case DType::u8:
      case DType::i8:
        static_cast<std::uint8_t*>(data)[offset] = static_cast<std::uint8_t>(x);
        return;
      case DType::u16:
      case DType::i16:
        static_cast<std::uint16_t*>(data)[offset] = static_cast<std::uint16_t>(x);
        return;
      case DType::u32:
      case DType::i32:
        static_cast<std::uint32_t*>(data)[offset] = static_cast<std::uint32_t>(x);
        return;
      default:
        static_cast<std::uint64_t*>(data)[offset] = static_cast<std::uint64_t>(x);
        return;
    }
  }
}

}  // namespace ROBOCACHE_SIMD_TARGET
}  // namespace robocache
