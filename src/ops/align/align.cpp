// The public calls: check what shapes and dtypes can tell, fill in the defaults, hand the plan to a backend.
#include <robocache/align.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <string>

#include "core/cuda.h"
#include "core/float_environment.h"
#include "core/speaker.h"
#include "ops/align/arrivals.h"
#include "ops/align/plan.h"
#include "robocache_config.h"

namespace robocache {

#if !ROBOCACHE_WITH_CUDA
void align_op::run_cuda(const Plan&, const Context&, int) { refuse_cuda(); }
void align_op::run_cuda_backward(const Plan&, std::span<void* const>, const Context&, int) { refuse_cuda(); }
#endif

using namespace align_op;

namespace {

constexpr const char* method_names[] = {"linear", "hold", "nearest", "slerp", "angle", "angle_degrees",
                                        "cubic",  "mean", "max",     "min",   "last"};
const char* name_of(Method method) { return method_names[static_cast<int>(method)]; }

bool is_time(DType dtype) { return dtype == DType::i64 || dtype == DType::f64 || dtype == DType::f32; }

void check_times(const Speaker& speaker, const char* what, const TensorView& view) {
  if (is_time(view.dtype)) return;
  speaker.fail(ErrorKind::type, what, " are ", robocache::name_of(view.dtype),
               "; they must be int64 nanoseconds, or float64 or float32 seconds");
}

Stamps stamps_of(const TensorView& view, bool batched) {
  const auto last = static_cast<std::size_t>(view.rank - 1);
  return {view.data, batched ? view.strides[0] : 0, view.rank > 0 ? view.strides[last] : 0, view.dtype};
}

// Trailing dimensions from `lead` on, neighbours merged where strides allow.
Channels channels_of(const Speaker& speaker, const char* what, const TensorView& view, int lead) {
  Channels channels;
  for (int k = lead; k < view.rank; ++k) {
    const std::int64_t size = view.shape[static_cast<std::size_t>(k)];
    const std::int64_t stride = view.strides[static_cast<std::size_t>(k)];
    if (size == 1) continue;
    const int last = channels.rank - 1;
    if (last >= 0 && channels.stride[last] == size * stride) {
      channels.size[last] *= static_cast<std::int32_t>(size);
      channels.stride[last] = stride;
      continue;
    }
    if (channels.rank == max_channel_rank) {
      speaker.fail(ErrorKind::value, what, " of shape ", shape_text(view),
                   " has too many dimensions; make it contiguous");
    }
    channels.size[channels.rank] = static_cast<std::int32_t>(size);
    channels.stride[channels.rank++] = stride;
  }
  if (channels.rank == 0) {
    channels.rank = 1;
    channels.size[0] = 1;
    channels.stride[0] = 1;
  }
  return channels;
}

std::int64_t channel_count(const TensorView& view, int lead) {
  std::int64_t count = 1;
  for (int k = lead; k < view.rank; ++k) count *= view.shape[static_cast<std::size_t>(k)];
  return count;
}

// Where element `offset` is; an array without elements may have no memory at all.
void* element(const TensorView& view, std::int64_t offset) {
  return view.data != nullptr ? static_cast<char*>(view.data) + offset * size_of(view.dtype) : nullptr;
}

// How a stream lies in memory.
struct Layout {
  bool batched = false;       // it has rows: [B, S, ...], or packed
  int lead = 1;               // dimensions before the trailing shape
  std::int64_t segments = 1;  // rows in memory
  std::int64_t samples = 0;
  std::int64_t rows = 1;  // output rows it asks for, where batched
};

Layout layout_of(const Speaker& speaker, const Stream& stream) {
  const TensorView& values = stream.values;
  const TensorView& times = stream.times;
  if (!values || !times) speaker.fail(ErrorKind::value, "values and times are both needed");
  Layout layout;
  const char* guess = "";
  if (values.rank > 0 && times.rank > 1 && values.shape[0] == times.shape[0]) {
    if (times.rank == 2 && times.shape[1] == 1) {
      guess = "; did you mean times[:, 0]?";
    } else if (values.rank == 1) {
      guess = "; are values and times swapped?";
    }
  }
  const auto disagree = [&](const char* wanted) {
    speaker.fail(ErrorKind::value, "values of shape ", shape_text(values), " do not fit times of shape ",
                 shape_text(times), "; expected ", wanted, guess);
  };
  if (stream.offsets) {
    if (stream.lengths)
      speaker.fail(ErrorKind::value, "lengths are for padded rows and offsets for packed ones; give one");
    if (times.rank != 1 || values.rank < 1 || values.shape[0] != times.shape[0]) {
      disagree("values [N, ...] and times [N], because offsets are given");
    }
    if (stream.offsets.rank != 1 || stream.offsets.shape[0] < 1) {
      speaker.fail(ErrorKind::value, "offsets of shape ", shape_text(stream.offsets), "; expected [rows + 1]");
    }
    layout.batched = true;
    layout.samples = times.shape[0];
    layout.segments = stream.offsets.shape[0] - 1;
  } else if (times.rank == 2) {
    if (values.rank < 2 || values.shape[0] != times.shape[0] || values.shape[1] != times.shape[1]) {
      disagree("values [B, S, ...] and times [B, S]");
    }
    layout.batched = true;
    layout.lead = 2;
    layout.segments = times.shape[0];
    layout.samples = times.shape[1];
  } else if (times.rank == 1) {
    if (values.rank < 1 || values.shape[0] != times.shape[0]) {
      disagree(
          "values [S, ...] and times [S], or values [B, S, ...] and times [B, S]; expand times where rows share them");
    }
    if (stream.lengths || stream.rows) {
      speaker.fail(ErrorKind::value, stream.lengths ? "lengths" : "rows", " need a stream with rows: times [B, S]",
                   stream.lengths ? "" : " or offsets", ", not times of shape ", shape_text(times));
    }
    layout.samples = times.shape[0];
  } else {
    speaker.fail(ErrorKind::value, "times have ", times.rank, " dimensions; expected [S], [B, S], or [N] with offsets",
                 guess);
  }
  check_times(speaker, "times", times);
  if (stream.lengths && (stream.lengths.rank != 1 || stream.lengths.shape[0] != layout.segments)) {
    speaker.fail(ErrorKind::value, "lengths of shape ", shape_text(stream.lengths), " do not fit ", layout.segments,
                 " rows; expected [", layout.segments, "]");
  }
  if (stream.arrivals) {
    check_times(speaker, "arrivals", stream.arrivals);
    if (stream.arrivals.rank != times.rank ||
        !std::equal(times.shape.begin(), times.shape.begin() + times.rank, stream.arrivals.shape.begin())) {
      speaker.fail(ErrorKind::value, "arrivals of shape ", shape_text(stream.arrivals), " do not fit times of shape ",
                   shape_text(times));
    }
  }
  if (stream.rows && stream.rows.rank != 1) {
    speaker.fail(ErrorKind::value, "rows has shape ", shape_text(stream.rows), "; it must have one dimension");
  }
  layout.rows = stream.rows ? stream.rows.shape[0] : layout.segments;
  if (layout.rows > 0 && layout.segments == 0) {
    speaker.fail(ErrorKind::value, "rows ask for ", layout.rows, " rows of a stream that has none");
  }
  return layout;
}

// Names for sentences: the stream's own, or its position where there are several.
class Names {
 public:
  explicit Names(std::span<const Stream> streams) : streams_(streams) {}
  std::string_view operator[](std::size_t k) {
    if (!streams_[k].name.empty() || streams_.size() == 1) return streams_[k].name;
    const auto end = std::to_chars(positions_[k], positions_[k + 1], k).ptr;
    return {positions_[k], end};
  }

