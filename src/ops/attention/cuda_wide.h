// Attention of half types by warpgroups: Hopper.
//
// A warpgroup has 64 rows and a share of the keys. One more warp fetches queries, then keys and values, 64 at a time, into a
// ring through the copy engine; nobody else waits for anybody but it. Each warpgroup multiplies the next keys and the last
// values while it turns scores into weights, and while others do. Whatever needs no data comes before the wait for earlier
// work, and in the stretches that run once few instructions count for more than fast ones: fetching them takes longest.
#pragma once

#include "ops/attention/cuda_exchange.h"
#include "ops/attention/cuda_sums.h"
#include "ops/attention/cuda_warpgroup.h"

namespace robocache::attention_op {
namespace {

// Tiles of keys and of values in shared memory, and who waits for which of them.
template <int D>
struct Ring {
  using Stage = StageTile<D, true>;
  static constexpr int tile_bytes = Stage::warp_bytes / 2;
  std::uint32_t tiles, arrivals;
  int stages;

  __device__ Stage tile(int stage, bool values) const { return {tiles + (2 * stage + values) * tile_bytes}; }
  __device__ Arrivals full(int stage, bool values) const { return {arrivals + (2 * stage + values) * 8}; }
  __device__ Arrivals empty(int stage, bool values) const {
    return {arrivals + (2 * (tuning::most_stages + stage) + values) * 8};
  }
  __device__ Arrivals queries() const { return {arrivals + 4 * tuning::most_stages * 8}; }
  __device__ void set_up(int writers, int readers) const {
    queries().set_up();
    for (int stage = 0; stage < stages; ++stage) {
#pragma unroll
      for (const bool values : {false, true}) {
        full(stage, values).set_up(writers);
        empty(stage, values).set_up(readers);
      }
    }
    before_engine();
  }
};
// A place in it, and how often it has been used.
struct Turn {
  int stage = 0;
  unsigned parity = 0;

