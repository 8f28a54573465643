// A CPU with carry-less multiplication folds 64 bytes at a time, so that checking CRCs does not slow down reading a file.
// "Fast CRC Computation for Generic Polynomials Using PCLMULQDQ Instruction", Gopal et
// al., Intel 2009. Other CPUs use zlib's tables.
#include "io/crc.h"

#include <zlib.h>

#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace robocache::io {

namespace {

std::uint32_t by_table(std::uint32_t before, const std::byte* from, std::size_t count) noexcept {
  return static_cast<std::uint32_t>(::crc32_z(before, reinterpret_cast<const Bytef*>(from), count));
}

#if defined(__x86_64__)

// x^n mod P, bit-reflected: multiplying a half of a register with it moves the half on by n bits.
constexpr long long by_544 = 0x154442bd4, by_480 = 0x1c6e41596;  // 4 registers on
constexpr long long by_160 = 0x1751997d0, by_96 = 0x0ccaa009e;   // 1 register on

__attribute__((target("pclmul,sse4.1"))) inline __m128i load(const std::byte* from) noexcept {
  return _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
}
__attribute__((target("pclmul,sse4.1"))) inline __m128i fold(__m128i value, __m128i powers, __m128i next) noexcept {
  const __m128i low = _mm_clmulepi64_si128(value, powers, 0x00);
  const __m128i high = _mm_clmulepi64_si128(value, powers, 0x11);
  return _mm_xor_si128(_mm_xor_si128(low, high), next);
}

// `count` is a positive multiple of 64.
__attribute__((target("pclmul,sse4.1"))) std::uint32_t by_folding(std::uint32_t before, const std::byte* from,
                                                                  std::size_t count) noexcept {
  __m128i a = load(from), b = load(from + 16), c = load(from + 32), d = load(from + 48);
  a = _mm_xor_si128(a, _mm_cvtsi32_si128(static_cast<int>(~before)));
  const __m128i far = _mm_set_epi64x(by_480, by_544), near = _mm_set_epi64x(by_96, by_160);
  for (std::size_t at = 64; at < count; at += 64) {
    a = fold(a, far, load(from + at));
    b = fold(b, far, load(from + at + 16));
    c = fold(c, far, load(from + at + 32));
    d = fold(d, far, load(from + at + 48));
  }
  // The CRC of these last 16 bytes, started at zero, is the CRC of all bytes.
  const __m128i left = fold(fold(fold(a, near, b), near, c), near, d);
  std::byte bytes[16];
  std::memcpy(bytes, &left, sizeof bytes);
  return by_table(0xffffffffu, bytes, sizeof bytes);
}

#endif

}  // namespace

std::uint32_t crc32(std::uint32_t before, std::span<const std::byte> bytes) noexcept {
  std::size_t folded = 0;
#if defined(__x86_64__)
  static const bool can_fold = __builtin_cpu_supports("pclmul") != 0 && __builtin_cpu_supports("sse4.1") != 0;
  folded = bytes.size() / 64 * 64;
  if (can_fold && folded > 0) {
    before = by_folding(before, bytes.data(), folded);
  } else {
    folded = 0;
  }
#endif
  return by_table(before, bytes.data() + folded, bytes.size() - folded);
}

}  // namespace robocache::io
