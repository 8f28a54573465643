// The gradient of align on a GPU, without atomics, so that the bits repeat: a block owns a tile of samples and channels
// and adds up, target by target in order, what reaches it. To pass over targets that do not, a first kernel notes for
// every chunk of targets which samples it reaches.
#include <algorithm>

#include "core/cuda_memory.h"
#include "ops/align/cuda_tile.h"
#include "ops/align/gradient.h"

namespace robocache::align_op {
namespace {

constexpr int chunk = tuning::threads;  // targets that one block looks at together
constexpr int tile_samples = 64;
constexpr int tile_channels = 32;
constexpr int warps = tuning::threads / 32;
constexpr int warp_samples = tile_samples / warps;

struct Backward {
  TargetPlan targets;
  StreamPlan plan;
  Range ranges[max_ranges];
  std::int64_t samples = 0;  // of the dense gradient
  std::int64_t chunks = 0;   // of a row of targets
  void* gradient = nullptr;
};

// Samples [first, last] of the dense gradient that a target or a chunk reaches.
struct Reach {
  std::int64_t first = std::numeric_limits<std::int64_t>::max();
  std::int64_t last = -1;
  __device__ void add(std::int64_t n) {
    first = min(first, n);
    last = max(last, n);
  }
};

template <class T>
struct Found {
  Row row;
  StampsAt at, arrival_at;
  Target target;
};
template <class T>
__device__ Found<T> find(const Backward& call, std::int64_t b, std::int64_t t) {
  const StreamPlan& s = call.plan;
  Found<T> found;
  found.row = row_of(s, b);
  found.at = {&s.times, found.row.times_offset};
  found.arrival_at = {&s.arrivals, found.row.arrivals_offset};
  found.target = target_at(s, call.targets, found.at, found.arrival_at, found.row.count, b, t);
  return found;
}

__device__ Reach reach_of(const StreamPlan& s, const Row& row, const Range& range, const Target& target,
                          const Verdict& verdict) {
  Reach reach;
  const std::int64_t first = first_sample(s, row);
  if (verdict.source >= 0) {
    reach.add(first + verdict.source);
  } else if (!verdict.valid) {
    return reach;
  } else if (is_bin(range.method)) {
    reach.add(first + target.bin.begin);
    reach.add(first + target.bin.end - 1);
  } else {
    reach.add(first + target.found.i);
    if (target.found.place == Place::between) reach.add(first + target.found.j);
    if (range.method == Method::cubic) {
      reach.add(first + verdict.cubic.p);
      reach.add(first + verdict.cubic.q);
    }
  }
  return reach;
}

// Block (chunk, row).
template <class T>
__global__ void __launch_bounds__(tuning::threads)
    align_reach_kernel(const __grid_constant__ Backward call, Reach* reaches) {
  const std::int64_t b = blockIdx.x / call.chunks;
  const std::int64_t t = (blockIdx.x - b * call.chunks) * chunk + threadIdx.x;
  Reach reach;
  if (t < call.targets.count) {
    const Found<T> found = find<T>(call, b, t);
    const Samples<T> samples(call.plan, found.row);
    for (int r = 0; r < call.plan.range_count; ++r) {
      const Verdict verdict =
          judge(call.plan, samples, call.ranges[r], found.at, found.arrival_at, found.row.count, found.target);
      const Reach one = reach_of(call.plan, found.row, call.ranges[r], found.target, verdict);
      reach.first = min(reach.first, one.first);
      reach.last = max(reach.last, one.last);
    }
  }
  __shared__ Reach all[tuning::threads];
  all[threadIdx.x] = reach;
  __syncthreads();
  for (int half = tuning::threads / 2; half > 0; half /= 2) {
    if (static_cast<int>(threadIdx.x) < half) {
      all[threadIdx.x].first = min(all[threadIdx.x].first, all[threadIdx.x + half].first);
      all[threadIdx.x].last = max(all[threadIdx.x].last, all[threadIdx.x + half].last);
    }
    __syncthreads();
  }
  if (threadIdx.x == 0) reaches[blockIdx.x] = all[0];
}

// What the block knows of each target of the chunk at hand.
template <class T>
struct Mate {
  Found<T> found;
  Verdict verdict;
  Reach reach;
};

// Block (tile of samples, tile of channels). Thread: a channel and a quarter of the samples.
template <class T>
__global__ void __launch_bounds__(tuning::threads)
    align_gradient_kernel(const __grid_constant__ Backward call, const Reach* reaches) {
  extern __shared__ double memory[];
  double(*const sums)[tile_channels] = reinterpret_cast<double(*)[tile_channels]>(memory);
  auto* const mates = reinterpret_cast<Mate<T>*>(memory + tile_samples * tile_channels);
  const StreamPlan& s = call.plan;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const std::int64_t n0 = static_cast<std::int64_t>(blockIdx.x) * tile_samples;
  const std::int64_t mine = n0 + warp * warp_samples;  // of this thread: samples mine .. mine + warp_samples
  const std::int64_t d = static_cast<std::int64_t>(blockIdx.y) * tile_channels + lane;
  for (int k = 0; k < warp_samples; ++k) sums[warp * warp_samples + k][lane] = 0;

  // Rows of targets that can reach the tile: all where `rows` or a broadcast choose, else those it lies in.
  std::int64_t b0 = 0;
  std::int64_t b1 = call.targets.rows;
  if (s.rows.data == nullptr && s.batched) {
    if (s.offsets.data != nullptr) {
      const auto at = [&](std::int64_t k) { return integer(s.offsets, k); };
      b0 = max(std::int64_t{0}, upper_bound(at, 0, s.segments + 1, n0) - 1);
      b1 = min(b1, upper_bound(at, 0, s.segments + 1, n0 + tile_samples - 1));
    } else {
      b0 = n0 / s.samples;
      b1 = min(b1, (n0 + tile_samples - 1) / s.samples + 1);
    }
  }
  for (std::int64_t at_chunk = b0 * call.chunks; at_chunk < b1 * call.chunks; ++at_chunk) {
    const Reach reach = reaches[at_chunk];
    if (reach.last < n0 || reach.first >= n0 + tile_samples) continue;
    const std::int64_t b = at_chunk / call.chunks;
    const std::int64_t t0 = (at_chunk - b * call.chunks) * chunk;
    const auto here = static_cast<int>(min(std::int64_t{chunk}, call.targets.count - t0));
    const bool looks = static_cast<int>(threadIdx.x) < here;
    if (looks) mates[threadIdx.x].found = find<T>(call, b, t0 + threadIdx.x);
    const std::int64_t out_row = b * s.out_row_stride;
    for (int r = 0; r < s.range_count; ++r) {
      const Range range = call.ranges[r];
      if (looks) {
        Mate<T>& mate = mates[threadIdx.x];
        const Found<T>& found = mate.found;
        mate.verdict =
            judge(s, Samples<T>(s, found.row), range, found.at, found.arrival_at, found.row.count, found.target);
        mate.reach = reach_of(s, found.row, range, found.target, mate.verdict);
      }
      __syncthreads();
      if (d >= range.begin && d < range.end) {
        for (int k = 0; k < here; ++k) {
          const Mate<T>& mate = mates[k];
          if (mate.reach.last < mine || mate.reach.first >= mine + warp_samples) continue;
          const std::int64_t first = first_sample(s, mate.found.row);
          spread(s, Samples<T>(s, mate.found.row), range, mate.found.at, mate.found.arrival_at, mate.found.target,
                 mate.verdict, d, out_row + (t0 + k) * s.out_target_stride, [&](std::int64_t sample, double g) {
                   const std::int64_t n = first + sample - mine;
                   if (n >= 0 && n < warp_samples) sums[warp * warp_samples + n][lane] += g;
                 });
        }
      }
      __syncthreads();
    }
  }
  if (d < s.channel_count) {
    for (int k = 0; k < warp_samples && mine + k < call.samples; ++k) {
      static_cast<T*>(call.gradient)[(mine + k) * s.channel_count + d] = narrow<T>(sums[warp * warp_samples + k][lane]);
    }
  }
}

template <class T>
void run_stream(const Backward& call, Reach* reaches, cudaStream_t stream) {
  const std::int64_t chunks = call.targets.rows * call.chunks;
  if (chunks > 0) {
    align_reach_kernel<T><<<static_cast<unsigned>(chunks), tuning::threads, 0, stream>>>(call, reaches);
    cuda_check(cudaGetLastError(), "align_backward");
  }
  const dim3 grid(static_cast<unsigned>((call.samples + tile_samples - 1) / tile_samples),
                  static_cast<unsigned>((call.plan.channel_count + tile_channels - 1) / tile_channels));
  const std::size_t bytes = sizeof(double) * tile_samples * tile_channels + sizeof(Mate<T>) * chunk;
  cuda_check(cudaFuncSetAttribute(align_gradient_kernel<T>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  static_cast<int>(bytes)),
             "align_backward");
  align_gradient_kernel<T><<<grid, tuning::threads, bytes, stream>>>(call, reaches);
  cuda_check(cudaGetLastError(), "align_backward");
}

}  // namespace

void run_cuda_backward(const Plan& plan, std::span<void* const> gradients, const Context& context, int device) {
  cuda_fault_box(device);
  const CudaDevice current(device);
  for (std::size_t k = 0; k < plan.streams.size(); ++k) {
    Backward call;
    call.targets = plan.targets;
    call.plan = plan.streams[k];
    std::copy_n(plan.ranges.begin() + call.plan.first_range, call.plan.range_count, call.ranges);
    call.plan.first_range = 0;
    call.samples = call.plan.offsets.data != nullptr ? call.plan.samples : call.plan.segments * call.plan.samples;
    call.chunks = (plan.targets.count + chunk - 1) / chunk;
    call.gradient = gradients[k];
    if (call.samples == 0 || call.plan.channel_count == 0) continue;
    if (call.plan.channel_count > std::int64_t{tile_channels} * 65535) {
      throw Error(ErrorKind::value, "align_backward: at most 2,097,120 channels on CUDA; split the stream");
    }
    if (plan.targets.rows * call.chunks >= std::int64_t{1} << 31) {
      throw Error(ErrorKind::value, "align_backward: the call is too large for one launch: split the rows");
    }
    const auto bytes =
        static_cast<std::size_t>(std::max<std::int64_t>(1, plan.targets.rows * call.chunks)) * sizeof(Reach);
    const Workspace& workspace = context.workspace;
    void* const reaches = workspace.allocate != nullptr ? workspace.allocate(workspace.state, bytes)
                                                        : cuda_allocate(device, bytes, context.stream);
    with_type(call.plan.dtype, [&](auto type) {
      using T = typename decltype(type)::type;
      if constexpr (is_float_type<T>) {
        run_stream<T>(call, static_cast<Reach*>(reaches), static_cast<cudaStream_t>(context.stream));
      }
    });
    if (workspace.allocate == nullptr) cuda_free(device, reaches, context.stream);
  }
}

}  // namespace robocache::align_op
