// How blocks of a cluster bring together what each summed of the same rows: columns are dealt out among them, each sends to the
// others what it has of theirs, and adds up its own. The network between processors is slow (15 to 20 bytes a clock from each, on
// an H200, and few copies at a time): nothing crosses it twice, in few large copies, nobody waits for an answer, and what has
// come is added while the rest is under way.
#pragma once

#include "ops/attention/cuda_sums.h"

namespace robocache::attention_op {
namespace {

// Each of a block's warps has 16 rows. Block b of the cluster has columns [8 * each * b, 8 * each * (b + 1)) of all. Only the
// first `busy` blocks have sums.
template <int D>
struct Exchange {
  static constexpr int strips = D / 8;          // of eight columns,
  static constexpr int parcel = 4;              // so many of which travel together
  static constexpr int strip = 16 * warp_size;  // bytes of a warp's: what each of its threads holds

  std::uint32_t left;        // what this block has summed: of each strip all warps. It lies where the stages were.
  std::uint32_t came;        // the same of its own strips, from each other block: first from the one before it
  std::uint32_t statistics;  // the greatest score and the total: of each block all rows
  std::uint32_t arrivals;    // of others' statistics, and of their parcels
  int split, busy, rank, warps, each;

  __device__ Exchange(const Call& call, const Rows& rows, std::uint32_t memory, const Memory& layout, int busy_blocks)
      : left(memory),
        came(memory + layout.stages),
        statistics(memory + layout.statistics()),
        arrivals(memory + layout.exchange_arrivals()),
        split(call.units.split),
        busy(busy_blocks),
        rank(rows.rank),
        warps(call.row_warps),
        each(static_cast<int>(call.units.by_split.divide(strips + static_cast<std::uint32_t>(split) - 1))) {}

  // Parcels for a block, and strips in one of them.
  __device__ int parcels(int block) const { return (max(min(each, strips - block * each), 0) + parcel - 1) / parcel; }
  __device__ int in_parcel(int block, int number) const {
    return min(min(each, strips - block * each) - number * parcel, parcel);
  }
  __device__ std::uint32_t statistics_of(int block, int row) const {
    return statistics + (block * warps * warp_rows + row) * 8;
  }
  __device__ Arrivals statistics_arrival() const { return {arrivals}; }
  __device__ Arrivals arrival(int place, int number) const {
    return {arrivals + (1 + place * parcels(0) + number) * 8};
  }
  // Who gets what this block sends as its n-th: at any time each block sends to another one.
  __device__ int after(int n) const { return rank + 1 + n < split ? rank + 1 + n : rank + 1 + n - split; }
  // And from whom its n-th comes.
  __device__ int before(int n) const { return rank > n ? rank - 1 - n : rank - 1 - n + split; }

  // By one thread, before others go on.
  __device__ void set_up() const {
    statistics_arrival().set_up();
    statistics_arrival().expect((busy - (rank < busy ? 1 : 0)) * warps * warp_rows * 8);
    const int mine = parcels(rank);
#pragma unroll 1
    for (int place = 0; place < split - 1; ++place) {
#pragma unroll 1
      for (int number = 0; number < mine; ++number) {
        arrival(place, number).set_up();
        if (before(place) < busy) arrival(place, number).expect(in_parcel(rank, number) * warps * strip);
      }
    }
    before_cluster();
  }

  // The greatest score and the total of each of a warp's rows, when all blocks have set up.
  __device__ void send_statistics(const Sums<D>& sums, int warp) const {
    const auto lane = static_cast<int>(threadIdx.x % warp_size);
    const int row = lane % warp_rows;
    float pairs[2][2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      pairs[half][0] = __shfl_sync(whole_warp, sums.most[half], row % 8 * 4);
      pairs[half][1] = __shfl_sync(whole_warp, sums.total[half], row % 8 * 4);
    }
    const float most = row < 8 ? pairs[0][0] : pairs[1][0];
    const float total = row < 8 ? pairs[0][1] : pairs[1][1];
    const std::uint32_t at = statistics_of(rank, warp * warp_rows + row);
    if (lane < warp_rows) write_shared(at, most, total);
#pragma unroll 1
    for (int n = lane / warp_rows; n < split - 1; n += 2) {
      Arrivals{of_block(arrivals, after(n), rank)}.write(of_block(at, after(n), rank), most, total);
    }
  }
  // What a warp has summed, when no warp of its block uses the stages any more.
  __device__ void leave(const Sums<D>& sums, int warp) const {
    const std::uint32_t to = left + warp * strip + threadIdx.x % warp_size * 16;
#pragma unroll
    for (int n = 0; n < strips; ++n) write_shared(to + n * warps * strip, sums.out[n]);
    before_engine();
  }
  // When all have left what they summed and all blocks have room for what comes: four warps share the blocks that get it.
  __device__ void send(int warp) const {
    const auto n = static_cast<int>(threadIdx.x % warp_size);
    if (n >= split - 1 || n % 4 != warp) return;
    const int slice = each * warps * strip;
    const int most_bytes = parcel * warps * strip;
    const int to = after(n);
    const int bytes = min(slice, strips * warps * strip - to * slice);
    std::uint32_t counter = of_block(arrival(n, 0).address, to, rank);
#pragma unroll 1
    for (int sent = 0; sent < bytes; sent += most_bytes, counter += 8) {
      Arrivals{counter}.copy_to_block(of_block(came + n * slice + sent, to, rank), left + to * slice + sent,
                                      min(bytes - sent, most_bytes));
    }
  }

