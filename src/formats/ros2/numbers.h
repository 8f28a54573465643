// Numbers as they lie in a message, into the dtype of a stream: the same, or float32 or float64.
#pragma once

#include <robocache/tensor.h>

#include <cstring>
#include <type_traits>

#include "io/endian.h"

namespace robocache::ros2 {

using Convert = void (*)(const char* from, std::byte* to, std::size_t count, bool swapped);

template <class From, class To>
void convert(const char* from, std::byte* to, std::size_t count, bool swapped) {
  if (std::is_same_v<From, To> && !std::is_same_v<From, bool> && (!swapped || sizeof(From) == 1)) {
    if (count > 0) std::memcpy(to, from, count * sizeof(From));
    return;
  }
  for (std::size_t k = 0; k < count; ++k) {
    To value;
    if constexpr (std::is_same_v<From, bool>) {
      value = static_cast<To>(from[k] != 0);
    } else {
      value = static_cast<To>(io::load<From>(from + k * sizeof(From), swapped));
    }
    std::memcpy(to + k * sizeof(To), &value, sizeof(To));
  }
}

template <class From>
Convert converter_from(DType to, bool same) {
  if (same) return convert<From, From>;
  return to == DType::f32 ? Convert{convert<From, float>} : Convert{convert<From, double>};
}

// `to` is `from`, float32 or float64.
inline Convert converter(DType from, DType to) {
  const bool same = from == to;
  switch (from) {
    case DType::boolean:
      return converter_from<bool>(to, same);
    case DType::u8:
      return converter_from<std::uint8_t>(to, same);
    case DType::u16:
      return converter_from<std::uint16_t>(to, same);
    case DType::u32:
      return converter_from<std::uint32_t>(to, same);
    case DType::u64:
      return converter_from<std::uint64_t>(to, same);
    case DType::i8:
      return converter_from<std::int8_t>(to, same);
    case DType::i16:
      return converter_from<std::int16_t>(to, same);
    case DType::i32:
      return converter_from<std::int32_t>(to, same);
    case DType::i64:
      return converter_from<std::int64_t>(to, same);
    case DType::f32:
      return converter_from<float>(to, same);
    default:
      return converter_from<double>(to, same);
  }
}

}  // namespace robocache::ros2
