// Products of float32 matrices: one function for all five, forward and backward.
#pragma once

#include "core/vectors.h"
#include "ops/attention/cpu/cpu.h"

namespace robocache::attention_op {
inline namespace ROBOCACHE_SIMD_TARGET {
namespace {

using Floats = hn::ScalableTag<float>;
using Vector = hn::Vec<Floats>;
constexpr std::int64_t lanes = HWY_LANES(float);
constexpr int most_vectors = HWY_ARCH_X86 && lanes == 8 ? 2 : 4;  // columns of a product: there are 16 registers, or 32
constexpr float nothing_seen = -std::numeric_limits<float>::infinity();
constexpr std::uint64_t all_keys = ~std::uint64_t{0};

// Element (r, k) is data[r * row + k * column].
struct Matrix {
  const float* data;
  std::int64_t row, column;
};

// c = a b for `rows` rows and `vectors` vectors of columns; c = rescale c + a b where `keeps`. The old c is added last, so that
// the chain of roundings is only as long as this product is deep.
template <int rows, int vectors, bool keeps>
HWY_INLINE void multiply_part(const Matrix& a, const float* b, std::int64_t b_row, std::int64_t depth, float* c,
                              std::int64_t c_row, const float* rescale) {
  const Floats d;
  Vector sums[rows][vectors];
#pragma GCC unroll 8
  for (int r = 0; r < rows; ++r) {
#pragma GCC unroll 8
    for (int v = 0; v < vectors; ++v) sums[r][v] = hn::Zero(d);
  }
  for (std::int64_t k = 0; k < depth; ++k) {
    Vector row[vectors];
#pragma GCC unroll 8
    for (int v = 0; v < vectors; ++v) row[v] = hn::LoadU(d, b + k * b_row + v * lanes);
#pragma GCC unroll 8
    for (int r = 0; r < rows; ++r) {
      const Vector factor = hn::Set(d, a.data[r * a.row + k * a.column]);
#pragma GCC unroll 8
      for (int v = 0; v < vectors; ++v) sums[r][v] = hn::MulAdd(factor, row[v], sums[r][v]);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < rows; ++r) {
#pragma GCC unroll 8
    for (int v = 0; v < vectors; ++v) {
      float* const to = c + r * c_row + v * lanes;
      if constexpr (keeps) {
        const Vector kept = hn::LoadU(d, to);
        sums[r][v] =
            rescale == nullptr ? hn::Add(kept, sums[r][v]) : hn::MulAdd(kept, hn::Set(d, rescale[r]), sums[r][v]);
      }
      hn::StoreU(sums[r][v], d, to);
    }
  }
}

// The size of the next part of `left` things, at most `most`: parts of about equal size, so that the last one is not small.
HWY_INLINE std::int64_t next_part(std::int64_t left, std::int64_t most) {
  const std::int64_t parts = divide_up(left, most);
  return parts > 1 ? divide_up(left, parts) : left;
}

// A product whose columns are whole vectors, in parts that fit the registers.
template <bool keeps>
struct Product {
  Matrix a;
  std::int64_t rows, depth;
  const float* b;
  std::int64_t b_row;
  float* c;
  std::int64_t c_row;
  const float* rescale;

  template <int vectors, int high = row_step>
  void multiply_rows(std::int64_t r, std::int64_t count, std::int64_t column) const {
    if (count < high) {
      if constexpr (high > 1) multiply_rows<vectors, high - 1>(r, count, column);
      return;
    }
    multiply_part<high, vectors, keeps>({a.data + r * a.row, a.row, a.column}, b + column, b_row, depth,
                                        c + r * c_row + column, c_row, rescale == nullptr ? nullptr : rescale + r);
  }
  template <int vectors = most_vectors>
  void multiply_columns(std::int64_t column, std::int64_t count) const {
    if (count < vectors) {
      if constexpr (vectors > 1) multiply_columns<vectors - 1>(column, count);
      return;
    }
    for (std::int64_t r = 0, next = 0; r < rows; r += next) {
      next = next_part(rows - r, row_step);
      multiply_rows<vectors>(r, next, column);
    }
  }
  void multiply(std::int64_t columns) const {
    for (std::int64_t column = 0, next = 0; column < columns; column += next * lanes) {
      next = next_part((columns - column) / lanes, most_vectors);
      multiply_columns(column, next);
    }
  }
};

}  // namespace
}  // namespace ROBOCACHE_SIMD_TARGET
}  // namespace robocache::attention_op
