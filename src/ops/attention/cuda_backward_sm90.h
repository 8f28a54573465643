// The gradients of attention of half types on Hopper, with TMA and wgmma.
//
// One launch has two kinds of blocks with one mainloop. A query block keeps rows of q and d_out in shared memory and streams
// tiles of keys and values, for d_q. A key block keeps keys and values and streams tiles of q and d_out, for d_keys and
// d_values. With X, Y the kept and U, W the streamed tiles, both compute scores S = X U^T and dP = Y W^T, turn them in
// registers into P and dS, and use these as left operands: sums += dS U, and for d_values += P W. So P and dS never go
// through shared memory, there are no atomics, and every sum has a fixed order. The price is that S and dP are computed
// twice: seven products instead of five.
#pragma once

#include <algorithm>

#include "ops/attention/cuda_backward.h"
#include "ops/attention/cuda_backward_sm90_call.h"
#include "ops/attention/cuda_warpgroup.h"

namespace robocache::attention_op {
namespace {

constexpr int sm90_rows = sm90_backward::rows;  // of a tile, and of a consumer warpgroup
// Of a block with so many consumer warpgroups. One is its own producer, and shares its processor with another block; where
// there are more, one more warpgroup produces, and gives up its registers for them.
constexpr int sm90_threads(int groups) { return (groups == 1 ? 4 : (groups + 1) * 4) * warp_size; }

constexpr int sm90_unbounded = 1 << 28;

struct Sm90BackwardCall {
  BackwardCall call;
  BackwardMaps maps;
  float* lse = nullptr;  // as delta in the scratch, padded to whole tiles (attention_facts_kernel)
  // Query i sees key j where -left <= j - i - shift <= right: both at most sm90_unbounded. Each sees one, and each is seen.
  int left = 0, right = 0, shift = 0;
  int query_tiles = 0, key_tiles = 0;    // of sm90_rows, of one head
  int query_blocks = 0, key_blocks = 0;  // of one head
  unsigned all_key_blocks = 0;           // they come first in the grid: they take longest
};

// Shared memory: kept tiles, stages of two streamed tiles, lse and delta of each stage's rows, mbarriers.
template <int D, int consumers>
struct Sm90Layout {
  static constexpr int groups = consumers;
  using Tile = StageTile<D, sm90_rows>;
  static constexpr int stages = sm90_backward::stages;
  static constexpr int tile = Tile::blocks * Tile::block_bytes;
  static constexpr int streamed = 2 * groups * tile;
  static constexpr int facts = streamed + 2 * stages * tile;
  static constexpr int barriers = facts + 2 * stages * sm90_rows * 4;
  static constexpr int bytes = barriers + (2 + 3 * stages) * 8;

  std::uint32_t shared;

