// Numbers in the bytes of a file or message: every host that is supported is little-endian, as most formats are.
#pragma once

#include <bit>
#include <cstddef>
#include <cstring>
#include <string>
#include <utility>

namespace robocache::io {

static_assert(std::endian::native == std::endian::little, "numbers are read and written as they lie in memory");

// Reads a number that need not be aligned. `swapped`: it is big-endian.
template <class T>
T load(const void* from, bool swapped = false) {
  unsigned char bytes[sizeof(T)];
  std::memcpy(bytes, from, sizeof(T));
  if (swapped) {
    for (std::size_t k = 0; k < sizeof(T) / 2; ++k) std::swap(bytes[k], bytes[sizeof(T) - 1 - k]);
  }
  return std::bit_cast<T>(bytes);
}

// Writes a number where it need not be aligned.
template <class T>
void store(void* to, T value) {
  std::memcpy(to, &value, sizeof(T));
}

template <class T>
void append(std::string& out, T value) {
  out.append(reinterpret_cast<const char*>(&value), sizeof(T));
}

}  // namespace robocache::io
