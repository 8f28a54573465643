// Features of points that come in no order, on a GPU: reduced by bins of cells.
//
// A chain of points that lie anywhere in memory is walked at the latency of memory. There a block sorts the points of a tile by
// bin, in shared memory, and finds their largest magnitudes. Later a block for each bin sorts its points of all tiles by cell,
// fetches their features into shared memory, all at once, and writes the empty cells meanwhile; then threads add up the others.
// So every byte of a grid is written once, and nothing is filled before. A bin of more points than fit has its features read
// where they are, and one of more points still goes through its cells in several ranges. Cells of too many points for one
// thread, and all cells of a bin of too many for one block, are listed, as those of long chains are (cuda_features.h). Which of
// the two ways is gone the points tell; the bits are the same.
#pragma once

#include <bit>
#include <cmath>

#include "ops/voxelize/cuda_features.h"

namespace robocache::voxelize_op {
namespace {

constexpr int feature_sort_warps = tuning::feature_sort_threads / warp_size;
constexpr int feature_tile = tuning::feature_sort_threads * tuning::feature_sort_points;  // points
constexpr int feature_entries = feature_tile + 3 * bins;  // with room for every bin to begin at a multiple of four
constexpr int most_bin_channels = 16;
constexpr int most_bin_cells = tuning::threads * 32;  // a thread has up to 4 groups of 8
static_assert(feature_entries <= 1 << 16, "extents have 16 bits for each end");
static_assert(tuning::longest_cell >= tuning::longest_chain, "there is room for so many heavy cells");
static_assert(tuning::longest_bin < 1 << 16, "points of a cell are counted in 16 bits");

// Of n points none is an integer of 2^(62 - bit_width(n)) (exponent_of), and a thread adds so many of a cell.
constexpr bool sums_are_small =
    62 - std::bit_width(unsigned{tuning::feature_bin_least_points}) + std::bit_width(unsigned{tuning::longest_cell}) <=
    51;

// ---- asynchronous copies -------------------------------------------------------------------------------------------

__device__ inline void prefetch_to_l2(const void* from) { asm volatile("prefetch.global.L2 [%0];" ::"l"(from)); }
// 16 bytes.
__device__ inline void begin_copy(void* to, const void* from) {
  asm volatile(
      "cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(static_cast<std::uint32_t>(__cvta_generic_to_shared(to))),
      "l"(from)
      : "memory");
}
// All that this thread has begun.
__device__ inline void await_copies() { asm volatile("cp.async.wait_all;" ::: "memory"); }

// ---- sorting -------------------------------------------------------------------------------------------------------

__device__ inline const float* features_of(const Plan& plan, std::int64_t point) {
  return static_cast<const float*>(plan.features) + point * plan.flat_feature_stride;
}

// The largest of lanes that are `lanes`, 2 * lanes, ... apart, of the first of them into shared memory, side by side.
__device__ inline void share_largest(std::uint32_t (&mine)[4], int lanes, std::uint32_t* largest) {
  const auto lane = static_cast<int>(threadIdx.x % warp_size);
#pragma unroll
  for (int v = 0; v < 4; ++v) {
    for (int step = lanes; step < warp_size; step *= 2) {
      mine[v] = max(mine[v], __shfl_xor_sync(whole_warp, mine[v], step));
    }
    if (lane < lanes && mine[v] > 0) atomicMax(largest + lane * 4 + v, mine[v]);
  }
}

struct FeatureSortShared {
  alignas(16) std::uint32_t sorted[feature_entries];
  int starts[bins];  // where each bin begins; before, how many points it has
  int totals[feature_sort_warps];
  unsigned inside[feature_tile / warp_size];  // a bit for each point
  std::uint32_t largest[most_bin_channels];
  int not_finite, outside;
};

// Sorts the points of a tile by bin; where points come in an order, fills.
__global__ void __launch_bounds__(tuning::feature_sort_threads, tuning::feature_sort_blocks)
    voxelize_feature_sort_kernel(const __grid_constant__ Call call) {
  constexpr int threads = tuning::feature_sort_threads;
  constexpr int n = tuning::feature_sort_points;
  constexpr int each = bins / threads;  // bins of a thread
  constexpr int flight = 8;             // vectors of features that a thread reads at once
  const Plan& plan = call.plan;
  const FeatureBins& to = call.feature_bins;
  __shared__ FeatureSortShared shared;
  const auto thread = static_cast<int>(threadIdx.x);
  const int lane = thread % warp_size;
  const int warp = thread / warp_size;
#pragma unroll
  for (int k = 0; k < each; ++k) shared.starts[thread + k * threads] = 0;
  if (thread < most_bin_channels) shared.largest[thread] = 0;
  if (thread == 0) shared.not_finite = shared.outside = 0;
  after_earlier_work();
  let_next_begin();
  const std::int64_t tile = blockIdx.x;
  const std::int64_t first = tile * feature_tile;
  const auto here = static_cast<int>(min(plan.points_per_cloud - first, std::int64_t{feature_tile}));
  const auto channels = static_cast<int>(plan.channels);
  if (plan.flat_feature_stride == channels) {
    for (int k = thread * 32; k < here * channels; k += threads * 32) prefetch_to_l2(features_of(plan, first) + k);
  }
  float p[n][3];
  const float* const points = static_cast<const float*>(plan.points) + (first + thread) * plan.point_stride;
#pragma unroll
  for (int k = 0; k < n; ++k) {
#pragma unroll
    for (int axis = 0; axis < 3; ++axis) {
      p[k][axis] = thread + k * threads < here ? points[k * threads * plan.point_stride + axis]
                                               : std::numeric_limits<float>::max();
    }
  }
  if constexpr (tuning::features_ask_for_order) {
    const bool scattered = is_scattered(call);
    if (tile == 0 && thread == 0) *to.scattered = scattered;
    if (!scattered) return fill_all(call);
  } else {
    if (tile == 0 && thread == 0) *to.scattered = true;
    __syncthreads();
  }
  if (tile == 0 && thread == 0) {
    *call.heavy_count = 0;
    *call.magnitudes.given = static_cast<unsigned long long>(plan.points_per_cloud);
  }

  std::uint32_t where[n];  // the bin and, in the lower half, the place there
  int ranks[n];            // among the points of the bin; -1: in none
  int outside = 0, not_finite = 0;
#pragma unroll
  for (int k = 0; k < n; ++k) {
    const int at = thread + k * threads;
    bool inside = at < here;
    const auto cell = static_cast<std::uint32_t>(call.axes.cell(p[k], inside));
    where[k] = bin_of(cell) << 16 | place_in_bin(cell) % 0x10000u;
    ranks[k] = inside ? atomicAdd(shared.starts + (where[k] >> 16), 1) : -1;
    const unsigned lanes = __ballot_sync(whole_warp, inside);
    if (lane == 0) shared.inside[at / warp_size] = lanes;
    if (at < here) {
      static_cast<std::int32_t*>(call.keys)[first + at] = inside ? static_cast<std::int32_t>(cell) : -1;
      if (!inside) ++(all_finite(p[k]) ? outside : not_finite);
    }
  }
  if (outside > 0) atomicAdd(&shared.outside, outside);
  if (not_finite > 0) atomicAdd(&shared.not_finite, not_finite);
  __syncthreads();

  int counts[each];
  int own = 0;
#pragma unroll
  for (int k = 0; k < each; ++k) {
    counts[k] = shared.starts[thread * each + k];
    own += (counts[k] + 3) / 4 * 4;
  }
  int before = own;
#pragma unroll
  for (int step = 1; step < warp_size; step *= 2) {
    const int other = __shfl_up_sync(whole_warp, before, step);
    if (lane >= step) before += other;
  }
  if (lane == warp_size - 1) shared.totals[warp] = before;
  __syncthreads();
  before -= own;
  int all = 0;  // entries
#pragma unroll
  for (int k = 0; k < feature_sort_warps; ++k) {
    if (k < warp) before += shared.totals[k];
    all += shared.totals[k];
  }
#pragma unroll
  for (int k = 0; k < each; ++k) {
    const int bin = thread * each + k;
    shared.starts[bin] = before;
    to.extents[std::int64_t{bin} * to.tiles + tile] = static_cast<std::uint32_t>(before | (before + counts[k]) << 16);
    before += (counts[k] + 3) / 4 * 4;
  }
  __syncthreads();
#pragma unroll
  for (int k = 0; k < n; ++k) {
    if (ranks[k] < 0) continue;
    shared.sorted[shared.starts[where[k] >> 16] + ranks[k]] =
        where[k] << 16 | static_cast<std::uint32_t>(thread + k * threads);
  }
  if (call.sums) {
    const int vectors = to.vectors;
    std::uint32_t most[4] = {};
    const float* from = features_of(plan, first) + (thread & (vectors - 1)) * 4;
#pragma unroll 1
    for (int k = thread; k < here << to.log_vectors; k += flight * threads) {
      float x[flight][4] = {};
#pragma unroll
      for (int j = 0; j < flight; ++j) {
        const int point = (k + j * threads) >> to.log_vectors;
        if (point >= here || (shared.inside[point / warp_size] >> point % warp_size & 1u) == 0) continue;
        const auto pack = *reinterpret_cast<const Pack<float, 4>*>(from + point * plan.flat_feature_stride);
#pragma unroll
        for (int v = 0; v < 4; ++v) x[j][v] = pack.x[v];
      }
#pragma unroll
      for (int j = 0; j < flight; ++j) {
#pragma unroll
        for (int v = 0; v < 4; ++v) most[v] = max(most[v], magnitude_of(x[j][v]));
      }
    }
    share_largest(most, vectors, shared.largest);
  }
  __syncthreads();
  auto* const entries = reinterpret_cast<uint4*>(to.entries + tile * feature_entries);
  for (int k = thread; k < all / 4; k += threads) entries[k] = reinterpret_cast<const uint4*>(shared.sorted)[k];
  if (call.sums && thread < channels) to.largest[tile * channels + thread] = shared.largest[thread];
  if (thread == 0) to.dropped[tile] = {shared.not_finite, shared.outside};
}

// ---- bins ----------------------------------------------------------------------------------------------------------

// The entries of a bin: a thread has those of every tile that is a multiple of the threads from its own.
struct Entries {
  static constexpr int kept = 3;
  uint4 first[kept] = {};    // of its first tile, for it asks for them twice
  std::uint32_t extent = 0;  // of that
  int count = 0;             // in all

