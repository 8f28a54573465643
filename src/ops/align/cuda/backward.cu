// The gradient of align on a GPU, without atomics, so that the bits repeat. The first kernel searches every target
// once and writes what it found (a Resolved), and for every chunk of targets the samples that it reaches. In the
// second kernel a warp owns some samples and channels, and adds the targets that reach them, in their order.
#include <algorithm>

#include "gpu/device.h"
#include "gpu/fault_box.h"
#include "gpu/launch.h"
#include "gpu/scratch.h"
#include "gpu/warp.h"
#include "ops/align/cuda/arrivals.h"
#include "ops/align/gradient.h"

namespace robocache::align_op {
namespace {

constexpr int warp_size = 32;
constexpr unsigned whole_warp = ~0u;
constexpr int threads = 128;
constexpr int chunk = warp_size;  // targets with one common reach
constexpr int warps = threads / warp_size;
constexpr int warp_samples = 16;
constexpr int tile_samples = warps * warp_samples;
constexpr int tile_channels = warp_size;

struct Backward {
  TargetPlan targets;
  StreamPlan plan;
  ArrivalLevels arrivals;  // of as_of
  Range ranges[max_ranges];
  std::int64_t samples = 0;  // of the dense gradient
  std::int64_t chunks = 0;   // of a row of targets
  std::int64_t sample_tiles = 0;
  void* gradient = nullptr;
  void* all_resolved = nullptr;  // [range, row, target]
  Reach* reaches = nullptr;      // [row, chunk]

  __host__ __device__ std::int64_t resolved_number(int range, std::int64_t b, std::int64_t t) const {
    return (range * targets.rows + b) * targets.count + t;
  }
};

__device__ Reach join(const Reach& x, const Reach& y) { return {min(x.first, y.first), max(x.last, y.last)}; }

// A warp for each chunk of a row.
template <class T>
__global__ void __launch_bounds__(threads) align_resolve_kernel(const __grid_constant__ Backward call) {
  launch_dependent_grids();
  wait_on_dependent_grids();
  const StreamPlan& s = call.plan;
  const int lane = static_cast<int>(threadIdx.x) % warp_size;
  const std::int64_t at_chunk = (static_cast<std::int64_t>(blockIdx.x) * threads + threadIdx.x) / warp_size;
  const std::int64_t b = at_chunk / call.chunks;
  const std::int64_t t = (at_chunk - b * call.chunks) * chunk + lane;
  if (b >= call.targets.rows) return;
  Reach reach;
  if (t < call.targets.count) {
    const Row row = row_of(s, b);
    const StampsAt at{&s.times, row.times_offset};
    const RowArrivals arrival_at(s, row, call.arrivals, b);
    const Target target = target_at(s, call.targets, at, arrival_at, row.count, b, t);
    for (int r = 0; r < s.range_count; ++r) {
      const Range& range = call.ranges[r];
      const Verdict verdict = judge(s, Samples<T>(s, row), range, at, arrival_at, row.count, target);
      Resolved<T>& resolved = static_cast<Resolved<T>*>(call.all_resolved)[call.resolved_number(r, b, t)];
      resolve(resolved, s, range, row, target, verdict, b, t);
      reach = join(reach, reach_of(resolved, range.method));
    }
  }
  for (int other = warp_size / 2; other > 0; other /= 2) {
    reach =
        join(reach, {__shfl_xor_sync(whole_warp, reach.first, other), __shfl_xor_sync(whole_warp, reach.last, other)});
  }
  if (lane == 0) call.reaches[at_chunk] = reach;
}

// What one target adds to the samples of a warp.
struct Contribution {
  std::int64_t first;  // the row's first sample, from the warp's first
  std::int64_t out;
  double factors[Weights::most];
  std::int32_t samples[Weights::most];
  std::int32_t known;

