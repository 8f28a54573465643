// The mainloop of an sm90 block's consumer warpgroups. While a warpgroup turns scores into weights, the products of the last
// values run; with the next tile its scores and the output of the last weights are issued together.
#pragma once

#include "gpu/cluster.h"
#include "gpu/mma.h"
#include "ops/attention/cuda/forward_call.h"
#include "ops/attention/cuda/forward_sm90/mask.h"
#include "ops/attention/cuda/forward_sm90/pipeline.h"
#include "ops/attention/cuda/forward_sm90/products.h"
#include "ops/attention/cuda/named_barriers.h"
#include "ops/attention/cuda/softmax.h"

namespace robocache::attention_op {
namespace {

#if ROBOCACHE_HAS_WGMMA

// Negates the queries in shared memory, by `warps` warps.
template <int D>
__device__ void negate_queries(const QueryTile<D>& tile, int warps) {
  for (int k = static_cast<int>(threadIdx.x); k < tile.rows * (D / 8); k += warps * warp_size) {
    asm volatile(
        "{.reg .b32 a, b, c, d;\n"
        "ld.shared.v4.b32 {a, b, c, d}, [%0];\n"
        "xor.b32 a, a, %1; xor.b32 b, b, %1; xor.b32 c, c, %1; xor.b32 d, d, %1;\n"
        "st.shared.v4.b32 [%0], {a, b, c, d};}" ::"r"(tile.address(k / (D / 8), k % (D / 8) * 8)),
        "r"(0x80008000u)
        : "memory");
  }
}

// Returns x. The fake dependency on a weight, which is never negative, keeps the wgmma wait that follows below the
// exponentials: the compiler moves such a wait up as far as it can, but not past a wait for x.
__device__ unsigned after(float weight, unsigned x) { return x ^ (weight < 0 ? 1u : 0u); }

// Waits until the queries are in shared memory and wgmma can read them. `warps`: of all consumers.
template <int D, int keys>
__device__ void wait_for_queries(const ForwardCall& call, const KeyValuePipeline<D, keys>& pipeline,
                                 const QueryTile<D>& queries, int warps) {
  if (call.tma_queries) {
    pipeline.queries_full().wait(0);
  } else {
    cp_async_wait_group<0>();
    fence_proxy_async();
    named_barrier_sync(barrier_id(NamedBarrier::consumers), warps);
  }
  // The row maximum is taken of unscaled scores, so the scale must not be negative.
  if (call.plan.scale < 0) {
    negate_queries(queries, warps);
    fence_proxy_async();
    named_barrier_sync(barrier_id(NamedBarrier::consumers), warps);
  }
}

// Tells the cluster that other blocks may push their partial results to where the queries were.
template <int D>
__device__ void release_queries(const ForwardCall& call) {
  if (!SharedLayout::pushes_partials(D, true, call.scheduler.split)) return;
  cluster_wait();  // all blocks have initialized their mbarriers
  cluster_arrive_relaxed();
}

// Hides the keys from `end` on of an unmasked tile that begins at `first`. Behind the last key of an array TMA writes zeros.
// Behind a packed sequence or a cache's length other keys follow, whose values must be zeroed: fully_masked.
template <int keys>
__device__ void mask_last_tile(float (&scores)[keys / 8][4], unsigned (&fully_masked)[keys / warp_size],
                               const Plan& plan, int first, int end) {
  const auto lane = static_cast<int>(threadIdx.x % warp_size);
  hide_keys_behind(scores, first, end);
  if (plan.is_packed() || plan.lengths.data != nullptr) {
#pragma unroll
    for (int k = 0; k < keys / warp_size; ++k) {
      fully_masked[k] = __ballot_sync(whole_warp, first + lane + k * warp_size >= end);
    }
  }
}

// What a warp of the consumer warpgroups does with the tiles of its key slice.
template <class T, int D, bool masked, int keys, bool has_tail, bool segmented>
struct Consumer {
  const ForwardCall& call;
  const Rows& rows;
  const KeyValuePipeline<D, keys>& pipeline;
  MaskTile<keys, segmented>& mask;
  const int row_warp, key_slice;
  int first, end;  // the first key of the current tile, and where the keys end
  const Plan& plan = call.plan;
  const int lane = static_cast<int>(threadIdx.x % warp_size);
  const int step = call.key_warps * keys;
  unsigned fully_masked[keys / warp_size] = {};
  PipelineState pipe_read, pipe_release;
  float scores[keys / 8][4];
  std::uint32_t weights[keys / 16][4];