 private:
  std::span<const Stream> streams_;
  char positions_[max_streams + 1][2];
};

struct TargetShape {
  bool batched = false;
  std::int64_t rows = 1, count = 0;
};

TargetShape target_shape(const Speaker& speaker, const Targets& targets) {
  if (!targets.timeline) {
    check_times(speaker, "targets", targets.times);
    if (targets.times.rank == 1) return {false, 1, targets.times.shape[0]};
    if (targets.times.rank == 2) return {true, targets.times.shape[0], targets.times.shape[1]};
    speaker.fail(ErrorKind::value, "targets have shape ", shape_text(targets.times), "; expected [T] or [B, T]");
  }
  const Timeline& line = *targets.timeline;
  if (!(line.rate > 0) || !std::isfinite(line.rate)) {
    speaker.fail(ErrorKind::value, "the timeline's rate is ", line.rate, "; it must be a positive number of hertz");
  }
  if (line.count < 0)
    speaker.fail(ErrorKind::value, "the timeline's count is ", line.count, "; it must not be negative");
  const double reach = std::max(std::abs(static_cast<double>(line.first)),
                                std::abs(static_cast<double>(line.first) + static_cast<double>(line.count))) +
                       1;
  if (!(reach * 1e9 / line.rate < 0x1p61)) {
    speaker.fail(ErrorKind::value, "a timeline of ", line.count, " steps at ", line.rate,
                 " Hz is longer than 73 years");
  }
  if (!line.starts) {
    if (line.start <= -time_limit || line.start >= time_limit) {
      speaker.fail(ErrorKind::value, "the timeline starts at ", line.start, " ns; it must be within 2^62 ns of 0");
    }
    return {false, 1, line.count};
  }
  check_times(speaker, "the timeline's starts", line.starts);
  if (line.starts.rank != 1) {
    speaker.fail(ErrorKind::value, "the timeline's start has shape ", shape_text(line.starts),
                 "; expected one number or [B]");
  }
  return {true, line.starts.shape[0], line.count};
}

// Fills Batch from the shapes; layouts go to `layouts`.
Batch batch_of(Operation operation, std::span<const Stream> streams, const Targets& targets, Layout* layouts) {
  const Speaker speaker{operation};
  if (streams.empty() || streams.size() > max_streams) {
    speaker.fail(ErrorKind::value, streams.size(), " streams; expected 1 to ", max_streams);
  }
  const TargetShape shape = target_shape(speaker, targets);
  Batch result;
  result.targets = shape.count;
  if (shape.batched) result.rows = shape.rows;
  Names names(streams);
  std::size_t setter = streams.size();  // the stream that gave the number of rows
  for (std::size_t k = 0; k < streams.size(); ++k) {
    const Speaker here{operation, names[k]};
    layouts[k] = layout_of(here, streams[k]);
    if (!layouts[k].batched) continue;
    if (!result.rows) {
      result.rows = layouts[k].rows;
      setter = k;
    } else if (*result.rows != layouts[k].rows) {
      const std::string other =
          setter == streams.size() ? "the targets have " : concat("stream \"", names[setter], "\" has ");
      here.fail(ErrorKind::value, "has ", layouts[k].rows, " rows, but ", other, *result.rows);
    }
  }
  return result;
}

Method default_method(DType dtype) { return is_float(dtype) ? Method::linear : Method::hold; }

// Neighbours of one method are merged, unless each is to be judged by itself (on_nan = skip).
void append_ranges(const Speaker& speaker, const Stream& stream, std::int64_t channels, bool merge,
                   std::vector<Range>& ranges) {
  const DType dtype = stream.values.dtype;
  if (stream.methods.empty()) {
    ranges.push_back({0, static_cast<std::int32_t>(channels), default_method(dtype)});
    return;
  }
  std::vector<MethodRange> sorted(stream.methods);
  std::stable_sort(sorted.begin(), sorted.end(), [](const auto& a, const auto& b) { return a.begin < b.begin; });
  const std::size_t first = ranges.size();
  std::int64_t covered = 0;
  const MethodRange* previous = nullptr;
  for (const MethodRange& range : sorted) {
    const char* const name = name_of(range.method);
    if (range.begin < 0 || range.end < range.begin || range.end > channels) {
      speaker.fail(ErrorKind::value, "method ", name, " for channels ", range.begin, "..", range.end,
                   " is outside the stream's ", channels, " channels");
    }
    if (range.begin < covered) {
      speaker.fail(ErrorKind::value, "methods overlap: ", name_of(previous->method), " for channels ", previous->begin,
                   "..", previous->end, " and ", name, " for channels ", range.begin, "..", range.end);
    }
    if (range.begin > covered) {
      speaker.fail(ErrorKind::value, "channels ", covered, "..", range.begin, " have no method");
    }
    if (!is_float(dtype) &&
        (range.method <= Method::linear || (range.method >= Method::slerp && range.method <= Method::mean))) {
      speaker.fail(ErrorKind::type, "method ", name, " needs floating-point values, not ", robocache::name_of(dtype),
                   "; integers and bool have hold, nearest, last, max and min");
    }
    if (range.method == Method::slerp && (range.end - range.begin) % 4 != 0) {
      speaker.fail(ErrorKind::value, "slerp takes groups of 4 channels (a quaternion), and ", range.begin, "..",
                   range.end, " are ", range.end - range.begin);
    }
    covered = range.end;
    previous = &range;
    if (range.end == range.begin && channels > 0) continue;
    if (merge && ranges.size() > first && ranges.back().method == range.method) {
      ranges.back().end = static_cast<std::int32_t>(range.end);
    } else {
      ranges.push_back({static_cast<std::int32_t>(range.begin), static_cast<std::int32_t>(range.end), range.method});
    }
  }
  if (covered < channels) speaker.fail(ErrorKind::value, "channels ", covered, "..", channels, " have no method");
}

// Whether every value of `from` is a value of `to`, or `to` is a float to round into.
bool can_hold(DType to, DType from) {
  if (to == from || is_float(to)) return true;
  if (is_float(from) || to == DType::boolean) return false;
  const bool is_signed = to >= DType::i8;
  if (from == DType::boolean) return true;
  if (from >= DType::i8) return is_signed && size_of(to) >= size_of(from);
  return is_signed ? size_of(to) > size_of(from) : size_of(to) >= size_of(from);
}

void check_device(const Speaker& speaker, const char* what, const TensorView& view, Device device) {
  robocache::check_device(speaker, what, view, device, "the first stream's values");
}

// A plan with the arrays it points to. One per thread, so that a call allocates nothing once it is warm.
struct Scratch {
  std::vector<StreamPlan> streams;
  std::vector<Range> ranges;
  Layout layouts[max_streams];
};

class Planner {
 public:
  Planner(Operation operation, std::span<const Stream> streams, const Targets& targets, const AlignOptions& options)
      : operation_(operation), streams_(streams), options_(options), names_(streams) {
    thread_local Scratch scratch;
    scratch_ = &scratch;
    scratch.streams.clear();
    scratch.ranges.clear();
    batch_ = batch_of(operation, streams, targets, scratch.layouts);
    device_ = streams[0].values.device;
    plan_targets(targets);
    for (std::size_t k = 0; k < streams.size(); ++k) plan_stream(k);
    plan_.operation = operation;
    plan_.check = options.check;
    plan_.streams = scratch.streams;
    plan_.ranges = scratch.ranges;
  }

