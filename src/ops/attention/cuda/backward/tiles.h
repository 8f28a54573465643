// What dq.h and dkv.h share: the layout of shared memory, the products of a warp, the state of rows.
#pragma once

#include "gpu/mma.h"
#include "ops/attention/cuda/backward/common.h"
#include "ops/attention/cuda/load.h"
#include "ops/attention/cuda/mask.h"
#include "ops/attention/cuda/store.h"

namespace robocache::attention_op {
namespace {

constexpr int backward_rows = tuning::backward_rows;
constexpr int backward_threads = tuning::backward_warps * warp_size;
constexpr int column_slices = tuning::backward_warps * warp_rows /
                              backward_rows;  // warps that have the same rows and share the columns of a chunk

// lse and delta of a row, and which keys it sees.
struct RowState {
  float lse, delta;
  QueryMask mask;

  // Turns the loaded lse into units of log2. A row whose lse is -inf saw no key, or only scores of -inf: its probabilities are 0.
  __device__ void finish_load() {
    const bool sees_any = lse != minus_infinity();
    lse = sees_any ? lse * log2_e : -minus_infinity();
    if (!sees_any) mask.end = 0;
    mask.rank = min(mask.rank, most_rank);
  }
};

// In this order: two tiles that the block keeps, two stages of two tiles, the row states of each stage. At the end the
// partial sums of a column slice take the place of the tiles.
template <int D>
struct BackwardLayout {
  static constexpr int chunk = tuning::backward_chunk(D);
  static constexpr int columns = chunk / column_slices;  // of a warp
  static constexpr int kept = backward_rows * PaddedTile<D>::pitch;
  static constexpr int stage_tile_bytes = chunk * PaddedTile<D>::pitch;
  static constexpr int state = 2 * kept + 4 * stage_tile_bytes;
  static constexpr int bytes = state + 2 * chunk * static_cast<int>(sizeof(RowState));
  static_assert(columns <= warp_size && backward_rows * D * static_cast<int>(sizeof(float)) <= state);

  static __device__ PaddedTile<D> kept_tile(std::uint32_t shared, int which) { return {shared + which * kept}; }
  static __device__ PaddedTile<D> stage_tile(std::uint32_t shared, int number, int which) {
    return {shared + 2 * kept + (number % 2 * 2 + which) * stage_tile_bytes};
  }
};

// The part of the product that a warp computes: rows [row, row + 16) of the block, columns from `column` on of the chunk.
struct WarpCoord {
  int lane, row, column;

  __device__ explicit WarpCoord(int columns)
      : lane(static_cast<int>(threadIdx.x % warp_size)),
        row(static_cast<int>(threadIdx.x / warp_size) % (backward_rows / warp_rows) * warp_rows),
        column(static_cast<int>(threadIdx.x / warp_size) / (backward_rows / warp_rows) * columns) {}
};

// c += a b^T over D: the warp's rows of `a` times its columns, which are rows of `b`.
template <class T, int D, int count>
__device__ void mma_rows(float (&c)[count][4], const WarpCoord& coord, const PaddedTile<D>& a, const PaddedTile<D>& b) {
#pragma unroll
  for (int d = 0; d < D / 16; ++d) {
    std::uint32_t a_fragment[4];
    ldmatrix_x4(a_fragment, a.operand_a(coord.row, d * 16));
#pragma unroll
    for (int n = 0; n < count / 2; ++n) {
      std::uint32_t b_fragment[4];
      ldmatrix_x4(b_fragment, b.operand_b(coord.column + n * 16, d * 16));
      mma_m16n8k16<T>(c[2 * n], a_fragment, b_fragment[0], b_fragment[1]);
      mma_m16n8k16<T>(c[2 * n + 1], a_fragment, b_fragment[2], b_fragment[3]);
    }
  }
}

// c += weights b: the warp's columns are rows of `b`. Rows of `b` that are not seen (any_row_bits) count as 0: they may be NaN.
template <class T, int D, int count>
__device__ void mma_weights(float (&c)[D / 8][4], const float (&weights)[count][4], const WarpCoord& coord,
                            const PaddedTile<D>& b, std::uint32_t seen) {
#pragma unroll
  for (int n = 0; n < count / 2; ++n) {
    std::uint32_t left[4];
    pack_fragment<T>(left, weights, n);
    std::uint32_t real[2];
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      real[k] = half_masks(seen >> (4 * n + 2 * k));
    }
#pragma unroll
    for (int d = 0; d < D / 16; ++d) {
      std::uint32_t right[4];
      ldmatrix_x4_trans(right, b.operand_a(coord.column + n * 16, d * 16));
      mma_m16n8k16<T>(c[2 * d], left, right[0] & real[0], right[1] & real[1]);
      mma_m16n8k16<T>(c[2 * d + 1], left, right[2] & real[0], right[3] & real[1]);
    }
  }
}

// Starts the load of a row's state with the current cp.async group. Once it has arrived, the same thread must call
// finish_load().
__device__ void load_row_state(const BackwardCall& call, const Rows& rows, int row, RowState& to) {
  const Plan& plan = call.plan.forward;
  const bool real = rows.exists(row);
  const std::int64_t place = real ? rows.lse_offset(plan, row) : 0;
  cp_async_4(&to.lse, plan.lse + place, real);
  cp_async_4(&to.delta, call.scratch.delta + place, real);
  QueryMask mask;
  const int i = real ? rows.query(row) : 0;
  if (real) {
    const KeyRange range = keys_in_window(plan, rows.s, i);
    mask.first = static_cast<int>(range.first);
    mask.end = static_cast<int>(range.end);
  }
  to.mask.first = mask.first;
  to.mask.end = mask.end;
  if (plan.query_ranks.data == nullptr) {
    to.mask.rank = mask.rank;
  } else {
    const auto* const ranks = static_cast<const std::int32_t*>(plan.query_ranks.data);
    const std::int64_t at = rows.s.number * plan.query_ranks.batch + (rows.s.first_query + i) * plan.query_ranks.row;
    cp_async_4(&to.mask.rank, ranks + at, real);
  }
}

template <Masking masking>
__device__ std::uint32_t any_row_bits(std::uint32_t seen) {
  return masking == Masking::none ? ~0u : any_row_bits(seen);
}

// Whether a row sees key j.
template <Masking masking>
__device__ bool sees(const Plan& plan, const Rows& rows, int row, const RowState& state, std::int32_t key, int j) {
  if constexpr (masking == Masking::none) return true;  // behind the last key and row there are zeros
  if constexpr (masking == Masking::simple) return sees(state.mask, key, j);
  return sees(state.mask, key, j) && is_allowed(plan, rows, row, j);
}

// Adds the sums of the second column slice to those of the first. True for the warps of the first, which have the result.
template <int D>
__device__ bool reduce_slices(float (&sums)[D / 8][4], const WarpCoord& coord, unsigned char* memory) {
  auto* const others = reinterpret_cast<float*>(memory) + coord.row / warp_rows * (D / 2) * warp_size + coord.lane;
  __syncthreads();
  if (coord.column != 0) {
#pragma unroll
    for (int k = 0; k < D / 2; ++k) others[k * warp_size] = sums[k / 4][k % 4];
  }
  __syncthreads();
  if (coord.column != 0) return false;
#pragma unroll
  for (int k = 0; k < D / 2; ++k) sums[k / 4][k % 4] += others[k * warp_size];
  return true;
}

}  // namespace
}  // namespace robocache::attention_op
