// The kernel for launches in which some stream goes through range.h.
#include "ops/align/cuda_tile.h"

namespace robocache::align_op {
namespace {

// Writes the channels of one range.
template <class T>
class RangeWriter {
 public:
  using C = compute_t<T>;
  using Kind = typename Spot<T>::Kind;
  __device__ RangeWriter(const StreamPlan& s, const Range& range, const Tiling& tiling, const Tile& tile,
                         const Spot<T>* spots)
      : s_(s), range_(range), spots_(spots), targets_(tile.targets), step_(range.method == Method::slerp ? 4 : 1) {
    const int all = (range.end - range.begin) / step_;
    const int share = (all + tiling.channel_tiles - 1) / tiling.channel_tiles;  // of this tile
    first_ = share * tile.channel_tile;
    width_ = min(share, all - first_);
  }

  __device__ void write() const {
    if (width_ <= 0) return;
    const Method method = range_.method;
    if (method == Method::mean) {
      if constexpr (is_float_type<T>) {
        if (all_count(s_)) {
          each([&](const Spot<T>& spot, int d) { put(spot, d, mean<true>(spot, d)); });
        } else {
          each([&](const Spot<T>& spot, int d) { put(spot, d, mean<false>(spot, d)); });
        }
      }
    } else if (is_bin(method)) {
      if (all_count(s_)) {
        each([&](const Spot<T>& spot, int d) { copy(spot, d, picked_in<true>(spot, d)); });
      } else {
        each([&](const Spot<T>& spot, int d) { copy(spot, d, picked_in<false>(spot, d)); });
      }
    } else if (method == Method::slerp) {
      if constexpr (is_float_type<T>) each([&](const Spot<T>& spot, int d) { put_slerp(spot, d); });
    } else if (method == Method::cubic) {
      mix<4>([](const Spot<T>& spot, const Operands& x) {
        return cubic(x.p, x.a, x.b, x.q, spot.before, spot.across, spot.after);
      });
    } else if (method == Method::angle || method == Method::angle_degrees) {
      mix<2>([turn = full_turn<C>(method)](const Spot<T>& spot, const Operands& x) {
        return angle(x.a, x.b, static_cast<C>(spot.w), turn);
      });
    } else {
      mix<2>([](const Spot<T>& spot, const Operands& x) { return linear(x.a, x.b, static_cast<C>(spot.w)); });
    }
  }

 private:
  const StreamPlan& s_;
  const Range& range_;
  const Spot<T>* spots_;
  int targets_;
  int step_, first_, width_;  // in steps

  struct Operands {
    C a, b, p, q;
  };

  __device__ int channel(const Walk& walk) const { return range_.begin + (first_ + walk.vector) * step_; }

  // compute(spot, channel) where a value must be computed.
  template <class Compute>
  __device__ void each(const Compute& compute) const {
    for (Walk walk(width_, magic_of(width_)); targets_ > walk.target; walk.step(width_)) {
      const Spot<T>& spot = spots_[walk.target];
      const int d = channel(walk);
      if (spot.kind == Kind::compute) {
        compute(spot, d);
      } else {
        for (int c = 0; c < step_; ++c) {
          put_other(spot, d + c, spot.kind == Kind::copy ? column(spot, d + c)[spot.a] : T{});
        }
      }
    }
  }

  // Where a value is made from Count samples: some are under way before the first is used.
  template <int Count, class Compute>
  __device__ void mix(const Compute& compute) const {
    constexpr int n = 4;
    Walk walk(width_, magic_of(width_));
    while (targets_ > walk.target) {
      const T* from[n];
      int target[n];
      int d[n];
#pragma unroll
      for (int k = 0; k < n; ++k, walk.step(width_)) {
        target[k] = min(walk.target, targets_ - 1);  // behind the last: written again, the same
        d[k] = range_.begin + first_ + min(walk.vector, width_ - 1);
        from[k] = column(spots_[target[k]], d[k]).first;
      }
      T a[n];
      T b[n];
      T p[n];
      T q[n];
#pragma unroll
      for (int k = 0; k < n; ++k) {
        const Spot<T>& spot = spots_[target[k]];
        if (spot.kind >= Kind::copy) a[k] = from[k][spot.a * s_.sample_stride];
        if (spot.kind == Kind::compute) {
          b[k] = from[k][spot.b * s_.sample_stride];
          if (Count == 4) p[k] = from[k][spot.p * s_.sample_stride];
          if (Count == 4) q[k] = from[k][spot.q * s_.sample_stride];
        }
      }
#pragma unroll
      for (int k = 0; k < n; ++k) {
        const Spot<T>& spot = spots_[target[k]];
        if (spot.kind != Kind::compute) {
          put_other(spot, d[k], a[k]);
        } else if constexpr (is_float_type<T>) {
          Operands x{widen(a[k]), widen(b[k]), C(0), C(0)};
          if (Count == 4) x.p = widen(p[k]);
          if (Count == 4) x.q = widen(q[k]);
          put(spot, d[k], compute(spot, x));
        }
      }
    }
  }

