// Keys: unsigned integers in the same order as the numbers that they stand for. -0 comes before +0. NaN and Inf have no
// keys.
#pragma once

#include <cstdint>

#include "core/element.h"

namespace robocache::statistics {

// The bits of a dtype's keys: 16 for float16 and bfloat16, and so on.
inline int key_bits(DType dtype) { return static_cast<int>(size_of(dtype)) * 8; }

template <class T>
auto key_of(T value) {
  if constexpr (is_float_type<T>) {
    using Bits = std::conditional_t<sizeof(T) == 2, std::uint16_t,
                                    std::conditional_t<sizeof(T) == 4, std::uint32_t, std::uint64_t>>;
    constexpr auto sign = static_cast<Bits>(Bits{1} << (sizeof(Bits) * 8 - 1));
    const auto bits = bit_copy<Bits>(value);
    return static_cast<Bits>((bits & sign) != 0 ? ~bits : bits | sign);
  } else {
    using Bits = std::make_unsigned_t<T>;
    constexpr auto sign = static_cast<Bits>(std::is_signed_v<T> ? Bits{1} << (sizeof(Bits) * 8 - 1) : 0);
    return static_cast<Bits>(static_cast<Bits>(value) ^ sign);
  }
}

template <class T>
T value_of(std::uint64_t key) {
  if constexpr (is_float_type<T>) {
    using Bits = decltype(key_of(T{}));
    constexpr auto sign = static_cast<Bits>(Bits{1} << (sizeof(Bits) * 8 - 1));
    const auto bits = static_cast<Bits>(key);
    return bit_copy<T>(static_cast<Bits>((bits & sign) != 0 ? bits & ~sign : ~bits));
  } else {
    using Bits = std::make_unsigned_t<T>;
    constexpr auto sign = static_cast<Bits>(std::is_signed_v<T> ? Bits{1} << (sizeof(Bits) * 8 - 1) : 0);
    return static_cast<T>(static_cast<Bits>(key) ^ sign);
  }
}

// The number of a key. A 64-bit integer may be rounded.
inline double number_of(DType dtype, std::uint64_t key) {
  double number = 0;
  with_type(dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    if constexpr (is_float_type<T>) {
      number = static_cast<double>(widen(value_of<T>(key)));
    } else {
      number = static_cast<double>(value_of<T>(key));
    }
  });
  return number;
}

// The integer of a key: the bits of an int64 or uint64.
inline std::int64_t integer_of(DType dtype, std::uint64_t key) {
  std::int64_t integer = 0;
  with_type(dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    if constexpr (!is_float_type<T>) integer = static_cast<std::int64_t>(value_of<T>(key));
  });
  return integer;
}

}  // namespace robocache::statistics
