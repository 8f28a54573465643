// Attention of half types by warpgroups: Hopper.
//
// A warpgroup has 64 rows and a share of the keys. One more warp fetches queries, then keys and values, a tile at a time, into a
// ring through the copy engine; nobody else waits for anybody but it. Each warpgroup multiplies the next keys and the last
// values while it turns scores into weights, and while others do. Whatever needs no data comes before the wait for earlier
// work, and in the stretches that run once few instructions count for more than fast ones: fetching them takes longest.
#pragma once

#include "ops/attention/cuda_exchange.h"
#include "ops/attention/cuda_narrow.h"
#include "ops/attention/cuda_ring.h"
#include "ops/attention/cuda_sums.h"
#include "ops/attention/cuda_warpgroup.h"

namespace robocache::attention_op {
namespace {

template <int D, int keys>
__device__ void fetch_queries(const Call& call, const Rows& rows, const Ring<D, keys>& ring,
                              const WideTile<D>& queries) {
  const int query = static_cast<int>(rows.s.first_query) + rows.query(0);
  const auto sequence = static_cast<int>(call.plan.is_packed() ? 0 : rows.s.number);
#pragma unroll
  for (int block = 0; block < Ring<D, keys>::Stage::blocks; ++block) {
    copy_queries(queries.place(0, block * 64), call.query_map, block * 64, query, rows.kv_head, sequence,
                 ring.queries());
  }
}

// Queries, then keys and values as there is room for them: by one thread. The first copies are what all wait for: nothing
// stands between them and the end of earlier work that could come before it.
template <bool parted, int D, int keys>
__device__ void fetch(const Call& call, const Rows& rows, const Ring<D, keys>& ring, const WideTile<D>& queries,
                      int begin, int end) {
  using Stage = typename Ring<D, keys>::Stage;
  const Plan& plan = call.plan;
  const int copies = Memory::tile_copies(plan.head_dim);
  const auto sequence = static_cast<int>(plan.is_packed() ? 0 : rows.s.number);
  Span<keys> span(rows.s);
  if constexpr (parted) span.go_to_spot(plan, begin);
  int row = static_cast<int>(rows.s.first_key) + begin - span.begin;
  int tiles = max(end - begin + Stage::keys - 1, 0) / Stage::keys;
  Turn turn;
  const auto copy = [&](bool values) {
    const Arrivals full = ring.full(turn.stage, values);
    ring.empty(turn.stage, values).wait(turn.parity ^ 1u);
    full.expect(Stage::blocks * Stage::block_bytes);
#pragma unroll 1
    for (int block = 0; block < copies; ++block) {
      full.copy(ring.tile(turn.stage, values).base + block * Stage::block_bytes,
                call.maps[span.segment][values ? 1 : 0], block * 64, row, rows.kv_head, sequence);
    }
  };
  if (call.engine_queries) {
    bring_near(call.query_map);
    ring.queries().expect(Stage::blocks * queries.block_bytes());
  }
  for (int k = span.segment; k < (parted ? plan.segment_count : 1) && tiles > 0; ++k) {
    if (parted && plan.segments[k].count == 0) continue;
    bring_near(call.maps[k][0]);
    bring_near(call.maps[k][1]);
  }
  after_earlier_work();
  if (tiles > 0) copy(false);
  if (call.engine_queries) fetch_queries(call, rows, ring, queries);
#pragma unroll 1
  while (tiles > 0) {
    copy(true);
    turn.forward(1, ring.stages);
    row += Stage::keys;
    while (parted && row >= span.count && span.segment + 1 < plan.segment_count) {
      span.go_on(plan);
      row = 0;
    }
    if (--tiles > 0) copy(false);
  }
}

#if ROBOCACHE_WARPGROUPS

// What a warp knows of which of its rows sees which of the keys that it is at. parted: by their spots (Span).
template <int keys, bool parted>
struct Sight {
  static constexpr int words = keys / warp_size;
  QueryView views[2];              // of this thread's rows
  int all_from = 0, all_to = 0;    // keys that all rows of the warp see by their position,
  int any_from = 0, any_to = 0;    // or any of the warpgroup,
  std::int32_t least = most_rank;  // and that all see by their rank
  std::int32_t most = most_rank;   // the most that any row of the block has
  int zeros_from = 0;   // from there on there are zeros instead of keys, but behind a cache there may be anything
  int from = 0;         // of several: the first that any row of the block sees by its position
  KeyView next[words];  // of keys lane, lane + 32 and so on
  std::int32_t here[words] = {};
  const std::int32_t* ranks = nullptr;  // of the sequence's keys, and whether they are valid
  const std::uint8_t* valid = nullptr;
  const std::int32_t* own_ranks[2] = {};   // of this thread's rows, where they exist,
  const std::int32_t* ranks_here[2] = {};  // and of rows lane and lane + 32 of the block

