// The cpu backend: lines of voxels, each one thread's.
#include "core/parallel.h"
#include "core/simd.h"
#include "ops/tsdf/lines.h"
#include "robocache_config.h"

namespace robocache::tsdf_op {

#define ROBOCACHE_DECLARE(target)                                          \
  namespace target {                                                       \
  void integrate_lines(const Plan&, std::int64_t begin, std::int64_t end); \
  }
ROBOCACHE_SIMD_TARGETS(ROBOCACHE_DECLARE)
#undef ROBOCACHE_DECLARE

namespace {

using IntegrateLines = void (*)(const Plan&, std::int64_t begin, std::int64_t end);

IntegrateLines integrate_in_use() {
#define ROBOCACHE_ENTRY(target) target::integrate_lines,
  static constexpr IntegrateLines targets[] = {ROBOCACHE_SIMD_TARGETS(ROBOCACHE_ENTRY) nullptr};
#undef ROBOCACHE_ENTRY
  const int target = simd_target_in_use();
  return target < 0 ? nullptr : targets[target];
}

// Lines that have about so many voxels are worth a thread.
std::int64_t grain_of(std::int64_t length, std::int64_t voxels) { return length < voxels ? voxels / length : 1; }

}  // namespace

void run_cpu(const Plan& plan) {
  const IntegrateLines integrate = integrate_in_use();
  if (integrate == nullptr) return run_reference(plan);
  parallel_for(plan.lines(), grain_of(plan.images.shape[2], 1 << 12),
               [&](std::int64_t begin, std::int64_t end) { integrate(plan, begin, end); });
}

void find_surface_cpu(const SurfacePlan& plan) {
  const std::int64_t grain = grain_of(plan.shape[2], 1 << 14);
  const bool counts = plan.points == nullptr;
  parallel_for(plan.lines(), grain, [&](std::int64_t begin, std::int64_t end) {
    counts ? count_lines(plan, begin, end) : write_lines(plan, begin, end);
  });
  if (counts) sum_counts(plan);
}

}  // namespace robocache::tsdf_op
