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
// dtype. Scattered: they, or their output, are no single run of one stride.
template <class T, int V, bool Scattered = false>
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
    } else if (range_.method == Method::cubic) {
      write_mixed<true>();
    } else {
      write_mixed<false>();
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

  // The 4 channels of one rotation, a thread each.
  __device__ void write_slerp() const {
    if constexpr (is_float_type<T>) {
      for (Walk walk(width_, magic_of(width_)); targets_ > walk.target; walk.step(width_)) {
        const Spot<T>& spot = spots_[walk.target];
        const int d = channel(walk.vector);
        Pack<T, V> a[4 / V] = {};
        Pack<T, V> b[4 / V] = {};
#pragma unroll
        for (int k = 0; k < 4 / V; ++k) {
          if (spot.kind >= Kind::copy) a[k] = get(spot, d + k * V, spot.a);
          if (spot.kind == Kind::compute) b[k] = get(spot, d + k * V, spot.b);
        }
        double from[4];
        double to[4];
        double q[4];
#pragma unroll
        for (int c = 0; c < 4; ++c) {
          q[c] = from[c] = static_cast<double>(widen(a[c / V].channels[c % V]));
          to[c] = static_cast<double>(widen(b[c / V].channels[c % V]));
        }
        bool computed = spot.kind == Kind::compute;
        if (computed) {
          slerp(from, to, spot.w, q);
        } else if (spot.kind == Kind::copy) {
          computed = normalise(q);
        }
#pragma unroll
        for (int k = 0; k < 4 / V; ++k) {
          if (computed) {
            double values[V];
#pragma unroll
            for (int c = 0; c < V; ++c) values[c] = q[k * V + c];
            put(spot, d + k * V, values);
          } else {
            put_other(spot, d + k * V, a[k]);
          }
        }
      }
    }
  }

  // Values made from two samples, or from a cubic's four: some are under way before the first is used.
  template <bool Cubic>
  __device__ void write_mixed() const {
    constexpr int n = V > 1 ? 1 : (Cubic ? 2 : 4);
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
        if (Cubic) {
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
            if (Cubic) {
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

  __device__ static std::int64_t offset(const Channels& channels, int d) {
    return Scattered ? channel_offset(channels, d) : d * channels.stride[0];
  }

  // Channels d .. d + V of a sample.
  __device__ Pack<T, V> get(const Spot<T>& spot, int d, int sample) const {
    const T* const from = spot.values + sample * s_.sample_stride;
    if constexpr (V == 1) {
      return {{from[offset(s_.channels, d)]}};
    } else {
      return bit_copy<Pack<T, V>>(load<sizeof(T) * V>(reinterpret_cast<const char*>(from + d)));
    }
  }
  template <class Value>
  __device__ void put(const Spot<T>& spot, int d, const Value (&values)[V]) const {
    if constexpr (V == 1) {
      store_as(s_.out_dtype, s_.out, spot.out + offset(s_.out_channels, d), values[0]);
    } else {
      Pack<T, V> pack;
#pragma unroll
      for (int c = 0; c < V; ++c) pack.channels[c] = narrow<T>(values[c]);
      put_copy(spot, d, pack);
    }
  }
  __device__ void put_copy(const Spot<T>& spot, int d, const Pack<T, V>& pack) const {
    if constexpr (V == 1) {
      store_copy(s_, spot.out + offset(s_.out_channels, d), pack.channels[0]);
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

// Called, because few streams need it.
template <class T>
__device__ __noinline__ void write_scattered(const StreamPlan& s, const Range& range, const Tiling& tiling,
                                             const Tile& tile, const Spot<T>* spots) {
  RangeWriter<T, 1, true>(s, range, tiling, tile, spots).write();
}

// Whether a range takes from the samples beside a target what the usual cases of judge() do.
template <class T>
__device__ bool interpolates(const StreamPlan& s, Method method) {
  return !is_bin(method) && (s.on_nan == OnNan::propagate || !is_float_type<T>);
}

// What is known of a target while its ranges are written, in shared memory: what lay in registers would be spilled there.
struct FoundTarget {
  EasyPlace place;
  std::int64_t tau, index;
  std::uint32_t b, t;
  std::int32_t upper;
  bool valid;
};

// The usual cases of judge() and set_spot(), for a target in an easy place. Returns the index of the sample.
template <class T>
__device__ std::int64_t set_easily(Spot<T>& spot, const StreamPlan& s, Method method, std::int32_t upper,
                                   const EasyPlace& place) {
  using C = compute_t<T>;
  using Kind = typename Spot<T>::Kind;
  const std::int32_t i = upper - 1;
  const std::int64_t since = place.since;
  const std::int64_t span = place.span;
  const double w = since == 0 ? 0.0 : static_cast<double>(since) / static_cast<double>(span);
  std::int32_t copied = -1;
  if (since == 0 || method == Method::hold) {
    copied = i;
  } else if (method == Method::nearest) {
    copied = since <= minus(span, since) ? i : i + 1;
  } else if (method != Method::slerp) {
    if (static_cast<C>(w) == C(0)) copied = i;
    if (static_cast<C>(w) == C(1) && (method == Method::linear || method == Method::cubic)) copied = i + 1;
  }
  spot.kind = copied >= 0 ? Kind::copy : Kind::compute;
  spot.a = copied >= 0 ? copied : i;
  spot.b = i + 1;
  spot.w = w;
  if (method == Method::cubic && copied < 0) {
    const bool with_before = place.before != 0 && place.before <= s.max_gap && !is_tiny(place.before, span);
    const bool with_after = place.after != 0 && place.after <= s.max_gap && !is_tiny(place.after, span);
    const Cubic steps = cubic_steps(w, with_before ? place.before : 0, span, with_after ? place.after : 0);
    spot.p = with_before ? i - 1 : i;
    spot.q = with_after ? i + 2 : i + 1;
    spot.before = static_cast<C>(steps.before);
    spot.across = static_cast<C>(steps.across);
    spot.after = static_cast<C>(steps.after);
  }
  return method == Method::nearest ? copied : i;
}

// Every case. Its own function, because few targets need it, and because what a call keeps lies in local memory, whose
// loads wait for those of the values.
template <class T>
__device__ __noinline__ void set_carefully(Spot<T>* spot, FoundTarget* found, const StreamPlan& s, const Range& range,
                                           const TargetPlan& targets, bool first_range) {
  const std::int64_t b = found->b;
  const std::int64_t t = found->t;
  const Row row = row_of(s, b);
  const StampsAt at{&s.times, row.times_offset};
  const StampsAt arrival_at{&s.arrivals, row.arrivals_offset};
  const Target target = target_at(s, targets, at, arrival_at, row.count, b, t, found->tau, found->upper);
  const Verdict verdict = judge(s, Samples<T>(s, row), range, at, arrival_at, row.count, target);
  set_spot(*spot, s, range, row, target, verdict, b, t);
  found->valid = found->valid && verdict.valid;
  found->place.since = age_of(target.found);
  if (first_range) found->index = verdict.index;
}

template <class T>
__device__ void find_targets(const StreamPlan& s, const Range* ranges, const TargetPlan& targets, const Tiling& tiling,
                             const Tile& tile, const SharedStamps& stamps, FoundTarget* founds, Spot<T>* spots) {
  const Searched here = search_tile(s, targets, tiling, tile, stamps);
  if (!here.mine) return;
  bool neighbours = false;
  for (std::int32_t r = 0; r < s.range_count; ++r) {
    neighbours = neighbours || ranges[s.first_range + r].method == Method::cubic;
  }
  const EasyPlace place = easy_place(s, here, neighbours);
  FoundTarget& found = founds[threadIdx.x];
  found.place.easy = place.easy;
  found.place.since = place.since;
  found.place.span = place.span;
  found.place.before = place.before;
  found.place.after = place.after;
  found.tau = here.tau;
  found.index = -1;
  found.b = here.b;
  found.t = here.t;
  found.upper = here.upper;
  found.valid = true;
  Spot<T>& spot = spots[threadIdx.x];
  spot.values = static_cast<const T*>(s.values) + here.row.values_offset;
  spot.out = here.b * s.out_row_stride + here.t * s.out_target_stride;
}

template <class T>
__device__ void general_tile(const StreamPlan& s, const Range* ranges, const TargetPlan& targets, const Tiling& tiling,
                             const Tile& tile, FoundTarget* founds, Spot<T>* spots) {
  for (std::int32_t r = 0; r < s.range_count; ++r) {
    const Range range = ranges[s.first_range + r];
    if (thread_of_block() < tile.targets) {
      FoundTarget& found = founds[threadIdx.x];
      Spot<T>& spot = spots[threadIdx.x];
      if (found.place.easy && interpolates<T>(s, range.method)) {
        const std::int64_t index = set_easily(spot, s, range.method, found.upper, found.place);
        if (r == 0) found.index = index;
      } else {
        set_carefully<T>(&spot, &found, s, ranges[s.first_range + r], targets, r == 0);
      }
      if (r + 1 == s.range_count && tile.channel_tile == 0) {
        write_marks(s, found.b, found.t, found.valid, found.place.since, found.index);
      }
    }
    __syncthreads();
    if (s.out != nullptr) {
      constexpr int wide = is_float_type<T> ? wide_channels(sizeof(T)) : 1;
      if (wide > 1 && tiling.wide && (range.begin | range.end) % wide == 0) {
        if constexpr (wide > 1) RangeWriter<T, wide>(s, range, tiling, tile, spots).write();
      } else if (s.channels.rank > 1 || s.out_channels.rank > 1) {
        write_scattered<T>(s, ranges[s.first_range + r], tiling, tile, spots);
      } else {
        RangeWriter<T, 1>(s, range, tiling, tile, spots).write();
      }
    }
    __syncthreads();
  }
}

// A copy of an argument in shared memory: an argument whose address is computed is slow to read.
template <class X>
union SharedArgument {
  X copy;
  __device__ SharedArgument() {}
  __device__ void bring(const X& argument) {
    static_assert(sizeof(X) % sizeof(std::uint32_t) == 0);
    constexpr int words = sizeof(X) / sizeof(std::uint32_t);
    for (int word = thread_of_block(); word < words; word += tuning::threads) {
      reinterpret_cast<std::uint32_t*>(&copy)[word] = reinterpret_cast<const std::uint32_t*>(&argument)[word];
    }
  }
};

template <class T>
__global__ void __launch_bounds__(tuning::threads, tuning::general_blocks_per_processor)
    align_general_kernel(const __grid_constant__ GeneralLaunch launch) {
  __shared__ std::int64_t stamps[tuning::window_stamps];
  __shared__ SharedArgument<StreamPlan> plan;
  __shared__ SharedArgument<Tiling> tile_plan;
  __shared__ union Memory {
    __device__ Memory() {}
    Tap<T> taps[tuning::threads];
    struct {
      Spot<T> spots[tuning::threads];
      FoundTarget founds[tuning::threads];
    } general;
  } memory;
  const int k = stream_of(launch);
  plan.bring(launch.plans[k]);
  tile_plan.bring(launch.tilings[k]);
  __syncthreads();
  const StreamPlan& s = plan.copy;
  const Tiling& tiling = tile_plan.copy;
  const Tile tile = tile_of(tiling, launch.targets, blockIdx.x - tiling.first_block);
  after_earlier_work();
  if (launch.checks_follow) let_next_begin();
  if (tiling.vector_bytes == 0) {
    find_targets<T>(s, launch.ranges, launch.targets, tiling, tile, SharedStamps(stamps), memory.general.founds,
                    memory.general.spots);
    let_next_begin();  // not before, as in the plain kernel
    general_tile<T>(s, launch.ranges, launch.targets, tiling, tile, memory.general.founds, memory.general.spots);
  } else {
    const Searched here = search_tile(s, launch.targets, tiling, tile, SharedStamps(stamps));
    let_next_begin();
    fast_tile<T>(s, launch.ranges[s.first_range].method, tiling, tile, here, memory.taps);
  }
}

}  // namespace

const void* general_kernel(DType dtype) {
  const void* kernel = nullptr;
  with_type(dtype, [&](auto type) {
    kernel = reinterpret_cast<const void*>(&align_general_kernel<typename decltype(type)::type>);
  });
  return kernel;
}

}  // namespace robocache::align_op
