// Attention of half types on the tensor cores.
//
// A warp has 16 rows and a share of the keys. A block is so many warps along rows times so many along keys; its keys come
// in stages, of which one is used while the others are under way. Blocks of a cluster share rows and split the keys further.
// What is summed for the same rows is merged in the end, within a block and then over the cluster's shared memory, always in
// the same order: one launch, no scratch, the same bits every time.
#pragma once

#include <cooperative_groups.h>

#include "ops/attention/cuda_call.h"
#include "ops/attention/cuda_tiles.h"
#include "ops/attention/cuda_warpgroup.h"
#include "ops/attention/tuning.h"

namespace robocache::attention_op {
namespace {

struct Call {
  Plan plan;
  FaultBox* box = nullptr;
  Units units;
  int row_warps = 1, key_warps = 1;
  int stages = 1;                 // that there is shared memory for
  std::uint32_t shares[16] = {};  // of each warp along rows: of 32 things, those that it does
  CUtensorMap maps[max_attention_segments][2];
  bool engine = false;   // keys and values come through the copy engine, by these maps of each segment's
  bool aligned = false;  // every row of queries, keys, values and the output begins at a multiple of 16 bytes
};

// Where in a block's shared memory (Memory) what lies.
template <int D, bool wide>
struct Layout {
  static constexpr int sums = 0;
  int rows, stage_keys, stage_bytes, queries, statistics, arrivals;

  __device__ Layout(int row_warps, int key_warps, int stages)
      : rows(row_warps * warp_rows),
        stage_keys(key_warps * tuning::keys(D, wide)),
        stage_bytes(key_warps * StageTile<D, wide>::warp_bytes) {
    const Memory memory(D, wide, row_warps, key_warps, stages);
    queries = memory.stages;
    statistics = queries + memory.queries;
    arrivals = statistics + memory.statistics;
  }
};

// What a thread holds of its warp's 16 rows: rows lane / 4 and lane / 4 + 8.
template <int D>
struct Sums {
  float out[D / 8][4] = {};
  float most[2], total[2] = {0, 0};  // in units of log2; the total is of this thread's columns only

  __device__ Sums() { most[0] = most[1] = minus_infinity(); }
};

// Scores, with -inf where a key is not seen, into weights. What was summed before is scaled to the new maximum, whether it
// changed or not: nothing branches on data.
template <int D, int count>
__device__ void soften(float (&scores)[count][4], Sums<D>& sums, float scale) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float most[4];
#pragma unroll
    for (int k = 0; k < 4; ++k) most[k] = fmaxf(scores[k][2 * half], scores[k][2 * half + 1]);
#pragma unroll
    for (int n = 4; n < count; ++n) {
      most[n % 4] = fmaxf(most[n % 4], fmaxf(scores[n][2 * half], scores[n][2 * half + 1]));
    }
    float now = fmaxf(fmaxf(most[0], most[1]), fmaxf(most[2], most[3]));
    now = fmaxf(now, __shfl_xor_sync(whole_warp, now, 1));
    now = fmaxf(now, __shfl_xor_sync(whole_warp, now, 2));
    now = fmaxf(sums.most[half], now * scale);
    const float base = now == minus_infinity() ? 0.0f : now;
    const float factor = power_of_two(sums.most[half] - base);
    float total[4] = {sums.total[half] * factor, 0, 0, 0};
#pragma unroll
    for (int n = 0; n < count; ++n) {
#pragma unroll
      for (int k = 0; k < 2; ++k) {
        const float weight = power_of_two(fmaf(scores[n][2 * half + k], scale, -base));
        scores[n][2 * half + k] = weight;
        total[(2 * n + k) % 4] += weight;
      }
    }
    sums.most[half] = now;
    sums.total[half] = (total[0] + total[1]) + (total[2] + total[3]);
#pragma unroll
    for (int n = 0; n < D / 8; ++n) {
      sums.out[n][2 * half] *= factor;
      sums.out[n][2 * half + 1] *= factor;
    }
  }
}

