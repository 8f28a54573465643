// Counts and occupancy of many points on a GPU.
//
// A point's cell is anywhere, and the L2 takes only so many scattered additions. So cells are dealt to bins whose counters
// have room in shared memory. One kernel sorts the points of each block by bin and writes them side by side, as entries;
// in the next a block for each bin adds up its entries of all blocks, and writes its cells, the empty ones too.
#include "ops/voxelize/cuda_bins.h"

#include "ops/voxelize/cuda_points.h"

namespace robocache::voxelize_op {
namespace {

constexpr int bins = tuning::bins;
constexpr int block_points = tuning::bin_points_threads * tuning::bin_points_per_thread;
static_assert(bins % tuning::bin_points_threads == 0 && block_points < 1 << 16);

// Cells go to bins by lines of 64, and every line of lines begins one bin further: whatever way a surface lies in the grid,
// its cells are spread over all bins.
constexpr int line_bits = 6;
constexpr int line = 1 << line_bits;
constexpr int bin_bits = 10;
static_assert(bins == 1 << bin_bits);

// An entry is points of one cell that follow each other: the cell's number in its bin, and how many they are; while a
// thread holds it the bin is in front. 0: none.
constexpr int length_bits = 6;
constexpr int cell_bits = 14;
constexpr std::uint32_t entry_mask = (1u << (cell_bits + length_bits)) - 1;
static_assert(tuning::most_bin_cells <= 1 << cell_bits && bin_bits + cell_bits + length_bits <= 32);

__device__ std::uint32_t entry_of(std::int32_t key, int length) {
  const int chunk = key >> line_bits;
  const int round = chunk >> bin_bits;
  const int bin = (chunk + round) & (bins - 1);
  const int cell = round << line_bits | (key & (line - 1));
  return static_cast<std::uint32_t>(bin) << (cell_bits + length_bits) |
         static_cast<std::uint32_t>(cell) << length_bits | static_cast<std::uint32_t>(length);
}
__device__ std::int64_t key_of(int bin, int cell) {
  const int round = cell >> line_bits;
  const int chunk = round << bin_bits | ((bin - round) & (bins - 1));
  return std::int64_t{chunk} << line_bits | (cell & (line - 1));
}
// Of each bin: a multiple of a line.
std::int64_t bin_cells(const Plan& plan) { return divide_up(plan.cells, std::int64_t{bins} * line) * line; }

struct BinCall {
  Plan plan;
  std::uint8_t* occupied = nullptr;
  std::int64_t blocks = 0;           // that sort points
  std::int32_t cells = 0;            // of a bin
  std::int32_t empty = 0;            // what a cell without points holds
  std::uint32_t* entries = nullptr;  // block_points for each block, of which it uses the first
  std::uint16_t* starts = nullptr;   // of each block: where each bin's entries begin, and where the last one's end
};

template <class T>
__global__ void __launch_bounds__(tuning::bin_points_threads, sizeof(T) == 8 ? 2 : 3)
    voxelize_bin_points_kernel(const __grid_constant__ BinCall call) {
  using C = compute_t<T>;
  constexpr int n = tuning::bin_points_per_thread;
  constexpr int flight = 4;  // points under way
  constexpr int threads = tuning::bin_points_threads;
  const Plan& plan = call.plan;
  __shared__ std::uint32_t sorted[block_points];
  __shared__ int places[bins];  // how many entries a bin has, then where its next one goes
  __shared__ int before[threads / warp_size];
  __shared__ int dropped[drop_reasons];
  const auto thread = static_cast<int>(threadIdx.x);
  const int lane = thread % warp_size;
  const int warp = thread / warp_size;
  for (int k = thread; k < bins; k += threads) places[k] = 0;
  if (thread < drop_reasons) dropped[thread] = 0;
  __syncthreads();
  after_earlier_work();

  const std::int64_t first = std::int64_t{blockIdx.x} * block_points + warp * (warp_size * n) + lane;
  Cloud<C> cloud;
  cloud.count = plan.points_per_cloud;
#pragma unroll
  for (int axis = 0; axis < 3; ++axis) {
    cloud.origin[axis] = static_cast<C>(plan.origin[axis]);
    cloud.voxel_size[axis] = static_cast<C>(plan.voxel_size[axis]);
  }
  std::uint32_t entries[n];
  std::uint32_t lost = 0;  // of each reason, a byte
#pragma unroll
  for (int group = 0; group < n; group += flight) {
    T read[flight][3];
#pragma unroll
    for (int k = 0; k < flight; ++k) {
      const std::int64_t point = min(first + (group + k) * warp_size, cloud.count - 1);
#pragma unroll
      for (int axis = 0; axis < 3; ++axis) {
        read[k][axis] = static_cast<const T*>(plan.points)[point * plan.point_stride + axis];
      }
    }
#pragma unroll
    for (int k = 0; k < flight; ++k) {
      Place place;
      if (first + (group + k) * warp_size < cloud.count) place = place_plain<std::int32_t>(plan, cloud, read[k]);
      if (place.drop != Drop::none) lost += 1u << 8 * static_cast<int>(place.drop);
      const auto key = static_cast<std::int32_t>(place.cell);
      const Runs runs(key);
      entries[group + k] = runs.leads ? entry_of(key, runs.length) : 0;
      if (runs.leads) atomicAdd(&places[entries[group + k] >> (cell_bits + length_bits)], 1);
    }
  }
  if (plan.dropped != nullptr) {
#pragma unroll
    for (int reason = 0; reason < drop_reasons; ++reason) {
      const int count = __reduce_add_sync(whole_warp, static_cast<int>(lost >> 8 * reason & 0xffu));
      if (lane == 0 && count > 0) atomicAdd(dropped + reason, count);
    }
  }
  __syncthreads();

  // Where each bin begins: what all bins before it have.
  constexpr int each = bins / threads;  // bins of a thread
  int mine = 0;
#pragma unroll
  for (int k = 0; k < each; ++k) mine += places[thread * each + k];
  int sum = mine;
#pragma unroll
  for (int step = 1; step < warp_size; step *= 2) {
    const int other = __shfl_up_sync(whole_warp, sum, step);
    if (lane >= step) sum += other;
  }
  if (lane == warp_size - 1) before[warp] = sum;
  __syncthreads();
  int all = 0;
  for (int w = 0; w < threads / warp_size; ++w) {
    if (w == warp) sum += all;
    all += before[w];
  }
  std::uint16_t* const starts = call.starts + std::int64_t{blockIdx.x} * (bins + 1);
  int place = sum - mine;
#pragma unroll
  for (int k = 0; k < each; ++k) {
    const int bin = thread * each + k;
    const int count = places[bin];
    places[bin] = place;
    starts[bin] = static_cast<std::uint16_t>(place);
    place += count;
  }
  if (thread == 0) starts[bins] = static_cast<std::uint16_t>(all);
  __syncthreads();
#pragma unroll
  for (int k = 0; k < n; ++k) {
    if (entries[k] == 0) continue;
    sorted[atomicAdd(&places[entries[k] >> (cell_bits + length_bits)], 1)] = entries[k] & entry_mask;
  }
  __syncthreads();
  std::uint32_t* const to = call.entries + std::int64_t{blockIdx.x} * block_points;
  for (int k = thread; k < all; k += threads) to[k] = sorted[k];
  let_next_begin();
  if (plan.dropped != nullptr && thread < drop_reasons && dropped[thread] > 0) {
    atomicAdd(reinterpret_cast<unsigned long long*>(plan.dropped) + thread,
              static_cast<unsigned long long>(dropped[thread]));
  }
}

__global__ void __launch_bounds__(tuning::bin_cells_threads)
    voxelize_bin_cells_kernel(const __grid_constant__ BinCall call) {
  constexpr int threads = tuning::bin_cells_threads;
  constexpr int lanes = 16;  // that read the entries of a block together; each looks up where one block's are
  constexpr int flight = 4;  // blocks under way
  extern __shared__ int4 counts_of_four[];
  int* const counts = reinterpret_cast<int*>(counts_of_four);
  const Plan& plan = call.plan;
  const auto thread = static_cast<int>(threadIdx.x);
  const auto bin = static_cast<int>(blockIdx.x);
  for (int k = thread; k < call.cells / 4; k += threads) counts_of_four[k] = int4{0, 0, 0, 0};
  __syncthreads();
  after_earlier_work();
  let_next_begin();

  const int lane = thread % lanes;
  const auto add = [&](std::uint32_t entry) {
    if (entry != 0) atomicAdd(counts + (entry >> length_bits), static_cast<int>(entry & ((1u << length_bits) - 1)));
  };
  // All lanes of a warp go through this together.
  for (std::int64_t pass = 0; pass < call.blocks; pass += threads) {
    const std::int64_t group = pass + thread - lane;  // of as many blocks as lanes
    int start = 0;
    int length = 0;
    if (group + lane < call.blocks) {
      const std::uint16_t* const starts = call.starts + (group + lane) * (bins + 1) + bin;
      start = starts[0];
      length = starts[1] - start;
    }
#pragma unroll
    for (int other = 0; other < lanes; other += flight) {
      const std::uint32_t* from[flight];
      int lengths[flight];
      std::uint32_t entries[flight][2];
#pragma unroll
      for (int k = 0; k < flight; ++k) {
        from[k] = call.entries + (group + other + k) * block_points + __shfl_sync(whole_warp, start, other + k, lanes);
        lengths[k] = __shfl_sync(whole_warp, length, other + k, lanes);
        entries[k][0] = lane < lengths[k] ? from[k][lane] : 0;
        entries[k][1] = lane + lanes < lengths[k] ? from[k][lane + lanes] : 0;
      }
#pragma unroll
      for (int k = 0; k < flight; ++k) {
        add(entries[k][0]);
        add(entries[k][1]);
        for (int entry = lane + 2 * lanes; entry < lengths[k]; entry += flight * lanes) {
          std::uint32_t more[flight];
#pragma unroll
          for (int m = 0; m < flight; ++m) {
            more[m] = entry + m * lanes < lengths[k] ? from[k][entry + m * lanes] : 0;
          }
#pragma unroll
          for (int m = 0; m < flight; ++m) add(more[m]);
        }
      }
    }
  }
  __syncthreads();

  const bool wide =
      reinterpret_cast<std::uintptr_t>(plan.count) % 16 == 0 &&
      (reinterpret_cast<std::uintptr_t>(plan.occupancy) | reinterpret_cast<std::uintptr_t>(call.occupied)) % 4 == 0;
  for (int k = thread; k < call.cells / 4; k += threads) {
    const std::int64_t key = key_of(bin, 4 * k);
    const int4 four = counts_of_four[k];
    const int found[4] = {four.x, four.y, four.z, four.w};
    if (wide && !plan.accumulate && key + 4 <= plan.cells) {
      const auto count = [&](int n) { return n > 0 ? n : call.empty; };
      const auto mark = [&](int n, int empty) { return static_cast<unsigned char>(n > 0 ? 1 : empty); };
      const auto marks = [&](int empty) {
        return uchar4{mark(four.x, empty), mark(four.y, empty), mark(four.z, empty), mark(four.w, empty)};
      };
      if (plan.count != nullptr) {
        *reinterpret_cast<int4*>(plan.count + key) = int4{count(four.x), count(four.y), count(four.z), count(four.w)};
      }
      if (plan.occupancy != nullptr) *reinterpret_cast<uchar4*>(plan.occupancy + key) = marks(call.empty);
      if (call.occupied != nullptr) *reinterpret_cast<uchar4*>(call.occupied + key) = marks(0);
      continue;
    }
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      if (key + j >= plan.cells) break;
      const bool any = found[j] > 0;
      if (call.occupied != nullptr) call.occupied[key + j] = any ? 1 : 0;
      if (!any && plan.accumulate) continue;
      if (plan.count != nullptr) {
        plan.count[key + j] = any ? (plan.accumulate ? plan.count[key + j] : 0) + found[j] : call.empty;
      }
      if (plan.occupancy != nullptr) plan.occupancy[key + j] = static_cast<std::uint8_t>(any ? 1 : call.empty);
    }
  }
}

void set_scratch(BinCall& call, char* data) {
  call.blocks = divide_up(call.plan.all_points, block_points);
  call.entries = reinterpret_cast<std::uint32_t*>(data);
  call.starts = reinterpret_cast<std::uint16_t*>(data + call.blocks * block_points * 4);
}

}  // namespace

