// The general kernel: for launches in which some stream needs the code of evaluate.h (slerp, cubic, bins, on_nan =
// skip, strides).
#include "ops/align/cuda/tile.h"

namespace robocache::align_op {
namespace {

// V channels of one sample, which lie together.
template <class T, int V>
struct alignas(sizeof(T) * V) Pack {
  T channels[V];
};

// Writes the channels of one range, V at a time. V > 1 needs channels and output that are dense, aligned and of one
// dtype. Scattered: channels or output need more than one stride.
template <class T, int V, bool Scattered = false>
class RangeWriter {
 public:
  using C = compute_t<T>;
  using Kind = typename Resolved<T>::Kind;
  __device__ RangeWriter(const StreamPlan& s, const Range& range, const Tiling& tiling, const Tile& tile,
                         const Resolved<T>* all_resolved)
      : s_(s),
        range_(range),
        all_resolved_(all_resolved),
        targets_(tile.targets),
        step_(range.method == Method::slerp ? 4 : V) {
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
  const Resolved<T>* all_resolved_;
  int targets_;
  int step_, first_, width_;  // width_ and first_ in steps

  __device__ int channel(int step) const { return range_.begin + (first_ + step) * step_; }

  __device__ void write_bins() const {
    const bool all = all_count(s_);
    for (BlockStride walk(width_, magic_of(width_)); targets_ > walk.target; walk.step(width_)) {
      const Resolved<T>& resolved = all_resolved_[walk.target];
      const int d = channel(walk.vector);
      if (resolved.kind != Kind::compute) {
        put_other(resolved, d, resolved.kind == Kind::copy ? get(resolved, d, resolved.a) : Pack<T, V>{});
      } else if (range_.method != Method::mean) {
        put_copy(resolved, d, all ? picked_in<true>(resolved, d) : picked_in<false>(resolved, d));
      } else if constexpr (is_float_type<T>) {
        double mean[V];
        if (all) {
          mean_in<true>(resolved, d, mean);
        } else {
          mean_in<false>(resolved, d, mean);
        }
        put(resolved, d, mean);
      }
    }
  }

  // The 4 channels of one rotation, a thread each.
  __device__ void write_slerp() const {
    if constexpr (is_float_type<T>) {
      for (BlockStride walk(width_, magic_of(width_)); targets_ > walk.target; walk.step(width_)) {
        const Resolved<T>& resolved = all_resolved_[walk.target];
        const int d = channel(walk.vector);
        Pack<T, V> a[4 / V] = {};
        Pack<T, V> b[4 / V] = {};
#pragma unroll
        for (int k = 0; k < 4 / V; ++k) {
          if (resolved.kind >= Kind::copy) a[k] = get(resolved, d + k * V, resolved.a);
          if (resolved.kind == Kind::compute) b[k] = get(resolved, d + k * V, resolved.b);
        }
        double from[4];
        double to[4];
        double q[4];
#pragma unroll
        for (int c = 0; c < 4; ++c) {
          q[c] = from[c] = static_cast<double>(widen(a[c / V].channels[c % V]));
          to[c] = static_cast<double>(widen(b[c / V].channels[c % V]));
        }
        bool computed = resolved.kind == Kind::compute;
        if (computed) {
          slerp(from, to, resolved.w, q);
        } else if (resolved.kind == Kind::copy) {
          computed = normalise(q);
        }
#pragma unroll
        for (int k = 0; k < 4 / V; ++k) {
          if (computed) {
            double values[V];
#pragma unroll
            for (int c = 0; c < V; ++c) values[c] = q[k * V + c];
            put(resolved, d + k * V, values);
          } else {
            put_other(resolved, d + k * V, a[k]);
          }
        }
      }
    }
  }

  // Values made from two samples, or from a cubic's four: several are loaded before the first is used.
  template <bool Cubic>
  __device__ void write_mixed() const {
    constexpr int n = V > 1 ? 1 : (Cubic ? 2 : 4);
    BlockStride walk(width_, magic_of(width_));
    while (targets_ > walk.target) {
      int target[n];
      int d[n];
      Pack<T, V> a[n];
      Pack<T, V> b[n];
      Pack<T, V> p[n];
      Pack<T, V> q[n];
#pragma unroll
      for (int k = 0; k < n; ++k, walk.step(width_)) {
        target[k] = min(walk.target, targets_ - 1);  // past the end: write the last one again, with the same value
        d[k] = channel(min(walk.vector, width_ - 1));
        const Resolved<T>& resolved = all_resolved_[target[k]];
        if (resolved.kind >= Kind::copy) a[k] = get(resolved, d[k], resolved.a);
        if (resolved.kind != Kind::compute) continue;
        b[k] = get(resolved, d[k], resolved.b);
        if (Cubic) {
          p[k] = get(resolved, d[k], resolved.p);
          q[k] = get(resolved, d[k], resolved.q);
        }
      }
#pragma unroll
      for (int k = 0; k < n; ++k) {
        const Resolved<T>& resolved = all_resolved_[target[k]];
        if (resolved.kind != Kind::compute) {
          put_other(resolved, d[k], a[k]);
        } else if constexpr (is_float_type<T>) {
          C values[V];
#pragma unroll
          for (int c = 0; c < V; ++c) {
            const C from = widen(a[k].channels[c]);
            const C to = widen(b[k].channels[c]);
            if (Cubic) {
              values[c] = cubic(widen(p[k].channels[c]), from, to, widen(q[k].channels[c]), resolved.before,
                                resolved.across, resolved.after);
            } else if (range_.method == Method::linear) {
              values[c] = linear(from, to, static_cast<C>(resolved.w));
            } else {
              values[c] = angle(from, to, static_cast<C>(resolved.w), full_turn<C>(range_.method));
            }
          }
          put(resolved, d[k], values);
        }
      }
    }
  }

  __device__ static std::int64_t offset(const Channels& channels, int d) {
    return Scattered ? channel_offset(channels, d) : d * channels.stride[0];
  }

  // Channels d .. d + V of a sample.
  __device__ Pack<T, V> get(const Resolved<T>& resolved, int d, int sample) const {
    const T* const from = resolved.values + sample * s_.sample_stride;
    if constexpr (V == 1) {
      return {{from[offset(s_.channels, d)]}};
    } else {
      return bit_copy<Pack<T, V>>(load<sizeof(T) * V>(reinterpret_cast<const char*>(from + d)));
    }
  }
  template <class Value>
  __device__ void put(const Resolved<T>& resolved, int d, const Value (&values)[V]) const {
    if constexpr (V == 1) {
      store_as(s_.out_dtype, s_.out, resolved.out + offset(s_.out_channels, d), values[0]);
    } else {
      Pack<T, V> pack;
#pragma unroll
      for (int c = 0; c < V; ++c) pack.channels[c] = narrow<T>(values[c]);
      put_copy(resolved, d, pack);
    }
  }
  __device__ void put_copy(const Resolved<T>& resolved, int d, const Pack<T, V>& pack) const {
    if constexpr (V == 1) {
      store_copy(s_, resolved.out + offset(s_.out_channels, d), pack.channels[0]);
    } else {
      save(reinterpret_cast<char*>(static_cast<T*>(s_.out) + resolved.out + d), bit_copy<Vector<sizeof(T) * V>>(pack));
    }
  }
  // A value that is not computed: a copy, 0 or NaN.
  __device__ void put_other(const Resolved<T>& resolved, int d, const Pack<T, V>& copied) const {
    if (resolved.kind == Kind::copy) {
      put_copy(resolved, d, copied);
    } else {
      using Filler = std::conditional_t<is_float_type<T>, C, T>;
      Filler filler[V] = {};
      if constexpr (is_float_type<T>) {
        if (resolved.kind == Kind::nan) {
#pragma unroll
          for (int c = 0; c < V; ++c) filler[c] = quiet_nan<C>();
        }
      }
      put(resolved, d, filler);
    }
  }

  template <bool All>
  __device__ bool counts_in(const Resolved<T>& resolved, int sample) const {
    return All || counts(s_, Samples<T>(s_, resolved.values), range_, StampsAt{&s_.times, resolved.times},
                         StampsAt{&s_.arrivals, resolved.arrivals}, sample, resolved.deadline);
  }

  // As mean_of(), for V channels.
  template <bool All>
  __device__ void mean_in(const Resolved<T>& resolved, int d, double (&sums)[V]) const {
    double partial[V];
    const auto add_partial = [&] {
#pragma unroll
      for (int c = 0; c < V; ++c) {
        sums[c] += partial[c];
        partial[c] = -0.0;
      }
    };
    for (double& sum : sums) sum = -0.0;
    for (double& sum : partial) sum = -0.0;
    int counted = 0;
    // Where all samples count, the chunks are the outer loop, so that the inner one has no branch.
    const int step = All ? mean_chunk : resolved.b - resolved.a;
    for (int chunk = resolved.a; chunk < resolved.b; chunk += step) {
      const int end = min(chunk + step, resolved.b);
#pragma unroll(All ? tuning::bin_unroll : 1)
      for (int k = chunk; k < end; ++k) {
        if (!counts_in<All>(resolved, k)) continue;
        const Pack<T, V> sample = get(resolved, d, k);
#pragma unroll
        for (int c = 0; c < V; ++c) partial[c] += static_cast<double>(widen(sample.channels[c]));
        ++counted;
        if (!All && counted % mean_chunk == 0) add_partial();
      }
      add_partial();
    }
#pragma unroll
    for (int c = 0; c < V; ++c) sums[c] /= static_cast<double>(counted);
  }

  // As picked(), for V channels: the values in place of the sample's number.
  template <bool All>
  __device__ Pack<T, V> picked_in(const Resolved<T>& resolved, int d) const {
    Pack<T, V> best{};
    bool found = false;
    std::int64_t best_order[V] = {};
#pragma unroll(All ? tuning::bin_unroll : 1)
    for (int k = resolved.a; k < resolved.b; ++k) {
      if (!counts_in<All>(resolved, k)) continue;
      const Pack<T, V> sample = get(resolved, d, k);
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

// __noinline__ slow path: few streams need it.
template <class T>
__device__ __noinline__ void write_scattered(const StreamPlan& s, const Range& range, const Tiling& tiling,
                                             const Tile& tile, const Resolved<T>* all_resolved) {
  RangeWriter<T, 1, true>(s, range, tiling, tile, all_resolved).write();
}

// Whether resolve_fast() can do a range: it has no bins, and no sample is skipped for a NaN.
template <class T>
__device__ bool interpolates(const StreamPlan& s, Method method) {
  return !is_bin(method) && (s.on_nan == OnNan::propagate || !is_float_type<T>);
}

// The state of a target while its ranges are written. In shared memory, because it would be spilled from registers.
struct FoundTarget {
  FastPlace place;
  std::int64_t tau, deadline, index;
  std::uint32_t b, t;
  std::int32_t upper;
  bool valid;
};

// Fast path of judge() and resolve(), for a target with a FastPlace. Returns the index of the sample.
template <class T>
__device__ std::int64_t resolve_fast(Resolved<T>& resolved, const StreamPlan& s, Method method, std::int32_t upper,
                                     const FastPlace& place) {
  using C = compute_t<T>;
  using Kind = typename Resolved<T>::Kind;
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
  resolved.kind = copied >= 0 ? Kind::copy : Kind::compute;
  resolved.a = copied >= 0 ? copied : i;
  resolved.b = i + 1;
  resolved.w = w;
  if (method == Method::cubic && copied < 0) {
    const bool with_before = place.before != 0 && place.before <= s.max_gap && !is_tiny(place.before, span);
    const bool with_after = place.after != 0 && place.after <= s.max_gap && !is_tiny(place.after, span);
    const Cubic steps = cubic_steps(w, with_before ? place.before : 0, span, with_after ? place.after : 0);
    resolved.p = with_before ? i - 1 : i;
    resolved.q = with_after ? i + 2 : i + 1;
    resolved.before = static_cast<C>(steps.before);
    resolved.across = static_cast<C>(steps.across);
    resolved.after = static_cast<C>(steps.after);
  }
  return method == Method::nearest ? copied : i;
}

// Slow path: every case. __noinline__, because few targets need it, and because inlined it would spill into local
// memory, whose loads wait for those of the values.
template <class T>
__device__ __noinline__ void resolve_slow(Resolved<T>* resolved, FoundTarget* found, const StreamPlan& s,
                                          const ArrivalLevels& arrivals, const Range& range, const TargetPlan& targets,
                                          bool first_range) {
  const std::int64_t b = found->b;
  const std::int64_t t = found->t;
  const Row row = row_of(s, b);
  const StampsAt at{&s.times, row.times_offset};
  const RowArrivals arrival_at(s, row, arrivals, b);
  const Target target =
      target_at(s, targets, at, arrival_at, row.count, b, t, found->tau, found->deadline, found->upper);
  const Verdict verdict = judge(s, Samples<T>(s, row), range, at, arrival_at, row.count, target);
  resolve(*resolved, s, range, row, target, verdict, b, t);
  found->valid = found->valid && verdict.valid;
  found->place.since = age_of(target.found);
  if (first_range) found->index = verdict.index;
}

template <class T>
__device__ void find_targets(const StreamPlan& s, const Range* ranges, const TargetPlan& targets, const Tiling& tiling,
                             const Tile& tile, const SharedStamps& stamps, FoundTarget* founds,
                             Resolved<T>* all_resolved) {
  const SearchResult here = search_tile(s, targets, tiling, tile, stamps);
  if (!here.mine) return;
  bool neighbours = false;
  for (std::int32_t r = 0; r < s.range_count; ++r) {
    neighbours = neighbours || ranges[s.first_range + r].method == Method::cubic;
  }
  const FastPlace place = fast_place(s, here, neighbours);
  FoundTarget& found = founds[threadIdx.x];
  found.place.fast = place.fast;
  found.place.since = place.since;
  found.place.span = place.span;
  found.place.before = place.before;
  found.place.after = place.after;
  found.tau = here.tau;
  found.deadline = here.deadline;
  found.index = -1;
  found.b = here.b;
  found.t = here.t;
  found.upper = here.upper;
  found.valid = true;
  Resolved<T>& resolved = all_resolved[threadIdx.x];
  resolved.values = static_cast<const T*>(s.values) + here.row.values_offset;
  resolved.out = here.b * s.out_row_stride + here.t * s.out_target_stride;
}

template <class T>
__device__ void general_tile(const StreamPlan& s, const ArrivalLevels& arrivals, const Range* ranges,
                             const TargetPlan& targets, const Tiling& tiling, const Tile& tile, FoundTarget* founds,
                             Resolved<T>* all_resolved) {
  for (std::int32_t r = 0; r < s.range_count; ++r) {
    const Range range = ranges[s.first_range + r];
    if (thread_of_block() < tile.targets) {
      FoundTarget& found = founds[threadIdx.x];
      Resolved<T>& resolved = all_resolved[threadIdx.x];
      if (found.place.fast && interpolates<T>(s, range.method)) {
        const std::int64_t index = resolve_fast(resolved, s, range.method, found.upper, found.place);
        if (r == 0) found.index = index;
      } else {
        resolve_slow<T>(&resolved, &found, s, arrivals, ranges[s.first_range + r], targets, r == 0);
      }
      if (r + 1 == s.range_count && tile.channel_tile == 0) {
        write_marks(s, found.b, found.t, found.valid, found.place.since, found.index);
      }
    }
    __syncthreads();
    if (s.out != nullptr) {
      constexpr int wide = is_float_type<T> ? wide_channels(sizeof(T)) : 1;
      if (wide > 1 && tiling.wide && (range.begin | range.end) % wide == 0) {
        if constexpr (wide > 1) RangeWriter<T, wide>(s, range, tiling, tile, all_resolved).write();
      } else if (s.channels.rank > 1 || s.out_channels.rank > 1) {
        write_scattered<T>(s, ranges[s.first_range + r], tiling, tile, all_resolved);
      } else {
        RangeWriter<T, 1>(s, range, tiling, tile, all_resolved).write();
      }
    }
    __syncthreads();
  }
}

// A copy of a kernel argument in shared memory: an argument with a computed address is slow to read.
template <class X>
union SharedArgument {
  X copy;
  __device__ SharedArgument() {}
  __device__ void load(const X& argument) {
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
      Resolved<T> all_resolved[tuning::threads];
      FoundTarget founds[tuning::threads];
    } general;
  } memory;
  const int k = stream_of(launch);
  plan.load(launch.plans[k]);
  tile_plan.load(launch.tilings[k]);
  __syncthreads();
  const StreamPlan& s = plan.copy;
  const Tiling& tiling = tile_plan.copy;
  const Tile tile = tile_of(tiling, launch.targets, blockIdx.x - tiling.first_block);
  // The launch of the arrivals writes nothing that a search by stamp reads, so the search need not wait for it.
  if (!launch.follows_arrivals) {
    wait_on_dependent_grids();
    if (launch.checks_follow) launch_dependent_grids();
  }
  if (tiling.vector_bytes == 0) {
    find_targets<T>(s, launch.ranges, launch.targets, tiling, tile, SharedStamps(stamps), memory.general.founds,
                    memory.general.all_resolved);
    if (launch.follows_arrivals) wait_on_dependent_grids();
    launch_dependent_grids();  // not before, as in the plain kernel
    general_tile<T>(s, launch.arrivals[k], launch.ranges, launch.targets, tiling, tile, memory.general.founds,
                    memory.general.all_resolved);
  } else {
    const SearchResult here = search_tile(s, launch.targets, tiling, tile, SharedStamps(stamps));
    if (launch.follows_arrivals) wait_on_dependent_grids();
    launch_dependent_grids();
    fast_tile<T>(s, launch.arrivals[k], launch.ranges[s.first_range].method, tiling, tile, here, memory.taps);
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