__device__ float logarithm(float most, float total) {
  return total == 0 ? minus_infinity() : fmaf(most, ln_2, logf(total));
}

template <class T, int D>
__device__ void store_own(const Plan& plan, const Rows& rows, int warp_row, const Sums<D>& sums, bool aligned) {
  const auto lane = static_cast<int>(threadIdx.x % warp_size);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = warp_row + lane / 4 + 8 * half;
    if (!rows.exists(row)) continue;
    const float total = sums.total[half];
    const float factor = total == 0 ? 0.0f : __fdividef(1.0f, total);
    T* const to = static_cast<T*>(plan.out.data) + rows.offset(plan.out, row);
    store_row<T, D>(to, sums.out, half, factor, static_cast<int>(plan.head_dim), aligned);
    if (plan.lse != nullptr && lane % 4 == 0) {
      plan.lse[rows.lse_offset(plan, row)] = logarithm(sums.most[half], total);
    }
  }
}

// The sums of the warps with the same rows and other keys, into those of the first. A thread meets its own places again.
template <int D, bool wide>
__device__ void merge_warps(const Call& call, const Layout<D, wide>& layout, unsigned char* memory, Sums<D>& sums,
                            int row_warp, int key_warp) {
  const auto lane = static_cast<int>(threadIdx.x % warp_size);
  auto* const kept = reinterpret_cast<float4*>(memory + layout.sums);
  auto* const statistics = reinterpret_cast<float2*>(memory + layout.statistics);
  __syncthreads();  // the stages have been used
  if (key_warp > 0) {
    const int place = (key_warp - 1) * call.row_warps + row_warp;
#pragma unroll
    for (int n = 0; n < D / 8; ++n) {
      kept[(place * (D / 8) + n) * warp_size + lane] =
          float4{sums.out[n][0], sums.out[n][1], sums.out[n][2], sums.out[n][3]};
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if (lane % 4 == 0) {
        statistics[place * warp_rows + lane / 4 + 8 * half] = float2{sums.most[half], sums.total[half]};
      }
    }
  }
  __syncthreads();
  if (key_warp > 0) return;
  for (int other = 0; other < call.key_warps - 1; ++other) {
    const int place = other * call.row_warps + row_warp;
    float mine[2], theirs[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float2 statistic = statistics[place * warp_rows + lane / 4 + 8 * half];
      const float most = fmaxf(sums.most[half], statistic.x);
      const float base = most == minus_infinity() ? 0.0f : most;
      mine[half] = power_of_two(sums.most[half] - base);
      theirs[half] = power_of_two(statistic.x - base);
      sums.most[half] = most;
      sums.total[half] = fmaf(statistic.y, theirs[half], sums.total[half] * mine[half]);
    }
#pragma unroll
    for (int n = 0; n < D / 8; ++n) {
      const float4 part = kept[(place * (D / 8) + n) * warp_size + lane];
      sums.out[n][0] = fmaf(part.x, theirs[0], sums.out[n][0] * mine[0]);
      sums.out[n][1] = fmaf(part.y, theirs[0], sums.out[n][1] * mine[0]);
      sums.out[n][2] = fmaf(part.z, theirs[1], sums.out[n][2] * mine[1]);
      sums.out[n][3] = fmaf(part.w, theirs[1], sums.out[n][3] * mine[1]);
    }
  }
}