  __device__ Tile kept(int group, bool second) const { return {shared + (2 * group + second) * tile}; }
  __device__ Tile stream(int stage, bool second) const { return {shared + streamed + (2 * stage + second) * tile}; }
  __device__ std::uint32_t lse(int stage) const { return shared + facts + 2 * stage * sm90_rows * 4; }
  __device__ std::uint32_t delta(int stage) const { return lse(stage) + sm90_rows * 4; }
  __device__ Arrivals kept_full(bool second) const { return {shared + barriers + second * 8}; }
  __device__ Arrivals full(int stage, bool second) const { return {shared + barriers + (2 + 2 * stage + second) * 8}; }
  __device__ Arrivals empty(int stage) const { return {shared + barriers + (2 + 2 * stages + stage) * 8}; }
};

// lse in units of log2 and delta of every row, for the mainloop: padded to whole tiles, +inf and 0 behind the last row and
// for a row that sees nothing, so that its P is 0. Some lanes of a warp share a row.
template <class T, int lanes>
__global__ void __launch_bounds__(delta_threads) attention_facts_kernel(const __grid_constant__ Sm90BackwardCall all) {
  const BackwardCall& call = all.call;
  const Plan& plan = call.plan.forward;
  after_earlier_work();
  let_next_begin();
  check_data(plan, call.box);
  const unsigned padded = static_cast<unsigned>(all.query_tiles) * sm90_rows;
  const unsigned number = (blockIdx.x * delta_threads + threadIdx.x) / lanes;
  const unsigned n = number % padded;
  const unsigned head = number / padded;
  const unsigned h = head % static_cast<unsigned>(plan.heads);
  const unsigned b = head / static_cast<unsigned>(plan.heads);
  const bool exists = b < plan.batch;
  const bool real = exists && n < plan.queries;
  const unsigned d = threadIdx.x % lanes * 8;
  float sum = 0;
  if (real && d < plan.head_dim) {
    const T* const out = static_cast<const T*>(plan.out.data) + offset_of(plan.out, b, h, n) + d;
    const T* const d_out = static_cast<const T*>(call.plan.d_out.data) + offset_of(call.plan.d_out, b, h, n) + d;
    T left[8], right[8];
    *reinterpret_cast<uint4*>(left) = *reinterpret_cast<const uint4*>(out);
    *reinterpret_cast<uint4*>(right) = *reinterpret_cast<const uint4*>(d_out);
#pragma unroll
    for (int k = 0; k < 8; ++k) sum = fmaf(widen(left[k]), widen(right[k]), sum);
  }
#pragma unroll
  for (int step = lanes / 2; step > 0; step /= 2) sum += __shfl_xor_sync(whole_warp, sum, step);
  if (!exists || threadIdx.x % lanes != 0) return;
  float lse = -minus_infinity();
  if (real) {
    const std::int64_t place = b * plan.lse_batch + h * plan.lse_head + n;
    if (call.plan.d_lse != nullptr) sum -= call.plan.d_lse[place];
    lse = plan.lse[place] * log2_e;
    if (lse == minus_infinity()) lse = -minus_infinity();
  }
  all.lse[number] = lse;
  call.scratch.delta[number] = lse == -minus_infinity() ? 0.0f : sum;
}

#if ROBOCACHE_WARPGROUPS

// Contiguous bytes from global memory: a multiple of 16, from and to multiples of 16.
__device__ void copy_bytes(const Arrivals& arrivals, std::uint32_t to, const void* from, int bytes) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
               "l"(from), "r"(bytes), "r"(arrivals.address)
               : "memory");
}

// What a block works on.
struct Sm90Unit {
  bool of_keys;
  int sequence, head, kv_head;  // head: of a query block
  int first;                    // kept row
  int rows;                     // that it has
  int first_tile, tiles;        // streamed tiles that may be seen, of one head
  int begin, end;               // of these, this block's: of a key block, of those of all heads of its group
  int rank = 0;                 // among the key blocks that share keys

  __device__ Sm90Unit(const Sm90BackwardCall& all, int block_rows) {
    const Plan& plan = all.call.plan.forward;
    const auto group = static_cast<unsigned>(plan.group());
    of_keys = blockIdx.x < all.all_key_blocks;
    unsigned number = blockIdx.x;
    if (of_keys) {
      const auto split = static_cast<unsigned>(all.call.scratch.key_split);
      rank = static_cast<int>(number % split);
      number /= split;
      first = static_cast<int>(number % static_cast<unsigned>(all.key_blocks)) * block_rows;
      number /= static_cast<unsigned>(all.key_blocks);
      kv_head = static_cast<int>(number % static_cast<unsigned>(plan.kv_heads));
      head = kv_head * static_cast<int>(group);
      sequence = static_cast<int>(number / static_cast<unsigned>(plan.kv_heads));
      rows = min(static_cast<int>(plan.keys) - first, block_rows);
      first_tile = max(first - all.right - all.shift, 0) / sm90_rows;
      tiles = min((first + rows - 1 + all.left - all.shift) / sm90_rows + 1, all.query_tiles) - first_tile;
      const int count = static_cast<int>(group) * tiles;
      const int share = (count + static_cast<int>(split) - 1) / static_cast<int>(split);
      begin = min(rank * share, count);
      end = min(begin + share, count);
    } else {
      number -= all.all_key_blocks;
      // The last first: where queries see no later keys they take longest.
      first = (all.query_blocks - 1 - static_cast<int>(number % static_cast<unsigned>(all.query_blocks))) * block_rows;
      number /= static_cast<unsigned>(all.query_blocks);
      head = static_cast<int>(number % static_cast<unsigned>(plan.heads));
      kv_head = head / static_cast<int>(group);
      sequence = static_cast<int>(number / static_cast<unsigned>(plan.heads));
      rows = min(static_cast<int>(plan.queries) - first, block_rows);
      first_tile = max(first + all.shift - all.left, 0) / sm90_rows;
      tiles = min((first + rows - 1 + all.shift + all.right) / sm90_rows + 1, all.key_tiles) - first_tile;
      begin = 0;
      end = tiles;
    }
  }
  __device__ int active_groups() const { return (rows + sm90_rows - 1) / sm90_rows; }
};

