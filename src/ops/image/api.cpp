// The public calls: plan, check the data, hand the plan to a backend.
#include <robocache/image.h>

#include "core/float_environment.h"
#include "gpu/status.h"
#include "ops/image/check.h"
#include "ops/image/planner.h"
#include "robocache_config.h"

namespace robocache {

#if !ROBOCACHE_WITH_CUDA
void image_op::run_cuda(const Plan&, const Context&, int) { refuse_cuda(); }
#endif

using namespace image_op;

void image_op::check_data(const Plan& plan) {
  const DataCheck check{&plan};
  for (std::int64_t k = 0; plan.check && k < check.count(); ++k) {
    const Fault fault = check(k);
    if (fault.code != FaultCode::none) throw Error(ErrorKind::value, describe(fault));
  }
}

TensorView image_output(const Frames& frames, const ImageOptions& options) {
  const FloatEnvironment exact;
  return Planner(frames, options).output();
}

void image(const Context& context, const Frames& frames, const ImageOptions& options, const TensorView& output) {
  const FloatEnvironment exact;
  Planner planner(frames, options);
  const Plan& plan = planner.finish(output);
  const Device device = frames.pixels.device;
  check_backend(speaker, context, device);
  if (device.kind == DeviceKind::cuda) return run_cuda(plan, context, device.index);
  check_data(plan);
  if (plan.frames == 0) return;
  context.backend == Backend::reference ? run_reference(plan) : run_cpu(plan);
}

}  // namespace robocache