  __device__ static const uint4* at(const FeatureBins& from, int tile, std::uint32_t entry) {
    return reinterpret_cast<const uint4*>(from.entries + std::int64_t{tile} * feature_entries + entry);
  }
  __device__ static std::uint32_t extent_of(const FeatureBins& from, int tile, std::uint32_t bin) {
    return tile < from.tiles ? from.extents[std::int64_t{bin} * from.tiles + tile] : 0u;
  }
  __device__ void read(const FeatureBins& from, std::uint32_t bin) {
    *this = {};
    const auto thread = static_cast<int>(threadIdx.x);
    extent = extent_of(from, thread, bin);
    const std::uint32_t begin = extent % 0x10000u, end = extent >> 16;
#pragma unroll
    for (int k = 0; k < kept; ++k) {
      if (begin + 4 * k < end) first[k] = *at(from, thread, begin + 4 * k);
    }
    count = static_cast<int>(end - begin);
#pragma unroll 1
    for (int tile = thread + tuning::threads; tile < from.tiles; tile += tuning::threads) {
      const std::uint32_t other = extent_of(from, tile, bin);
      count += static_cast<int>((other >> 16) - other % 0x10000u);
    }
  }
  // Calls each(place in the bin, number of the point).
  template <class Each>
  __device__ void over(const FeatureBins& from, std::uint32_t bin, const Each& each) const {
    const auto thread = static_cast<int>(threadIdx.x);
    const auto four = [&](const uint4& entries, std::uint32_t left, int tile) {
      const std::uint32_t list[4] = {entries.x, entries.y, entries.z, entries.w};
#pragma unroll
      for (std::uint32_t k = 0; k < 4; ++k) {
        if (k < left) {
          each(static_cast<int>(list[k] >> 16), static_cast<std::uint32_t>(tile) * feature_tile + list[k] % 0x10000u);
        }
      }
    };
    const std::uint32_t number = (extent >> 16) - extent % 0x10000u;
#pragma unroll
    for (std::uint32_t k = 0; k < kept; ++k) {
      uint4 entries = first[k];
      // Or else a compiler keeps for the second time all that it found out for the first.
      asm volatile("" : "+r"(entries.x), "+r"(entries.y), "+r"(entries.z), "+r"(entries.w));
      if (4 * k < number) four(entries, number - 4 * k, thread);
    }
    std::uint32_t done = 4 * kept;
#pragma unroll 1
    for (int tile = thread; tile < from.tiles; tile += tuning::threads, done = 0) {
      const std::uint32_t here = done > 0 ? extent : extent_of(from, tile, bin);
#pragma unroll 1
      for (std::uint32_t k = here % 0x10000u + done; k < here >> 16; k += 8) {
        const uint4 one = *at(from, tile, k);
        const bool more = k + 4 < here >> 16;
        const uint4 other = more ? *at(from, tile, k + 4) : uint4{};
        four(one, (here >> 16) - k, tile);
        if (more) four(other, (here >> 16) - k - 4, tile);
      }
    }
  }
};

// Behind it come counts of 16 bits, of the cells, then cells to add up, of 16 bits too, then points or their features.
struct FeatureBinShared {
  alignas(16) std::uint64_t totals[warps];
  std::uint32_t largest[most_bin_channels];
  int range_end;  // of cells
  int points, listed;
  int any_heavy;
  std::uint8_t occupied[most_bin_cells / 8];  // a bit for each cell that has points, or is not of the range
  std::uint8_t heavy[most_bin_cells / 8];     // a bit for each of the range that has too many