// Copies what the consumers need, by one thread.
template <class L>
class Producer {
 public:
  __device__ Producer(const Sm90BackwardCall& all, const Sm90Unit& unit, const L& layout)
      : all_(all),
        unit_(unit),
        layout_(layout),
        copies_(Memory::tile_copies(all.call.plan.forward.head_dim)),
        left_(unit.end - unit.begin),
        head_(unit.of_keys ? unit.head + unit.begin / unit.tiles : unit.kv_head),
        row_(unit.begin % unit.tiles + unit.first_tile) {}

  // The kept tiles and the first of the stream.
  __device__ void begin() {
    if (left_ <= 0) return;
    bring_near(map(false, true));
    bring_near(map(true, true));
    bring_near(map(false, false));
    bring_near(map(true, false));
    after_earlier_work();
    copy_kept(false);
    copy_streamed(false);
    copy_kept(true);
    copy_streamed(true);
    go_on();
  }
  // The next of the stream, when there is room for it. False: there is none.
  __device__ bool copy_next() {
    if (left_ <= 0) return false;
    layout_.empty(stage_).wait(parity_ ^ 1u);
    copy_streamed(false);
    copy_streamed(true);
    go_on();
    return true;
  }

 private:
  __device__ const CUtensorMap& map(bool kept, bool second) const {
    if (kept == unit_.of_keys) return second ? all_.maps.values : all_.maps.keys;
    return second ? all_.maps.d_out : all_.maps.q;
  }
  __device__ void copy(const Arrivals& to, typename L::Tile tile, const CUtensorMap& from, int row, int head) const {
#pragma unroll 1
    for (int block = 0; block < copies_; ++block) {
      to.copy(tile.base + block * L::Tile::block_bytes, from, block * 64, row, head, unit_.sequence);
    }
  }
  __device__ void copy_kept(bool second) const {
    layout_.kept_full(second).expect(unit_.active_groups() * L::tile);
    for (int group = 0; group < unit_.active_groups(); ++group) {
      copy(layout_.kept_full(second), layout_.kept(group, second), map(true, second), unit_.first + group * sm90_rows,
           unit_.of_keys ? unit_.kv_head : unit_.head);
    }
  }
  __device__ void copy_streamed(bool second) const {
    const Arrivals full = layout_.full(stage_, second);
    const bool facts = unit_.of_keys && !second;
    full.expect(L::tile + (facts ? 2 * sm90_rows * 4 : 0));
    copy(full, layout_.stream(stage_, second), map(false, second), row_ * sm90_rows, head_);
    if (!facts) return;
    const std::int64_t place =
        ((static_cast<std::int64_t>(unit_.sequence) * all_.call.plan.forward.heads + head_) * all_.query_tiles + row_) *
        sm90_rows;
    copy_bytes(full, layout_.lse(stage_), all_.lse + place, sm90_rows * 4);
    copy_bytes(full, layout_.delta(stage_), all_.call.scratch.delta + place, sm90_rows * 4);
  }
  __device__ void go_on() {
    --left_;
    if (++stage_ == L::stages) {
      stage_ = 0;
      parity_ ^= 1u;
    }
    if (++row_ == unit_.first_tile + unit_.tiles) {
      row_ = unit_.first_tile;
      ++head_;
    }
  }

  const Sm90BackwardCall& all_;
  const Sm90Unit& unit_;
  const L& layout_;
  int copies_, left_;
  int head_, row_;  // of the next tile: row_ counts tiles
  int stage_ = 0;
  unsigned parity_ = 0;
};

// Begins c = a b^T, 64 rows of each along D, after begin_products().
template <class T, int D, int d = 0>
__device__ void multiply_tiles(float (&c)[sm90_rows / 8][4], const Operand& a, const Operand& b) {
  constexpr int place = d / 4 * StageTile<D, sm90_rows>::block_bytes + d % 4 * 32;
  multiply_shared<T, d != 0>(c, a.at(place), b.at(place));
  if constexpr (d + 1 < D / 16) multiply_tiles<T, D, d + 1>(c, a, b);
}