  const Plan& plan() const { return plan_; }
  Device device() const { return device_; }
  const Batch& batch() const { return batch_; }
  std::int64_t channels(std::size_t k) const { return scratch_->streams[k].channel_count; }

  // Output values of stream k: `view` has the leading dimensions, then the stream's own trailing shape (align) or
  // channels `first` .. first + channels of one last dimension (fuse).
  void set_values(std::size_t k, const char* what, const TensorView& view, bool fused, std::int64_t first) {
    StreamPlan& s = scratch_->streams[k];
    const Speaker here{operation_, names_[k]};
    if (!can_hold(view.dtype, s.dtype)) {
      here.fail(ErrorKind::type, robocache::name_of(view.dtype), " cannot hold every value of ",
                robocache::name_of(s.dtype), "; give a floating-point dtype or a wider one");
    }
    const int lead = batch_.rows ? 2 : 1;
    s.out = element(view, fused ? first * view.strides[static_cast<std::size_t>(lead)] : 0);
    s.out_dtype = view.dtype;
    s.out_row_stride = batch_.rows ? view.strides[0] : 0;
    s.out_target_stride = view.strides[static_cast<std::size_t>(lead - 1)];
    s.out_channels = channels_of(here, what, view, lead);
    if (fused) {  // this stream's share of the last dimension
      s.out_channels.rank = 1;
      s.out_channels.size[0] = static_cast<std::int32_t>(s.channel_count);
      s.out_channels.stride[0] = view.strides[static_cast<std::size_t>(lead)];
    }
  }