  __device__ void forward(int steps, int stages) {
    stage += steps;
    if (stage >= stages) {
      stage -= stages;
      parity ^= 1u;
    }
  }
};

// Queries, then keys and values as there is room for them: by one thread. Where keys lie in several segments the engine cannot
// copy all of them: by four warps, of which every thread says when they are there.
__device__ int fetching_threads(const Plan& plan) { return plan.segment_count > 1 ? 4 * warp_size : 1; }

template <int D>
__device__ void fetch_queries(const Call& call, const Rows& rows, const Ring<D>& ring, const WideTile<D>& queries) {
  const int query = static_cast<int>(rows.s.first_query) + rows.query(0);
  const auto sequence = static_cast<int>(call.plan.is_packed() ? 0 : rows.s.number);
#pragma unroll
  for (int block = 0; block < Ring<D>::Stage::blocks; ++block) {
    copy_queries(queries.place(0, block * 64), call.query_map, block * 64, query, rows.kv_head, sequence,
                 ring.queries());
  }
}

// The first copies are what all wait for: nothing stands between them and the end of earlier work that could come before it.
template <int D>
__device__ void fetch(const Call& call, const Rows& rows, const Ring<D>& ring, const WideTile<D>& queries, int begin,
                      int end) {
  using Stage = typename Ring<D>::Stage;
  const int copies = Memory::tile_copies(call.plan.head_dim);
  const auto sequence = static_cast<int>(call.plan.is_packed() ? 0 : rows.s.number);
  int row = static_cast<int>(rows.s.first_key) + begin;
  int tiles = max(end - begin + Stage::keys - 1, 0) / Stage::keys;
  Turn turn;
  const auto copy = [&](bool values) {
    const Arrivals full = ring.full(turn.stage, values);
    ring.empty(turn.stage, values).wait(turn.parity ^ 1u);
    full.expect(Stage::blocks * Stage::block_bytes);
#pragma unroll 1
    for (int block = 0; block < copies; ++block) {
      full.copy(ring.tile(turn.stage, values).base + block * Stage::block_bytes, call.maps[0][values ? 1 : 0],
                block * 64, row, rows.kv_head, sequence);
    }
  };
  if (call.engine_queries) {
    bring_near(call.query_map);
    ring.queries().expect(Stage::blocks * queries.block_bytes());
  }
  if (tiles > 0) {
    bring_near(call.maps[0][0]);
    bring_near(call.maps[0][1]);
  }
  after_earlier_work();
  if (tiles > 0) copy(false);
  if (call.engine_queries) fetch_queries(call, rows, ring, queries);
#pragma unroll 1
  while (tiles > 0) {
    copy(true);
    turn.forward(1, ring.stages);
    row += Stage::keys;
    if (--tiles > 0) copy(false);
  }
}

template <class T, int D>
__device__ void fetch_segments(const Call& call, const Rows& rows, const Ring<D>& ring, const WideTile<D>& queries,
                               int thread, int begin, int end) {
  using Stage = typename Ring<D>::Stage;
  const Plan& plan = call.plan;
  const auto lane = static_cast<int>(threadIdx.x % warp_size);
  if (lane < 2 * plan.segment_count && plan.segments[lane / 2].count > 0) bring_near(call.maps[lane / 2][lane % 2]);
  if (call.engine_queries) bring_near(call.query_map);
  KeySource<T, D, Stage> source(plan, rows.s, rows.kv_head, true);
  after_earlier_work();
  if (call.engine_queries && thread == 0) {
    ring.queries().expect(Stage::blocks * queries.block_bytes());
    fetch_queries(call, rows, ring, queries);
  }
  Turn turn;
  for (int first = begin; first < end; first += Stage::keys) {
    const int left = min(end - first, Stage::keys);
    const bool plain = source.is_plain(first, left);
#pragma unroll
    for (const bool values : {false, true}) {
      const Arrivals full = ring.full(turn.stage, values);
      ring.empty(turn.stage, values).wait(turn.parity ^ 1u);
      if (plain && thread < warp_size) {
        source.copy_tile_by_engine(first, values, ring.tile(turn.stage, values).base, call.maps, full);
      }
      if (plain && thread > 0) full.arrive();
    }
    if (!plain) {
      copy_keys_slowly<T, D, Stage>(plan, rows.s, rows.kv_head, first, left, ring.tile(turn.stage, false),
                                    ring.tile(turn.stage, true), Stage::keys, true, Copier<D>(thread, 4 * warp_size));
      end_group();
      wait_for_groups<0>();
      before_engine();
      ring.full(turn.stage, false).arrive();
      ring.full(turn.stage, true).arrive();
    }
    turn.forward(1, ring.stages);
  }
}

#if ROBOCACHE_WARPGROUPS

// What a warp knows of which of its rows sees which of the 64 keys that it is at.
struct Sight {
  QueryView views[2];                   // of this thread's rows
  int all_from = 0, all_to = 0;         // keys that all rows of the warp see by their position,
  std::int32_t least = most_rank;       // and by their rank
  std::int32_t most = most_rank;        // the most that any row of the block has
  KeyView next[2];                      // of keys lane and lane + 32
  const std::int32_t* ranks = nullptr;  // of the sequence's keys, and whether they are valid
  const std::uint8_t* valid = nullptr;
  const std::int32_t* own_ranks[2] = {};   // of this thread's rows, where they exist,
  const std::int32_t* ranks_here[2] = {};  // and of rows lane and lane + 32 of the block
  std::int32_t here[2] = {0, 0};