  __device__ static bool has(const std::uint8_t* bits, int cell) { return (bits[cell / 8] >> cell % 8 & 1) != 0; }
};

// Cells of a bin that are sorted together, and what is known of them.
struct CellRange {
  int begin = 0, end = 0;
  int points = 0;      // those of heavy cells apart
  int listed = 0;      // cells that have points and are not heavy
  int singles = 0;     // the first of those: they are known to have one
  bool plain = false;  // all cells, and none is heavy
};

// Calls each(k, count) for 8 cells whose counts are `four`.
template <class Each>
__device__ void over_counts(const uint4& four, const Each& each) {
  const std::uint32_t words[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
  for (int k = 0; k < 8; ++k) each(k, static_cast<int>(words[k / 2] >> k % 2 * 16 & 0xffffu));
}

// The features of a bin's points, by all threads of a block.
template <bool Sums, bool Extremes>
struct BinReducer {
  static constexpr int V = 4;
  const Call& call;
  const Plan& plan = call.plan;
  const FeatureBins& from = call.feature_bins;
  const std::uint32_t bin = blockIdx.x;
  FeatureBinShared& shared;
  std::uint32_t* const counts;  // two in a word; then where the points of a cell begin; then where they end
  std::uint16_t* const list;
  const int thread = static_cast<int>(threadIdx.x);
  const int vector = thread & (from.vectors - 1);
  const int cells = cells_of(call, bin);  // that the bin has; more are counted, without points

  // Lines of cells come in their order, so only the last may lack some.
  __device__ static int cells_of(const Call& call, std::uint32_t bin) {
    const auto last = static_cast<std::uint32_t>(call.feature_bins.cells - warp_size);
    const auto behind = static_cast<int>(call.all_cells) - static_cast<int>(cell_in_bin(bin, last));
    return static_cast<int>(last) + max(min(behind, warp_size), 0);
  }

  __device__ BinReducer(const Call& of, uint4* memory)
      : call(of),
        shared(*reinterpret_cast<FeatureBinShared*>(memory)),
        counts(reinterpret_cast<std::uint32_t*>(&shared + 1)),
        list(reinterpret_cast<std::uint16_t*>(counts + from.cells / 2)) {}

  __device__ static std::uint32_t one_of(int cell) { return cell % 2 == 0 ? 1u : 0x10000u; }
  __device__ int count_of(int cell) const { return reinterpret_cast<const std::uint16_t*>(counts)[cell]; }
  __device__ int first_of(int cell, int range_begin) const { return cell == range_begin ? 0 : count_of(cell - 1); }
  __device__ std::uint32_t key_of(int cell) const { return cell_in_bin(bin, static_cast<std::uint32_t>(cell)); }
  // Bytes behind the counts, and points that can be sorted there: each has 4, and perhaps a listed cell.
  __device__ int room() const {
    return from.shared_bytes - static_cast<int>(sizeof(FeatureBinShared)) - from.cells * 2;
  }
  __device__ int most_points() const { return min((room() - 32) / 6, 0xffff); }

  __device__ void clear_counts() {
#pragma unroll 1
    for (int k = thread; k < from.cells / 8; k += tuning::threads) reinterpret_cast<uint4*>(counts)[k] = {};
  }

  // Counts the points of the cells from `begin` on.
  __device__ void count(const Entries& entries, int begin) {
    entries.over(from, bin, [&](int cell, std::uint32_t) {
      if (cell >= begin) atomicAdd(counts + cell / 2, one_of(cell));
    });
  }

  // The groups of 8 cells that a thread has: calls f(group, their counts).
  template <class Each>
  __device__ void over_groups(const Each& f) const {
    const int groups = from.cells / 8;
    const int each = divide_up(groups, tuning::threads);
#pragma unroll 1
    for (int group = thread * each; group < min((thread + 1) * each, groups); ++group) {
      f(group, reinterpret_cast<uint4*>(counts)[group]);
    }
  }

  // Points, cells that are listed, and those of them that are known to have a single point.
  static constexpr int number_bits = 20;
  static_assert(most_bin_cells * tuning::longest_cell < 1 << number_bits);
  __device__ static std::uint64_t numbers_of(std::uint32_t points, std::uint32_t listed, std::uint32_t singles) {
    return points | std::uint64_t{listed} << number_bits | std::uint64_t{singles} << 2 * number_bits;
  }
  __device__ static int points_in(std::uint64_t x) { return static_cast<int>(x % (1u << number_bits)); }
  __device__ static int listed_in(std::uint64_t x) {
    return static_cast<int>((x >> number_bits) % (1u << number_bits));
  }
  __device__ static int singles_in(std::uint64_t x) { return static_cast<int>(x >> 2 * number_bits); }

  // What the threads before have in all, where each has `own`; and whether `any` of the block is set.
  __device__ std::uint64_t before(std::uint64_t own, std::uint64_t& all, bool& any) {
    const int lane = thread % warp_size;
    std::uint64_t sum = own;
#pragma unroll
    for (int step = 1; step < warp_size; step *= 2) {
      const std::uint64_t other = __shfl_up_sync(whole_warp, sum, step);
      if (lane >= step) sum += other;
    }
    if (lane == warp_size - 1) shared.totals[thread / warp_size] = sum;
    any = __syncthreads_or(any ? 1 : 0) != 0;
    sum -= own;
    all = 0;
#pragma unroll
    for (int k = 0; k < warps; ++k) {
      if (k < thread / warp_size) sum += shared.totals[k];
      all += shared.totals[k];
    }
    return sum;
  }

  // Bits of 8 cells that have at least so many points, where none has 2^15.
  __device__ static unsigned having(std::uint32_t points, const uint4& four) {
    const auto bits = [&](std::uint32_t two, int shift) {
      return ((two + 0x10001u * (0x8000u - points)) & 0x80008000u) >> shift;
    };
    const unsigned all = bits(four.x, 15) | bits(four.y, 13) | bits(four.z, 11) | bits(four.w, 9);
    return (all | all >> 15) & 0xffu;
  }

  // Where the points of each cell begin, all cells at once; lists those that have some. False where one has too many points,
  // or all of them have no room; then nothing is done.
  __device__ bool arrange_all(CellRange& range) {
    static_assert((tuning::longest_cell & (tuning::longest_cell + 1)) == 0);
    constexpr std::uint32_t too_many = 0x10001u * (0xffffu & ~static_cast<std::uint32_t>(tuning::longest_cell));
    std::uint32_t points = 0, listed = 0, several = 0;
    bool any_heavy = false;
    over_groups([&](int, const uint4& four) {
      any_heavy = any_heavy || ((four.x | four.y | four.z | four.w) & too_many) != 0;
      const std::uint32_t two = four.x + four.y + four.z + four.w;
      points += (two & 0xffffu) + (two >> 16);
      listed += __popc(having(1, four));
      several += __popc(having(2, four));
    });
    std::uint64_t all = 0;
    const std::uint64_t sum = before(numbers_of(points, listed, listed - several), all, any_heavy);
    if (any_heavy || points_in(all) > most_points()) return false;
    range = {0, cells, points_in(all), listed_in(all), singles_in(all), true};
    points = static_cast<std::uint32_t>(points_in(sum));
    int single = singles_in(sum);
    int other = range.singles + listed_in(sum) - single;
    over_groups([&](int group, uint4& four) {
      const unsigned occupied = having(1, four);
      const unsigned others = having(2, four);
      const auto start = [&](std::uint32_t two) {
        const std::uint32_t starts = points * 0x10001u + (two << 16);
        points += (two & 0xffffu) + (two >> 16);
        return starts;
      };
      four.x = start(four.x);
      four.y = start(four.y);
      four.z = start(four.z);
      four.w = start(four.w);
      const auto put = [&](int& place, unsigned left) {
#pragma unroll 1
        for (; left != 0; left &= left - 1) {
          list[place++] = static_cast<std::uint16_t>(group * 8 + __ffs(static_cast<int>(left)) - 1);
        }
      };
      put(single, occupied & ~others);
      put(other, others);
      const unsigned missing = 0xff00u >> max(min(group * 8 + 8 - cells, 8), 0);  // cells that the bin does not have
      shared.occupied[group] = static_cast<std::uint8_t>(occupied | missing);
    });
    __syncthreads();
    return true;
  }

  // The same for cells from `begin` on, as far as their points have room; lists heavy ones apart.
  __device__ CellRange arrange_from(int begin) {
    const auto is_listed = [&](int cell, int count) {
      return cell >= begin && count > 0 && count <= tuning::longest_cell;
    };
    std::uint64_t own = 0;
    over_groups([&](int group, const uint4& four) {
      over_counts(four, [&](int k, int count) {
        if (is_listed(group * 8 + k, count)) own += numbers_of(static_cast<std::uint32_t>(count), 1, 0);
      });
    });
    if (thread == 0) shared.range_end = cells;
    __syncthreads();  // the totals are read
    std::uint64_t all = 0;
    bool any = false;
    std::uint64_t sum = before(own, all, any);
    CellRange range{begin, cells, points_in(all), listed_in(all), 0, false};
    const bool is_part = range.points > most_points();
    if (is_part) {
      int points = points_in(sum);
      over_groups([&](int group, const uint4& four) {
        int end = cells;  // the first that has no room
        over_counts(four, [&](int k, int count) {
          if (is_listed(group * 8 + k, count)) points += count;
          if (points > most_points()) end = min(end, group * 8 + k);
        });
        if (end < cells) atomicMin(&shared.range_end, end);
      });
      __syncthreads();
      range.end = shared.range_end;
    }
    over_groups([&](int group, uint4& four) {
      std::uint32_t starts[4] = {};
      unsigned occupied = 0, heavy = 0;
      over_counts(four, [&](int k, int count) {
        const int cell = group * 8 + k;
        if (is_part && cell == range.end) {
          shared.points = points_in(sum);
          shared.listed = listed_in(sum);
        }
        starts[k / 2] |= static_cast<std::uint32_t>(points_in(sum)) << k % 2 * 16;
        const bool inside = cell >= begin && cell < range.end;
        if (!inside || count > 0) occupied |= 1u << k;
        if (!inside || count == 0) return;
        if (is_listed(cell, count)) {
          list[listed_in(sum)] = static_cast<std::uint16_t>(cell);
          sum += numbers_of(static_cast<std::uint32_t>(count), 1, 0);
        } else {
          heavy |= 1u << k;
        }
      });
      four = {starts[0], starts[1], starts[2], starts[3]};
      shared.occupied[group] = static_cast<std::uint8_t>(occupied);
      shared.heavy[group] = static_cast<std::uint8_t>(heavy);
      for (; heavy != 0; heavy &= heavy - 1) {
        atomicOr(&shared.any_heavy, 1);
        add_heavy(call, key_of(group * 8 + __ffs(static_cast<int>(heavy)) - 1));
      }
    });
    __syncthreads();
    if (is_part) {
      range.points = shared.points;
      range.listed = shared.listed;
    }
    return range;
  }

  // Writes the points of the range, cell by cell: `pitch` words apart.
  __device__ void sort(const Entries& entries, const CellRange& range, std::uint32_t* numbers, int pitch) {
    const auto put = [&](int cell, std::uint32_t number) {
      const std::uint32_t ends = atomicAdd(counts + cell / 2, one_of(cell));
      numbers[(ends >> cell % 2 * 16 & 0xffffu) * pitch] = number;
    };
    if (range.plain) return entries.over(from, bin, put);
    entries.over(from, bin, [&](int cell, std::uint32_t number) {
      if (cell >= range.begin && cell < range.end && !FeatureBinShared::has(shared.heavy, cell)) put(cell, number);
    });
  }

  // Begins to fetch features, each row of them to where its point's number is: lanes of one warp read that first.
  __device__ void fetch(uint4* rows, int points) {
    constexpr int flight = 4;
    const int all = points << from.log_vectors;
#pragma unroll 1
    for (int base = 0; base < all; base += flight * tuning::threads) {
      std::uint32_t numbers[flight];
#pragma unroll
      for (int k = 0; k < flight; ++k) {
        const int at = base + k * tuning::threads + thread;
        numbers[k] = at < all ? rows[at - vector].x : 0u;
      }
      __syncwarp();
#pragma unroll
      for (int k = 0; k < flight; ++k) {
        const int at = base + k * tuning::threads + thread;
        if (at < all) begin_copy(rows + at, features_of(plan, numbers[k]) + vector * V);
      }
    }
  }

  // All cells without points, line by line, and the counts of those that have some, heavy ones apart.
  __device__ void write_empty(const CellRange& range) {
    static_assert(tuning::threads == 128);
    const int log_lanes = 5 + from.log_vectors;  // threads that write a line of 32 cells
    const int log_at_once = 7 - log_lanes;       // lines that all threads do
    const int first = thread >> log_lanes;
    const int lines = (from.cells / warp_size - first + (1 << log_at_once) - 1) >> log_at_once;
    const int in_line = thread & ((1 << log_lanes) - 1);
    const int cell = in_line >> from.log_vectors;
    const std::uint8_t* const occupied = shared.occupied + first * 4 + cell / 8;
    const auto line_bytes = static_cast<std::uint32_t>(warp_size * plan.channels * sizeof(float));
    const auto write_lines = [&](void* values, std::uint32_t pattern) {
      if (values == nullptr) return;
      char* const to = static_cast<char*>(values) + in_line * sizeof(uint4);
#pragma unroll 4
      for (int k = 0; k < lines; ++k) {
        if ((occupied[k << log_at_once << 2] >> cell % 8 & 1) != 0) continue;
        const std::uint32_t line = key_of((first + (k << log_at_once)) * warp_size) / warp_size;
        *reinterpret_cast<uint4*>(to + std::uint64_t{line} * line_bytes) = {pattern, pattern, pattern, pattern};
      }
    };
    if constexpr (Sums) {
      write_lines(plan.sum, call.empty_float);
      write_lines(plan.mean, call.empty_float);
    }
    if constexpr (Extremes) {
      write_lines(plan.max, call.empty_feature);
      write_lines(plan.min, call.empty_feature);
    }
    if (plan.count == nullptr) return;
#pragma unroll 1
    for (int place = range.begin + thread; place < range.end; place += tuning::threads) {
      if (!range.plain && FeatureBinShared::has(shared.heavy, place)) continue;
      const int points = count_of(place) - first_of(place, range.begin);
      plan.count[key_of(place)] = points > 0 ? points : whole(plan.empty);
    }
  }

  // The listed cells. `row(k)` has four channels of the range's point k.
  template <class Row>
  __device__ void write_listed(const CellRange& range, const Row& row) {
    int exponents[V] = {};
#pragma unroll
    for (int v = 0; Sums && v < V; ++v) {
      exponents[v] = exponent_of<float>(shared.largest[vector * V + v], plan.points_per_cloud);
    }
    int item = thread;
#pragma unroll 1
    for (; item < range.singles << from.log_vectors; item += tuning::threads) {
      const int place = list[item >> from.log_vectors];
      const Pack<float, V> pack = row(count_of(place) - 1);
      Cell<float, V, Sums, Extremes, sums_are_small> cell;
      cell.add(plan, pack.x, exponents);
      cell.template write<Undivided>(plan, key_of(place) * plan.channels + vector * V, exponents, 1);
    }
#pragma unroll 1
    for (; item < range.listed << from.log_vectors; item += tuning::threads) {
      const int place = list[item >> from.log_vectors];
      const int begin = first_of(place, range.begin), end = count_of(place);
      Cell<float, V, Sums, Extremes, sums_are_small> cell;
#pragma unroll 1
      for (int k = begin; k < end; ++k) {
        const Pack<float, V> pack = row(k);
        cell.add(plan, pack.x, exponents);
      }
      cell.write(plan, key_of(place) * plan.channels + vector * V, exponents, end - begin);
    }
  }

  // What the next kernel looks up for the points of a bin that has heavy cells.
  __device__ void clear_heads(const CellRange& range) {
#pragma unroll 1
    for (int cell = range.begin + thread; cell < range.end; cell += tuning::threads) {
      if (!FeatureBinShared::has(shared.heavy, cell)) call.heads[key_of(cell)] = -1;
    }
  }

  // Leaves all cells to the next kernels, which share out points to all blocks.
  __device__ void list_all() {
    if (thread == 0) shared.listed = atomicAdd(call.heavy_count, cells);
    __syncthreads();
    const int first = shared.listed;
#pragma unroll 1
    for (int cell = thread; cell < cells; cell += tuning::threads) {
      const std::uint32_t key = key_of(cell);
      call.heavy_cells[first + cell] = {static_cast<std::int64_t>(key), 0};
      call.heads[key] = -2 - (first + cell);
    }
#pragma unroll 1
    for (std::int64_t k = thread; k < cells * plan.channels; k += tuning::threads) {
      call.heavy[first * plan.channels + k] = Partial::none();
    }
  }

  // Of all tiles.
  __device__ void read_largest(std::uint32_t (&mine)[V]) const {
#pragma unroll 2
    for (int k = thread; k < from.tiles << from.log_vectors; k += tuning::threads) {
      const uint4 four = reinterpret_cast<const uint4*>(from.largest)[k];
      mine[0] = max(mine[0], four.x);
      mine[1] = max(mine[1], four.y);
      mine[2] = max(mine[2], four.z);
      mine[3] = max(mine[3], four.w);
    }
  }

  // Before earlier work is done.
  __device__ void prepare() {
    if (thread < most_bin_channels) shared.largest[thread] = 0;
    if (thread == 0) shared.any_heavy = 0;
    clear_counts();
  }

  __device__ void run() {
    Entries entries;
    entries.read(from, bin);
    std::uint32_t largest[V] = {};
    if constexpr (Sums) read_largest(largest);
    int points = entries.count;
    for (int step = 1; step < warp_size; step *= 2) points += __shfl_xor_sync(whole_warp, points, step);
    if (thread % warp_size == 0) shared.totals[thread / warp_size] = static_cast<std::uint64_t>(points);
    __syncthreads();
    if constexpr (Sums) share_largest(largest, from.vectors, shared.largest);
    std::uint64_t all_points = 0;
#pragma unroll
    for (int k = 0; k < warps; ++k) all_points += shared.totals[k];
    const bool is_long = all_points > tuning::longest_bin;
    for (int begin = 0;;) {
      if (!is_long) count(entries, begin);
      __syncthreads();
      if (Sums && bin == 0 && thread < plan.channels) {
        call.magnitudes.largest[thread] = shared.largest[thread];  // for heavy cells
      }
      if (is_long) {
        list_all();
        break;
      }
      CellRange range;
      if (begin > 0 || !arrange_all(range)) range = arrange_from(begin);
      const int list_bytes = (range.listed + 7) / 8 * 16;
      const bool fits = list_bytes + (range.points << from.log_vectors) * 16 <= room();
      auto* const rows = reinterpret_cast<uint4*>(reinterpret_cast<char*>(list) + list_bytes);
      auto* const numbers = reinterpret_cast<std::uint32_t*>(rows);
      sort(entries, range, numbers, fits ? from.vectors * 4 : 1);
      __syncthreads();
      if (fits) fetch(rows, range.points);
      // Half of the blocks write while the others compute.
      if (bin % 2 == 0) write_empty(range);
      if (fits) {
        await_copies();
        __syncthreads();
      }
      write_listed(range, [&](int k) {
        if (fits) return *reinterpret_cast<const Pack<float, V>*>(rows + (k << from.log_vectors) + vector);
        return *reinterpret_cast<const Pack<float, V>*>(features_of(plan, numbers[k]) + vector * V);
      });
      if (bin % 2 != 0) write_empty(range);
      if (shared.any_heavy != 0 || range.end - range.begin < cells) clear_heads(range);
      begin = range.end;
      if (begin == cells) break;
      __syncthreads();
      clear_counts();
      entries.read(from, bin);  // again: until here a thread had better keep something else
      __syncthreads();
    }
    if (thread == 0) from.heavy[bin] = is_long || shared.any_heavy != 0;
  }
};

template <bool Sums, bool Extremes>
__global__ void __launch_bounds__(tuning::threads, tuning::feature_bin_blocks)
    voxelize_feature_bins_kernel(const __grid_constant__ Call call) {
  extern __shared__ uint4 memory[];
  BinReducer<Sums, Extremes> reducer(call, memory);
  reducer.prepare();
  after_earlier_work();
  let_next_begin();
  if (!goes_by_bins(call)) return;
  if (const Plan& plan = call.plan; plan.dropped != nullptr && blockIdx.x == bins - 1 && threadIdx.x < warp_size) {
    int not_finite = 0, outside = 0;
#pragma unroll 2
    for (auto tile = static_cast<int>(threadIdx.x); tile < call.feature_bins.tiles; tile += warp_size) {
      const int2 here = call.feature_bins.dropped[tile];
      not_finite += here.x;
      outside += here.y;
    }
    for (int step = 1; step < warp_size; step *= 2) {
      not_finite += __shfl_xor_sync(whole_warp, not_finite, step);
      outside += __shfl_xor_sync(whole_warp, outside, step);
    }
    if (const auto reason = static_cast<int>(threadIdx.x); reason < drop_reasons) {
      plan.dropped[reason] = reason == static_cast<int>(Drop::not_finite) ? not_finite
                             : reason == static_cast<int>(Drop::outside)  ? outside
                                                                          : 0;
    }
  }
  reducer.run();
}

FeatureBins::FeatureBins(const Plan& plan, const CudaMachine& machine) {
  const std::int64_t rows = divide_up(divide_up(plan.cells, 32), bins);
  const bool takes = plan.reduces_features() && plan.feature_dtype == DType::f32 &&
                     (plan.channels == 4 || plan.channels == 8 || plan.channels == 16) && is_wide<float, 4>(plan) &&
                     plan.flat_feature_stride > 0;
  if (!is_plain(plan) || plan.grids != 1 || plan.dtype != DType::f32 || !takes || plan.occupancy != nullptr ||
      plan.bits != nullptr || plan.accumulate || plan.all_points < tuning::feature_bin_least_points ||
      plan.all_points > plan.cells * tuning::feature_bin_cell_points || rows * 32 > most_bin_cells) {
    return;
  }
  // As many blocks to a multiprocessor as have room for all points of a bin, but for one in a billion where they lie anywhere.
  // It has 1 KiB more than a block can ask for, and takes that from each.
  constexpr int kept_back = 1024;
  const double points = static_cast<double>(plan.all_points) / bins;
  const double needed = static_cast<double>(sizeof(FeatureBinShared)) + static_cast<double>(rows * 32 * 2 + kept_back) +
                        (points + 6 * std::sqrt(points) + 8) * static_cast<double>(2 + plan.channels * 4);
  const int all_bytes = machine.shared_bytes + kept_back;
  const auto residents = static_cast<int>(std::min<double>(all_bytes / needed, tuning::feature_bin_blocks));
  if (residents < 2) return;
  tiles = static_cast<int>(divide_up(plan.all_points, feature_tile));
  cells = static_cast<int>(rows * 32);
  vectors = static_cast<int>(plan.channels / 4);
  log_vectors = vectors / 2;  // 0, 1 or 2
  shared_bytes = (all_bytes / residents - kept_back) / 16 * 16;
}

}  // namespace
}  // namespace robocache::voxelize_op