  // The shape of stream k's values.
  void check_values(std::size_t k, const char* what, const TensorView& view) {
    const Speaker here{operation_, names_[k]};
    std::int64_t expected[max_rank + 1];
    std::size_t rank = leading(expected);
    const int lead = scratch_->layouts[k].lead;
    for (int d = lead; d < streams_[k].values.rank; ++d)
      expected[rank++] = streams_[k].values.shape[static_cast<std::size_t>(d)];
    check_device(here, what, view, device_);
    check_shape(here, what, view, {expected, rank});
  }
  void check_fused(const char* what, const TensorView& view, std::int64_t width) const {
    std::int64_t expected[3];
    const std::size_t rank = leading(expected);
    expected[rank] = width;
    const Speaker speaker{operation_};
    check_device(speaker, what, view, device_);
    check_shape(speaker, what, view, {expected, rank + 1});
  }
  // valid, age or index of stream k; fuse has a last dimension of streams.
  StreamPlan::Mark mark(std::size_t k, const char* what, const TensorView& view, DType dtype, bool fused) {
    if (!view) return {};
    const Speaker here{operation_, fused ? std::string_view() : names_[k]};
    std::int64_t expected[3];
    std::size_t rank = leading(expected);
    if (fused) expected[rank++] = static_cast<std::int64_t>(streams_.size());
    check_device(here, what, view, device_);
    check_shape(here, what, view, {expected, rank});
    if (view.dtype != dtype) {
      here.fail(ErrorKind::type, what, " is ", robocache::name_of(view.dtype), "; expected ",
                robocache::name_of(dtype));
    }
    const std::size_t target = batch_.rows ? 1 : 0;
    const std::int64_t shift = fused ? static_cast<std::int64_t>(k) * view.strides[target + 1] : 0;
    return {element(view, shift), batch_.rows ? view.strides[0] : 0, view.strides[target]};
  }
  void set_marks(std::size_t k, const Aligned& output, bool fused) {
    StreamPlan& s = scratch_->streams[k];
    s.valid = mark(k, "valid", output.valid, DType::boolean, fused);
    s.age = mark(k, "age", output.age, DType::i64, fused);
    s.index = mark(k, "index", output.index, DType::i64, fused);
  }