bool bins_serve(const Plan& plan, int device) {
  return !plan.reduces_features() && plan.all_points >= tuning::fewest_bin_points &&
         plan.cells >= std::int64_t{bins} * line && bin_cells(plan) <= tuning::most_bin_cells &&
         bin_cells(plan) * 4 <= cuda_shared_bytes(device);
}

std::int64_t bins_scratch(const Plan& plan) {
  const std::int64_t blocks = divide_up(plan.all_points, block_points);
  return blocks * (block_points * 4 + (bins + 1) * 2);
}

void run_bins(const Plan& plan, void* scratch, std::uint8_t* occupied, int device, cudaStream_t stream) {
  const char* const doing = name_of(plan.operation);
  BinCall call;
  call.plan = plan;
  call.occupied = occupied;
  call.cells = static_cast<std::int32_t>(bin_cells(plan));
  const bool has_empty = !plan.accumulate && (plan.count != nullptr || plan.occupancy != nullptr);
  call.empty = has_empty ? static_cast<std::int32_t>(plan.empty) : 0;
  set_scratch(call, static_cast<char*>(scratch));
  with_point_type(plan, [&](auto type) {
    using T = typename decltype(type)::type;
    if constexpr (is_float_type<T>) {
      cuda_launch(reinterpret_cast<const void*>(&voxelize_bin_points_kernel<T>), call.blocks,
                  tuning::bin_points_threads, 0, &call, device, stream, doing);
    }
  });
  const auto* const kernel = reinterpret_cast<const void*>(&voxelize_bin_cells_kernel);
  const auto bytes = static_cast<std::size_t>(call.cells) * 4;
  cuda_allow_shared(kernel, bytes, doing);
  cuda_launch(kernel, bins, tuning::bin_cells_threads, bytes, &call, device, stream, doing);
}

}  // namespace robocache::voxelize_op
