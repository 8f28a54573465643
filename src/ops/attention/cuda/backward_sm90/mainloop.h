// The mainloop of a consumer warpgroup of the sm90 backward pass (kernel.h says what it computes).
#pragma once

#include "gpu/mma.h"
#include "gpu/shared_memory.h"
#include "gpu/wgmma.h"
#include "ops/attention/cuda/backward_sm90/layout.h"
#include "ops/attention/cuda/exp2.h"
#include "ops/attention/cuda/forward_sm90/products.h"

namespace robocache::attention_op {
namespace {

#if ROBOCACHE_HAS_WGMMA

// Issues c = a b^T: 64 rows of each, over D. Between warpgroup_arrive() and warpgroup_commit_batch().
template <class T, int D, int d = 0>
__device__ void multiply_tiles(float (&c)[sm90_rows / 8][4], const SmemDescriptor& a, const SmemDescriptor& b) {
  constexpr int place = d / 4 * SwizzledTile<D, sm90_rows>::block_bytes + d % 4 * 32;
  wgmma_ss<T, d != 0>(c, a.at(place), b.at(place));
  if constexpr (d + 1 < D / 16) multiply_tiles<T, D, d + 1>(c, a, b);
}

// Issues c += a b, b a streamed tile. Between warpgroup_arrive() and warpgroup_commit_batch().
template <class T, int D>
__device__ void add_product(float (&c)[D / 8][4], const std::uint32_t (&a)[sm90_rows / 16][4],
                            const SwizzledTile<D, sm90_rows>& tile) {
  const SmemDescriptor b(tile.base, tile.block_bytes);
#pragma unroll
  for (int n = 0; n < sm90_rows / 16; ++n) add_columns<T, D, sm90_rows>(c, a[n], b, n * 16);
}

// The products of a consumer warpgroup's 64 kept rows with the streamed tiles. of_keys: the kept rows are keys.
template <class T, int D, bool windowed, bool of_keys, class L>
struct Sm90Products {
  const Sm90BackwardCall& all;
  const Sm90WorkTile& work;
  const L& layout;
  const int lane = static_cast<int>(threadIdx.x % warp_size);
  const int warp = static_cast<int>(threadIdx.x / warp_size % 4);
  const float scale = static_cast<float>(all.call.plan.forward.scale) * log2_e;
  const int kept_row;
  int tile;  // the streamed tile whose P comes next
  float row_lse[2] = {}, row_delta[2] = {};
  // p: the scores of a tile, then P in place, which is rounded to p_fragments. dS is made of the rounded P: that frees the
  // registers of p for the next scores.
  float p[sm90_rows / 8][4], ds[sm90_rows / 8][4];
  std::uint32_t p_fragments[sm90_rows / 16][4] = {}, ds_fragments[sm90_rows / 16][4] = {};

  __device__ Sm90Products(const Sm90BackwardCall& of, const Sm90WorkTile& of_work, const L& of_layout, int group)
      : all(of),
        work(of_work),
        layout(of_layout),
        kept_row(of_work.first + group * sm90_rows),
        tile(of_work.begin % of_work.tiles + of_work.first_tile) {
    if constexpr (!of_keys) {
      wait_on_dependent_grids();
      const std::int64_t place = (static_cast<std::int64_t>(work.sequence) * all.call.plan.forward.heads + work.head) *
                                     all.query_tiles * sm90_rows +
                                 kept_row + warp * warp_rows + lane / 4;
#pragma unroll
      for (int k = 0; k < 2; ++k) {
        row_lse[k] = all.lse[place + 8 * k];
        row_delta[k] = all.call.scratch.delta[place + 8 * k];
      }
    }
  }

