// Attention of half types on the tensor cores.
//
// A warp has 16 rows and a share of the keys. A block is so many warps along rows times so many along keys; its keys come
// in stages, of which one is used while the others are under way. Blocks of a cluster share rows and split the keys further.
// What is summed for the same rows is merged in the end, within a block and then over the cluster's shared memory, always in
// the same order: one launch, no scratch, the same bits every time.
#pragma once

#include "ops/attention/cuda_sums.h"
#include "ops/attention/cuda_wide.h"

namespace robocache::attention_op {
namespace {

template <class T, int D, Masking masking>
__global__ void __launch_bounds__(tuning::max_warps(D) * warp_size)
    attention_kernel(const __grid_constant__ Call call) {
  constexpr int keys = tuning::keys(D, false);  // of a warp and stage
  constexpr bool keep_queries = D <= 128;       // in registers
  constexpr bool masked = masking != Masking::none;
  extern __shared__ __align__(1024) unsigned char memory[];
  const Plan& plan = call.plan;
  const auto lane = static_cast<int>(threadIdx.x % warp_size);
  const auto warp = static_cast<int>(threadIdx.x / warp_size);
  int key_warp = 0;
  int row_warp = warp;
  for (; row_warp >= call.row_warps; row_warp -= call.row_warps) ++key_warp;
  const int warp_row = row_warp * warp_rows;
  const int block_rows = call.row_warps * warp_rows;
  const int stage_keys = call.key_warps * keys;
  const Memory layout(D, false, call.row_warps, call.key_warps, call.stages, call.units.split);
  const auto shared = static_cast<std::uint32_t>(__cvta_generic_to_shared(memory));
  const auto arrivals_of = [&](int stage) { return Arrivals{shared + layout.arrivals() + stage * 8}; };
  if (call.engine) {
    if (threadIdx.x == 0) {
      for (int k = 0; k < tuning::stages(D); ++k) arrivals_of(k).set_up();
      before_engine();
    }
    __syncthreads();
  }
  Rows rows;
  if (plan.is_packed() || plan.lengths.data != nullptr) after_earlier_work();
  const bool has_rows = set_rows<T>(plan, call.units, plan.out, plan.lse, block_rows, rows);
  after_earlier_work();
  let_next_begin();
  if (call.box != nullptr) check(plan, call.box);
  if (!has_rows) return;  // and so its whole cluster
  const Sequence& s = rows.s;
  const Tile<D> queries{shared + layout.stages};
  copy_rows<T, D>(plan, plan.q, rows, queries, block_rows, call.aligned);

  // The keys that any of the rows sees by its position, and this block's share of them.
  int begin = 0;
  auto end = static_cast<int>(s.keys);
  if constexpr (masked) {
    const KeyRange range = keys_for(plan, rows, block_rows);
    begin = static_cast<int>(range.first);
    end = static_cast<int>(range.end);
  }
  take_share(call.units, rows.rank, warp_rows, begin, end);

  using Stage = StageTile<D, keys>;
  const auto tile_of = [&](int stage, bool values) {
    return Stage{shared + stage * call.key_warps * Stage::warp_bytes + (values ? Stage::warp_bytes / 2 : 0)};
  };
  KeySource<T, D, Stage> source(plan, s, rows.kv_head, call.aligned);
  int fetched = begin, fetch_stage = 0;
  unsigned by_engine = 0, parities = 0;  // a bit for each stage
  const auto fetch = [&] {
    if (fetched < end) {
      const bool engine = call.engine && source.copy_by_engine(fetched, end, tile_of(fetch_stage, false).base,
                                                               call.key_warps, call.maps, arrivals_of(fetch_stage));
      by_engine = (by_engine & ~(1u << fetch_stage)) | (engine ? 1u << fetch_stage : 0u);
      if (!engine) {
        source.copy(fetched, end, tile_of(fetch_stage, false), tile_of(fetch_stage, true), stage_keys);
      }
      fetched += stage_keys;
      fetch_stage = fetch_stage + 1 == tuning::stages(D) ? 0 : fetch_stage + 1;
    }
    end_group();
  };
#pragma unroll
  for (int k = 0; k < tuning::stages(D) - 1; ++k) fetch();

  const unsigned my_rows = call.shares[row_warp];  // of 32 keys, those whose values this warp clears
  QueryView views[2];
  std::int32_t most_rank_here = most_rank;  // of all rows of the block
  KeyView next_views[keys / warp_size];     // of keys lane, lane + 32 of this warp's
  const auto look_at_keys = [&](int first) {
#pragma unroll
    for (int k = 0; k < keys / warp_size; ++k) next_views[k] = KeyView(plan, s, first + lane + k * warp_size, end);
  };
  if constexpr (masked) {
    look_at_keys(begin + key_warp * keys);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      views[half] = query_view(plan, rows, warp_row + lane / 4 + 8 * half);
      views[half].end = min(views[half].end, end);
    }
    if constexpr (masking == Masking::simple) most_rank_here = most_rank_of(plan, rows, block_rows);
  }

