// SIMD and threads: the same bits as reference. Targets are located in blocks, then each method range writes its part of
// the block. Runs of channels that lie side by side go through the vector code of cpu/rows.h; everything else is what
// reference does, element by element.
//
// Compiled once for each SIMD target. Nothing here may be shared with code for a narrower CPU: all of it is in an
// unnamed namespace or in one named after the target.
#include "core/parallel.h"
#include "ops/align/arrival_index.h"
#include "ops/align/cpu/cpu.h"
#include "ops/align/cpu/rows.h"

namespace robocache::align_op {
inline namespace ROBOCACHE_SIMD_TARGET {
namespace {

constexpr std::int64_t piece_bytes = 64 << 10;  // values read and written by one task: about 10 us, a thread's wake-up
constexpr std::int64_t block = 64;              // targets that are located before they are written
constexpr std::int64_t prefetch_bytes = 256;    // of each sample
constexpr std::int64_t channel_block = 256;     // channels of a bin that are reduced in one pass over its samples
constexpr std::int64_t rows_ahead = 4;          // of a call with segments, whose samples are prefetched
constexpr std::int64_t ahead_bytes = 2048;      // of the samples of such a row

// ---- where targets fall --------------------------------------------------------------------------------------------

// Stamps as they nearly always are.
struct DenseStamps {
  const std::int64_t* data;
  std::int64_t operator()(std::int64_t k) const { return data[k]; }
};

// How many of at(low) .. at(low + 7) are <= key: all eight, because a branch on each stamp would be mispredicted.
template <class At>
HWY_INLINE std::int64_t count_of_eight(const At& at, std::int64_t low, std::int64_t key) {
  std::int64_t count = 8;
  if constexpr (std::is_same_v<At, DenseStamps>) {
    const hn::CappedTag<std::int64_t, 8> d;
    const auto keys = hn::Set(d, key);
    for (std::size_t k = 0; k < 8; k += hn::Lanes(d)) {
      count -= static_cast<std::int64_t>(hn::CountTrue(d, hn::Gt(hn::LoadU(d, at.data + low + k), keys)));
    }
  } else {
    for (std::int64_t k = 0; k < 8; ++k) count -= at(low + k) > key ? 1 : 0;
  }
  return count;
}

// upper_bound(at, 0, count, key), from a guess: targets mostly come in order, so the answer is mostly a little ahead.
template <class At>
std::int64_t upper_bound_near(const At& at, std::int64_t count, std::int64_t key, std::int64_t guess) {
  std::int64_t step = 8;
  if (guess == 0 || at(guess - 1) <= key) {
    std::int64_t low = guess;
    for (const std::int64_t near = low + 4 * step; low + step <= count && low < near; low += step) {
      const std::int64_t ahead = count_of_eight(at, low, key);
      if (ahead < 8) return low + ahead;
    }
    for (; low + step <= count; low += step, step *= 2) {
      if (at(low + step - 1) > key) return upper_bound(at, low, low + step - 1, key);
    }
    return upper_bound(at, low, count, key);
  }
  std::int64_t high = guess - 1;  // sample high is beyond
  for (; high > step; high -= step, step *= 2) {
    if (at(high - step) <= key) return upper_bound(at, high - step + 1, high, key);
  }
  return upper_bound(at, 0, high, key);
}

// upper_bound_near()'s first guess in a row. Stamps are mostly regular, so the answer is mostly within the eight samples that
// upper_bound_near() looks at first.
std::int64_t first_guess(const Segment& segment, std::int64_t key) {
  const double about = static_cast<double>(minus(key, segment.first_time)) * segment.samples_per_ns - 3;
  if (!(about > 0)) return 0;
  return about < static_cast<double>(segment.count) ? static_cast<std::int64_t>(about) : segment.count;
}

// Targets [begin, end) of output rows [row_begin, row_end) of a stream.
struct Task {
  std::int64_t row_begin, row_end, begin, end;
};

// The targets of a task, a block at a time. A timeline's steps are the same in every row, and each costs a division.
class TaskTargets {
 public:
  TaskTargets(const TargetPlan& plan, const Task& task) : plan_(plan), ends_{task.begin, task.end - 1} {
    if (!plan.timeline) return;
    for (int k = 0; k < 2; ++k) end_steps_[k] = timeline_step(plan, ends_[k]);
  }

  // Of row b, the first and the last.
  std::int64_t first(std::int64_t b) const { return end(b, 0); }
  std::int64_t last(std::int64_t b) const { return end(b, 1); }

  // Targets first, first + 1, ... of row b: `count` of them, the same in each row.
  const std::int64_t* of_block(std::int64_t b, std::int64_t first, std::int64_t count) {
    if (!plan_.timeline) {
      for (std::int64_t k = 0; k < count; ++k) taus_[k] = target(plan_, b, first + k);
      return taus_;
    }
    if (first != first_) {
      for (std::int64_t k = 0; k < count; ++k) steps_[k] = timeline_step(plan_, first + k);
      first_ = first;
    }
    const std::int64_t start = timeline_start(plan_, b);
    for (std::int64_t k = 0; k < count; ++k) taus_[k] = plus(start, steps_[k]);
    return taus_;
  }

 private:
  std::int64_t end(std::int64_t b, int which) const {
    return plan_.timeline ? plus(timeline_start(plan_, b), end_steps_[which]) : target(plan_, b, ends_[which]);
  }

  const TargetPlan& plan_;
  std::int64_t ends_[2], end_steps_[2];
  std::int64_t first_ = -1;  // of the block whose steps are known
  std::int64_t steps_[block], taus_[block];
};

// Targets that were located, and what is found out about them.
struct Block {
  std::int64_t row, first, count;  // output row, first target
  Target targets[block];
  bool valid[block];
  std::int64_t index[block];
};

// Asks for the cache lines of bytes [begin, end). Always inlined, and so are its callers: GCC 12 drops calls of functions that
// only prefetch, because it takes them for functions without an effect.
HWY_INLINE void prefetch_bytes_of(const void* data, std::int64_t begin, std::int64_t end) {
  const char* const bytes = static_cast<const char*>(data);
  for (std::int64_t at = begin; at < end; at += 64) __builtin_prefetch(bytes + at);
}

// Asks for the samples of a target before they are read: with the whole block located first, the misses overlap. Of
// long samples only the beginning; the hardware finds the rest.
struct Prefetch {
  const char* data;  // of sample 0
  std::int64_t sample_stride, bytes;
  HWY_INLINE void operator()(const Location& found) const {
    fetch(found.i);
    fetch(found.j);
  }

 private:
  HWY_INLINE void fetch(std::int64_t sample) const {
    if (sample >= 0) prefetch_bytes_of(data, sample * sample_stride, sample * sample_stride + bytes);
  }
};

// Locates the targets of a block, `taus`. `position` is the guess, for this call and the next. NoArrivals: every sample has
// arrived.
template <class At, class ArrivalAt>
void locate_block(const StreamPlan& s, const TargetPlan& targets, const std::int64_t* taus, const At& at,
                  const ArrivalAt& arrival_at, std::int64_t count, std::int64_t& position, const Prefetch& prefetch,
                  Block& here) {
  constexpr bool all_arrived = std::is_same_v<ArrivalAt, NoArrivals>;
  std::int64_t upper = position;
  for (std::int64_t k = 0; k < here.count; ++k) {
    const std::int64_t before = upper;
    const std::int64_t tau = taus[k];
    const std::int64_t deadline = all_arrived ? tau : deadline_of(s, here.row, tau);
    upper = upper_bound_near(at, count, all_arrived ? shifted_target(s, tau) : search_key(s, tau, deadline), before);
    Target& found = here.targets[k];
    found.tau = tau;
    found.deadline = deadline;
    found.found = locate(s, at, arrival_at, count, upper, tau, deadline);
    prefetch(found.found);
    if (s.bins) {
      const std::int64_t key = shifted_target(s, previous_target(targets, here.row, here.first + k));
      found.bin = {upper_bound_near(at, upper, key, before < upper ? before : upper), upper};
    }
    here.valid[k] = true;
  }
  position = upper;
}

// ---- runs of channels ------------------------------------------------------------------------------------------------

bool side_by_side(const Channels& channels) { return channels.rank == 0 || channels.stride[channels.rank - 1] == 1; }
bool one_run(const Channels& channels) { return channels.rank == 0 || (channels.rank == 1 && channels.stride[0] == 1); }
std::int64_t run_end(const Channels& channels, std::int64_t d, std::int64_t end) {
  if (channels.rank <= 1) return end;
  const std::int64_t inner = channels.size[channels.rank - 1];
  const std::int64_t next = (d / inner + 1) * inner;
  return next < end ? next : end;
}

// Calls f(Type<O>{}), O the type of the output, where there is vector code from T to that; false where not.
template <class T, class F>
bool with_vector_code(DType out_dtype, const F& f) {
  bool done = false;
  const auto use = [&](auto type) {
    if constexpr (in_one_width<T, typename decltype(type)::type>) {
      f(type);
      done = true;
    }
  };
  if (out_dtype == DType::f16) use(Type<f16>{});
  if (out_dtype == DType::bf16) use(Type<bf16>{});
  if (out_dtype == DType::f32) use(Type<float>{});
  if (out_dtype == DType::f64) use(Type<double>{});
  return done;
}

// One range of one target.
template <class T>
struct Writer {
  const StreamPlan& s;
  const Range& range;
  const Samples<T>& samples;
  const StampsAt& at;
  const HostArrivals& arrival_at;
  const Target& here;
  const Verdict& verdict;
  std::int64_t out;  // of the target, in elements from s.out

  void write() const {
    if (!side_by_side(s.channels) || !side_by_side(s.out_channels) || !write_runs()) write_scalars();
  }

 private:
  const T* sample(std::int64_t k, std::int64_t d) const {
    return samples.data + k * s.sample_stride + channel_offset(s.channels, d);
  }
  template <class O>
  O* output(std::int64_t d) const {
    return static_cast<O*>(s.out) + out + channel_offset(s.out_channels, d);
  }

  // f(d, n) for runs of n channels from d that lie side by side in the stream and in the output.
  template <class F>
  void over_runs(const F& f) const {
    for (std::int64_t d = range.begin; d < range.end;) {
      const std::int64_t end = run_end(s.out_channels, d, run_end(s.channels, d, range.end));
      f(d, end - d);
      d = end;
    }
  }

  __attribute__((noinline)) void write_scalars() const {
    const std::int64_t step = range.method == Method::slerp ? 4 : 1;
    for (std::int64_t d = range.begin; d < range.end; d += step) {
      write_channel(s, samples, range, at, arrival_at, here, verdict, d, out);
    }
  }

  // False where there is no vector code for what is asked.
  bool write_runs() const {
    if (range.method == Method::slerp) return false;
    if (verdict.source >= 0) return copy(verdict.source);
    if (!verdict.valid) return false;
    if (range.method == Method::max || range.method == Method::min) return write_winners();
    if constexpr (is_float_type<T>) {
      if (range.method == Method::linear) return write_linear();
      if (range.method == Method::mean) return write_means();
      if (s.out_dtype != s.dtype) return false;
      using C = compute_t<T>;
      if (range.method == Method::cubic) {
        over_runs([&](std::int64_t d, std::int64_t n) {
          cubic_row(sample(verdict.cubic.p, d), sample(here.found.i, d), sample(here.found.j, d),
                    sample(verdict.cubic.q, d), verdict.cubic.steps, output<T>(d), n);
        });
        return true;
      }
      if (range.method == Method::angle || range.method == Method::angle_degrees) {
        over_runs([&](std::int64_t d, std::int64_t n) {
          angle_row(sample(here.found.i, d), sample(here.found.j, d), static_cast<C>(weight(here.found)),
                    full_turn<C>(range.method), output<T>(d), n);
        });
        return true;
      }
    }
    return false;
  }

  bool copy(std::int64_t k) const {
    if (s.out_dtype == s.dtype) {
      over_runs([&](std::int64_t d, std::int64_t n) {
        std::memcpy(output<T>(d), sample(k, d), static_cast<std::size_t>(n) * sizeof(T));
      });
      return true;
    }
    return with_vector_code<T>(s.out_dtype, [&](auto type) {
      using O = typename decltype(type)::type;
      if constexpr (!std::is_same_v<O, double>) {
        over_runs([&](std::int64_t d, std::int64_t n) { convert_row(sample(k, d), output<O>(d), n); });
      }
    });
  }

  bool write_linear() const {
    return with_vector_code<T>(s.out_dtype, [&](auto type) {
      using O = typename decltype(type)::type;
      const auto w = static_cast<compute_t<T>>(weight(here.found));
      over_runs([&](std::int64_t d, std::int64_t n) {
        linear_row(sample(here.found.i, d), sample(here.found.j, d), w, output<O>(d), n);
      });
    });
  }

  bool counts_here(std::int64_t k) const { return all_count(s) || counts_if_asked(k); }
  __attribute__((noinline)) bool counts_if_asked(std::int64_t k) const {
    return counts(s, samples, range, at, arrival_at, k, here.deadline);
  }

  // Calls f(first channel, count) for each block of channels. Means and winners go sample by sample over a block, so that
  // memory is read in its order.
  template <class F>
  void over_blocks(const F& f) const {
    over_runs([&](std::int64_t d, std::int64_t n) {
      for (std::int64_t k = 0; k < n; k += channel_block) f(d + k, n - k < channel_block ? n - k : channel_block);
    });
  }

  bool write_means() const {
    over_blocks([&](std::int64_t d, std::int64_t n) { write_means(d, n); });
    return true;
  }
  void write_means(std::int64_t d, std::int64_t n) const {
    double sums[channel_block];
    double partial[channel_block];
    for (std::int64_t c = 0; c < n; ++c) {
      sums[c] = -0.0;
      partial[c] = -0.0;
    }
    const auto add_partial = [&] {
      for (std::int64_t c = 0; c < n; ++c) {
        sums[c] += partial[c];
        partial[c] = -0.0;
      }
    };
    std::int64_t counted = 0;
    for (std::int64_t k = here.bin.begin; k < here.bin.end; ++k) {
      if (!counts_here(k)) continue;
      add_row(sample(k, d), partial, n);
      if (++counted % mean_chunk == 0) add_partial();
    }
    add_partial();
    const std::int64_t offset = out + channel_offset(s.out_channels, d);
    for (std::int64_t c = 0; c < n; ++c) {
      store_as(s.out_dtype, s.out, offset + c, sums[c] / static_cast<double>(counted));
    }
  }

  bool write_winners() const {
    over_blocks([&](std::int64_t d, std::int64_t n) { write_winners(d, n); });
    return true;
  }
  void write_winners(std::int64_t d, std::int64_t n) const {
    T winners[channel_block];
    std::int64_t k = here.bin.begin;
    while (!counts_here(k)) ++k;  // there is one: the range is valid
    std::memcpy(winners, sample(k, d), static_cast<std::size_t>(n) * sizeof(T));
    for (++k; k < here.bin.end; ++k) {
      if (!counts_here(k)) continue;
      if (range.method == Method::max) {
        compete_row<true>(sample(k, d), winners, n);
      } else {
        compete_row<false>(sample(k, d), winners, n);
      }
    }
    const std::int64_t offset = out + channel_offset(s.out_channels, d);
    for (std::int64_t c = 0; c < n; ++c) store_copy(s, offset + c, winners[c]);
  }
};

// ---- tasks -----------------------------------------------------------------------------------------------------------

// A row's stamps and samples lie where nothing has been read yet, so without this each row would wait for memory three
// times: for a stamp, for the samples, and for an arrival.
HWY_INLINE void prefetch_segment(const StreamPlan& s, const TaskTargets& targets, const Segment& segment,
                                 std::int64_t b) {
  const auto guess = [&](std::int64_t tau) {
    const std::int64_t sample = first_guess(segment, plus(tau, segment.latency));
    return sample < segment.count ? sample : segment.count - 1;
  };
  if (segment.count == 0) return;
  const std::int64_t first = guess(targets.first(b));
  const std::int64_t last = guess(targets.last(b));
  constexpr std::int64_t reach = 5;  // samples: the guess is early, and a target needs the sample after it too
  const std::int64_t stamp = std::int64_t{sizeof(std::int64_t)};
  const std::int64_t sample = s.sample_stride * size_of(s.dtype);
  const std::int64_t end = last + reach;
  prefetch_bytes_of(segment.times, first * stamp, clamp_to(end * stamp, 0, first * stamp + ahead_bytes));
  if (s.causal || s.as_of) {
    prefetch_bytes_of(segment.arrivals, first * stamp, clamp_to(end * stamp, 0, first * stamp + ahead_bytes));
  }
  prefetch_bytes_of(segment.values, first * sample, clamp_to(end * sample, 0, first * sample + ahead_bytes));
}

template <class T>
struct RowRun {
  const StreamPlan& s;
  const Samples<T>& samples;
  const StampsAt& at;
  const HostArrivals& arrival_at;
  std::int64_t count;  // samples of the row

  std::int64_t out(const Block& here, std::int64_t k) const {
    return here.row * s.out_row_stride + (here.first + k) * s.out_target_stride;
  }

  void write_target(const Range& range, bool first_range, std::int64_t k, Block& here) const {
    const Verdict verdict = judge(s, samples, range, at, arrival_at, count, here.targets[k]);
    here.valid[k] = here.valid[k] && verdict.valid;
    if (first_range) here.index[k] = verdict.index;
    if (s.out == nullptr) return;
    Writer<T>{s, range, samples, at, arrival_at, here.targets[k], verdict, out(here, k)}.write();
  }

  void write_range(const Range& range, bool first_range, Block& here) const {
    if constexpr (is_float_type<T>) {
      if (range.method == Method::linear && is_plain() && write_linear(range, first_range, here)) return;
    }
    if ((range.method == Method::hold || range.method == Method::nearest) && is_plain() && s.out_dtype == s.dtype) {
      write_copies(range, first_range, here);
      return;
    }
    for (std::int64_t k = 0; k < here.count; ++k) write_target(range, first_range, k, here);
  }

  // True for most calls: a target that is valid needs no further check and no table. A stream without channels may have null
  // as its samples, from which not even 0 bytes may be copied.
  bool is_plain() const {
    return s.on_nan == OnNan::propagate && s.out != nullptr && samples.data != nullptr && one_run(s.channels) &&
           one_run(s.out_channels);
  }

  // Sample `copied` to target k, with no change of dtype.
  void copy(const Range& range, std::int64_t copied, std::int64_t k, const Block& here) const {
    std::memcpy(static_cast<T*>(s.out) + out(here, k) + range.begin,
                samples.data + copied * s.sample_stride + range.begin,
                static_cast<std::size_t>(range.end - range.begin) * sizeof(T));
  }

  void write_copies(const Range& range, bool first_range, Block& here) const {
    for (std::int64_t k = 0; k < here.count; ++k) {
      const Location& found = here.targets[k].found;
      if (!is_valid(found.place)) {
        write_target(range, first_range, k, here);
        continue;
      }
      const std::int64_t copied = range.method == Method::nearest ? nearest_sample(found) : found.i;
      if (first_range) here.index[k] = copied;
      copy(range, copied, k, here);
    }
  }

  bool write_linear(const Range& range, bool first_range, Block& here) const {
    return with_vector_code<T>(s.out_dtype, [&](auto type) {
      using O = typename decltype(type)::type;
      const T* const from = samples.data + range.begin;
      O* const to = static_cast<O*>(s.out) + out(here, 0) + range.begin;
      for (std::int64_t k = 0; k < here.count; ++k) {
        const Location& found = here.targets[k].found;
        const auto w = static_cast<compute_t<T>>(weight(found));
        const std::int64_t copied = copied_sample(Method::linear, found, w);
        if (!is_valid(found.place) || (copied >= 0 && !std::is_same_v<T, O>)) {
          write_target(range, first_range, k, here);
          continue;
        }
        if (first_range) here.index[k] = found.i;
        if (copied >= 0) {
          copy(range, copied, k, here);
          continue;
        }
        linear_row(from + found.i * s.sample_stride, from + found.j * s.sample_stride, w, to + k * s.out_target_stride,
                   range.end - range.begin);
      }
    });
  }
};

template <class T>
void run_task(const Plan& plan, StreamRows& rows, const Task& task) {
  const StreamPlan& s = *rows;
  TaskTargets targets(plan.targets, task);
  Block here;
  // The first rows at once; then one for each row that is done.
  for (std::int64_t ahead = task.row_begin, b = ahead - rows_ahead; b < task.row_end; ++b, ++ahead) {
    if (const Segment* const later = ahead < task.row_end ? rows.segment(ahead) : nullptr) {
      prefetch_segment(s, targets, *later, ahead);
    }
    if (b < task.row_begin) continue;
    rows.go_to(b);
    const Row row = row_of(s, b);
    const StampsAt at{&s.times, row.times_offset};
    const HostArrivals arrival_at(plan, s, row, rows.segment(b));
    const Samples<T> samples(s, row);
    const RowRun<T> run{s, samples, at, arrival_at, row.count};
    const Prefetch prefetch{reinterpret_cast<const char*>(samples.data), s.sample_stride * std::int64_t{sizeof(T)},
                            clamp_to(s.channel_count * std::int64_t{sizeof(T)}, 0, prefetch_bytes)};
    std::int64_t position = 0;
    if (const Segment* const segment = rows.segment(b)) {
      const std::int64_t tau = targets.first(b);
      position = first_guess(*segment, search_key(s, tau, deadline_of(s, b, tau)));
    }
    for (std::int64_t t = task.begin; t < task.end; t += block) {
      here.row = b;
      here.first = t;
      here.count = task.end - t < block ? task.end - t : block;
      const std::int64_t* const taus = targets.of_block(b, t, here.count);
      const auto locate_all = [&](const auto& stamps, const auto& arrivals) {
        locate_block(s, plan.targets, taus, stamps, arrivals, row.count, position, prefetch, here);
      };
      if (s.times.dtype == DType::i64 && s.times.stride == 1) {
        const DenseStamps dense{static_cast<const std::int64_t*>(s.times.data) + row.times_offset};
        if (s.causal || s.as_of) {
          locate_all(dense, arrival_at);
        } else {
          locate_all(dense, NoArrivals{});
        }
      } else {
        locate_all(at, arrival_at);
      }
      const Range* const ranges = plan.ranges.data() + s.first_range;
      for (std::int32_t r = 0; r < s.range_count; ++r) run.write_range(ranges[r], r == 0, here);
      for (std::int64_t k = 0; k < here.count; ++k) {
        write_marks(s, b, t + k, here.valid[k], age_of(here.targets[k].found), here.index[k]);
      }
    }
  }
}

// The tasks of a stream: several rows each if rows are shorter than a piece, otherwise parts of one row.
struct TaskSplit {
  std::int64_t targets_per_task = 1, tasks_per_row = 1, rows_per_task = 1, tasks = 0;
};
TaskSplit split_of(const StreamPlan& s, const TargetPlan& targets) {
  TaskSplit split;
  if (targets.rows == 0 || targets.count == 0) return split;
  const std::int64_t samples_per_target = s.bins && s.segments > 0 ? 2 + s.samples / targets.count : 2;
  const std::int64_t bytes =
      s.channel_count * (samples_per_target * size_of(s.dtype) + size_of(s.out_dtype)) + std::int64_t{sizeof(Target)};
  split.targets_per_task = clamp_to(piece_bytes / bytes, 1, targets.count);
  split.tasks_per_row = (targets.count - 1) / split.targets_per_task + 1;
  if (split.tasks_per_row == 1) split.rows_per_task = clamp_to(piece_bytes / (bytes * targets.count), 1, targets.rows);
  split.tasks = ((targets.rows - 1) / split.rows_per_task + 1) * split.tasks_per_row;
  return split;
}

void run(const Plan& plan, Segments segments) {
  TaskSplit splits[max_streams];
  std::int64_t tasks = 0;
  for (std::size_t k = 0; k < plan.streams.size(); ++k) {
    splits[k] = split_of(plan.streams[k], plan.targets);
    tasks += splits[k].tasks;
  }
  parallel_for(tasks, 1, [&](std::int64_t begin, std::int64_t end) {
    std::size_t stream = 0;
    std::int64_t before = 0;  // tasks of the streams before
    for (std::int64_t k = begin; k < end; ++k) {
      while (k - before >= splits[stream].tasks) before += splits[stream++].tasks;
      const TaskSplit& split = splits[stream];
      const std::int64_t group = (k - before) / split.tasks_per_row;
      const std::int64_t part = (k - before) % split.tasks_per_row;
      Task task{group * split.rows_per_task, (group + 1) * split.rows_per_task, part * split.targets_per_task,
                (part + 1) * split.targets_per_task};
      if (task.row_end > plan.targets.rows) task.row_end = plan.targets.rows;
      if (task.end > plan.targets.count) task.end = plan.targets.count;
      StreamRows rows(plan.streams[stream], stream, segments);
      with_type((*rows).dtype, [&](auto type) { run_task<typename decltype(type)::type>(plan, rows, task); });
    }
  });
}

}  // namespace

extern const CpuFunctions cpu_functions;
constexpr CpuFunctions cpu_functions{run};

}  // namespace ROBOCACHE_SIMD_TARGET
}  // namespace robocache::align_op