// Every block of the cluster leaves its sums, which the warps with its first keys have; each merges every split-th row.
template <class T, int D, bool wide>
__device__ void merge_blocks(const Call& call, const Rows& rows, const Layout<D, wide>& layout, unsigned char* memory,
                             const Sums<D>& sums, int warp_row, bool has_sums) {
#if __CUDA_ARCH__ >= 900
  const auto cluster = cooperative_groups::this_cluster();
  const auto lane = static_cast<int>(threadIdx.x % warp_size);
  auto* const left = reinterpret_cast<float*>(memory + layout.sums);
  auto* const statistics = reinterpret_cast<float2*>(memory + layout.statistics);
  __syncthreads();  // what was there has been used
  if (has_sums) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = warp_row + lane / 4 + 8 * half;
      if (lane % 4 == 0) statistics[row] = float2{sums.most[half], sums.total[half]};
#pragma unroll
      for (int n = 0; n < D / 8; ++n) {
        *reinterpret_cast<float2*>(left + row * sum_pitch(D) + n * 8 + lane % 4 * 2) =
            float2{sums.out[n][2 * half], sums.out[n][2 * half + 1]};
      }
    }
  }
  cluster.sync();
  const Plan& plan = call.plan;
  const int split = call.units.split;
  const auto mine = static_cast<int>(cluster.block_rank());
  constexpr int quads = D / 4;
  for (int k = static_cast<int>(threadIdx.x);; k += static_cast<int>(blockDim.x)) {
    const int row = k / quads * split + mine;
    if (row >= layout.rows || !rows.exists(row)) break;
    float most = minus_infinity();
    for (int block = 0; block < split; ++block) {
      most = fmaxf(most, cluster.map_shared_rank(statistics, block)[row].x);
    }
    const float base = most == minus_infinity() ? 0.0f : most;
    float total = 0;
    float4 sum{0, 0, 0, 0};
    const int column = k % quads * 4;
#pragma unroll 4
    for (int block = 0; block < split; ++block) {
      const float2 theirs = cluster.map_shared_rank(statistics, block)[row];
      const float4 part =
          *reinterpret_cast<const float4*>(cluster.map_shared_rank(left, block) + row * sum_pitch(D) + column);
      const float factor = power_of_two(theirs.x - base);
      total = fmaf(theirs.y, factor, total);
      sum.x = fmaf(part.x, factor, sum.x);
      sum.y = fmaf(part.y, factor, sum.y);
      sum.z = fmaf(part.z, factor, sum.z);
      sum.w = fmaf(part.w, factor, sum.w);
    }
    const float factor = total == 0 ? 0.0f : __fdividef(1.0f, total);
    T* const to = static_cast<T*>(plan.out.data) + rows.offset(plan.out, row);
    if (column < plan.head_dim) {
      store_pair(to + column, call.aligned, sum.x * factor, sum.y * factor);
      store_pair(to + column + 2, call.aligned, sum.z * factor, sum.w * factor);
    }
    if (plan.lse != nullptr && column == 0) plan.lse[rows.lse_offset(plan, row)] = logarithm(most, total);
  }
  cluster.sync();  // nobody leaves whose sums are still read
#endif
}

// Values of keys that no row of the block may see become zeros: they may be NaN, which a weight of zero does not stop.
template <int D, bool wide>
__device__ void clear_unseen(const StageTile<D, wide>& values, unsigned unseen, int first) {
  const auto lane = static_cast<int>(threadIdx.x % warp_size);
  while (unseen != 0) {
    const int row = first + __ffs(static_cast<int>(unseen)) - 1;
    unseen &= unseen - 1;
    if (lane < D / 8) {
      asm volatile("st.shared.v4.b32 [%0], {%1,%1,%1,%1};" ::"r"(values.place(row, lane * 8)), "r"(0) : "memory");
    }
  }
}
// And rows from `first` on, by the whole block: the engine has copied what comes after the last key.
template <int D, bool wide>
__device__ void clear_rows(const StageTile<D, wide>& values, int first, int rows) {
  for (int k = static_cast<int>(threadIdx.x); k < (rows - first) * (D / 8); k += static_cast<int>(blockDim.x)) {
    copy_slowly<bf16>(values.place(first + k / (D / 8), k % (D / 8) * 8), nullptr);
  }
}
// The warps with the same keys share that, and wait for each other before they read.
__device__ void wait_for_warps(int barrier, int warps) {
  asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(warps * warp_size) : "memory");
}

