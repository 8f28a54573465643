// The two products of a warpgroup's mainloop, by wgmma: scores = queries keys^T and out += weights values. The functions only
// issue them; the caller waits.
#pragma once

#include "gpu/mma.h"
#include "gpu/wgmma.h"
#include "ops/attention/cuda/tiles.h"

namespace robocache::attention_op {
namespace {

#if ROBOCACHE_HAS_WGMMA

// The 64 rows of queries of a warpgroup: in registers where there is room for their fragments, otherwise in shared memory.
template <class T, int D, int keys>
struct QueryOperand {
  static constexpr bool in_registers = tuning::keep_queries(D, keys);
  std::uint32_t fragments[in_registers ? D / 16 : 1][4];
  SmemDescriptor descriptor;
  int block;  // bytes from 64 columns to the next

  __device__ QueryOperand(const QueryTile<D>& queries, int row_warp)
      : descriptor(queries.address(row_warp / 4 * 64, 0)), block(queries.block_bytes()) {
    if constexpr (in_registers) {
      const auto lane = static_cast<int>(threadIdx.x % warp_size);
#pragma unroll
      for (int d = 0; d < D / 16; ++d) {
        ldmatrix_x4(fragments[d], queries.address(row_warp * warp_rows + lane % 16, d * 16 + lane / 16 * 8));
      }
    }
  }
  // The product over the 16 columns numbered d, and over all that follow.
  template <int d>
  __device__ void multiply(float (&scores)[keys / 8][4], const SmemDescriptor& key_tile) const {
    const std::uint64_t b = key_tile.at(d / 4 * SwizzledTile<D, keys>::block_bytes + d % 4 * 32);
    if constexpr (in_registers) {
      wgmma_rs<T, keys / 8, 0, d != 0, false>(scores, fragments[d], b);
    } else {
      wgmma_ss<T, d != 0>(scores, descriptor.at(d / 4 * block + d % 4 * 32), b);
    }
    if constexpr (d + 1 < D / 16) multiply<d + 1>(scores, key_tile);
  }
};

template <class T, int D, int keys>
__device__ void start_scores(float (&scores)[keys / 8][4], const QueryOperand<T, D, keys>& queries,
                             const SmemDescriptor& key_tile) {
  warpgroup_arrive();
  queries.template multiply<0>(scores, key_tile);
  warpgroup_commit_batch();
}

// out += weights values for columns [8 * first, D) and the 16 keys from `row` on, by as few wgmma as their widths allow.
template <class T, int D, int keys, int first = 0>
__device__ void add_columns(float (&out)[D / 8][4], const std::uint32_t (&weights)[4], const SmemDescriptor& values,
                            int row) {
  if constexpr (first < D / 8) {
    constexpr int left = D / 8 - first;
    constexpr int count = left == 32 || left == 16 ? left : (left >= 8 ? 8 : (left >= 4 ? 4 : 2));
    wgmma_rs<T, count, first, 1, true>(
        out, weights, values.at(first / 8 * SwizzledTile<D, keys>::block_bytes + first % 8 * 16 + row * 128));
    add_columns<T, D, keys, first + count>(out, weights, values, row);
  }
}

template <class T, int D, int keys>
__device__ void start_output(float (&out)[D / 8][4], const std::uint32_t (&weights)[keys / 16][4],
                             const SwizzledTile<D, keys>& values) {
  const SmemDescriptor descriptor(values.base, values.block_bytes);
  warpgroup_arrive();
#pragma unroll
  for (int n = 0; n < keys / 16; ++n) add_columns<T, D, keys>(out, weights[n], descriptor, n * 16);
  warpgroup_commit_batch();
}

#endif

}  // namespace
}  // namespace robocache::attention_op
