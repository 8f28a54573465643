// The kernels that compute the levels and last samples of arrivals.h.
#include "ops/align/cuda/arrivals.h"

#include "gpu/launch.h"
#include "gpu/warp.h"
#include "ops/align/cuda/window.h"

namespace robocache::align_op {
namespace {

constexpr int threads = 256;
constexpr int warps = threads / warp_size;
constexpr auto block = static_cast<int>(arrival_block);
// Loads that a lane issues before it uses the first: for making levels, and for searching a row.
constexpr int level_loads = 16;
constexpr int row_loads = 8;

// The first `row_blocks` blocks find the last sample that exists of each output row, by the levels that are there. The
// other blocks make two levels out of the level below them: its entry n is entry n % row_entries of row n / row_entries.
struct ArrivalsCall {
  StreamPlan plan;
  ArrivalLevels levels;
  std::int64_t rows = 0;
  std::uint32_t row_blocks = 0;

  Stamps below;
  std::int64_t row_entries = 0;
  std::int64_t count = 0;  // entries of the level below
  std::int64_t* least[2] = {};
};

__device__ int lane_of_warp() { return static_cast<int>(threadIdx.x) % warp_size; }

// The least x of every `Lanes` lanes.
template <int Lanes>
__device__ std::int64_t least_of_lanes(std::int64_t x) {
#pragma unroll
  for (int other = Lanes / 2; other > 0; other /= 2) x = min(x, __shfl_xor_sync(whole_warp, x, other));
  return x;
}

// Entry n of the level below. __noinline__ slow path: it divides.
__device__ __noinline__ std::int64_t entry_below(const ArrivalsCall& call, std::int64_t n) {
  const std::int64_t row = n < call.row_entries ? 0 : n / call.row_entries;
  return stamp(call.below, row * call.below.row_stride + (n - row * call.row_entries) * call.below.stride);
}

// Makes `block` entries of the first level, and one of the second. at(n) is entry n of the level below, in the order of
// memory; `Loads` of them are in flight at a time.
template <int Loads, class At>
__device__ void make_levels(const ArrivalsCall& call, std::int64_t number, const At& at) {
  __shared__ std::int64_t least[block];
  const int lane = lane_of_warp();
  constexpr int lanes = threads / block;  // of an entry
  const std::int64_t begin = number * block * block + threadIdx.x / lanes * block + threadIdx.x % lanes;
  std::int64_t found = std::numeric_limits<std::int64_t>::max();
#pragma unroll 1
  for (int done = 0; done < block; done += Loads * lanes) {
    decltype(at(0)) entries[Loads];
#pragma unroll
    for (int k = 0; k < Loads; ++k) entries[k] = at(min(begin + done + k * lanes, call.count - 1));  // the last again
#pragma unroll
    for (int k = 0; k < Loads; ++k) found = min(found, as_nanoseconds(entries[k]));
  }
  found = least_of_lanes<lanes>(found);
  if (threadIdx.x % lanes == 0) least[threadIdx.x / lanes] = found;
  __syncthreads();
  if (threadIdx.x >= warp_size) return;
  for (int k = lane; k < block; k += warp_size) {
    const std::int64_t entry = number * block + k;
    if (entry * block < call.count) call.least[0][entry] = least[k];
  }
  if (call.least[1] == nullptr) return;
  const std::int64_t of_block = least_of_lanes<warp_size>(min(least[lane], least[lane + warp_size]));
  if (lane == 0) call.least[1][number] = of_block;
}

// The last of entries [begin, end) that is at most `deadline`, or begin - 1. All lanes of a warp call it.
template <class X>
__device__ __noinline__ std::int64_t last_of_entries(RowStamps<X> at, std::int64_t begin, std::int64_t end,
                                                     std::int64_t deadline) {
  for (; end > begin; end -= row_loads * warp_size) {
    const std::int64_t from = end - 1 - lane_of_warp();
    X entries[row_loads];
#pragma unroll
    for (int k = 0; k < row_loads; ++k) entries[k] = at.first[max(from - k * warp_size, begin) * at.stride];
    unsigned nearest = ~0u;  // to the end
#pragma unroll
    for (int k = row_loads - 1; k >= 0; --k) {
      const bool arrived = from - k * warp_size >= begin && as_nanoseconds(entries[k]) <= deadline;
      if (arrived) nearest = static_cast<unsigned>(lane_of_warp() + k * warp_size);
    }
    nearest = __reduce_min_sync(whole_warp, nearest);
    if (nearest != ~0u) return end - 1 - nearest;
  }
  return begin - 1;
}

// The last sample of a row that had arrived, or -1: last_in_blocks() of arrival_blocks.h for a warp. `first` is the
// number of the row's first sample.
template <class X>
__device__ std::int64_t last_of_row(const RowStamps<X>& at, const ArrivalLevels& levels, std::int64_t first,
                                    std::int64_t count, std::int64_t deadline) {
  const auto last_in = [&](int level, std::int64_t begin, std::int64_t end) {
    if (level == 0) return first + last_of_entries(at, begin - first, end - first, deadline);
    return last_of_entries(RowStamps<std::int64_t>{levels.least[level - 1], 1}, begin, end, deadline);
  };
  std::int64_t lowest = first;  // the entry that has the row's first sample
  std::int64_t end = first + count;
  std::int64_t found = -1;
  int level = 0;
#pragma unroll 1
  for (;; ++level) {  // up: the rest of a block, then the blocks before it
    const std::int64_t begin = level == levels.count ? lowest : max(lowest, end / block * block);
    found = last_in(level, begin, end);
    if (found >= begin) break;
    if (begin == lowest) return -1;
    end = begin / block;
    lowest /= block;
  }
#pragma unroll 1
  for (; level > 0; --level) {  // down: the last entry of the block that had arrived
    const std::int64_t begin = found * block;
    found = last_in(level - 1, level == 1 ? max(first, begin) : begin, begin + block);
  }
  return found - first;  // -1 if a block begins before the row, and only samples before the row had arrived
}

__device__ void find_last(const ArrivalsCall& call, std::int64_t b) {
  if (b >= call.rows) return;
  const StreamPlan& s = call.plan;
  const Row row = row_of(s, b);
  const std::int64_t decision = deadline_of(s, b, 0);
  with_row_stamps(s.arrivals, row.arrivals_offset, [&](const auto& at) {
    const std::int64_t last = last_of_row(at, call.levels, first_sample(s, row), row.count, decision);
    if (lane_of_warp() == 0) call.levels.last[b] = last;
  });
}

__global__ void __launch_bounds__(threads) align_arrivals_kernel(const __grid_constant__ ArrivalsCall call) {
  wait_on_dependent_grids();
  launch_dependent_grids();  // the general kernel counts on this order
  if (blockIdx.x < call.row_blocks) {
    find_last(call, static_cast<std::int64_t>(blockIdx.x) * warps + threadIdx.x / warp_size);
    return;
  }
  const std::int64_t number = blockIdx.x - call.row_blocks;
  if (call.row_entries == call.count) {
    with_row_stamps(call.below, 0, [&](const auto& row) {
      make_levels<level_loads>(call, number, [&](std::int64_t n) { return row.first[n * row.stride]; });
    });
  } else {
    make_levels<1>(call, number, [&](std::int64_t n) { return entry_below(call, n); });
  }
}

// The numbers in this file have no sweep.
constexpr std::int64_t few_samples = 16;                          // in a row: every target searches them one by one
constexpr std::int64_t most_scanned = 4 * row_loads * warp_size;  // in a row, to find its last sample without levels

bool has_arrivals(const StreamPlan& s) { return s.as_of && s.arrivals.data != nullptr && s.samples > few_samples; }

std::int64_t samples_of(const StreamPlan& s) { return s.offsets.data != nullptr ? s.samples : s.segments * s.samples; }

void place(BumpAllocator& scratch, const StreamPlan& s, std::int64_t rows, ArrivalLevels& levels) {
  levels.count = 0;
  scratch.allocate(levels.last, rows);
  if (s.samples <= arrival_block) return;  // targets search sample by sample, but not past the last one that exists
  for (std::int64_t n = samples_of(s); n > arrival_block && levels.count < ArrivalLevels::most;) {
    n = divide_up(n, arrival_block);
    scratch.allocate(levels.least[levels.count++], n);
  }
}

// Calls launch(call, blocks) for each launch. Rows wait for the levels only if a row is long.
template <class Launch>
void find(const StreamPlan& s, const ArrivalLevels& levels, std::int64_t rows, const Launch& launch) {
  ArrivalsCall with_rows;
  with_rows.plan = s;
  with_rows.levels = levels;
  with_rows.rows = rows;
  with_rows.row_blocks = static_cast<std::uint32_t>(divide_up(rows, warps));
  const bool scans = s.samples <= most_scanned;
  if (scans) with_rows.levels.count = 0;

  const bool dense = s.arrivals.row_stride == s.samples * s.arrivals.stride;
  ArrivalsCall call = scans ? with_rows : ArrivalsCall{};
  call.below = s.arrivals;
  call.count = samples_of(s);
  call.row_entries = dense ? call.count : s.samples;
  for (int level = 0; level < levels.count; level += 2) {
    call.least[0] = levels.least[level];
    call.least[1] = level + 1 < levels.count ? levels.least[level + 1] : nullptr;
    const std::int64_t made = divide_up(divide_up(call.count, arrival_block), arrival_block);
    launch(call, call.row_blocks + made);
    const Stamps below{call.least[1], 0, 1, DType::i64};
    call = {};
    call.below = below;
    call.count = call.row_entries = made;
  }
  if (!scans || levels.count == 0) launch(with_rows, std::int64_t{with_rows.row_blocks});
}

}  // namespace

CudaArrivals::CudaArrivals(std::span<const StreamPlan* const> streams, std::int64_t rows, Operation operation,
                           const Workspace& workspace, int device, cudaStream_t stream) {
  const auto place_all = [&](char* data) {
    BumpAllocator scratch(data);
    for (std::size_t k = 0; k < streams.size(); ++k) {
      if (has_arrivals(*streams[k])) place(scratch, *streams[k], rows, levels_[k]);
    }
    return scratch.used();
  };
  const std::int64_t bytes = place_all(nullptr);
  if (bytes == 0) return;
  scratch_.emplace(workspace, device, static_cast<std::size_t>(bytes), stream);
  place_all(static_cast<char*>(scratch_->data()));
  for (std::size_t k = 0; k < streams.size(); ++k) {
    if (!has_arrivals(*streams[k])) continue;
    find(*streams[k], levels_[k], rows, [&](ArrivalsCall& call, std::int64_t blocks) {
      if (blocks == 0) return;
      cuda_launch(reinterpret_cast<const void*>(&align_arrivals_kernel), blocks, threads, 0, &call, device, stream,
                  name_of(operation));
      launched_ = true;
    });
  }
}

}  // namespace robocache::align_op