  // A constructor, because aggregate initialization would write zeros to scores and weights.
  __device__ Consumer(const ForwardCall& of, const Rows& of_rows, const KeyValuePipeline<D, keys>& from,
                      MaskTile<keys, segmented>& with, int warp, int slice, int begin, int end_key)
      : call(of),
        rows(of_rows),
        pipeline(from),
        mask(with),
        row_warp(warp),
        key_slice(slice),
        first(warp_uniform(begin + slice * keys)),
        end(warp_uniform(end_key)) {}

  __device__ __forceinline__ void release(const PipelineState& of, bool values) const {
    if (lane == 0) pipeline.empty(of.stage, values).arrive();
  }
  __device__ __forceinline__ void advance_mask() {
    mask.advance();
    mask.prefetch_keys(plan, rows.s, first + step, end);
  }
  __device__ __forceinline__ void advance() {
    first += step;
    pipe_read.advance(call.key_warps, pipeline.stages);
  }
  // Zeroes the values of fully masked keys: they may be NaN, which a weight of 0 does not stop. The row warps of the key
  // slice share the work.
  __device__ __forceinline__ void zero_values(const PipelineState& of) const {
    unsigned any = 0;
#pragma unroll
    for (const unsigned bits : fully_masked) any |= bits;
    if (any == 0) return;
    zero_masked_values(pipeline.tile(of.stage, true), fully_masked, row_warp, call.row_warps);
    fence_proxy_async();
    named_barrier_sync(barrier_id(NamedBarrier::key_slice, key_slice), call.row_warps);
    if constexpr (has_tail) {
      named_barrier_arrive(barrier_id(NamedBarrier::values_zeroed, of.stage), values_zeroed_warps(call.row_warps));
    }
  }
  // Passes over a tile that no row of the warpgroup sees by its position. Other warpgroups and the tail rows may see it, so
  // this one does its part of the zeroing and releases the stage.
  __device__ __forceinline__ void skip_tile() {
    pipeline.full(pipe_read.stage, false).wait(pipe_read.phase);
    release(pipe_read, false);
    advance_mask();
    mask.find_fully_masked(plan, rows.s, fully_masked, first);
    pipeline.full(pipe_read.stage, true).wait(pipe_read.phase);
    zero_values(pipe_read);
    release(pipe_read, true);
    advance();
  }
  __device__ __forceinline__ void apply_mask() {
    if constexpr (masked) {
      mask.find_fully_masked(plan, rows.s, fully_masked, first);
      mask.apply(scores, first);
    } else if (first + keys > end) {
      mask_last_tile<keys>(scores, fully_masked, plan, first, end);
    }
  }
  // Issues the output of the last weights.
  __device__ __forceinline__ void issue_output(Accumulators<D>& acc) {
    zero_values(pipe_release);
    start_output<T>(acc.out, weights, pipeline.tile(pipe_release.stage, true));
  }
};

// Warpgroups issue their products in turn: while one multiplies, the next computes weights. It pays on long tiles only. Two
// warpgroups meet at each barrier: the one whose turn it is, and the one before it.
struct WarpgroupOrder {
  const bool in_order;
  const int group;
  const bool last_group;

