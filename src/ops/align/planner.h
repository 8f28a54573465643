// Checks what the shapes and dtypes of a call can tell, fills in the defaults, makes the plan, and hands it to a backend.
#pragma once

#include <limits>
#include <vector>

#include "core/float_environment.h"
#include "ops/align/arrival_index.h"
#include "ops/align/layout.h"
#include "ops/align/segments.h"

namespace robocache::align_op {
namespace {

// A plan with the arrays it points to. One per thread, so that a call allocates nothing once it is warm.
struct PlanArrays {
  std::vector<StreamPlan> streams;
  std::vector<Range> ranges;
  Layout layouts[max_streams];
};

class Planner {
 public:
  Planner(Operation operation, std::span<const Stream> streams, const Targets& targets, const AlignOptions& options)
      : operation_(operation), streams_(streams), options_(options), names_(streams) {
    thread_local PlanArrays scratch;
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
      here.fail(ErrorKind::type, name_of(view.dtype), " cannot hold every value of ", name_of(s.dtype),
                "; give a floating-point dtype or a wider one");
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
      here.fail(ErrorKind::type, what, " is ", name_of(view.dtype), "; expected ", name_of(dtype));
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

  void run(const Context& context, Segments segments = nullptr) {
    check_backend(context);
    if (device_.kind == DeviceKind::cuda) {
      run_cuda(plan_, context, device_.index);
      return;
    }
    const FloatEnvironment exact;
    check_on_host(segments);
    ArrivalIndex arrivals;
    plan_.arrivals = &arrivals;
    if (context.backend == Backend::reference) {
      run_reference(plan_, segments);
    } else {
      run_cpu(plan_, segments);
    }
    plan_.arrivals = nullptr;
  }

  void check_backend(const Context& context) const { robocache::check_backend(Speaker{operation_}, context, device_); }

  void check_on_host(Segments segments = nullptr) const {
    if (!options_.check) return;
    const Fault fault = check_data(plan_, segments);
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
    const bool own_as_of = stream.as_of.has_value();
    const AsOf& as_of = own_as_of ? *stream.as_of : options_.as_of;
    const Speaker of_as_of{operation_, own_as_of ? names_[k] : std::string_view()};
    check_device(of_as_of, "as_of", as_of.times, device_);

    StreamPlan& s = scratch_->streams.emplace_back();
    s.values = stream.values.data;
    s.dtype = s.out_dtype = stream.values.dtype;
    const bool padded = layout.batched && layout.lead == 2;
    s.row_stride = padded ? stream.values.strides[0] : 0;
    s.sample_stride = stream.values.strides[static_cast<std::size_t>(layout.lead - 1)];
    s.channel_count = align_op::channel_count(stream.values, layout.lead);
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
    if (!is_in_span_limit(stream.latency)) {
      here.fail(ErrorKind::value, "latency = ", stream.latency, " ns; it must be within ", limit_in_words(span_limit),
                " ns");
    }
    s.max_gap = stream.max_gap;
    if (stream.max_gap < 0) here.fail(ErrorKind::value, "max_gap = ", stream.max_gap, " ns is negative");
    s.edge = stream.edge.value_or(options_.edge);
    s.causal = stream.causal.value_or(options_.causal);
    s.as_of = as_of.times || as_of.time != no_as_of;
    if (s.as_of && s.causal) {
      here.fail(
          ErrorKind::value,
          "as_of and causal are both on, and a stream takes one: as_of asks what had arrived by the decision, causal "
          "what had arrived by each target");
    }
    if (s.as_of) plan_as_of(of_as_of, as_of, s);
    s.on_nan = stream.on_nan.value_or(options_.on_nan);
    if (s.edge == Edge::nan && !is_float(s.dtype)) {
      here.fail(ErrorKind::value, "edge nan on ", name_of(s.dtype), " values, which have no NaN; use clamp or zero");
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
    s.as_of_name = own_as_of ? s.name : 0;
  }

  void plan_as_of(const Speaker& here, const AsOf& as_of, StreamPlan& s) const {
    if (!as_of.times) {
      if (as_of.time <= -time_limit || as_of.time >= time_limit) {
        here.fail(ErrorKind::value, "as_of = ", as_of.time, " ns; it must be within ", limit_in_words(time_limit),
                  " ns of 0");
      }
      s.decision = as_of.time;
      return;
    }
    const TensorView& times = as_of.times;
    if (!is_time(times.dtype)) {
      here.fail(ErrorKind::type, "as_of is ", name_of(times.dtype),
                "; it must be int64 nanoseconds, or float64 or float32 seconds");
    }
    if (times.rank > 1) {
      here.fail(ErrorKind::value, "as_of has shape ", shape_text(times),
                "; expected one time, or one for each row: [B]");
    }
    if (times.rank == 1 && !batch_.rows) {
      here.fail(ErrorKind::value, "as_of has ", times.shape[0], " times, but the call has no rows; expected one time");
    }
    if (times.rank == 1 && times.shape[0] != *batch_.rows) {
      here.fail(ErrorKind::value, "as_of has ", times.shape[0], " times, but the call has ", *batch_.rows,
                " rows; expected one time, or one for each row");
    }
    s.decisions = {times.data, times.rank == 1 ? times.strides[0] : 0, 0, times.dtype};
  }

  Operation operation_;
  std::span<const Stream> streams_;
  const AlignOptions& options_;
  Names names_;
  PlanArrays* scratch_;
  Batch batch_;
  Device device_;
  Plan plan_;
};

}  // namespace
}  // namespace robocache::align_op