  __device__ void set(const Plan& plan, const Rows& rows, int block_rows, int warp_row, int end) {
    all_to = end;
    const auto lane = static_cast<int>(threadIdx.x % warp_size);
    if (plan.query_ranks.data != nullptr) {  // and so no window; nothing waits for a rank before all are asked for
      std::int32_t first_ranks[2];
#pragma unroll
      for (int k = 0; k < 2; ++k) {
        views[k] = {0, end, own_ranks[k] == nullptr ? most_rank : *own_ranks[k]};
        first_ranks[k] = ranks_here[k] == nullptr ? least_rank : *ranks_here[k];
      }
      most = least_rank;
#pragma unroll 1
      for (int row = lane + 2 * warp_size; row < block_rows; row += warp_size) {
        if (rows.exists(row)) most = max(most, query_view(plan, rows, row).rank);
      }
      most = max(most, max(first_ranks[0], first_ranks[1]));
      least = __reduce_min_sync(whole_warp, min(views[0].rank, views[1].rank));
      most = __reduce_max_sync(whole_warp, most);
      return;
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = warp_row + lane / 4 + 8 * half;
      views[half] = query_view(plan, rows, row);
      views[half].end = min(views[half].end, end);
      if (!rows.exists(row)) continue;
      all_from = max(all_from, views[half].first);
      all_to = min(all_to, views[half].end);
    }
    all_from = __reduce_max_sync(whole_warp, all_from);
    all_to = __reduce_min_sync(whole_warp, all_to);
  }
  // Where what is to be known of keys and queries lies: all that needs no data.
  __device__ void prepare(const Plan& plan, const Rows& rows, int block_rows, int warp_row) {
    const Sequence& s = rows.s;
    const auto lane = static_cast<int>(threadIdx.x % warp_size);
    ranks = static_cast<const std::int32_t*>(plan.key_ranks.data);
    valid = static_cast<const std::uint8_t*>(plan.key_valid.data);
    if (valid != nullptr) valid += s.number * plan.key_valid.batch + s.first_key * plan.key_valid.row;
    if (ranks == nullptr) return;
    ranks += s.number * plan.key_ranks.batch + s.first_key * plan.key_ranks.row;
    const auto* const of_queries = static_cast<const std::int32_t*>(plan.query_ranks.data) +
                                   s.number * plan.query_ranks.batch + s.first_query * plan.query_ranks.row;
    const auto at = [&](int row) {
      return rows.exists(row) ? of_queries + rows.query(row) * plan.query_ranks.row : nullptr;
    };
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      own_ranks[k] = at(warp_row + lane / 4 + 8 * k);
      ranks_here[k] = lane + k * warp_size < block_rows ? at(lane + k * warp_size) : nullptr;
    }
  }
  // Asks for what the next keys are like.
  __device__ void look_at(const Plan& plan, int first, int end) {
    const auto lane = static_cast<int>(threadIdx.x % warp_size);
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      const int j = first + lane + k * warp_size;
      next[k] = KeyView();
      if (j >= end) continue;
      next[k].valid = valid == nullptr ? 1 : valid[j * plan.key_valid.row];
      if (ranks != nullptr) next[k].rank = ranks[j * plan.key_ranks.row];
    }
  }
  __device__ void arrive_there() {
#pragma unroll
    for (int k = 0; k < 2; ++k) here[k] = next[k].view();
  }
  // Those that no row of the block sees: bits.
  __device__ unsigned unseen(int k) const { return __ballot_sync(whole_warp, here[k] > most); }

  __device__ void hide(float (&scores)[8][4], int first) const {
    const auto lane = static_cast<int>(threadIdx.x % warp_size);
    const bool all = here[0] <= least && here[1] <= least && first >= all_from && first + 64 <= all_to;
    if (__all_sync(whole_warp, all)) return;
#pragma unroll
    for (int n = 0; n < 8; ++n) {
#pragma unroll
      for (int k = 0; k < 2; ++k) {
        const int column = n * 8 + lane % 4 * 2 + k;
        const std::int32_t key = __shfl_sync(whole_warp, here[n / 4], column % warp_size);
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          if (!sees(views[half], key, first + column)) scores[n][2 * half + k] = minus_infinity();
        }
      }
    }
  }
};

// Values of keys that nobody sees become zeros: they may be NaN, which a weight of zero does not stop. By some warps, eight rows
// each at a time.
template <int D>
__device__ void clear_values(const StageTile<D, true>& values, const unsigned (&unseen)[2], int warp, int warps) {
  const Copier<D> copier(static_cast<int>(threadIdx.x % warp_size), warp_size);
  const std::uint32_t to = values.place(copier.first, copier.column);
#pragma unroll 1
  for (int first = warp * 8; first < 64; first += warps * 8) {
    const unsigned rows = (first < warp_size ? unseen[0] : unseen[1]) >> (first % warp_size + copier.first);
    if (copier.column >= D) continue;
#pragma unroll
    for (int row = 0; row < 8; row += Copier<D>::rows) {
      if ((rows >> row & 1u) != 0) write_zeros((to ^ row * 16) + (first + row) * 128);
    }
  }
}

template <class T>
__device__ void pack_weights(std::uint32_t (&packed)[4][4], const float (&weights)[8][4]) {
#pragma unroll
  for (int n = 0; n < 4; ++n) {
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      packed[n][k] = pack<T>(weights[2 * n + k / 2][k % 2 * 2], weights[2 * n + k / 2][k % 2 * 2 + 1]);
    }
  }
}

