// The cpu backend: each thread has some lines of voxels.
#include "core/parallel.h"
#include "core/simd.h"
#include "ops/tsdf/cpu/cpu.h"
#include "ops/tsdf/surface.h"

namespace robocache::tsdf_op {

ROBOCACHE_SIMD_DISPATCH(cpu_functions_in_use)

namespace {

// Lines for a thread: about `voxels` voxels.
std::int64_t grain_of(std::int64_t length, std::int64_t voxels) { return length < voxels ? voxels / length : 1; }

}  // namespace

void run_cpu(const Plan& plan) {
  const CpuFunctions* const functions = cpu_functions_in_use();
  if (functions == nullptr) return run_reference(plan);
  parallel_for(plan.lines(), grain_of(plan.images.shape[2], 1 << 12),
               [&](std::int64_t begin, std::int64_t end) { functions->integrate_lines(plan, begin, end); });
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