template <class T, int D, Masking masking, bool wide>
__global__ void __launch_bounds__(tuning::max_warps(D) * warp_size)
    attention_kernel(const __grid_constant__ Call call) {
#if !ROBOCACHE_WARPGROUPS
  if constexpr (wide) return;  // never launched there
#endif
  constexpr int keys = tuning::keys(D, wide);       // of a warp and stage
  constexpr bool keep_queries = D <= 128 && !wide;  // in registers
  constexpr bool masked = masking != Masking::none;
  extern __shared__ __align__(1024) unsigned char memory[];
  const Plan& plan = call.plan;
  const auto lane = static_cast<int>(threadIdx.x % warp_size);
  const auto warp = static_cast<int>(threadIdx.x / warp_size);
  int key_warp = 0;
  int row_warp = warp;
  for (; row_warp >= call.row_warps; row_warp -= call.row_warps) ++key_warp;
  const int warp_row = row_warp * warp_rows;
  const Layout<D, wide> layout(call.row_warps, call.key_warps, call.stages);
  after_earlier_work();
  let_next_begin();
  if (call.box != nullptr) check_data(plan, call.box);
  Rows rows;
  if (!set_rows<T>(plan, call.units, plan.out, plan.lse, layout.rows, rows)) return;  // and so its whole cluster
  const Sequence& s = rows.s;

  const auto shared = static_cast<std::uint32_t>(__cvta_generic_to_shared(memory));
  const Tile<D> queries{shared + layout.queries};
  const WideTile<D> wide_queries{shared + layout.queries, layout.rows};
  if constexpr (wide) {
    copy_rows<T, D>(plan, plan.q, rows, wide_queries, layout.rows, call.aligned);
  } else {
    copy_rows<T, D>(plan, plan.q, rows, queries, layout.rows, call.aligned);
  }
  const auto arrivals_of = [&](int stage) { return Arrivals{shared + layout.arrivals + stage * 8}; };
  if (call.engine) {
    if (threadIdx.x == 0) {
      for (int k = 0; k < tuning::stages(D); ++k) arrivals_of(k).set_up();
      before_engine();
    }
    __syncthreads();
  }

  // The keys that any of the rows sees by its position, and this block's share of them.
  int begin = 0;
  auto end = static_cast<int>(s.keys);
  if constexpr (masked) {
    const KeyRange range = keys_for(plan, rows, layout.rows);
    begin = static_cast<int>(range.first);
    end = static_cast<int>(range.end);
  }
  if (call.units.split > 1) {
    const int all = max(end - begin, 0);
    const auto share =
        static_cast<int>(call.units.by_split.divide(static_cast<std::uint32_t>(all + call.units.split - 1)));
    const int rounded = (share + warp_rows - 1) / warp_rows * warp_rows;
    begin += rows.rank * rounded;
    end = min(end, begin + rounded);
  }

  using Stage = StageTile<D, wide>;
  const auto tile_of = [&](int stage, bool values) {
    return Stage{shared + stage * layout.stage_bytes + (values ? Stage::warp_bytes / 2 : 0)};
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
        source.copy(fetched, end, tile_of(fetch_stage, false), tile_of(fetch_stage, true), layout.stage_keys);
      }
      fetched += layout.stage_keys;
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
    if (masking == Masking::simple && plan.query_ranks.data != nullptr) {
      most_rank_here = least_rank;
      for (int row = lane; row < layout.rows; row += warp_size) {
        if (rows.exists(row)) most_rank_here = max(most_rank_here, query_view(plan, rows, row).rank);
      }
      most_rank_here = __reduce_max_sync(whole_warp, most_rank_here);
    }
  }

  // The greatest score is sought before they are scaled, for which the scale must not be negative.
  const float scale = fabsf(static_cast<float>(plan.scale)) * log2_e;
  const bool negative = plan.scale < 0;
  Sums<D> sums;
  std::uint32_t kept[keep_queries ? D / 16 : 1][4];
  int stage = 0;
  for (int stage_first = begin; stage_first < end; stage_first += layout.stage_keys) {
    wait_for_groups<tuning::stages(D) - 2>();
    if ((by_engine >> stage & 1u) != 0) {
      arrivals_of(stage).wait(parities >> stage & 1u);
      parities ^= 1u << stage;
      if (stage_first + layout.stage_keys > end) clear_rows(tile_of(stage, true), end - stage_first, layout.stage_keys);
    }
    if constexpr (wide) before_engine();  // what threads have copied or cleared is there for products, too
    __syncthreads();                      // this stage is there, and the one before has been used
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
          if (mine != 0) before_engine();  // writes there next, or warpgroups read
        }
      }
      look_at_keys(first + layout.stage_keys);
    }

    float scores[keys / 8][4] = {};
    if constexpr (wide) {
#if ROBOCACHE_WARPGROUPS
      score_warpgroup<T, D>(scores, Operand(wide_queries.place(row_warp / 4 * 64, 0)), wide_queries.block_bytes(),
                            Operand(keys_here.base));
#endif
    } else {
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
    soften(scores, sums, scale);
    if constexpr (masking == Masking::simple) wait_for_warps(1 + key_warp, call.row_warps);
    if constexpr (wide) {
#if ROBOCACHE_WARPGROUPS
      add_warpgroup<T, D>(sums.out, scores, Operand(values_here.base));
#endif
    } else {
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
  }
  wait_for_groups<0>();
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    sums.total[half] += __shfl_xor_sync(whole_warp, sums.total[half], 1);
    sums.total[half] += __shfl_xor_sync(whole_warp, sums.total[half], 2);
  }
  if (plan.append && rows.first == 0) append<T>(plan, rows, rows.rank, call.units.split);
  if (call.key_warps > 1) merge_warps(call, layout, memory, sums, row_warp, key_warp);
  if (call.units.split > 1) {
    merge_blocks<T>(call, rows, layout, memory, sums, warp_row, key_warp == 0);
  } else if (key_warp == 0) {
    store_own<T>(plan, rows, warp_row, sums, call.aligned);
  }
}