  // Channel d of the row's samples.
  struct Column {
    const T* first;
    std::int64_t stride;
    __device__ T operator[](int sample) const { return first[sample * stride]; }
  };
  __device__ Column column(const Spot<T>& spot, int d) const {
    return {spot.values + channel_offset(s_.channels, d), s_.sample_stride};
  }
  template <class V>
  __device__ void put(const Spot<T>& spot, int d, V value) const {
    store_as(s_.out_dtype, s_.out, spot.out + channel_offset(s_.out_channels, d), value);
  }
  // A value that is not computed: the copy, or what stands in for none.
  __device__ void put_other(const Spot<T>& spot, int d, T copied) const {
    if (spot.kind == Kind::copy) {
      store_copy(s_, spot.out + channel_offset(s_.out_channels, d), copied);
    } else if constexpr (is_float_type<T>) {
      put(spot, d, spot.kind == Kind::nan ? quiet_nan<C>() : C(0));
    } else {
      put(spot, d, T(0));
    }
  }
  __device__ void copy(const Spot<T>& spot, int d, std::int64_t sample) const {
    store_copy(s_, spot.out + channel_offset(s_.out_channels, d), column(spot, d)[static_cast<int>(sample)]);
  }

  template <bool All>
  __device__ bool counts_in(const Spot<T>& spot, std::int64_t sample) const {
    return All || counts(s_, Samples<T>(s_, spot.values), range_, StampsAt{&s_.times, spot.times},
                         StampsAt{&s_.arrivals, spot.arrivals}, sample, spot.tau);
  }

  // As mean_of().
  template <bool All>
  __device__ double mean(const Spot<T>& spot, int d) const {
    const Column x = column(spot, d);
    double sum = -0.0;
    int counted = 0;
    for (int chunk = spot.a; chunk < spot.b; chunk += mean_chunk) {
      const int end = min(chunk + mean_chunk, spot.b);
      double partial = -0.0;
#pragma unroll 8
      for (int k = chunk; k < end; ++k) {
        if (!counts_in<All>(spot, k)) continue;
        partial += static_cast<double>(widen(x[k]));
        ++counted;
      }
      sum += partial;
    }
    return sum / static_cast<double>(counted);
  }

  // As picked().
  template <bool All>
  __device__ std::int64_t picked_in(const Spot<T>& spot, int d) const {
    if (range_.method == Method::last) {
      int k = spot.b - 1;
      while (!counts_in<All>(spot, k)) --k;
      return k;
    }
    const Column x = column(spot, d);
    int best = -1;
    std::int64_t best_order = 0;
#pragma unroll 8
    for (int k = spot.a; k < spot.b; ++k) {
      if (!counts_in<All>(spot, k)) continue;
      const std::int64_t order = order_of(range_.method, x[k]);
      if (best < 0 || order > best_order) {
        best = k;
        best_order = order;
      }
    }
    return best;
  }

  __device__ void put_slerp(const Spot<T>& spot, int d) const {
    double from[4];
    double to[4];
    double q[4];
    for (int c = 0; c < 4; ++c) {
      const Column x = column(spot, d + c);
      from[c] = static_cast<double>(widen(x[spot.a]));
      to[c] = static_cast<double>(widen(x[spot.b]));
    }
    slerp(from, to, spot.w, q);
    for (int c = 0; c < 4; ++c) put(spot, d + c, q[c]);
  }
};

// Called, not inlined: it is large, and every launch size has it.
template <class T>
__device__ __noinline__ void general_tile(const StreamPlan& s, const Range* ranges, const TargetPlan& targets,
                                          const Tiling& tiling, const Tile& tile, SharedStamps stamps, Spot<T>* spots) {
  const Searched here = search_tile(s, targets, tiling, tile, stamps);
  const StampsAt at{&s.times, here.row.times_offset};
  const StampsAt arrival_at{&s.arrivals, here.row.arrivals_offset};
  Target target;
  if (here.mine) target = target_at(s, targets, at, arrival_at, here.row.count, here.b, here.t, here.tau, here.upper);
  bool valid = true;
  std::int64_t index = -1;
  for (std::int32_t r = 0; r < s.range_count; ++r) {
    const Range& range = ranges[s.first_range + r];
    if (here.mine) {
      const Verdict verdict = judge(s, Samples<T>(s, here.row), range, at, arrival_at, here.row.count, target);
      valid = valid && verdict.valid;
      if (r == 0) index = verdict.index;
      set_spot(spots[threadIdx.x], s, range, here.row, target, verdict, here.b, here.t);
    }
    __syncthreads();
    if (s.out != nullptr) RangeWriter<T>(s, range, tiling, tile, spots).write();
    __syncthreads();
  }
  if (here.mine && tile.channel_tile == 0) {
    write_marks(s, here.b, here.t, valid, age_of(target.found), index);
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
    Spot<T> spots[tuning::threads];
  } memory;
  const int k = stream_of(launch);
  const StreamPlan& s = launch.plans[k];
  const Tiling& tiling = launch.tilings[k];
  const Tile tile = tile_of(tiling, launch.targets, blockIdx.x - tiling.first_block);
  if (tiling.vector_bytes == 0) {
    general_tile<T>(s, launch.ranges, launch.targets, tiling, tile, SharedStamps(stamps), memory.spots);
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