// Where they were, other blocks may write then.
template <int D>
__device__ void done_with_queries(const Call& call) {
  if (!Memory::exchanges(D, true, call.units.split)) return;
  wait_in_cluster();  // all have set up
  arrive_in_cluster();
}

// The sums of a warp that is a fourth of a warpgroup. meanwhile(): before the last products are waited for.
template <class T, int D, bool masked, class Meanwhile>
__device__ void sum_keys(const Call& call, const Rows& rows, const Ring<D>& ring, const WideTile<D>& queries,
                         Sight& sight, int row_warp, int share, int begin, int end, Sums<D>& sums,
                         const Meanwhile& meanwhile) {
  constexpr int keys = Ring<D>::Stage::keys;
  const Plan& plan = call.plan;
  const auto lane = static_cast<int>(threadIdx.x % warp_size);
  const int step = call.key_warps * keys;
  int first = begin + share * keys;
  if constexpr (masked) {
    sight.look_at(plan, first, end);
    sight.set(plan, rows, queries.rows, row_warp * warp_rows, end);
  }
  // The greatest score is sought before they are scaled, for which the scale must not be negative.
  const float scale = fabsf(static_cast<float>(plan.scale)) * log2_e;
  const bool negative = plan.scale < 0;
  const Operand left(queries.place(row_warp / 4 * 64, 0));
  const int query_block = queries.block_bytes();
  Turn turn, last;
  turn.forward(share, ring.stages);
  if (call.engine_queries) {
    ring.queries().wait(0);
  } else {
    wait_for_groups<0>();
    before_engine();
    wait_for_warps(0, call.row_warps * call.key_warps);
  }
  if (first >= end) return done_with_queries<D>(call);

  float scores[keys / 8][4];
  float factors[2];
  std::uint32_t weights[keys / 16][4];
  unsigned unseen[2] = {0, 0};

  const auto release = [&](const Turn& of, bool values) {
    if (lane == 0) ring.empty(of.stage, values).arrive();
  };
  const auto score = [&] {
    ring.full(turn.stage, false).wait(turn.parity);
    begin_scores<T, D>(scores, left, query_block, Operand(ring.tile(turn.stage, false).base));
  };
  const auto look = [&] {
    if constexpr (masked) {
      sight.arrive_there();
      sight.look_at(plan, first + step, end);
      unseen[0] = sight.unseen(0);
      unseen[1] = sight.unseen(1);
    }
  };
  const auto weigh = [&] {
    are_there(scores);
    release(turn, false);
    if (negative) {
#pragma unroll
      for (int n = 0; n < keys / 8; ++n) {
#pragma unroll
        for (int k = 0; k < 4; ++k) scores[n][k] = -scores[n][k];
      }
    }
    if constexpr (masked) {
      sight.hide(scores, first);
    } else if (first + keys > end) {
#pragma unroll
      for (int n = 0; n < keys / 8; ++n) {
#pragma unroll
        for (int k = 0; k < 4; ++k) {
          if (first + n * 8 + lane % 4 * 2 + k % 2 >= end) scores[n][k] = minus_infinity();
        }
      }
      if (plan.is_packed() || plan.lengths.data != nullptr) {  // else there are zeros behind
        unseen[0] = __ballot_sync(whole_warp, first + lane >= end);
        unseen[1] = __ballot_sync(whole_warp, first + lane + warp_size >= end);
      }
    }
    soften(scores, sums, scale, factors);
    are_there(scores);  // or the compiler would wait for products first
    ring.full(turn.stage, true).wait(turn.parity);
  };
  const auto add = [&] {
    const auto tile = ring.tile(last.stage, true);
    if ((unseen[0] | unseen[1]) != 0) {  // the warps with the same keys share that, and wait for each other
      clear_values(tile, unseen, row_warp, call.row_warps);
      before_engine();
      wait_for_warps(1 + share, call.row_warps);
    }
    begin_sums<T, D>(sums.out, weights, Operand(tile.base, tile.block_bytes));
  };

  score();
  look();
  wait_for_products<0>();
  weigh();
  pack_weights<T>(weights, scores);
  for (;;) {
    last = turn;
    first += step;
    if (first >= end) break;
    turn.forward(call.key_warps, ring.stages);
    score();
    add();
    look();
    wait_for_products<1>();
    weigh();
    wait_for_products<0>();
    are_there(sums.out);
    release(last, true);
    sums.scale_by(factors);
    pack_weights<T>(weights, scores);
  }
  done_with_queries<D>(call);
  add();
  meanwhile();
  wait_for_products<0>();
  are_there(sums.out);
}
#endif