  __device__ void set(const Weights& weights, std::int64_t first_sample, std::int64_t out_offset) {
    first = first_sample;
    out = out_offset;
    known = weights.known ? 1 : 0;
#pragma unroll
    for (int k = 0; k < Weights::most; ++k) {
      samples[k] = weights.samples[k];
      factors[k] = weights.factors[k];
    }
  }
};
// `sums` is the thread's column: sample k of the warp is sums[k * tile_channels].
__device__ void add_to(double* sums, int samples, std::int64_t place, double x) {
  if (place >= 0 && place < samples) sums[place * tile_channels] += x;
}

// __noinline__ slow path: it is large, and few streams need it.
template <class T>
__device__ __noinline__ void spread_resolved(const StreamPlan& s, const Range& range, const Resolved<T>* resolved,
                                             std::int64_t d, std::int64_t first, double* sums, int samples) {
  spread(s, range, *resolved, d, [=](std::int64_t sample, double x) { add_to(sums, samples, first + sample, x); });
}

// Adds, for one channel, the targets of a chunk whose bits are set in `hits`, in their order.
template <class T>
__device__ void add_hits(const Backward& call, const Range& range, std::int64_t b, std::int64_t first_target,
                         std::int64_t d, unsigned hits, const Contribution* contributions, double* sums, int samples) {
  const StreamPlan& s = call.plan;
  const std::int64_t column = channel_offset(s.out_channels, d);
  while (hits != 0) {
    constexpr int n = 4;  // loaded before the first is used
    int number[n];
    double g[n];
#pragma unroll
    for (int k = 0; k < n; ++k) {
      number[k] = __ffs(static_cast<int>(hits)) - 1;
      hits &= hits - 1;
      if (number[k] >= 0) g[k] = output_gradient<T>(s, contributions[number[k]].out + column);
    }
#pragma unroll
    for (int k = 0; k < n; ++k) {
      if (number[k] < 0) continue;
      const Contribution& contribution = contributions[number[k]];
      if (contribution.known != 0) {
#pragma unroll
        for (int j = 0; j < Weights::most; ++j) {
          if (contribution.samples[j] >= 0)
            add_to(sums, samples, contribution.first + contribution.samples[j], contribution.factors[j] * g[k]);
        }
        continue;
      }
      const auto r = static_cast<int>(&range - call.ranges);
      const auto* const all_resolved = static_cast<const Resolved<T>*>(call.all_resolved);
      spread_resolved(s, range, all_resolved + call.resolved_number(r, b, first_target + number[k]), d,
                      contribution.first, sums, samples);
    }
  }
}

// A warp for each warp_samples samples of a channel tile; a lane for each channel.
template <class T>
__global__ void __launch_bounds__(threads) align_gradient_kernel(const __grid_constant__ Backward call) {
  launch_dependent_grids();
  wait_on_dependent_grids();
  const StreamPlan& s = call.plan;
  const int lane = static_cast<int>(threadIdx.x) % warp_size;
  const int warp = static_cast<int>(threadIdx.x) / warp_size;
  const std::int64_t channel_tile = blockIdx.x / call.sample_tiles;
  const std::int64_t first = (blockIdx.x - channel_tile * call.sample_tiles) * tile_samples + warp * warp_samples;
  const std::int64_t d = channel_tile * tile_channels + lane;
  if (first >= call.samples) return;
  const std::int64_t end = min(call.samples, first + warp_samples);

  __shared__ double all_sums[warps][warp_samples][tile_channels];
  double(&sums)[warp_samples][tile_channels] = all_sums[warp];
#pragma unroll
  for (auto& sum : sums) sum[lane] = 0;

  // Rows of targets that can reach the samples: all rows where `rows` or a broadcast decides, else the rows that the
  // samples lie in.
  std::int64_t b0 = 0;
  std::int64_t b1 = call.targets.rows;
  if (s.rows.data == nullptr && s.batched) {
    if (s.offsets.data != nullptr) {
      const auto at = [&](std::int64_t k) { return integer(s.offsets, k); };
      b0 = max(std::int64_t{0}, upper_bound(at, 0, s.segments + 1, first) - 1);
      b1 = min(b1, upper_bound(at, 0, s.segments + 1, end - 1));
    } else {
      b0 = first / s.samples;
      b1 = min(b1, (end - 1) / s.samples + 1);
    }
  }
  const auto reaches = [&](const Reach& reach) { return reach.last >= first && reach.first < end; };
  const auto* const all_resolved = static_cast<const Resolved<T>*>(call.all_resolved);
  __shared__ union Contributions {
    __device__ Contributions() {}
    Contribution of[warps][warp_size];
  } all_contributions;
  Contribution* const contributions = all_contributions.of[warp];
  // A warp looks at 32 chunks together, and then at the 32 targets of each that reaches its samples.
  for (std::int64_t chunks = b0 * call.chunks; chunks < b1 * call.chunks; chunks += warp_size) {
    const bool near = chunks + lane < b1 * call.chunks && reaches(call.reaches[chunks + lane]);
    for (unsigned left = __ballot_sync(whole_warp, near); left != 0; left &= left - 1) {
      const std::int64_t at_chunk = chunks + __ffs(static_cast<int>(left)) - 1;
      const std::int64_t b = at_chunk / call.chunks;
      const std::int64_t t = (at_chunk - b * call.chunks) * chunk + lane;
      for (int r = 0; r < s.range_count; ++r) {
        const Range& range = call.ranges[r];
        const bool mine = d >= range.begin && d < range.end;
        if (!__any_sync(whole_warp, mine)) continue;
        // Each lane loads one target, for all lanes to use.
        Reach reach;
        if (t < call.targets.count) {
          const Resolved<T>& resolved = all_resolved[call.resolved_number(r, b, t)];
          reach = reach_of(resolved, range.method);
          contributions[lane].set(weights_of(resolved, range.method), resolved.first - first, resolved.out);
        }
        const unsigned hits = __ballot_sync(whole_warp, reaches(reach));
        __syncwarp();
        if (mine)
          add_hits<T>(call, range, b, t - lane, d, hits, contributions, &sums[0][lane], static_cast<int>(end - first));
        __syncwarp();
      }
    }
  }
  if (d >= s.channel_count) return;
#pragma unroll
  for (int k = 0; k < warp_samples; ++k) {
    if (first + k < end) {
      static_cast<T*>(call.gradient)[(first + k) * s.channel_count + d] = narrow<T>(sums[k][lane]);
    }
  }
}

template <class T>
void run_stream(Backward& call, const Workspace& workspace, int device, cudaStream_t stream) {
  const char* const doing = "align_backward";
  const std::int64_t chunks = call.targets.rows * call.chunks;
  const std::int64_t blocks = call.sample_tiles * divide_up(call.plan.channel_count, tile_channels);
  if (chunks >= std::int64_t{1} << 31 || blocks >= std::int64_t{1} << 31) {
    throw Error(ErrorKind::value, "align_backward: the call is too large for one launch: split the rows");
  }
  const std::int64_t all_resolved = call.resolved_number(call.plan.range_count, 0, 0);
  const auto reach_bytes = static_cast<std::size_t>(chunks) * sizeof(Reach);
  const std::size_t bytes =
      std::max<std::size_t>(1, reach_bytes + static_cast<std::size_t>(all_resolved) * sizeof(Resolved<T>));
  const CudaScratch scratch(workspace, device, bytes, stream);
  call.reaches = static_cast<Reach*>(scratch.data());
  call.all_resolved = static_cast<char*>(scratch.data()) + reach_bytes;
  if (chunks > 0) {
    cuda_launch(reinterpret_cast<const void*>(&align_resolve_kernel<T>), divide_up(chunks, warps), threads, 0, &call,
                device, stream, doing);
  }
  cuda_launch(reinterpret_cast<const void*>(&align_gradient_kernel<T>), blocks, threads, 0, &call, device, stream,
              doing);
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
    call.chunks = divide_up(plan.targets.count, chunk);
    call.sample_tiles = divide_up(call.samples, tile_samples);
    call.gradient = gradients[k];
    if (call.samples == 0 || call.plan.channel_count == 0) continue;
    const StreamPlan* const planned = &call.plan;
    const CudaArrivals arrivals({&planned, 1}, plan.targets.rows, plan.operation, context.workspace, device,
                                static_cast<cudaStream_t>(context.stream));
    call.arrivals = arrivals[0];
    with_type(call.plan.dtype, [&](auto type) {
      using T = typename decltype(type)::type;
      if constexpr (is_float_type<T>) {
        run_stream<T>(call, context.workspace, device, static_cast<cudaStream_t>(context.stream));
      }
    });
  }
}

}  // namespace robocache::align_op