// Begins c += left times the rows of a streamed tile, after begin_products().
template <class T, int D>
__device__ void add_product(float (&c)[D / 8][4], const std::uint32_t (&left)[sm90_rows / 16][4],
                            const StageTile<D, sm90_rows>& tile) {
  const Operand right(tile.base, tile.block_bytes);
#pragma unroll
  for (int n = 0; n < sm90_rows / 16; ++n) add_columns<T, D, sm90_rows>(c, left[n], right, n * 16);
}

// After a wait: a wgmma reads its fragments while it runs, which ptxas does not know, and could use their registers before.
template <int count>
__device__ void are_free(std::uint32_t (&a)[count][4]) {
#pragma unroll
  for (int n = 0; n < count; ++n) {
    asm volatile("" : "+r"(a[n][0]), "+r"(a[n][1]), "+r"(a[n][2]), "+r"(a[n][3])::"memory");
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

// Two elements of a half type as floats.
template <class T>
__device__ float2 unpack(std::uint32_t both) {
  if constexpr (std::is_same_v<T, bf16>) {
    return {__uint_as_float(both << 16), __uint_as_float(both & 0xffff0000u)};
  } else {
    return __half22float2(bit_copy<__half2>(both));
  }
}

// At most a little over 1 for a key that exists. Behind the last key scores are 0, and it must stay finite; NaN stays NaN.
__device__ float probability(float score, float scale, float lse) {
  float exponent;
  asm("min.NaN.f32 %0, %1, 0f3f800000;" : "=f"(exponent) : "f"(fmaf(score, scale, -lse)));
  return power_of_two(exponent);
}

// The gradients of one consumer warpgroup's rows. of_keys: these are keys, and `second` gets d_values.
// refill(): called when what was in a stage is used up.
template <class T, int D, bool windowed, bool of_keys, class L, class Refill>
__device__ void sm90_mainloop(const Sm90BackwardCall& all, const Sm90Unit& unit, const L& layout, const Refill& refill,
                              int group, float (&sums)[D / 8][4], float (&second)[of_keys ? D / 8 : 1][4]) {
  if (unit.begin >= unit.end) return;
  const Plan& plan = all.call.plan.forward;
  const auto lane = static_cast<int>(threadIdx.x % warp_size);
  const auto warp = static_cast<int>(threadIdx.x / warp_size % 4);
  const float scale = static_cast<float>(plan.scale) * log2_e;
  float row_lse[2] = {}, row_delta[2] = {};
  if constexpr (!of_keys) {
    after_earlier_work();
    const std::int64_t place =
        (static_cast<std::int64_t>(unit.sequence) * plan.heads + unit.head) * all.query_tiles * sm90_rows + unit.first +
        group * sm90_rows + warp * warp_rows + lane / 4;
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      row_lse[k] = all.lse[place + 8 * k];
      row_delta[k] = all.call.scratch.delta[place + 8 * k];
    }
  }
  // P of a tile: from its scores in place, then rounded for the left operand. From that on dS is made of the rounded P, so
  // that the registers of p are free for the next scores.
  float p[sm90_rows / 8][4], ds[sm90_rows / 8][4];
  std::uint32_t left_p[sm90_rows / 16][4] = {}, left_ds[sm90_rows / 16][4] = {};
  // P outside the window becomes 0. Tiles are gone through in order.
  const int kept_row = unit.first + group * sm90_rows;
  int tile = unit.begin % unit.tiles + unit.first_tile;
  const auto hide = [&] {
    const int apart = of_keys ? kept_row - tile * sm90_rows : tile * sm90_rows - kept_row;
    if (++tile == unit.first_tile + unit.tiles) tile = unit.first_tile;
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
  };
  const auto find_p = [&](int stage) {
#pragma unroll
    for (int n = 0; n < sm90_rows / 8; ++n) {
      float2 lse{row_lse[0], row_lse[1]};
      if constexpr (of_keys) lse = read_shared_pair(layout.lse(stage) + (n * 8 + lane % 4 * 2) * 4);
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        p[n][k] = probability(p[n][k], scale, (of_keys ? k % 2 : k / 2) == 0 ? lse.x : lse.y);
      }
    }
    if constexpr (windowed) hide();
    pack_weights<T>(left_p, p);
    are_free(left_p);  // packed here, and not where they are used: the next scores are on their way to p then
  };
  const auto find_ds = [&](int stage) {
#pragma unroll
    for (int n = 0; n < sm90_rows / 8; ++n) {
      float2 delta{row_delta[0], row_delta[1]};
      if constexpr (of_keys) delta = read_shared_pair(layout.delta(stage) + (n * 8 + lane % 4 * 2) * 4);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float2 both = unpack<T>(left_p[n / 2][n % 2 * 2 + half]);
        ds[n][2 * half] = both.x * (ds[n][2 * half] - (of_keys || half == 0 ? delta.x : delta.y));
        ds[n][2 * half + 1] = both.y * (ds[n][2 * half + 1] - (!of_keys && half == 0 ? delta.x : delta.y));
      }
    }
    pack_weights<T>(left_ds, ds);
  };
  const auto release = [&](int stage) {
    if (lane == 0) layout.empty(stage).arrive();
  };

  are_there(sums);  // zeros, before the first product begins
  if constexpr (of_keys) are_there(second);
  layout.kept_full(false).wait(0);
  const Operand x(layout.kept(group, false).base);
  layout.full(0, false).wait(0);
  begin_products();
  multiply_tiles<T, D>(p, x, Operand(layout.stream(0, false).base));
  end_group_of_products();
  layout.kept_full(true).wait(0);
  const Operand y(layout.kept(group, true).base);
  layout.full(0, true).wait(0);
  begin_products();
  multiply_tiles<T, D>(ds, y, Operand(layout.stream(0, true).base));
  end_group_of_products();
  int stage = 0;
  unsigned parity = 0;
  if constexpr (sm90_backward::pipelined(D, of_keys)) {
    // The products of the next tile run while this one's P and dS are found: its scores beside dS, its dP beside P. What is
    // under way when an iteration ends is waited for as a whole: of less ptxas does not know that it is done, and
    // serializes every wgmma.
    int last = -1;
    const auto go_through = [&](auto more_follow) {
      constexpr bool more = decltype(more_follow)::value;
      const int next = stage + 1 == L::stages ? 0 : stage + 1;
      if (next == 0) parity ^= 1u;
      find_p(stage);
      wait_for_products<0>();
      are_there(ds);
      are_free(left_ds);
      if (last >= 0) release(last);
      if constexpr (more) layout.full(next, false).wait(parity);
      if constexpr (of_keys || more) begin_products();
      if constexpr (more) multiply_tiles<T, D>(p, x, Operand(layout.stream(next, false).base));
      if constexpr (of_keys) add_product<T>(second, left_p, layout.stream(stage, true));
      if constexpr (of_keys || more) end_group_of_products();
      find_ds(stage);
      if constexpr (more) layout.full(next, true).wait(parity);
      begin_products();
      add_product<T>(sums, left_ds, layout.stream(stage, false));
      if constexpr (more) multiply_tiles<T, D>(ds, y, Operand(layout.stream(next, true).base));
      end_group_of_products();
      if constexpr (more) {
        if (last >= 0) refill();
        wait_for_products<1>();
        are_there(p);
        are_free(left_p);
      }
      last = stage;
      stage = next;
    };
    wait_for_products<1>();
    are_there(p);
#pragma unroll 1
    for (int number = unit.begin + 1; number < unit.end; ++number) go_through(std::true_type{});
    go_through(std::false_type{});
    wait_for_products<0>();
    are_free(left_p);
    are_free(left_ds);
  } else {
    static_assert(L::groups > 1, "this loop leaves the copies to a producer of its own");
#pragma unroll 1
    for (int number = unit.begin;;) {
      wait_for_products<1>();
      are_there(p);
      find_p(stage);
      begin_sums<T>(second, left_p, layout.stream(stage, true));
      wait_for_products<1>();
      are_there(ds);
      find_ds(stage);
      begin_sums<T>(sums, left_ds, layout.stream(stage, false));
      wait_for_products<0>();  // the next scores run beside these, ptxas would serialize every wgmma: too few registers
      are_free(left_p);
      are_free(left_ds);
      release(stage);
      if (++number >= unit.end) break;
      if (++stage == L::stages) {
        stage = 0;
        parity ^= 1u;
      }
      layout.full(stage, false).wait(parity);
      begin_products();
      multiply_tiles<T, D>(p, x, Operand(layout.stream(stage, false).base));
      end_group_of_products();
      layout.full(stage, true).wait(parity);
      begin_products();
      multiply_tiles<T, D>(ds, y, Operand(layout.stream(stage, true).base));
      end_group_of_products();
    }
  }
  are_there(sums);
  if constexpr (of_keys) are_there(second);
}