  __device__ void set(const Plan& plan, const Rows& rows, int block_rows, int warp_row, int end) {
    const auto lane = static_cast<int>(threadIdx.x % warp_size);
    all_to = any_to = views[0].end = views[1].end = end;
    zeros_from = plan.is_packed() || plan.lengths.data != nullptr ? end + keys : static_cast<int>(rows.s.keys);
    if (plan.query_ranks.data != nullptr) {  // and so no window; nothing waits for a rank before all are asked for
      std::int32_t first_ranks[2];
#pragma unroll
      for (int k = 0; k < 2; ++k) {
        views[k].rank = own_ranks[k] == nullptr ? most_rank : min(*own_ranks[k], most_rank);
        first_ranks[k] = ranks_here[k] == nullptr ? least_rank : min(*ranks_here[k], most_rank);
      }
      most = least_rank;
#pragma unroll 1
      for (int row = lane + 2 * warp_size; row < block_rows; row += warp_size) {
        if (rows.exists(row)) most = max(most, query_view(plan, rows, row).rank);
      }
      most = max(most, max(first_ranks[0], first_ranks[1]));
      least = __reduce_min_sync(whole_warp, min(views[0].rank, views[1].rank));
      most = __reduce_max_sync(whole_warp, most);
    }
    if (plan.left >= unbounded && plan.right >= unbounded) return;
    Rows own = rows;
    own.first += warp_row / 64 * 64;
    const KeyRange range = own.exists(0) ? keys_for(plan, own, 64) : KeyRange{};
    any_from = uniform(static_cast<int>(range.first));
    any_to = uniform(static_cast<int>(range.end));
    if constexpr (parted) turn_to_spots<keys>(plan, rows.s, any_from, any_to);
    any_to = min(any_to, end);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = warp_row + lane / 4 + 8 * half;
      views[half] = query_view(plan, rows, row);
      if constexpr (parted) turn_to_spots<keys>(plan, rows.s, views[half].first, views[half].end);
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
  __device__ void look_at(const Plan& plan, const Sequence& s, int first, int end) {
    const auto lane = static_cast<int>(threadIdx.x % warp_size);
    int before = 0;  // spots that have no key
    if constexpr (parted) {
      const Span<keys> span = span_at<keys>(plan, s, first);
      before = span.begin - span.first;
      end = min(end, span.end());
    }
#pragma unroll
    for (int k = 0; k < words; ++k) {
      const int spot = first + lane + k * warp_size;
      const int j = spot - before;
      next[k] = KeyView();
      if (spot >= end || (parted && spot < from)) continue;
      next[k].valid = valid == nullptr ? 1 : valid[j * plan.key_valid.row];
      if (ranks != nullptr) next[k].rank = ranks[j * plan.key_ranks.row];
    }
  }
  __device__ void arrive_there() {
#pragma unroll
    for (int k = 0; k < words; ++k) here[k] = next[k].view();
  }
  // Bits of those that no row of the block sees.
  __device__ void find_unseen(const Plan& plan, const Sequence& s, unsigned (&unseen)[words], int first) const {
    const auto lane = static_cast<int>(threadIdx.x % warp_size);
    int zeros = zeros_from;
    if constexpr (parted) {
      const Span<keys> span = span_at<keys>(plan, s, first);
      if (span.segment > 0 || plan.lengths.data == nullptr) zeros = span.end();
    }
#pragma unroll
    for (int k = 0; k < words; ++k) {
      unseen[k] = __ballot_sync(whole_warp, here[k] > most && first + lane + k * warp_size < zeros);
    }
  }

  __device__ void hide(float (&scores)[keys / 8][4], int first) const {
    const auto lane = static_cast<int>(threadIdx.x % warp_size);
    bool all = first >= all_from && first + keys <= all_to;
#pragma unroll
    for (int word = 0; word < words; ++word) all = all && here[word] <= least;
    if (__all_sync(whole_warp, all)) return;
    // Bits for 32 keys each, of which bit 8 * n + k is this thread's column k of eight.
    const int shift = lane % 4 * 2;
    std::uint32_t seen[2][words];
#pragma unroll
    for (int word = 0; word < words; ++word) {
      seen[0][word] = seen[1][word] = __ballot_sync(whole_warp, here[word] <= least) >> shift;
      if (__any_sync(whole_warp, here[word] > least && here[word] <= most)) {  // some rows see them, others do not
#pragma unroll
        for (int n = 0; n < 4; ++n) {
#pragma unroll
          for (int k = 0; k < 2; ++k) {
            const std::int32_t key = __shfl_sync(whole_warp, here[word], n * 8 + shift + k);
#pragma unroll
            for (int half = 0; half < 2; ++half) {
              seen[half][word] |= (key <= views[half].rank ? 1u : 0u) << (n * 8 + k);
            }
          }
        }
      }
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int word = 0; word < words; ++word) {
        const int column = first + word * warp_size + shift;
        const std::uint32_t bits =
            seen[half][word] & bits_below(views[half].end - column) & ~bits_below(views[half].first - column);
#pragma unroll
        for (int n = 0; n < 4; ++n) {
#pragma unroll
          for (int k = 0; k < 2; ++k) {
            if ((bits >> (n * 8 + k) & 1u) == 0) scores[4 * word + n][2 * half + k] = minus_infinity();
          }
        }
      }
    }
  }