  void run(const Context& context) {
    check_backend(context);
    if (device_.kind == DeviceKind::cuda) {
      run_cuda(plan_, context, device_.index);
      return;
    }
    const FloatEnvironment exact;
    check_on_host();
    ArrivalIndex arrivals;
    plan_.arrivals = &arrivals;
    if (context.backend == Backend::reference) {
      run_reference(plan_);
    } else {
      run_cpu(plan_);
    }
    plan_.arrivals = nullptr;
  }

  void check_backend(const Context& context) const { robocache::check_backend(Speaker{operation_}, context, device_); }

  void check_on_host() const {
    if (!options_.check) return;
    const Fault fault = check_data(plan_);
    if (fault.code != FaultCode::none) throw Error(ErrorKind::value, robocache::describe(fault));
  }

 private:
  std::size_t leading(std::int64_t* shape) const {
    std::size_t rank = 0;
    if (batch_.rows) shape[rank++] = *batch_.rows;
    shape[rank++] = batch_.targets;
    return rank;
  }

  void plan_targets(const Targets& targets) {
    TargetPlan& plan = plan_.targets;
    plan.rows = batch_.rows.value_or(1);
    plan.count = batch_.targets;
    const Speaker speaker{operation_};
    if (targets.timeline) {
      const Timeline& line = *targets.timeline;
      plan.timeline = true;
      plan.start = line.start;
      plan.first = line.first;
      plan.rate = line.rate;
      if (line.starts) {
        check_device(speaker, "the timeline's start", line.starts, device_);
        plan.starts = {line.starts.data, line.starts.strides[0], 0, line.starts.dtype};
        plan.batched = true;
      }
    } else {
      check_device(speaker, "targets", targets.times, device_);
      plan.batched = targets.times.rank == 2;
      plan.times = stamps_of(targets.times, plan.batched);
    }
  }