// Writes a consumer's rows of one gradient, or of a key block that shares its keys the part of it.
template <class T, int D>
__device__ void store_sums(const Sm90BackwardCall& all, const Sm90Unit& unit, int group, const Vectors& to,
                           bool of_values, const float (&sums)[D / 8][4], float factor) {
  const BackwardCall& call = all.call;
  const Plan& plan = call.plan.forward;
  const auto lane = static_cast<int>(threadIdx.x % warp_size);
  const int row = unit.first + group * sm90_rows + static_cast<int>(threadIdx.x / warp_size % 4) * warp_rows + lane / 4;
  const int end = unit.first + unit.rows;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int here = row + 8 * half;
    if (unit.of_keys && call.scratch.key_split > 1) {
      if (here >= end) continue;
      const std::int64_t part = (of_values ? call.scratch.key_split : 0) + unit.rank;
      const std::int64_t place =
          ((part * plan.batch + unit.sequence) * plan.kv_heads + unit.kv_head) * plan.keys + here;
      float* const partial = call.scratch.partials + place * D + lane % 4 * 2;
#pragma unroll
      for (int n = 0; n < D / 8; ++n) {
        *reinterpret_cast<float2*>(partial + n * 8) = make_float2(sums[n][2 * half], sums[n][2 * half + 1]);
      }
    } else if (to.data != nullptr) {
      T* const at = static_cast<T*>(to.data) +
                    offset_of(to, unit.sequence, unit.of_keys ? unit.kv_head : unit.head, min(here, end - 1));
      store_aligned_row<T, D>(at, sums, half, factor, static_cast<int>(plan.head_dim), here < end);
    }
  }
}
#endif