 private:
  // The lowest so many bits: none of less than one, all of 32 and more.
  static __device__ std::uint32_t bits_below(int count) { return ~__funnelshift_lc(0u, ~0u, max(count, 0)); }
};

// Values of keys that nobody sees become zeros: they may be NaN, which a weight of zero does not stop. By some warps, eight rows
// each at a time.
template <int D, int keys>
__device__ void clear_values(const StageTile<D, keys>& values, const unsigned (&unseen)[keys / warp_size], int warp,
                             int warps) {
  const Copier<D> copier(static_cast<int>(threadIdx.x % warp_size), warp_size);
  const std::uint32_t to = values.place(copier.first, copier.column);
#pragma unroll 1
  for (int first = warp * 8; first < keys; first += warps * 8) {
    unsigned rows = unseen[0];
#pragma unroll
    for (int word = 1; word < keys / warp_size; ++word) rows = first < word * warp_size ? rows : unseen[word];
    rows >>= first % warp_size + copier.first;
    if (copier.column >= D) continue;
#pragma unroll
    for (int row = 0; row < 8; row += Copier<D>::rows) {
      if ((rows >> row & 1u) != 0) write_zeros((to ^ row * 16) + (first + row) * 128);
    }
  }
}

template <class T, int count>
__device__ void pack_weights(std::uint32_t (&packed)[count][4], const float (&weights)[2 * count][4]) {
#pragma unroll
  for (int n = 0; n < count; ++n) {
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      packed[n][k] = pack<T>(weights[2 * n + k / 2][k % 2 * 2], weights[2 * n + k / 2][k % 2 * 2 + 1]);
    }
  }
}

// Of queries, by so many warps.
template <int D>
__device__ void negate_rows(const WideTile<D>& tile, int warps) {
  for (int k = static_cast<int>(threadIdx.x); k < tile.rows * (D / 8); k += warps * warp_size) {
    asm volatile(
        "{.reg .b32 a, b, c, d;\n"
        "ld.shared.v4.b32 {a, b, c, d}, [%0];\n"
        "xor.b32 a, a, %1; xor.b32 b, b, %1; xor.b32 c, c, %1; xor.b32 d, d, %1;\n"
        "st.shared.v4.b32 [%0], {a, b, c, d};}" ::"r"(tile.place(k / (D / 8), k % (D / 8) * 8)),
        "r"(0x80008000u)
        : "memory");
  }
}

// x, once a weight is known, which is never negative. The compiler moves a wait for products up as far as it can, but not past a
// wait for x.
__device__ unsigned after(float weight, unsigned x) { return x ^ (weight < 0 ? 1u : 0u); }

// Where they were, other blocks may write then.
template <int D>
__device__ void done_with_queries(const Call& call) {
  if (!Memory::exchanges(D, true, call.units.split)) return;
  wait_in_cluster();  // all have set up
  arrive_in_cluster();
}

// The sums of a warp that is a fourth of a warpgroup. meanwhile(): before the last products are waited for.
template <class T, int D, bool masked, int keys, bool narrow, bool parted, class Meanwhile>
__device__ void sum_keys(const Call& call, const Rows& rows, const Ring<D, keys>& ring, const WideTile<D>& queries,
                         Sight<keys, parted>& sight, int row_warp, int share, int begin, int end, Sums<D>& sums,
                         const Meanwhile& meanwhile) {
  const Plan& plan = call.plan;
  const auto lane = static_cast<int>(threadIdx.x % warp_size);
  const int step = call.key_warps * keys;
  const int warps = call.row_warps * call.key_warps;
  int first = uniform(begin + share * keys);
  end = uniform(end);
  if constexpr (masked) {
    sight.look_at(plan, rows.s, first, end);
    sight.set(plan, rows, queries.rows, row_warp * warp_rows, end);
  }
  // The greatest score is sought before they are scaled, for which the scale must not be negative.
  const float scale = fabsf(static_cast<float>(plan.scale)) * log2_e;
  if (call.engine_queries) {
    ring.queries().wait(0);
  } else {
    wait_for_groups<0>();
    before_engine();
    wait_for_warps(0, warps);
  }
  if (plan.scale < 0) {
    negate_rows(queries, warps);
    before_engine();
    wait_for_warps(0, warps);
  }
  if (first >= end) return done_with_queries<D>(call);

  unsigned unseen[keys / warp_size] = {};
  Turn turn, last;
  turn.forward(share, ring.stages);
  const auto release = [&](const Turn& of, bool values) {
    if (lane == 0) ring.empty(of.stage, values).arrive();
  };
  const auto look = [&] {
    sight.arrive_there();
    sight.look_at(plan, rows.s, first + step, end);
  };
  const auto clear = [&](const Turn& of) {
    unsigned any = 0;
#pragma unroll
    for (const unsigned bits : unseen) any |= bits;
    if (any == 0) return;
    clear_values(ring.tile(of.stage, true), unseen, row_warp, call.row_warps);
    before_engine();
    wait_for_warps(1 + share, call.row_warps);  // the warps with the same keys share that
    if constexpr (narrow) let_warps_pass(stage_barrier + of.stage, call.row_warps + 1);
  };
  const auto forward = [&] {
    first += step;
    turn.forward(call.key_warps, ring.stages);
  };
  // Keys that no row of the warpgroup sees.
  const auto pass = [&] {
    ring.full(turn.stage, false).wait(turn.parity);
    release(turn, false);
    look();
    sight.find_unseen(plan, rows.s, unseen, first);
    ring.full(turn.stage, true).wait(turn.parity);
    clear(turn);
    release(turn, true);
    forward();
  };
  int own_end = end;
  if constexpr (masked) {
    own_end = sight.any_to;
    while (first < end && (first + keys <= sight.any_from || first >= own_end)) pass();
  }
  if (masked && first >= end) {
    done_with_queries<D>(call);
    return meanwhile();
  }

  const LeftQueries<T, D, keys> left(queries, row_warp);
  float scores[keys / 8][4];
  float factors[2], bases[2];
  std::uint32_t weights[keys / 16][4];
  const auto hide = [&] {
    if constexpr (masked) {
      sight.find_unseen(plan, rows.s, unseen, first);
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
#pragma unroll
        for (int k = 0; k < keys / warp_size; ++k) {
          unseen[k] = __ballot_sync(whole_warp, first + lane + k * warp_size >= end);
        }
      }
    }
  };
  const auto add = [&] {
    clear(last);
    begin_sums<T>(sums.out, weights, ring.tile(last.stage, true));
  };

