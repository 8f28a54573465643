// The kernel for launches in which some stream goes through range.h.
#include "ops/align/cuda_tile.h"

namespace robocache::align_op {
namespace {

// V channels of one sample, which lie together.
template <class T, int V>
struct alignas(sizeof(T) * V) Pack {
  T channels[V];
};

// Writes the channels of one range, V at a time; where V is over 1, they and their output are dense, aligned and of one
// dtype.
template <class T, int V>
class RangeWriter {
 public:
  using C = compute_t<T>;
  using Kind = typename Spot<T>::Kind;
  __device__ RangeWriter(const StreamPlan& s, const Range& range, const Tiling& tiling, const Tile& tile,
                         const Spot<T>* spots)
      : s_(s), range_(range), spots_(spots), targets_(tile.targets), step_(range.method == Method::slerp ? 4 : V) {
    const int all = (range.end - range.begin) / step_;
    const int share = (all + tiling.channel_tiles - 1) / tiling.channel_tiles;  // of this tile
    first_ = share * tile.channel_tile;
    width_ = min(share, all - first_);
  }

  __device__ void write() const {
    if (width_ <= 0) return;
    if (is_bin(range_.method)) {
      write_bins();
    } else if (range_.method == Method::slerp) {
      write_slerp();
    } else {
      write_mixed();
    }
  }

 private:
  const StreamPlan& s_;
  const Range& range_;
  const Spot<T>* spots_;
  int targets_;
  int step_, first_, width_;  // width_ and first_ in steps

  __device__ int channel(int step) const { return range_.begin + (first_ + step) * step_; }

  __device__ void write_bins() const {
    const bool all = all_count(s_);
    for (Walk walk(width_, magic_of(width_)); targets_ > walk.target; walk.step(width_)) {
      const Spot<T>& spot = spots_[walk.target];
      const int d = channel(walk.vector);
      if (spot.kind != Kind::compute) {
        put_other(spot, d, spot.kind == Kind::copy ? get(spot, d, spot.a) : Pack<T, V>{});
      } else if (range_.method != Method::mean) {
        put_copy(spot, d, all ? picked_in<true>(spot, d) : picked_in<false>(spot, d));
      } else if constexpr (is_float_type<T>) {
        double mean[V];
        if (all) {
          mean_in<true>(spot, d, mean);
        } else {
          mean_in<false>(spot, d, mean);
        }
        put(spot, d, mean);
      }
    }
  }

  __device__ void write_slerp() const {
    if constexpr (is_float_type<T> && V == 1) {
      for (Walk walk(width_, magic_of(width_)); targets_ > walk.target; walk.step(width_)) {
        const Spot<T>& spot = spots_[walk.target];
        const int d = channel(walk.vector);
        double from[4] = {};
        double to[4] = {};
        double q[4];
        for (int c = 0; c < 4; ++c) {
          if (spot.kind >= Kind::copy) from[c] = static_cast<double>(widen(get(spot, d + c, spot.a).channels[0]));
          if (spot.kind == Kind::compute) to[c] = static_cast<double>(widen(get(spot, d + c, spot.b).channels[0]));
          q[c] = from[c];
        }
        bool computed = spot.kind == Kind::compute;
        if (computed) {
          slerp(from, to, spot.w, q);
        } else if (spot.kind == Kind::copy) {
          computed = normalise(q);
        }
        for (int c = 0; c < 4; ++c) {
          if (computed) {
            put(spot, d + c, {q[c]});
          } else {
            put_other(spot, d + c, spot.kind == Kind::copy ? get(spot, d + c, spot.a) : Pack<T, V>{});
          }
        }
      }
    }
  }

  // Values made from two samples, or from a cubic's four: some are under way before the first is used.
  __device__ void write_mixed() const {
    constexpr int n = V == 1 ? 4 : 2;
    const bool is_cubic = range_.method == Method::cubic;
    Walk walk(width_, magic_of(width_));
    while (targets_ > walk.target) {
      int target[n];
      int d[n];
      Pack<T, V> a[n];
      Pack<T, V> b[n];
      Pack<T, V> p[n];
      Pack<T, V> q[n];
#pragma unroll
      for (int k = 0; k < n; ++k, walk.step(width_)) {
        target[k] = min(walk.target, targets_ - 1);  // behind the last: written again, the same
        d[k] = channel(min(walk.vector, width_ - 1));
        const Spot<T>& spot = spots_[target[k]];
        if (spot.kind >= Kind::copy) a[k] = get(spot, d[k], spot.a);
        if (spot.kind != Kind::compute) continue;
        b[k] = get(spot, d[k], spot.b);
        if (is_cubic) {
          p[k] = get(spot, d[k], spot.p);
          q[k] = get(spot, d[k], spot.q);
        }
      }
#pragma unroll
      for (int k = 0; k < n; ++k) {
        const Spot<T>& spot = spots_[target[k]];
        if (spot.kind != Kind::compute) {
          put_other(spot, d[k], a[k]);
        } else if constexpr (is_float_type<T>) {
          C values[V];
#pragma unroll
          for (int c = 0; c < V; ++c) {
            const C from = widen(a[k].channels[c]);
            const C to = widen(b[k].channels[c]);
            if (is_cubic) {
              values[c] = cubic(widen(p[k].channels[c]), from, to, widen(q[k].channels[c]), spot.before, spot.across,
                                spot.after);
            } else if (range_.method == Method::linear) {
              values[c] = linear(from, to, static_cast<C>(spot.w));
            } else {
              values[c] = angle(from, to, static_cast<C>(spot.w), full_turn<C>(range_.method));
            }
          }
          put(spot, d[k], values);
        }
      }
    }
  }