template <class T, int D, bool windowed, int groups>
__global__ void __launch_bounds__(sm90_threads(groups), groups == 1 ? 2 : 1)
    attention_backward_sm90_kernel(const __grid_constant__ Sm90BackwardCall all) {
#if ROBOCACHE_WARPGROUPS  // it is launched nowhere else
  extern __shared__ __align__(1024) unsigned char memory[];
  using L = Sm90Layout<D, groups>;
  const L layout{uniform(static_cast<std::uint32_t>(__cvta_generic_to_shared(memory)))};
  const int warp = uniform(static_cast<int>(threadIdx.x / warp_size));
  const Sm90Unit unit(all, groups * sm90_rows);
  const int active = unit.active_groups();
  if (threadIdx.x == 0) {
    layout.kept_full(false).set_up();
    layout.kept_full(true).set_up();
    for (int stage = 0; stage < L::stages; ++stage) {
      layout.full(stage, false).set_up();
      layout.full(stage, true).set_up();
      layout.empty(stage).set_up(active * 4);
    }
    before_engine();
  }
  __syncthreads();
  Producer<L> producer(all, unit, layout);
  if (warp >= groups * 4) {
    if constexpr (groups > 1) {
      give_up_registers<sm90_backward::producer_registers>();
      if (warp == groups * 4 && is_chosen()) {
        producer.begin();
        while (producer.copy_next()) {
        }
      }
    }
  } else {
    if constexpr (groups > 1) {
      take_registers<sm90_backward::consumer_registers>();
    } else if (threadIdx.x == 0) {
      producer.begin();
      for (int stage = 1; stage < L::stages; ++stage) producer.copy_next();
    }
    __syncwarp();
    const auto refill = [&] {
      if constexpr (groups == 1) {
        if (threadIdx.x == 0) producer.copy_next();
        __syncwarp();
      }
    };
    const int group = warp / 4;
    if (group >= active) return;
    const BackwardPlan& plan = all.call.plan;
    const auto scale = static_cast<float>(plan.forward.scale);
    float sums[D / 8][4] = {};
    if (unit.of_keys) {
      float second[D / 8][4] = {};
      sm90_mainloop<T, D, windowed, true>(all, unit, layout, refill, group, sums, second);
      let_next_begin();
      store_sums<T, D>(all, unit, group, plan.d_keys[0], false, sums, scale);
      store_sums<T, D>(all, unit, group, plan.d_values[0], true, second, 1.0f);
    } else {
      float none[1][4];
      sm90_mainloop<T, D, windowed, false>(all, unit, layout, refill, group, sums, none);
      let_next_begin();
      store_sums<T, D>(all, unit, group, plan.d_q, false, sums, scale);
    }
  }
#endif
}