  // Warpgroups with the same keys begin their products in turn: while one multiplies another finds its weights. Of short tiles
  // that took longer than it saved.
  const bool in_turn = !masked && keys == tuning::long_keys && call.key_warps == 1 && call.row_warps > 4;
  const int group = row_warp / 4;
  const bool last_group = row_warp + 4 >= call.row_warps;
  const auto let_next_multiply = [&] {
    if (in_turn && (!last_group || first + step < end)) let_warps_pass(2 + (last_group ? 0 : group + 1), 2 * 4);
  };
  if (in_turn && last_group) let_warps_pass(2, 2 * 4);
  // One copy of this, and not one more for the first tile: it would be fetched for nothing else.
  for (bool again = false;; again = true) {
    ring.full(turn.stage, false).wait(turn.parity);
    if (in_turn) wait_for_warps(2 + group, 2 * 4);  // its own and those before
    begin_scores(scores, left, Operand(ring.tile(turn.stage, false).base));
    if constexpr (masked) look();
    if (again) {
      add();
      let_next_multiply();
      wait_for_products<1>();
    } else {
      let_next_multiply();
      wait_for_products<0>();
    }
    are_there(scores);
    release(turn, false);
    hide();
    find_most(scores, sums, scale, factors, bases);
    soften_some<0, keys / 16>(scores, sums, scale, bases);
    ring.full(turn.stage, true).wait(after(sums.total[0] + sums.total[1], turn.parity));
    wait_for_products<0>();
    are_there(sums.out);
    if (again) release(last, true);
    soften_some<keys / 16, keys / 8>(scores, sums, scale, bases);
    sums.scale_by(factors);
    pack_weights<T>(weights, scores);
    last = turn;
    forward();
    if (first >= own_end) break;
  }
  done_with_queries<D>(call);
  add();
  meanwhile();
  wait_for_products<0>();
  are_there(sums.out);
  if constexpr (masked) {
    if (first >= end) return;
    release(last, true);
    while (first < end) pass();
  }
}
#endif