  __device__ WarpgroupOrder(const ForwardCall& call, bool long_tiles, int row_warp)
      : in_order(long_tiles && call.key_warps == 1 && call.row_warps > 4),
        group(row_warp / 4),
        last_group(row_warp + 4 >= call.row_warps) {}
  __device__ __forceinline__ void begin() const {
    if (in_order && last_group) named_barrier_arrive(barrier_id(NamedBarrier::warpgroup_order), 2 * 4);
  }
  __device__ __forceinline__ void wait() const {
    if (in_order) named_barrier_sync(barrier_id(NamedBarrier::warpgroup_order, group), 2 * 4);
  }
  __device__ __forceinline__ void pass_on(bool more_follow) const {
    if (in_order && (!last_group || more_follow)) {
      named_barrier_arrive(barrier_id(NamedBarrier::warpgroup_order, last_group ? 0 : group + 1), 2 * 4);
    }
  }
};

// Accumulates the output of a warp's 16 rows over the tiles of its key slice. before_last_wait(): called while the last
// products run.
template <class T, int D, bool masked, int keys, bool has_tail, bool segmented, class BeforeLastWait>
__device__ void mainloop(const ForwardCall& call, const Rows& rows, const KeyValuePipeline<D, keys>& pipeline,
                         const QueryTile<D>& queries, MaskTile<keys, segmented>& mask, int row_warp, int key_slice,
                         int begin, int end, Accumulators<D>& acc, const BeforeLastWait& before_last_wait) {
  const Plan& plan = call.plan;
  Consumer<T, D, masked, keys, has_tail, segmented> consumer(call, rows, pipeline, mask, row_warp, key_slice, begin,
                                                             end);
  if constexpr (masked) {
    mask.prefetch_keys(plan, rows.s, consumer.first, consumer.end);
    mask.load_queries(plan, rows, queries.rows, row_warp * warp_rows, consumer.end);
  }
  const float scale = fabsf(static_cast<float>(plan.scale)) * log2_e;
  wait_for_queries(call, pipeline, queries, call.row_warps * call.key_warps);
  if (consumer.first >= consumer.end) return release_queries<D>(call);

  consumer.pipe_read.advance(key_slice, pipeline.stages);
  int visible_end = consumer.end;
  if constexpr (masked) {
    visible_end = mask.any_visible_end;
    while (consumer.first < consumer.end &&
           (consumer.first + keys <= mask.any_visible_from || consumer.first >= visible_end))
      consumer.skip_tile();
  }
  if (masked && consumer.first >= consumer.end) {
    release_queries<D>(call);
    return before_last_wait();
  }

  const QueryOperand<T, D, keys> query_operand(queries, row_warp);
  float factors[2], bases[2];
  const WarpgroupOrder order(call, !masked && keys == tuning::long_keys, row_warp);
  order.begin();
  // The first tile has no copy of this code of its own: fetching instructions that run once takes longer than the branches.
  for (bool again = false;; again = true) {
    pipeline.full(consumer.pipe_read.stage, false).wait(consumer.pipe_read.phase);
    order.wait();
    start_scores(consumer.scores, query_operand, SmemDescriptor(pipeline.tile(consumer.pipe_read.stage, false).base));
    if constexpr (masked) consumer.advance_mask();
    if (again) {
      consumer.issue_output(acc);
      order.pass_on(consumer.first + consumer.step < consumer.end);
      warpgroup_wait<1>();
    } else {
      order.pass_on(consumer.first + consumer.step < consumer.end);
      warpgroup_wait<0>();
    }
    warpgroup_fence_operand(consumer.scores);
    consumer.release(consumer.pipe_read, false);
    consumer.apply_mask();
    update_row_max(consumer.scores, acc, scale, factors, bases);
    exponentiate<0, keys / 16>(consumer.scores, acc, scale, bases);
    pipeline.full(consumer.pipe_read.stage, true)
        .wait(after(acc.row_sum[0] + acc.row_sum[1], consumer.pipe_read.phase));
    warpgroup_wait<0>();
    warpgroup_fence_operand(acc.out);
    if (again) consumer.release(consumer.pipe_release, true);
    exponentiate<keys / 16, keys / 8>(consumer.scores, acc, scale, bases);
    acc.rescale(factors);
    pack_fragments<T>(consumer.weights, consumer.scores);
    consumer.pipe_release = consumer.pipe_read;
    consumer.advance();
    if (consumer.first >= visible_end) break;
  }
  release_queries<D>(call);
  consumer.issue_output(acc);
  before_last_wait();
  warpgroup_wait<0>();
  warpgroup_fence_operand(acc.out);
  if constexpr (masked) {
    if (consumer.first >= consumer.end) return;
    consumer.release(consumer.pipe_release, true);
    while (consumer.first < consumer.end) consumer.skip_tile();
  }
}
#endif

}  // namespace
}  // namespace robocache::attention_op