  // Sets P outside the window to 0. Called once for each tile, in order.
  __device__ __forceinline__ void apply_window() {
    const int apart = of_keys ? kept_row - tile * sm90_rows : tile * sm90_rows - kept_row;
    if (++tile == work.first_tile + work.tiles) tile = work.first_tile;
    const int least = apart - all.shift - (sm90_rows - 1);
    const int most = apart - all.shift + (sm90_rows - 1);
    if (least >= -all.left && most <= all.right) return;
    const int row = warp * warp_rows + lane / 4;
    const int column = lane % 4 * 2;
    const int from = apart - all.shift + all.left + (of_keys ? row - column : column - row);
    const auto seen = static_cast<unsigned>(all.left + all.right);
#pragma unroll
    for (int n = 0; n < sm90_rows / 8; ++n) {
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        const int more = of_keys ? k / 2 * 8 - n * 8 - k % 2 : n * 8 + k % 2 - k / 2 * 8;
        if (static_cast<unsigned>(from + more) > seen) p[n][k] = 0;
      }
    }
  }
  __device__ __forceinline__ void compute_p(int stage) {
#pragma unroll
    for (int n = 0; n < sm90_rows / 8; ++n) {
      float2 lse{row_lse[0], row_lse[1]};
      if constexpr (of_keys) lse = ld_shared_float2(layout.lse(stage) + (n * 8 + lane % 4 * 2) * 4);
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        p[n][k] = probability(p[n][k], scale, (of_keys ? k % 2 : k / 2) == 0 ? lse.x : lse.y);
      }
    }
    if constexpr (windowed) apply_window();
    pack_fragments<T>(p_fragments, p);
    warpgroup_fence_operand(p_fragments);  // keeps the packing here: later the next scores overwrite p
  }
  __device__ __forceinline__ void compute_ds(int stage) {
#pragma unroll
    for (int n = 0; n < sm90_rows / 8; ++n) {
      float2 delta{row_delta[0], row_delta[1]};
      if constexpr (of_keys) delta = ld_shared_float2(layout.delta(stage) + (n * 8 + lane % 4 * 2) * 4);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float2 both = unpack<T>(p_fragments[n / 2][n % 2 * 2 + half]);
        ds[n][2 * half] = both.x * (ds[n][2 * half] - (of_keys || half == 0 ? delta.x : delta.y));
        ds[n][2 * half + 1] = both.y * (ds[n][2 * half + 1] - (!of_keys && half == 0 ? delta.x : delta.y));
      }
    }
    pack_fragments<T>(ds_fragments, ds);
  }
  __device__ __forceinline__ void release(int stage) const {
    if (lane == 0) layout.empty(stage).arrive();
  }
  // Issues the scores, or dP, of a stage that is full.
  __device__ __forceinline__ void start_scores(const SmemDescriptor& x, int stage) {
    warpgroup_arrive();
    multiply_tiles<T, D>(p, x, SmemDescriptor(layout.stream(stage, false).base));
    warpgroup_commit_batch();
  }
  __device__ __forceinline__ void start_dp(const SmemDescriptor& y, int stage) {
    warpgroup_arrive();
    multiply_tiles<T, D>(ds, y, SmemDescriptor(layout.stream(stage, true).base));
    warpgroup_commit_batch();
  }

  // The products of the next tile run while this one's P and dS are computed: its scores beside dS, its dP beside P. The wait
  // at the beginning of an iteration is for all batches in flight: after a wait for some of those that began in the iteration
  // before, ptxas does not know which are done, and serializes every wgmma (C7514).
  template <class Refill>
  __device__ __forceinline__ void run_pipelined(const SmemDescriptor& x, const SmemDescriptor& y, const Refill& refill,
                                                float (&sums)[D / 8][4], float (&second)[of_keys ? D / 8 : 1][4]) {
    int stage = 0;
    unsigned phase = 0;
    int last = -1;
    const auto iterate = [&](auto more_follow) {
      constexpr bool more = decltype(more_follow)::value;
      const int next = stage + 1 == L::stages ? 0 : stage + 1;
      if (next == 0) phase ^= 1u;
      compute_p(stage);
      warpgroup_wait<0>();
      warpgroup_fence_operand(ds);
      warpgroup_fence_operand(ds_fragments);
      if (last >= 0) release(last);
      if constexpr (more) layout.full(next, false).wait(phase);
      if constexpr (of_keys || more) warpgroup_arrive();
      if constexpr (more) multiply_tiles<T, D>(p, x, SmemDescriptor(layout.stream(next, false).base));
      if constexpr (of_keys) add_product<T>(second, p_fragments, layout.stream(stage, true));
      if constexpr (of_keys || more) warpgroup_commit_batch();
      compute_ds(stage);
      if constexpr (more) layout.full(next, true).wait(phase);
      warpgroup_arrive();
      add_product<T>(sums, ds_fragments, layout.stream(stage, false));
      if constexpr (more) multiply_tiles<T, D>(ds, y, SmemDescriptor(layout.stream(next, true).base));
      warpgroup_commit_batch();
      if constexpr (more) {
        if (last >= 0) refill();
        warpgroup_wait<1>();
        warpgroup_fence_operand(p);
        warpgroup_fence_operand(p_fragments);
      }
      last = stage;
      stage = next;
    };
    warpgroup_wait<1>();
    warpgroup_fence_operand(p);
#pragma unroll 1
    for (int number = work.begin + 1; number < work.end; ++number) iterate(std::true_type{});
    iterate(std::false_type{});
    warpgroup_wait<0>();
    warpgroup_fence_operand(p_fragments);
    warpgroup_fence_operand(ds_fragments);
  }

  // The products of the next tile wait for those of this one: there are too few registers for more.
  __device__ __forceinline__ void run_in_turn(const SmemDescriptor& x, const SmemDescriptor& y, float (&sums)[D / 8][4],
                                              float (&second)[of_keys ? D / 8 : 1][4]) {
    int stage = 0;
    unsigned phase = 0;
    static_assert(L::groups > 1, "this loop leaves the copies to a producer of its own");
#pragma unroll 1
    for (int number = work.begin;;) {
      warpgroup_wait<1>();
      warpgroup_fence_operand(p);
      compute_p(stage);
      start_output<T>(second, p_fragments, layout.stream(stage, true));
      warpgroup_wait<1>();
      warpgroup_fence_operand(ds);
      compute_ds(stage);
      start_output<T>(sums, ds_fragments, layout.stream(stage, false));
      warpgroup_wait<0>();  // too few registers for the next scores in flight: ptxas would serialize every wgmma
      warpgroup_fence_operand(p_fragments);
      warpgroup_fence_operand(ds_fragments);
      release(stage);
      if (++number >= work.end) break;
      if (++stage == L::stages) {
        stage = 0;
        phase ^= 1u;
      }
      layout.full(stage, false).wait(phase);
      start_scores(x, stage);
      layout.full(stage, true).wait(phase);
      start_dp(y, stage);
    }
  }
};