// parted: keys lie in several segments, and are masked.
template <class T, int D, bool masked, int keys = tuning::keys(D, true), bool narrow = false, bool parted = false>
__global__ void __launch_bounds__(4 * (tuning::warpgroups(D, narrow) + 1) * warp_size, 1)
    attention_wide_kernel(const __grid_constant__ Call call) {
  static_assert(!parted || (masked && !narrow));
#if ROBOCACHE_WARPGROUPS  // it is launched nowhere else
  extern __shared__ __align__(1024) unsigned char memory[];
  const Plan& plan = call.plan;
  const int warp = uniform(static_cast<int>(threadIdx.x / warp_size));
  const int warps = call.row_warps * call.key_warps;
  int share = 0;
  int row_warp = warp;
  for (; row_warp >= call.row_warps && warp < warps; row_warp -= call.row_warps) ++share;
  const int group_rows = call.row_warps * warp_rows;  // of the warpgroups
  const int block_rows = group_rows + (narrow ? narrow_rows : 0);
  const Memory layout(D, true, call.row_warps, call.key_warps, call.stages, call.units.split, keys, narrow);
  const std::uint32_t shared = uniform(static_cast<std::uint32_t>(__cvta_generic_to_shared(memory)));
  const Ring<D, keys> ring{shared, shared + layout.arrivals(), call.stages};
  const WideTile<D> queries{shared + layout.stages, block_rows};
  if (threadIdx.x == 0) {
    for (int k = 0; k < call.row_warps && call.key_warps > 1; ++k) {
      Arrivals{shared + layout.handed() + k * 8}.set_up((call.key_warps - 1) * warp_size);
    }
    if constexpr (narrow) Arrivals{shared + layout.used()}.set_up((warps + narrow_warps) * warp_size);
    ring.set_up(call.row_warps + (narrow ? warp_size : 0));
  }
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
  int from = 0;
  if constexpr (parted) {
    turn_to_spots<keys>(plan, rows.s, begin, end);
    from = begin;
    begin = begin / keys * keys;
  }
  const int busy = take_share(call.units, rows.rank, keys, begin, end);
  const bool exchanges = Memory::exchanges(D, true, call.units.split);
  const Exchange<D> exchange(call, rows, shared, layout, busy);
  if (exchanges && threadIdx.x == 0) exchange.set_up();
  __syncthreads();
  if (warp >= warps) {
    give_up_registers<tuning::fetching_registers(D, narrow)>();
    if (warp == warps) {
      if (is_chosen()) fetch<parted>(call, rows, ring, queries, begin, end);
    } else if constexpr (narrow) {
      attend_narrow<T, D, masked>(call, rows, ring, queries, shared, layout, warp - warps - 1, begin, end);
    }
  } else {
    take_registers<tuning::warpgroup_registers(D, narrow)>();
    const int threads = warps * warp_size;
    if (exchanges) arrive_in_cluster();
    Sight<keys, parted> sight;
    sight.from = from;
    if constexpr (masked) sight.prepare(plan, rows, block_rows, row_warp * warp_rows);
    after_earlier_work();
    let_next_begin();
    if (!call.engine_queries) {
      copy_rows<T, D>(plan, plan.q, rows, queries, block_rows, true, Copier<D>(static_cast<int>(threadIdx.x), threads));
      end_group();
    }
    Sums<D> sums;
    sum_keys<T, D, masked, keys, narrow>(call, rows, ring, queries, sight, row_warp, share, begin, end, sums, [&] {
      if (!exchanges) return;
      finish(sums);
      exchange.send_statistics(sums, row_warp);
    });
    if (plan.append && rows.first == 0) append<T>(plan, rows, rows.rank, call.units.split, threads);
    if (exchanges) return exchange_rows<T>(call, rows, exchange, sums, row_warp);
    finish_rows<T, true, narrow>(call, rows, shared, layout, sums, group_rows, row_warp * warp_rows, share, threads);
  }
#endif
}

}  // namespace
}  // namespace robocache::attention_op
