// What a warp of the sm80 kernel does with one tile of keys: mask, zeroed values, the two products.
#pragma once

#include "gpu/mma.h"
#include "ops/attention/cuda/forward_call.h"
#include "ops/attention/cuda/load.h"
#include "ops/attention/cuda/mask.h"
#include "ops/attention/cuda/named_barriers.h"
#include "ops/attention/cuda/softmax.h"

namespace robocache::attention_op {
namespace {

// Loads the operands of a warp's 16 rows, for all steps of the product.
template <int D, int count>
__device__ __forceinline__ void load_query_fragments(std::uint32_t (&fragments)[count][4], const PaddedTile<D>& queries,
                                                     int warp_row) {
#pragma unroll
  for (int d = 0; d < count; ++d) ldmatrix_x4(fragments[d], queries.operand_a(warp_row, d * 16));
}

// The masks of this thread's two rows, for keys before `end`.
__device__ __forceinline__ void load_query_masks(QueryMask (&masks)[2], const Plan& plan, const Rows& rows,
                                                 int warp_row, int end) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    masks[half] = query_mask(plan, rows, warp_row + static_cast<int>(threadIdx.x % warp_size) / 4 + 8 * half);
    masks[half].end = min(masks[half].end, end);
  }
}

// Zeroes the values of a warp's share of 32 keys, those with a bit in zero_keys, where they are fully masked.
template <class Tile>
__device__ __forceinline__ void zero_fully_masked(const Tile& values, bool fully_masked, unsigned zero_keys, int word) {
  const unsigned mine = __ballot_sync(whole_warp, fully_masked) & zero_keys;
  zero_masked_values(values, mine, word * warp_size);
  if (mine != 0) fence_proxy_async();  // TMA writes there next
}

// Waits for the warps that share a slice of keys.
__device__ __forceinline__ void sync_key_slice(const ForwardCall& call, int key_slice) {
  if (call.row_warps > 1) {
    named_barrier_sync(barrier_id(NamedBarrier::key_slice, key_slice), call.row_warps);
  } else {
    __syncwarp();  // racecheck does not know a named barrier of one warp
  }
}

// scores += queries keys^T of a warp's 16 rows. keep_queries: their fragments are in registers; else they are loaded.
template <class T, int D, int keys, bool keep_queries>
__device__ __forceinline__ void multiply_keys(float (&scores)[keys / 8][4],
                                              const std::uint32_t (&query_fragments)[keep_queries ? D / 16 : 1][4],
                                              const PaddedTile<D>& queries, int warp_row,
                                              const LdmatrixTile<D>& key_tile) {
#pragma unroll
  for (int d = 0; d < D / 16; ++d) {
    std::uint32_t a[4];
    if constexpr (keep_queries) {
#pragma unroll
      for (int k = 0; k < 4; ++k) a[k] = query_fragments[d][k];
    } else {
      ldmatrix_x4(a, queries.operand_a(warp_row, d * 16));
    }
#pragma unroll
    for (int n = 0; n < keys / 16; ++n) {
      std::uint32_t b[4];
      ldmatrix_x4(b, key_tile.operand_b(n * 16, d * 16));
      mma_m16n8k16<T>(scores[2 * n], a, b[0], b[1]);
      mma_m16n8k16<T>(scores[2 * n + 1], a, b[2], b[3]);
    }
  }
}

// Changes the sign of all scores.
template <int count>
__device__ __forceinline__ void negate(float (&scores)[count][4]) {
#pragma unroll
  for (int n = 0; n < count; ++n) {
#pragma unroll
    for (int k = 0; k < 4; ++k) scores[n][k] = -scores[n][k];
  }
}

// Hides the scores of keys that a row does not see, in a tile that begins at `first`. Returns a bit for each of this thread's
// columns, which are its keys in the second product too: whether any row of the warp sees that key.
template <Masking masking, int keys>
__device__ __forceinline__ std::uint32_t mask_scores(float (&scores)[keys / 8][4], const Plan& plan, const Rows& rows,
                                                     const QueryMask (&query_masks)[2],
                                                     const std::int32_t (&key_ranks)[keys / warp_size], int warp_row,
                                                     int first, int end) {
  const auto lane = static_cast<int>(threadIdx.x % warp_size);
  std::uint32_t seen = 0xffffu;
  if constexpr (masking == Masking::none) {
    if (first + keys > end) hide_keys_behind(scores, first, end);
  } else {
    if constexpr (masking == Masking::general) seen = 0;
#pragma unroll
    for (int n = 0; n < keys / 8; ++n) {
#pragma unroll
      for (int k = 0; k < 2; ++k) {
        const int column = n * 8 + lane % 4 * 2 + k;
        const std::int32_t key = __shfl_sync(whole_warp, key_ranks[n / 4], column % warp_size);
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          float& score = scores[n][2 * half + k];
          bool here = sees(query_masks[half], key, first + column);
          if constexpr (masking == Masking::general) {
            here = here && is_allowed(plan, rows, warp_row + lane / 4 + 8 * half, first + column);
            if (here) seen |= 1u << (n * 2 + k);
          }
          score = here ? score : minus_infinity();
        }
      }
    }
    if constexpr (masking == Masking::general) seen = any_row_bits(seen);
  }
  return seen;
}

// Adds weights times values to the output. `seen`: a bit for each of this thread's keys that any row of the warp sees. Values of
// the others may be NaN, which a weight of 0 does not stop, so a general mask zeroes them.
template <class T, int D, int keys, bool zeroes_unseen>
__device__ __forceinline__ void multiply_values(Accumulators<D>& acc, const float (&scores)[keys / 8][4],
                                                const LdmatrixTile<D>& value_tile, std::uint32_t seen) {
#pragma unroll
  for (int n = 0; n < keys / 16; ++n) {
    std::uint32_t a[4];
    pack_fragment<T>(a, scores, n);
    std::uint32_t real[2];
#pragma unroll
    for (int k = 0; k < 2; ++k) real[k] = half_masks(seen >> (4 * n + 2 * k));
#pragma unroll
    for (int d = 0; d < D / 16; ++d) {
      std::uint32_t b[4];
      ldmatrix_x4_trans(b, value_tile.operand_a(n * 16, d * 16));
      if constexpr (zeroes_unseen) {
#pragma unroll
        for (int k = 0; k < 4; ++k) b[k] &= real[k % 2];
      }
      mma_m16n8k16<T>(acc.out[2 * d], a, b[0], b[1]);
      mma_m16n8k16<T>(acc.out[2 * d + 1], a, b[2], b[3]);
    }
  }
}

}  // namespace
}  // namespace robocache::attention_op