  // Channels d .. d + V of a sample.
  __device__ Pack<T, V> get(const Spot<T>& spot, int d, int sample) const {
    const T* const from = spot.values + sample * s_.sample_stride;
    if constexpr (V == 1) {
      return {{from[channel_offset(s_.channels, d)]}};
    } else {
      return bit_copy<Pack<T, V>>(load<sizeof(T) * V>(reinterpret_cast<const char*>(from + d)));
    }
  }
  template <class Value>
  __device__ void put(const Spot<T>& spot, int d, const Value (&values)[V]) const {
    if constexpr (V == 1) {
      store_as(s_.out_dtype, s_.out, spot.out + channel_offset(s_.out_channels, d), values[0]);
    } else {
      Pack<T, V> pack;
#pragma unroll
      for (int c = 0; c < V; ++c) pack.channels[c] = narrow<T>(values[c]);
      put_copy(spot, d, pack);
    }
  }
  __device__ void put_copy(const Spot<T>& spot, int d, const Pack<T, V>& pack) const {
    if constexpr (V == 1) {
      store_copy(s_, spot.out + channel_offset(s_.out_channels, d), pack.channels[0]);
    } else {
      save(reinterpret_cast<char*>(static_cast<T*>(s_.out) + spot.out + d), bit_copy<Vector<sizeof(T) * V>>(pack));
    }
  }
  // What is not computed: the copy, or what stands in for none.
  __device__ void put_other(const Spot<T>& spot, int d, const Pack<T, V>& copied) const {
    if (spot.kind == Kind::copy) {
      put_copy(spot, d, copied);
    } else {
      using Filler = std::conditional_t<is_float_type<T>, C, T>;
      Filler filler[V] = {};
      if constexpr (is_float_type<T>) {
        if (spot.kind == Kind::nan) {
#pragma unroll
          for (int c = 0; c < V; ++c) filler[c] = quiet_nan<C>();
        }
      }
      put(spot, d, filler);
    }
  }

  template <bool All>
  __device__ bool counts_in(const Spot<T>& spot, int sample) const {
    return All || counts(s_, Samples<T>(s_, spot.values), range_, StampsAt{&s_.times, spot.times},
                         StampsAt{&s_.arrivals, spot.arrivals}, sample, spot.tau);
  }

  // As mean_of().
  template <bool All>
  __device__ void mean_in(const Spot<T>& spot, int d, double (&sums)[V]) const {
    int counted = 0;
    for (double& sum : sums) sum = -0.0;
    for (int chunk = spot.a; chunk < spot.b; chunk += mean_chunk) {
      const int end = min(chunk + mean_chunk, spot.b);
      double partial[V];
      for (double& sum : partial) sum = -0.0;
#pragma unroll(All ? tuning::bin_unroll : 1)
      for (int k = chunk; k < end; ++k) {
        if (!counts_in<All>(spot, k)) continue;
        const Pack<T, V> sample = get(spot, d, k);
#pragma unroll
        for (int c = 0; c < V; ++c) partial[c] += static_cast<double>(widen(sample.channels[c]));
        ++counted;
      }
#pragma unroll
      for (int c = 0; c < V; ++c) sums[c] += partial[c];
    }
#pragma unroll
    for (int c = 0; c < V; ++c) sums[c] /= static_cast<double>(counted);
  }

  // As picked(), but the values.
  template <bool All>
  __device__ Pack<T, V> picked_in(const Spot<T>& spot, int d) const {
    Pack<T, V> best{};
    bool found = false;
    std::int64_t best_order[V] = {};
#pragma unroll(All ? tuning::bin_unroll : 1)
    for (int k = spot.a; k < spot.b; ++k) {
      if (!counts_in<All>(spot, k)) continue;
      const Pack<T, V> sample = get(spot, d, k);
#pragma unroll
      for (int c = 0; c < V; ++c) {
        const std::int64_t order = order_of(range_.method == Method::max, sample.channels[c]);
        if (found && order <= best_order[c]) continue;
        best.channels[c] = sample.channels[c];
        best_order[c] = order;
      }
      found = true;
    }
    return best;
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
    if (s.out != nullptr) {
      constexpr int wide = is_float_type<T> ? wide_channels(sizeof(T)) : 1;
      if (tiling.wide && (range.begin | range.end) % wide == 0 && range.method != Method::slerp) {
        RangeWriter<T, wide>(s, range, tiling, tile, spots).write();
      } else {
        RangeWriter<T, 1>(s, range, tiling, tile, spots).write();
      }
    }
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
