#include "formats/ros2/lanes.h"

#include <algorithm>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace robocache::ros2 {

void Lanes::add(DType dtype, std::size_t offset) {
  const auto bytes = static_cast<std::size_t>(size_of(dtype));
  const std::size_t lane = offset / 4, inside = offset % 4;
  fits_ = fits_ && count_ < lanes && lane < lanes && inside + bytes <= 4 && (bytes < 4 || dtype == DType::f32);
  if (!fits_) return;
  from_[count_] = static_cast<std::uint32_t>(lane);
  if (bytes < 4) {
    const bool is_signed = dtype == DType::i8 || dtype == DType::i16;
    left_[count_] = static_cast<std::uint32_t>(8 * (4 - inside - bytes));
    right_[count_] = static_cast<std::uint32_t>(8 * (4 - bytes));
    sign_[count_] = is_signed ? 1U << (8 * bytes - 1) : 0;
    is_integer_[count_] = ~0U;
    has_integers_ = true;
  }
  ++count_;
}

#if defined(__x86_64__)

namespace {

__attribute__((target("avx2"))) inline __m256i load(const void* from) {
  return _mm256_loadu_si256(static_cast<const __m256i*>(from));
}

}  // namespace

// A register is wider than a row. The next point overwrites what it writes behind the row.
__attribute__((target("avx2"))) void Lanes::move_registers(const char* from, std::size_t step, std::size_t points,
                                                           std::byte* to) const {
  const __m256i lane = load(from_.data()), left = load(left_.data()), right = load(right_.data());
  const __m256i sign = load(sign_.data()), is_integer = load(is_integer_.data());
  const std::size_t row = 4 * count_;
  const bool has_integers = has_integers_;
  for (; points > 0; --points, from += step, to += row) {
    __m256i values = _mm256_permutevar8x32_epi32(load(from), lane);
    if (has_integers) {
      const __m256i bits = _mm256_srlv_epi32(_mm256_sllv_epi32(values, left), right);
      const __m256i integers = _mm256_sub_epi32(_mm256_xor_si256(bits, sign), sign);
      const __m256i floats = _mm256_castps_si256(_mm256_cvtepi32_ps(integers));
      values = _mm256_blendv_epi8(values, floats, is_integer);
    }
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), values);
  }
}

std::size_t Lanes::move(const char* from, std::size_t step, std::size_t points, std::byte* to) const {
  static const bool runs = __builtin_cpu_supports("avx2") != 0;
  const std::size_t row = 4 * count_;
  if (!runs || !fits_ || row == 0) return 0;
  const auto leaves = [](std::size_t bytes) {
    return (4 * lanes - 1) / bytes;
  };  // points that must follow the last one that is moved
  const std::size_t left = std::max(leaves(step), leaves(row));
  if (points <= left) return 0;
  move_registers(from, step, points - left, to);
  return points - left;
}

#else

std::size_t Lanes::move(const char*, std::size_t, std::size_t, std::byte*) const { return 0; }

#endif

}  // namespace robocache::ros2