  // The greatest score is sought before they are scaled, for which the scale must not be negative.
  const float scale = fabsf(static_cast<float>(plan.scale)) * log2_e;
  const bool negative = plan.scale < 0;
  Sums<D> sums;
  std::uint32_t kept[keep_queries ? D / 16 : 1][4];
  int stage = 0;
  for (int stage_first = begin; stage_first < end; stage_first += stage_keys) {
    wait_for_groups<tuning::stages(D) - 2>();
    if ((by_engine >> stage & 1u) != 0) {
      arrivals_of(stage).wait(parities >> stage & 1u);
      parities ^= 1u << stage;
      if (stage_first + stage_keys > end) clear_rows(tile_of(stage, true), end - stage_first, stage_keys);
    }
    __syncthreads();  // this stage is there, and the one before has been used
    fetch();
    const Stage keys_here{tile_of(stage, false).base + key_warp * Stage::warp_bytes};
    const Stage values_here{tile_of(stage, true).base + key_warp * Stage::warp_bytes};
    stage = stage + 1 == tuning::stages(D) ? 0 : stage + 1;
    if constexpr (keep_queries) {
      if (stage_first == begin) {
#pragma unroll
        for (int d = 0; d < D / 16; ++d) load_matrices(kept[d], queries.left(warp_row, d * 16));
      }
    }
    const int first = stage_first + key_warp * keys;
    if (first >= end) continue;  // all warps with these keys
    std::int32_t key_views[keys / warp_size];
    if constexpr (masked) {
#pragma unroll
      for (int k = 0; k < keys / warp_size; ++k) {
        key_views[k] = next_views[k].view();
        if constexpr (masking == Masking::simple) {
          const bool unseen = key_views[k] > most_rank_here && first + lane + k * warp_size < end;
          const unsigned mine = __ballot_sync(whole_warp, unseen) & my_rows;
          clear_unseen(values_here, mine, k * warp_size);
          if (mine != 0) before_engine();  // writes there next
        }
      }
      look_at_keys(first + stage_keys);
    }

    float scores[keys / 8][4] = {};
    const WarpTile<D> key_tile(keys_here.base);
#pragma unroll
    for (int d = 0; d < D / 16; ++d) {
      std::uint32_t left[4];
      if constexpr (keep_queries) {
#pragma unroll
        for (int k = 0; k < 4; ++k) left[k] = kept[d][k];
      } else {
        load_matrices(left, queries.left(warp_row, d * 16));
      }
#pragma unroll
      for (int n = 0; n < keys / 16; ++n) {
        std::uint32_t right[4];
        load_matrices(right, key_tile.right(n * 16, d * 16));
        multiply<T>(scores[2 * n], left, right[0], right[1]);
        multiply<T>(scores[2 * n + 1], left, right[2], right[3]);
      }
    }
    if (negative) {
#pragma unroll
      for (int n = 0; n < keys / 8; ++n) {
#pragma unroll
        for (int k = 0; k < 4; ++k) scores[n][k] = -scores[n][k];
      }
    }

    // Of this thread's columns, which are its keys of the second product too, those that any row of the warp sees.
    std::uint32_t seen = 0xffffu;
    if constexpr (masked) {
      if constexpr (masking == Masking::general) seen = 0;
#pragma unroll
      for (int n = 0; n < keys / 8; ++n) {
#pragma unroll
        for (int k = 0; k < 2; ++k) {
          const int column = n * 8 + lane % 4 * 2 + k;
          const std::int32_t key = __shfl_sync(whole_warp, key_views[n / 4], column % warp_size);
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            float& score = scores[n][2 * half + k];
            bool here = sees(views[half], key, first + column);
            if constexpr (masking == Masking::general) {
              here = here && is_allowed(plan, rows, warp_row + lane / 4 + 8 * half, first + column);
              if (here) seen |= 1u << (n * 2 + k);
            }
            score = here ? score : minus_infinity();
          }
        }
      }
      if constexpr (masking == Masking::general) seen = of_any_row(seen);
    } else if (first + keys > end) {
#pragma unroll
      for (int n = 0; n < keys / 8; ++n) {
#pragma unroll
        for (int k = 0; k < 4; ++k) {
          if (first + n * 8 + lane % 4 * 2 + k % 2 >= end) scores[n][k] = minus_infinity();
        }
      }
    }
    float factors[2];
    soften(scores, sums, scale, factors);
    sums.scale_by(factors);
    if constexpr (masking == Masking::simple) {
      if (call.row_warps > 1) {
        wait_for_warps(1 + key_warp, call.row_warps);
      } else {
        __syncwarp();  // a barrier of one warp is none that racecheck knows
      }
    }
    const WarpTile<D> value_tile(values_here.base);
#pragma unroll
    for (int n = 0; n < keys / 16; ++n) {
      const std::uint32_t weights[4] = {
          pack<T>(scores[2 * n][0], scores[2 * n][1]), pack<T>(scores[2 * n][2], scores[2 * n][3]),
          pack<T>(scores[2 * n + 1][0], scores[2 * n + 1][1]), pack<T>(scores[2 * n + 1][2], scores[2 * n + 1][3])};
      std::uint32_t real[2];
#pragma unroll
      for (int k = 0; k < 2; ++k) real[k] = halves_of(seen >> (4 * n + 2 * k));
#pragma unroll
      for (int d = 0; d < D / 16; ++d) {
        std::uint32_t right[4];
        load_transposed(right, value_tile.left(n * 16, d * 16));
        if constexpr (masking == Masking::general) {
#pragma unroll
          for (int k = 0; k < 4; ++k) right[k] &= real[k % 2];
        }
        multiply<T>(sums.out[2 * d], weights, right[0], right[1]);
        multiply<T>(sums.out[2 * d + 1], weights, right[2], right[3]);
      }
    }
  }
  wait_for_groups<0>();
  const auto threads = static_cast<int>(blockDim.x);
  if (plan.append && rows.first == 0) append<T>(plan, rows, rows.rank, call.units.split, threads);
  finish_rows<T, false, false>(call, rows, shared, layout, sums, block_rows, warp_row, key_warp, threads);
}