  void plan_stream(std::size_t k) {
    const Stream& stream = streams_[k];
    const Layout& layout = scratch_->layouts[k];
    const Speaker here{operation_, names_[k]};
    check_device(here, "values", stream.values, device_);
    check_device(here, "times", stream.times, device_);
    check_device(here, "arrivals", stream.arrivals, device_);
    check_device(here, "lengths", stream.lengths, device_);
    check_device(here, "offsets", stream.offsets, device_);
    check_device(here, "rows", stream.rows, device_);

    StreamPlan& s = scratch_->streams.emplace_back();
    s.values = stream.values.data;
    s.dtype = s.out_dtype = stream.values.dtype;
    const bool padded = layout.batched && layout.lead == 2;
    s.row_stride = padded ? stream.values.strides[0] : 0;
    s.sample_stride = stream.values.strides[static_cast<std::size_t>(layout.lead - 1)];
    s.channel_count = robocache::channel_count(stream.values, layout.lead);
    if (s.channel_count > std::numeric_limits<std::int32_t>::max()) {
      here.fail(ErrorKind::value, s.channel_count, " channels; at most 2^31 - 1");
    }
    s.channels = channels_of(here, "values", stream.values, layout.lead);
    s.times = stamps_of(stream.times, padded);
    if (stream.arrivals) s.arrivals = stamps_of(stream.arrivals, padded);
    s.lengths = integers_of(here, "lengths", stream.lengths);
    s.offsets = integers_of(here, "offsets", stream.offsets);
    s.rows = integers_of(here, "rows", stream.rows);
    s.samples = layout.samples;
    s.segments = layout.segments;
    s.batched = layout.batched;
    s.latency = stream.latency;
    if (stream.latency <= -time_limit / 2 || stream.latency >= time_limit / 2) {
      here.fail(ErrorKind::value, "latency = ", stream.latency, " ns; it must be within 2^61 ns");
    }
    s.max_gap = stream.max_gap;
    if (stream.max_gap < 0) here.fail(ErrorKind::value, "max_gap = ", stream.max_gap, " ns is negative");
    s.edge = stream.edge.value_or(options_.edge);
    s.causal = stream.causal.value_or(options_.causal);
    s.on_nan = stream.on_nan.value_or(options_.on_nan);
    if (s.edge == Edge::nan && !is_float(s.dtype)) {
      here.fail(ErrorKind::value, "edge nan on ", robocache::name_of(s.dtype),
                " values, which have no NaN; use clamp or zero");
    }
    const std::size_t first = scratch_->ranges.size();
    append_ranges(here, stream, s.channel_count, s.on_nan == OnNan::propagate, scratch_->ranges);
    s.first_range = static_cast<std::int32_t>(first);
    s.range_count = static_cast<std::int32_t>(scratch_->ranges.size() - first);
    if (s.range_count > max_ranges) {
      here.fail(ErrorKind::value, s.range_count, " method ranges; at most ", max_ranges, ". Split the stream");
    }
    for (std::size_t r = first; r < scratch_->ranges.size(); ++r)
      s.bins = s.bins || scratch_->ranges[r].method >= Method::mean;
    s.name = here.stream.empty() ? 0 : intern(here.stream);
  }

