// Blocks of 16 rows are transposed, so that a vector is 16 rows at one column.
#pragma once

#include "core/vectors.h"

namespace robocache::image_op {
inline namespace ROBOCACHE_SIMD_TARGET {
namespace {

inline constexpr int band_rows = 16;

using Bytes16 = hn::Vec<hn::Full128<std::uint8_t>>;

// Eight vectors of eight numbers of 16 bits.
HWY_INLINE void transpose(Bytes16 (&rows)[8]) {
  const hn::Full128<std::uint8_t> bytes;
  const hn::Full128<std::uint16_t> d16;
  const hn::Full128<std::uint32_t> d32;
  const hn::Full128<std::uint64_t> d64;
  Bytes16 a[8];
  Bytes16 b[8];
  for (int k = 0; k < 8; k += 2) {
    const auto x = hn::BitCast(d16, rows[k]);
    const auto y = hn::BitCast(d16, rows[k + 1]);
    a[k] = hn::BitCast(bytes, hn::InterleaveLower(d16, x, y));
    a[k + 1] = hn::BitCast(bytes, hn::InterleaveUpper(d16, x, y));
  }
  for (int k = 0; k < 8; k += 4) {
    for (int n = 0; n < 2; ++n) {
      const auto x = hn::BitCast(d32, a[k + n]);
      const auto y = hn::BitCast(d32, a[k + n + 2]);
      b[k + 2 * n] = hn::BitCast(bytes, hn::InterleaveLower(d32, x, y));
      b[k + 2 * n + 1] = hn::BitCast(bytes, hn::InterleaveUpper(d32, x, y));
    }
  }
  for (int k = 0; k < 4; ++k) {
    const auto x = hn::BitCast(d64, b[k]);
    const auto y = hn::BitCast(d64, b[k + 4]);
    rows[2 * k] = hn::BitCast(bytes, hn::InterleaveLower(d64, x, y));
    rows[2 * k + 1] = hn::BitCast(bytes, hn::InterleaveUpper(d64, x, y));
  }
}

// A unit is what is transposed at a time: up to 16 bytes of a row, whole pairs of pixels.
template <int channels>
struct UnitOf {
  static constexpr int pixels = channels == 1 ? 16 : 4;
  static constexpr int planes = pixels / 2 * channels;  // pairs of bytes

  // Bytes of a channel of two neighbouring pixels side by side.
  HWY_INLINE static Bytes16 pair_up(Bytes16 pixels16) {
    const hn::Full128<std::uint8_t> d;
    if constexpr (channels == 3) {
      alignas(16) static constexpr std::uint8_t order[16] = {0, 3, 1, 4, 2, 5, 6, 9, 7, 10, 8, 11, 12, 12, 12, 12};
      return hn::TableLookupBytes(pixels16, hn::Load(d, order));
    } else if constexpr (channels == 4) {
      alignas(16) static constexpr std::uint8_t order[16] = {0, 4, 1, 5, 2, 6, 3, 7, 8, 12, 9, 13, 10, 14, 11, 15};
      return hn::TableLookupBytes(pixels16, hn::Load(d, order));
    } else {
      return pixels16;
    }
  }

  // 16 rows, of which `bytes` bytes may be read, become [units, planes, 16 rows, 2].
  static void transpose_in(const std::uint8_t* const (&rows)[band_rows], std::int64_t bytes, std::int64_t units,
                           std::uint8_t* to) {
    const hn::Full128<std::uint8_t> d;
    for (std::int64_t unit = 0; unit < units; ++unit) {
      const std::int64_t at = unit * pixels * channels;
      const std::int64_t there = bytes - at < 16 ? bytes - at : 16;
      for (int part = 0; part < 2; ++part) {
        Bytes16 block[8];
        for (int k = 0; k < 8; ++k) {
          const std::uint8_t* const from = rows[8 * part + k] + at;
          if (there == 16) {
            block[k] = hn::LoadU(d, from);
          } else {
            std::uint8_t rest[16] = {};
            for (std::int64_t b = 0; b < there; ++b) rest[b] = from[b];
            block[k] = hn::LoadU(d, rest);
          }
          block[k] = pair_up(block[k]);
        }
        transpose(block);
        for (int plane = 0; plane < planes; ++plane) {
          hn::StoreU(block[plane], d, to + (unit * planes + plane) * 2 * band_rows + 16 * part);
        }
      }
    }
  }
};

// [lanes, 16 rows] become [8, stride, 2]: pairs of rows. `lanes` is rounded up to 8.
inline void transpose_out(const std::uint8_t* from, std::int64_t lanes, std::int64_t stride, std::uint8_t* to) {
  const hn::Full128<std::uint8_t> d;
  for (std::int64_t k = 0; k < lanes; k += 8) {
    Bytes16 block[8];
    for (int n = 0; n < 8; ++n) block[n] = hn::LoadU(d, from + (k + n) * band_rows);
    transpose(block);
    for (int n = 0; n < 8; ++n) hn::StoreU(block[n], d, to + (n * stride + k) * 2);
  }
}

}  // namespace
}  // namespace ROBOCACHE_SIMD_TARGET
}  // namespace robocache::image_op
