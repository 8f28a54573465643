// The kernel for launches in which some stream goes through range.h.
#include "ops/align/cuda_tile.h"

namespace robocache::align_op {
namespace {

// What the threads of a block share about one target on the way through range.h.
struct Shared {
  Row row;
  Target target;
  Verdict verdict;
  std::int64_t out;
};

// Called, not inlined: it is large, and every launch size has it.
template <class T>
__device__ __noinline__ void general_tile(const StreamPlan& s, const Range* ranges, const TargetPlan& targets,
                                          const Tiling& tiling, const Tile& tile, SharedStamps stamps,
                                          Shared* shared) {
  const int thread = thread_of_block();
  const Searched here = search_tile(s, targets, tiling, tile, stamps);
  const Row& row = here.row;
  const StampsAt at{&s.times, row.times_offset};
  const StampsAt arrival_at{&s.arrivals, row.arrivals_offset};
  if (here.mine) {
    shared[thread].row = row;
    shared[thread].target = target_at(s, targets, at, arrival_at, row.count, here.b, here.t, here.tau, here.upper);
    shared[thread].out = here.b * s.out_row_stride + here.t * s.out_target_stride;
  }
  bool valid = true;
  std::int64_t index = -1;
  for (std::int32_t r = 0; r < s.range_count; ++r) {
    const Range range = ranges[s.first_range + r];
    if (here.mine) {
      const Samples<T> samples(s, row);
      const Verdict verdict = judge(s, samples, range, at, arrival_at, row.count, shared[thread].target);
      valid = valid && verdict.valid;
      if (r == 0) index = verdict.index;
      shared[thread].verdict = verdict;
    }
    __syncthreads();
    if (s.out != nullptr) {
      const int step = range.method == Method::slerp ? 4 : 1;
      // This tile's share of the range, in steps.
      const std::int64_t all = (range.end - range.begin) / step;
      const std::int64_t share = (all + tiling.channel_tiles - 1) / tiling.channel_tiles;
      const std::int64_t first = share * tile.channel_tile;
      const std::int64_t width = min(share, all - first);
      for (std::int64_t item = thread; item < width * tile.targets; item += tuning::threads) {
        const std::int64_t k = item / width;
        const std::int64_t d = range.begin + (first + item - k * width) * step;
        const Shared& mate = shared[k];
        const StampsAt its{&s.times, mate.row.times_offset};
        const StampsAt its_arrival{&s.arrivals, mate.row.arrivals_offset};
        write_channel(s, Samples<T>(s, mate.row), range, its, its_arrival, mate.target, mate.verdict, d, mate.out);
      }
    }
    __syncthreads();
  }
  if (here.mine && tile.channel_tile == 0) {
    write_marks(s, here.b, here.t, valid, age_of(shared[thread].target.found), index);
  }
}

template <class T>
__device__ __noinline__ void fast_tile_called(const StreamPlan& s, Method method, const TargetPlan& targets,
                                              const Tiling& tiling, const Tile& tile, SharedStamps stamps,
                                              Tap<T>* taps) {
  fast_tile<T>(s, method, targets, tiling, tile, stamps, taps);
}

template <class T, class L>
__global__ void __launch_bounds__(tuning::threads) align_general_kernel(const __grid_constant__ L launch) {
  let_next_begin();
  after_earlier_work();
  if (blockIdx.x < launch.check_blocks) {
    check_all(launch);
    return;
  }
  __shared__ std::int64_t stamps[tuning::window_stamps];
  __shared__ union Memory {
    __device__ Memory() {}
    Tap<T> taps[tuning::threads];
    Shared shared[tuning::threads];
  } memory;
  const int k = stream_of(launch);
  const StreamPlan& s = launch.plans[k];
  const Tiling& tiling = launch.tilings[k];
  const Tile tile = tile_of(tiling, launch.targets, blockIdx.x - tiling.first_block);
  if (tiling.vector_bytes == 0) {
    general_tile<T>(s, launch.ranges, launch.targets, tiling, tile, SharedStamps(stamps), memory.shared);
  } else {
    fast_tile_called<T>(s, launch.ranges[s.first_range].method, launch.targets, tiling, tile, SharedStamps(stamps),
                        memory.taps);
  }
}

}  // namespace

const void* general_kernel(DType dtype, bool small) {
  const void* kernel = nullptr;
  with_type(dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    kernel = small ? reinterpret_cast<const void*>(&align_general_kernel<T, SmallLaunch>)
                   : reinterpret_cast<const void*>(&align_general_kernel<T, LargeLaunch>);
  });
  return kernel;
}

}  // namespace robocache::align_op
