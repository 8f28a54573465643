// The public calls.
#include <robocache/align.h>

#include "core/float_environment.h"
#include "gpu/status.h"
#include "ops/align/check_stream.h"
#include "ops/align/planner.h"
#include "robocache_config.h"

namespace robocache {

#if !ROBOCACHE_WITH_CUDA
void align_op::run_cuda(const Plan&, const Context&, int) { refuse_cuda(); }
void align_op::run_cuda_backward(const Plan&, std::span<void* const>, const Context&, int) { refuse_cuda(); }
#endif

using namespace align_op;

namespace {

void align_each(Operation operation, const Context& context, std::span<const Stream> streams, const Targets& targets,
                const AlignOptions& options, std::span<const Aligned> outputs, Segments segments = nullptr) {
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
  planner.run(context, segments);
}

}  // namespace

void align_op::align_segments(const Context& context, std::span<const Stream> streams, const Targets& targets,
                              const AlignOptions& options, Segments segments, std::span<const Aligned> outputs) {
  align_each(Operation::align, context, streams, targets, options, outputs, segments);
}

Batch batch(std::string_view operation, std::span<const Stream> streams, const Targets& targets) {
  Layout layouts[max_streams];
  const Operation named = operation == "fuse"       ? Operation::fuse
                          : operation == "resample" ? Operation::resample
                                                    : Operation::align;
  return batch_of(named, streams, targets, layouts);
}

void check_stream(const Stream& stream) {
  const AlignOptions options;
  const Timeline line{.rate = 1};
  Stream alone = stream;
  if (alone.as_of && alone.as_of->times.rank == 1 && !batch("align", {&stream, 1}, line).rows) {
    alone.as_of->times.rank = 0;  // other arrays of the call may have as many rows
  }
  const Planner planner(Operation::align, {&alone, 1}, line, options);
}

void check_timeline(const Timeline& timeline) { target_shape(Speaker{Operation::align}, timeline); }

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
    if (!is_float(values.dtype)) here.fail(ErrorKind::type, name_of(values.dtype), " values have no gradient");
    if (!is_float(output_gradients[k].dtype))
      here.fail(ErrorKind::type, "the output's gradient must be floating point");
    planner.check_values(k, "the output's gradient", output_gradients[k]);
    planner.set_values(k, "the output's gradient", output_gradients[k], false, 0);
    const auto rank = static_cast<std::size_t>(values.rank);
    check_device(here, "the values' gradient", into, planner.device());
    check_shape(here, "the values' gradient", into, {values.shape.data(), rank});
    const TensorView dense = TensorView::contiguous(nullptr, into.dtype, {into.shape.data(), rank});
    if (into.dtype != values.dtype || (into.size() > 0 && into.strides != dense.strides)) {
      here.fail(ErrorKind::value, "the values' gradient must be dense and ", name_of(values.dtype));
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