  // What each block's sums of a warp's rows are to be multiplied by, in place of the greatest score: two threads have a row.
  __device__ void weigh(const Call& call, const Rows& rows, int warp) const {
    constexpr int most_blocks = 16 / 2;  // of a thread
    const auto lane = static_cast<int>(threadIdx.x % warp_size);
    const int row = warp * warp_rows + lane % warp_rows;
    const std::uint32_t at = statistics_of(lane / warp_rows, row);
    const int step = statistics_of(2, row) - statistics_of(0, row);
    statistics_arrival().wait(0);
    __syncwarp();
    float2 theirs[most_blocks];
    float most = minus_infinity();
#pragma unroll
    for (int k = 0; k < most_blocks; ++k) {
      theirs[k] = float2{minus_infinity(), 0};
      if (lane / warp_rows + 2 * k < busy) theirs[k] = read_shared_pair(at + k * step);
      most = fmaxf(most, theirs[k].x);
    }
    most = fmaxf(most, __shfl_xor_sync(whole_warp, most, warp_rows));
    const float base = most == minus_infinity() ? 0.0f : most;
    float total = 0;
#pragma unroll
    for (int k = 0; k < most_blocks; ++k) {
      theirs[k].x = power_of_two(theirs[k].x - base);
      total = fmaf(theirs[k].y, theirs[k].x, total);
    }
    total += __shfl_xor_sync(whole_warp, total, warp_rows);
    const float factor = total == 0 ? 0.0f : __fdividef(1.0f, total);
#pragma unroll
    for (int k = 0; k < most_blocks; ++k) {
      if (lane / warp_rows + 2 * k < busy) write_shared(at + k * step, theirs[k].x * factor, theirs[k].y);
    }
    if (call.plan.lse != nullptr && rank == 0 && lane < warp_rows && rows.exists(row)) {
      call.plan.lse[rows.lse_offset(call.plan, row)] = logarithm(most, total);
    }
    __syncwarp();
  }

  // Adds up what of a warp's rows is this block's to store, always in the same order: later keys last, whose masks take longer.
  template <class T>
  __device__ void merge(const Call& call, const Rows& rows, int warp) const {
    const auto lane = static_cast<int>(threadIdx.x % warp_size);
    T* to[2];
    bool exists[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = warp * warp_rows + lane / 4 + 8 * half;
      exists[half] = rows.exists(row);
      to[half] =
          static_cast<T*>(call.plan.out.data) + (exists[half] ? rows.offset(call.plan.out, row) : 0) + rank * each * 8;
    }
    weigh(call, rows, warp);
    const int mine = parcels(rank);
    if (mine == 0) arrive_in_cluster();
    const std::uint32_t factors_at = statistics_of(0, warp * warp_rows + lane / 4);
    const int slice = each * warps * strip;
    const std::uint32_t place_here = warp * strip + lane * 16;
#pragma unroll 1
    for (int number = 0; number < mine; ++number) {
      const int first = number * parcel;
      std::uint32_t strip_at[parcel];  // behind the last one that again: it is not stored
#pragma unroll
      for (int n = 0; n < parcel; ++n) strip_at[n] = place_here + min(first + n, each - 1) * warps * strip;
      float sums[parcel][4] = {};
      const auto add = [&](int block, std::uint32_t slice_at) {
        const std::uint32_t at = factors_at + block * warps * warp_rows * 8;
        const float factors[2] = {read_shared_pair(at).x, read_shared_pair(at + 8 * 8).x};
        float4 x[parcel];
#pragma unroll
        for (int n = 0; n < parcel; ++n) x[n] = read_shared_quad(slice_at + strip_at[n]);
#pragma unroll
        for (int n = 0; n < parcel; ++n) {
          const float addends[4] = {x[n].x, x[n].y, x[n].z, x[n].w};
#pragma unroll
          for (int k = 0; k < 4; ++k) sums[n][k] = fmaf(addends[k], factors[k / 2], sums[n][k]);
        }
      };
#pragma unroll 2
      for (int block = 0; block < busy; ++block) {
        const int place = block < rank ? rank - 1 - block : rank - 1 - block + split;
        if (block != rank) arrival(place, number).wait(0);
        add(block, block == rank ? left + rank * slice : came + place * slice);
      }
      if (number + 1 == mine) arrive_in_cluster();  // all that others sent is here
      const int columns = min(static_cast<int>(call.plan.head_dim) - (rank * each + first) * 8, (each - first) * 8);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        if (call.aligned) {
          store_aligned_row<T, parcel * 8>(to[half] + first * 8, sums, half, 1.0f, columns, exists[half]);
        } else if (exists[half]) {
          store_row<T, parcel * 8>(to[half] + first * 8, sums, half, 1.0f, columns, false);
        }
      }
    }
  }
};

// The end of a block of a cluster, by all its warps that sum. Those that have sums have sent their statistics, and all have
// arrived in the cluster, done with their queries.
template <class T, int D>
__device__ void exchange_rows(const Call& call, const Rows& rows, const Exchange<D>& exchange, const Sums<D>& sums,
                              int warp) {
  if (exchange.rank < exchange.busy) {
    wait_for_warps(0, exchange.warps);
    exchange.leave(sums, warp);
  }
  wait_in_cluster();
  if (exchange.rank < exchange.busy) {
    wait_for_warps(0, exchange.warps);
    exchange.send(warp);
    __syncwarp();
  }
  exchange.template merge<T>(call, rows, warp);
  wait_in_cluster();  // nobody leaves whose sums are still under way
}

}  // namespace
}  // namespace robocache::attention_op
