// Layouts of tiles of half types in shared memory, and the ldmatrix addresses of their fragments.
#pragma once

#include "ops/attention/cuda/shared_layout.h"
#include "ops/attention/cuda/tuning.h"

namespace robocache::attention_op {
namespace {

// Rows of D elements, padded against bank conflicts.
template <int D>
struct PaddedTile {
  static_assert(D % 16 == 0);
  static constexpr int pitch = SharedLayout::padded_row_bytes(D);
  std::uint32_t base;

  __device__ std::uint32_t address(int row, int column) const { return base + row * pitch + column * 2; }

  // Operand A, or operand B through ldmatrix_x4_trans: rows [row, row + 16), columns [column, column + 16).
  __device__ std::uint32_t operand_a(int row, int column) const {
    const auto lane = static_cast<int>(threadIdx.x % warp_size);
    return base + (row + lane % 16) * pitch + (column + lane / 16 * 8) * 2;
  }
  // Operand B of two products, whose columns are rows [row, row + 16) here.
  __device__ std::uint32_t operand_b(int row, int column) const {
    const auto lane = static_cast<int>(threadIdx.x % warp_size);
    return base + (row + lane % 8 + lane / 16 * 8) * pitch + (column + lane / 8 % 2 * 8) * 2;
  }
};

// Keys or values of a stage in TMA's 128-byte swizzle: for each warp along the keys, and each 64 columns, rows of 128 bytes,
// in which the 16 bytes numbered k lie at place k ^ row % 8. So eight rows of a matrix lie in different banks.
template <int D, int stage_keys>
struct SwizzledTile {
  static constexpr int keys = stage_keys;
  static constexpr int block_bytes = keys * 128;
  static constexpr int blocks = SharedLayout::column_blocks(D);
  static constexpr int warp_bytes = 2 * blocks * block_bytes;  // keys, then values
  std::uint32_t base;

  __device__ std::uint32_t address(int row, int column) const {
    return base + row / keys * warp_bytes + column / 64 * block_bytes + row % keys * 128 +
           (column / 8 % 8 ^ row % 8) * 16;
  }
};
// The same tile of one warp, with the lane's part of ldmatrix addresses computed once. Rows are multiples of 16.
template <int D>
struct LdmatrixTile {
  static constexpr int block_bytes = SwizzledTile<D, tuning::keys(D, false)>::block_bytes;
  std::uint32_t rights, lefts, right_column, left_column;

  __device__ explicit LdmatrixTile(std::uint32_t base) {
    const std::uint32_t lane = threadIdx.x % warp_size;
    rights = base + (lane % 8 + lane / 16 * 8) * 128;
    lefts = base + lane % 16 * 128;
    right_column = (lane / 8 % 2 ^ lane % 8) * 16;
    left_column = (lane / 16 ^ lane % 8) * 16;
  }
  __device__ std::uint32_t operand_b(int row, int column) const {
    return rights + column / 64 * block_bytes + row * 128 + (right_column ^ column / 16 % 4 * 32);
  }
  __device__ std::uint32_t operand_a(int row, int column) const {
    return lefts + column / 64 * block_bytes + row * 128 + (left_column ^ column / 16 % 4 * 32);
  }
};

// Queries for wgmma, in the same swizzle: 64 columns of all rows, then the next 64.
template <int D>
struct QueryTile {
  std::uint32_t base;
  int rows;

  __device__ int block_bytes() const { return rows * 128; }
  __device__ std::uint32_t address(int row, int column) const {
    return base + column / 64 * block_bytes() + row * 128 + (column / 8 % 8 ^ row % 8) * 16;
  }
};

}  // namespace
}  // namespace robocache::attention_op