// Computes the gradients of one consumer warpgroup's rows. of_keys: the rows are keys, and `second` gets d_values.
// refill(): called when a stage has become empty.
template <class T, int D, bool windowed, bool of_keys, class L, class Refill>
__device__ void sm90_mainloop(const Sm90BackwardCall& all, const Sm90WorkTile& work, const L& layout,
                              const Refill& refill, int group, float (&sums)[D / 8][4],
                              float (&second)[of_keys ? D / 8 : 1][4]) {
  if (work.begin >= work.end) return;
  Sm90Products<T, D, windowed, of_keys, L> products(all, work, layout, group);
  warpgroup_fence_operand(sums);  // the zeros are written before the first wgmma
  if constexpr (of_keys) warpgroup_fence_operand(second);
  layout.kept_full(false).wait(0);
  const SmemDescriptor x(layout.kept(group, false).base);
  layout.full(0, false).wait(0);
  products.start_scores(x, 0);
  layout.kept_full(true).wait(0);
  const SmemDescriptor y(layout.kept(group, true).base);
  layout.full(0, true).wait(0);
  products.start_dp(y, 0);
  if constexpr (sm90_backward::pipelined(D, of_keys)) {
    products.run_pipelined(x, y, refill, sums, second);
  } else {
    products.run_in_turn(x, y, sums, second);
  }
  warpgroup_fence_operand(sums);
  if constexpr (of_keys) warpgroup_fence_operand(second);
}

#endif

}  // namespace
}  // namespace robocache::attention_op