  Operation operation_;
  std::span<const Stream> streams_;
  const AlignOptions& options_;
  Names names_;
  Scratch* scratch_;
  Batch batch_;
  Device device_;
  Plan plan_;
};

void align_each(Operation operation, const Context& context, std::span<const Stream> streams, const Targets& targets,
                const AlignOptions& options, std::span<const Aligned> outputs) {
  Planner planner(operation, streams, targets, options);
  if (outputs.size() != streams.size()) {
    Speaker{operation}.fail(ErrorKind::value, outputs.size(), " outputs for ", streams.size(), " streams");
  }
  for (std::size_t k = 0; k < streams.size(); ++k) {
    if (outputs[k].values) {
      planner.check_values(k, "out", outputs[k].values);
      planner.set_values(k, "out", outputs[k].values, false, 0);
    }
    planner.set_marks(k, outputs[k], false);
  }
  planner.run(context);
}

}  // namespace

Batch batch(std::string_view operation, std::span<const Stream> streams, const Targets& targets) {
  Layout layouts[max_streams];
  const Operation named = operation == "fuse"       ? Operation::fuse
                          : operation == "resample" ? Operation::resample
                                                    : Operation::align;
  return batch_of(named, streams, targets, layouts);
}

void align(const Context& context, std::span<const Stream> streams, const Targets& targets, const AlignOptions& options,
           std::span<const Aligned> outputs) {
  align_each(Operation::align, context, streams, targets, options, outputs);
}

void resample(const Context& context, const Stream& stream, const Targets& targets, const AlignOptions& options,
              const Aligned& output) {
  align_each(Operation::resample, context, {&stream, 1}, targets, options, {&output, 1});
}

void fuse(const Context& context, std::span<const Stream> streams, const Targets& targets, const AlignOptions& options,
          const Aligned& output) {
  Planner planner(Operation::fuse, streams, targets, options);
  std::int64_t width = 0;
  for (std::size_t k = 0; k < streams.size(); ++k) width += planner.channels(k);
  if (output.values) planner.check_fused("out", output.values, width);
  std::int64_t first = 0;
  for (std::size_t k = 0; k < streams.size(); ++k) {
    if (output.values) planner.set_values(k, "out", output.values, true, first);
    planner.set_marks(k, output, true);
    first += planner.channels(k);
  }
  planner.run(context);
}

void align_backward(const Context& context, std::span<const Stream> streams, const Targets& targets,
                    const AlignOptions& options, std::span<const TensorView> output_gradients,
                    std::span<const TensorView> value_gradients) {
  Planner planner(Operation::align_backward, streams, targets, options);
  const Speaker speaker{Operation::align_backward};
  if (output_gradients.size() != streams.size() || value_gradients.size() != streams.size()) {
    speaker.fail(ErrorKind::value, output_gradients.size(), " output gradients and ", value_gradients.size(),
                 " value gradients for ", streams.size(), " streams");
  }
  void* gradients[max_streams];
  Names names(streams);
  for (std::size_t k = 0; k < streams.size(); ++k) {
    const Speaker here{Operation::align_backward, names[k]};
    const TensorView& values = streams[k].values;
    const TensorView& into = value_gradients[k];
    if (!is_float(values.dtype))
      here.fail(ErrorKind::type, robocache::name_of(values.dtype), " values have no gradient");
    if (!is_float(output_gradients[k].dtype))
      here.fail(ErrorKind::type, "the output's gradient must be floating point");
    planner.check_values(k, "the output's gradient", output_gradients[k]);
    planner.set_values(k, "the output's gradient", output_gradients[k], false, 0);
    const auto rank = static_cast<std::size_t>(values.rank);
    check_device(here, "the values' gradient", into, planner.device());
    check_shape(here, "the values' gradient", into, {values.shape.data(), rank});
    const TensorView dense = TensorView::contiguous(nullptr, into.dtype, {into.shape.data(), rank});
    if (into.dtype != values.dtype || (into.size() > 0 && into.strides != dense.strides)) {
      here.fail(ErrorKind::value, "the values' gradient must be dense and ", robocache::name_of(values.dtype));
    }
    gradients[k] = into.data;
  }
  planner.check_backend(context);
  for (const StreamPlan& s : planner.plan().streams) {
    if (s.samples >= std::int64_t{1} << 31) {
      speaker.fail(ErrorKind::value, "a row, or packed rows, of ", s.samples, " samples; at most 2^31 - 1");
    }
  }
  const std::span<void* const> all(gradients, streams.size());
  if (planner.device().kind == DeviceKind::cuda) {
    run_cuda_backward(planner.plan(), all, context, planner.device().index);
  } else {
    const FloatEnvironment exact;
    planner.check_on_host();
    ArrivalIndex arrivals;
    Plan plan = planner.plan();
    plan.arrivals = &arrivals;
    run_host_backward(plan, all, context.backend != Backend::reference);
  }
}

}  // namespace robocache