template <class T>
void run_half(const Plan& plan, FaultBox* box, int device, cudaStream_t stream) {
  const Cut cut = cut_of(plan, device);
  Call call;
  call.plan = plan;
  if (DataCheck{&plan}.count() > 0) call.box = box;
  call.units = Units(plan, cut.tiles, cut.split);
  for (int bit = 0; bit < 32; ++bit) call.shares[bit * cut.row_warps / 32] |= 1u << bit;
  call.row_warps = cut.row_warps;
  call.key_warps = cut.key_warps;
  call.stages = cut.stages;
  call.aligned = is_aligned(plan) && is_aligned(plan.out, plan.batch);
  call.engine = call.aligned && cut.stages > 1 && cuda_machine(device).major >= 9 && set_maps(plan, cut, call.maps);
  const std::int64_t blocks = units_of(plan, cut.tiles) * cut.split;
  const int threads = cut.row_warps * cut.key_warps * warp_size;
  with_head_dim(plan.head_dim, [&](auto padded) {
    constexpr int D = decltype(padded)::value;
    const auto start = [&]<Masking masking, bool wide>() {
      const int bytes = Memory(D, wide, cut.row_warps, cut.key_warps, cut.stages).bytes();
      launch<&attention_kernel<T, D, masking, wide>>(blocks, threads, bytes, call, device, stream, cut.split);
    };
    const Masking masking = masking_of(plan);
    if (masking == Masking::general) return start.template operator()<Masking::general, false>();
    if (masking == Masking::simple) {
      return cut.wide ? start.template operator()<Masking::simple, true>()
                      : start.template operator()<Masking::simple, false>();
    }
    cut.wide ? start.template operator()<Masking::none, true>() : start.template operator()<Masking::none, false>();
  });
}

}  // namespace
}  // namespace robocache::attention_op