template <class T>
void run_half(const Plan& plan, FaultBox* box, int device, cudaStream_t stream) {
  Call call;
  const Cut cut = cut_of(plan, device, call);
  call.aligned = is_aligned(plan) && is_aligned(plan.out, plan.batch);
  call.plan = plan;
  if (DataCheck{&plan}.count() > 0) call.box = box;
  call.units = Units(plan, cut.tiles, cut.split);
  for (int bit = 0; bit < 32; ++bit) call.shares[bit * cut.row_warps / 32] |= 1u << bit;
  call.row_warps = cut.row_warps;
  call.key_warps = cut.key_warps;
  call.stages = cut.stages;
  const std::int64_t blocks = units_of(plan, cut.tiles) * cut.split;
  const int threads = (cut.row_warps * cut.key_warps + (cut.wide ? 4 : 0)) * warp_size;
  with_head_dim(plan.head_dim, [&](auto padded) {
    constexpr int D = decltype(padded)::value;
    const auto start = [&]<auto kernel>() {
      const int bytes =
          Memory(D, cut.wide, cut.row_warps, cut.key_warps, cut.stages, cut.split, cut.keys(D), cut.narrow).bytes();
      launch<kernel>(blocks, threads, bytes, call, device, stream, cut.split);
    };
    const bool masked = masking_of(plan) != Masking::none;
    const auto start_wide = [&]<int keys>() {
      return plan.segment_count > 1 ? start.template operator()<&attention_wide_kernel<T, D, true, keys, false, true>>()
             : masked               ? start.template operator()<&attention_wide_kernel<T, D, true, keys>>()
                                    : start.template operator()<&attention_wide_kernel<T, D, false, keys>>();
    };
    if constexpr (tuning::has_long_tiles(D)) {
      if (cut.long_tiles) return start_wide.template operator()<tuning::long_keys>();
    }
    constexpr int keys = tuning::keys(D, true);
    if constexpr (tuning::has_narrow(D)) {
      if (cut.narrow) {
        return masked ? start.template operator()<&attention_wide_kernel<T, D, true, keys, true>>()
                      : start.template operator()<&attention_wide_kernel<T, D, false, keys, true>>();
      }
    }
    if (cut.wide) return start_wide.template operator()<keys>();
    switch (masking_of(plan)) {
      case Masking::none:
        return start.template operator()<&attention_kernel<T, D, Masking::none>>();
      case Masking::simple:
        return start.template operator()<&attention_kernel<T, D, Masking::simple>>();
      case Masking::general:
        return start.template operator()<&attention_kernel<T, D, Masking::general>>();
    }
  });
}

}  // namespace
}  // namespace robocache::attention_op