template <class T, int D, bool masked>
__global__ void __launch_bounds__(4 * (tuning::warpgroups(D) + 1) * warp_size, 1)
    attention_wide_kernel(const __grid_constant__ Call call) {
#if ROBOCACHE_WARPGROUPS  // it is launched nowhere else
  extern __shared__ __align__(1024) unsigned char memory[];
  const Plan& plan = call.plan;
  const auto warp = static_cast<int>(threadIdx.x / warp_size);
  const int warps = call.row_warps * call.key_warps;
  int share = 0;
  int row_warp = warp;
  for (; row_warp >= call.row_warps && warp < warps; row_warp -= call.row_warps) ++share;
  const int block_rows = call.row_warps * warp_rows;
  const Memory layout(D, true, call.row_warps, call.key_warps, call.stages, call.units.split);
  const auto shared = static_cast<std::uint32_t>(__cvta_generic_to_shared(memory));
  const Ring<D> ring{shared, shared + layout.arrivals(), call.stages};
  const WideTile<D> queries{shared + layout.stages, block_rows};
  const int fetching = fetching_threads(plan);
  if (threadIdx.x == 0) ring.set_up(fetching, call.row_warps);
  if (plan.is_packed() || plan.lengths.data != nullptr) after_earlier_work();
  Rows rows;
  const bool has_rows = set_rows<T>(plan, call.units, plan.out, plan.lse, block_rows, rows);
  if (call.box != nullptr) check(plan, call.box);
  if (!has_rows) return;  // and so its whole cluster

  // The keys that any of the rows sees by its position, and this block's share of them.
  int begin = 0;
  auto end = static_cast<int>(rows.s.keys);
  if constexpr (masked) {
    const KeyRange range = keys_for(plan, rows, block_rows);
    begin = static_cast<int>(range.first);
    end = static_cast<int>(range.end);
  }
  const int busy = take_share(call.units, rows.rank, Ring<D>::Stage::keys, begin, end);
  const bool exchanges = Memory::exchanges(D, true, call.units.split);
  const Exchange<D> exchange(call, rows, shared, layout, busy);
  if (exchanges && threadIdx.x == 0) exchange.set_up();
  __syncthreads();
  if (warp >= warps) {
    give_up_registers<tuning::fetching_registers(D)>();
    const int thread = static_cast<int>(threadIdx.x) - warps * warp_size;
    if (fetching > 1) {
      fetch_segments<T>(call, rows, ring, queries, thread, begin, end);
    } else if (warp == warps && is_chosen()) {
      fetch(call, rows, ring, queries, begin, end);
    }
  } else {
    take_registers<tuning::warpgroup_registers(D)>();
    const int threads = warps * warp_size;
    if (exchanges) arrive_in_cluster();
    Sight sight;
    if constexpr (masked) sight.prepare(plan, rows, block_rows, row_warp * warp_rows);
    after_earlier_work();
    let_next_begin();
    if (!call.engine_queries) {
      copy_rows<T, D>(plan, plan.q, rows, queries, block_rows, true, Copier<D>(static_cast<int>(threadIdx.x), threads));
      end_group();
    }
    Sums<D> sums;
    sum_keys<T, D, masked>(call, rows, ring, queries, sight, row_warp, share, begin, end, sums, [&] {
      if (!exchanges) return;
      finish(sums);
      exchange.send_statistics(sums, row_warp);
    });
    if (plan.append && rows.first == 0) append<T>(plan, rows, rows.rank, call.units.split, threads);
    if (exchanges) return exchange_rows<T>(call, rows, exchange, sums, row_warp);
    finish_rows<T>(call, rows, shared, layout, sums, block_rows, row_warp * warp_rows, share, threads);
  }
#endif
}

}  // namespace
}  // namespace robocache::attention_op
