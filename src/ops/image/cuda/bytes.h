// Bytes of interleaved pixels: loads of any alignment, channels taken apart, bytes as floats.
#pragma once

#include <cstdint>

namespace robocache::image_op {
namespace {

// Loads `bytes` bytes from `from` on, from a row of memory [begin, end). Bytes past the end are zero.
template <int bytes>
__device__ __forceinline__ void load_bytes(std::uint32_t (&words)[bytes / 4], const std::uint8_t* from,
                                           const std::uint8_t* begin, const std::uint8_t* end) {
  const auto address = reinterpret_cast<std::uintptr_t>(from);
  if (from + bytes <= end) {
    if constexpr (bytes % 16 == 0) {
      if (address % 16 == 0) {
#pragma unroll
        for (int k = 0; k < bytes / 16; ++k) {
          const uint4 four = __ldg(reinterpret_cast<const uint4*>(from) + k);
          words[4 * k] = four.x, words[4 * k + 1] = four.y, words[4 * k + 2] = four.z, words[4 * k + 3] = four.w;
        }
        return;
      }
    } else if constexpr (bytes % 8 == 0) {
      if (address % 8 == 0) {
#pragma unroll
        for (int k = 0; k < bytes / 8; ++k) {
          const uint2 two = __ldg(reinterpret_cast<const uint2*>(from) + k);
          words[2 * k] = two.x, words[2 * k + 1] = two.y;
        }
        return;
      }
    }
    const unsigned past = static_cast<unsigned>(address % 4);
    const auto* const aligned = reinterpret_cast<const std::uint32_t*>(from - past);
    if (past == 0) {
#pragma unroll
      for (int k = 0; k < bytes / 4; ++k) words[k] = __ldg(aligned + k);
      return;
    }
    if (from - past >= begin && from - past + bytes + 4 <= end) {
      std::uint32_t low = __ldg(aligned);
#pragma unroll
      for (int k = 0; k < bytes / 4; ++k) {
        const std::uint32_t high = __ldg(aligned + k + 1);
        words[k] = __funnelshift_r(low, high, 8 * past);
        low = high;
      }
      return;
    }
  }
#pragma unroll
  for (int k = 0; k < bytes / 4; ++k) {
    std::uint32_t word = 0;
#pragma unroll
    for (int b = 0; b < 4; ++b) {
      if (from + 4 * k + b < end) word |= static_cast<std::uint32_t>(__ldg(from + 4 * k + b)) << 8 * b;
    }
    words[k] = word;
  }
}

// Four interleaved pixels as a word for each channel.
template <int channels>
__device__ __forceinline__ void take_apart(const std::uint32_t* pixels, std::uint32_t (&planes)[channels]) {
  if constexpr (channels == 1) {
    planes[0] = pixels[0];
  } else if constexpr (channels == 3) {
    planes[0] = __byte_perm(__byte_perm(pixels[0], pixels[1], 0x0630), pixels[2], 0x5210);
    planes[1] = __byte_perm(__byte_perm(pixels[0], pixels[1], 0x0741), pixels[2], 0x6210);
    planes[2] = __byte_perm(__byte_perm(pixels[0], pixels[1], 0x0052), pixels[2], 0x7410);
  } else {
    const std::uint32_t low[2] = {__byte_perm(pixels[0], pixels[1], 0x5140), __byte_perm(pixels[2], pixels[3], 0x5140)};
    const std::uint32_t high[2] = {__byte_perm(pixels[0], pixels[1], 0x7362),
                                   __byte_perm(pixels[2], pixels[3], 0x7362)};
    planes[0] = __byte_perm(low[0], low[1], 0x5410);
    planes[1] = __byte_perm(low[0], low[1], 0x7632);
    planes[2] = __byte_perm(high[0], high[1], 0x5410);
    planes[3] = __byte_perm(high[0], high[1], 0x7632);
  }
}

// Byte `at` of a word as a float, without the conversion unit, which has few lanes.
__device__ __forceinline__ float byte_as_float(std::uint32_t word, int at) {
  constexpr std::uint32_t two_to_23 = 0x4b000000u;  // as a float, whose last bit is 1
  return __uint_as_float(__byte_perm(word, two_to_23, 0x7540u | static_cast<unsigned>(at))) - 0x1p23f;
}

}  // namespace
}  // namespace robocache::image_op