template <class T>
void run_sm90_backward(const BackwardPlan& plan, const BackwardMaps& maps, const Sm90Scratch& scratch, FaultBox* box,
                       int device, cudaStream_t stream) {
  const Plan& forward = plan.forward;
  Sm90BackwardCall all;
  all.call.plan = plan;
  all.call.box = box;
  all.call.aligned = true;
  all.call.scratch.delta = scratch.delta;
  all.call.scratch.partials = scratch.partials;
  all.call.scratch.key_split = scratch.key_split;
  all.lse = scratch.lse;
  all.maps = maps;
  all.left = static_cast<int>(std::min<std::int64_t>(forward.left, sm90_unbounded));
  all.right = static_cast<int>(std::min<std::int64_t>(forward.right, sm90_unbounded));
  all.shift = static_cast<int>(forward.keys - forward.queries);
  all.query_tiles = static_cast<int>(divide_up(forward.queries, sm90_rows));
  all.key_tiles = static_cast<int>(divide_up(forward.keys, sm90_rows));
  all.query_blocks = static_cast<int>(divide_up(forward.queries, scratch.groups * sm90_rows));
  all.key_blocks = static_cast<int>(divide_up(forward.keys, scratch.groups * sm90_rows));
  const std::int64_t rows = forward.batch * forward.heads * all.query_tiles * sm90_rows;
  const auto facts = [&](auto lanes) {
    constexpr int count = decltype(lanes)::value;
    launch<&attention_facts_kernel<T, count>>(divide_up(rows * count, delta_threads), delta_threads, 0, all, device,
                                              stream);
  };
  if (forward.head_dim <= 64) {
    facts(std::integral_constant<int, 8>{});
  } else {
    facts(std::integral_constant<int, 16>{});
  }
  const bool of_keys = wants(plan.d_keys) || wants(plan.d_values);
  const std::int64_t key_blocks = of_keys ? forward.batch * forward.kv_heads * all.key_blocks * scratch.key_split : 0;
  const std::int64_t query_blocks = plan.d_q.data != nullptr ? forward.batch * forward.heads * all.query_blocks : 0;
  all.all_key_blocks = static_cast<unsigned>(key_blocks);
  const auto run_groups = [&](auto padded, auto count) {
    constexpr int D = decltype(padded)::value;
    constexpr int groups = decltype(count)::value;
    constexpr int bytes = Sm90Layout<D, groups>::bytes;
    const std::int64_t blocks = key_blocks + query_blocks;
    if (forward.left < unbounded || forward.right < unbounded) {
      launch<&attention_backward_sm90_kernel<T, D, true, groups>>(blocks, sm90_threads(groups), bytes, all, device,
                                                                  stream);
    } else {
      launch<&attention_backward_sm90_kernel<T, D, false, groups>>(blocks, sm90_threads(groups), bytes, all, device,
                                                                   stream);
    }
  };
  const auto run = [&](auto padded) {
    if (scratch.groups == 1) {
      run_groups(padded, std::integral_constant<int, 1>{});
    } else {
      run_groups(padded, std::integral_constant<int, 2>{});
    }
  };
  switch (padded_head_dim(forward.head_dim)) {
    case 48:
      run(std::integral_constant<int, 48>{});
      break;
    case 64:
      run(std::integral_constant<int, 64>{});
      break;
    case 80:
      run_groups(std::integral_constant<int, 80>{}, std::integral_constant<int, 2>{});
      break;
    default:
      run_groups(std::integral_constant<int, 128>{}, std::integral_constant<int, 2>{});
      break;
  }
  if (of_keys && scratch.key_split > 1) {
    all.call.padded_head_dim = padded_head_dim(forward.head_dim);
    const std::int64_t sums = 2 * forward.batch * forward.kv_heads * forward.keys;
    launch<&attention_sum_kernel<T>>(divide_up(sums * warp_size, delta_threads), delta_threads, 0, all.call, device,
                                     stream);
  }
}

}  // namespace
}  // namespace robocache::attention_op
