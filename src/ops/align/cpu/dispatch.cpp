// Runs a plan with the SIMD target in use, or with the reference code where there is none.
#include "core/simd.h"
#include "ops/align/cpu/cpu.h"

namespace robocache::align_op {

ROBOCACHE_SIMD_DISPATCH(cpu_functions_in_use)

void run_cpu(const Plan& plan, Segments segments) {
  const CpuFunctions* const functions = cpu_functions_in_use();
  if (functions == nullptr) return run_reference(plan, segments);
  functions->run(plan, segments);
}
void run_cpu(const Plan& plan) { run_cpu(plan, nullptr); }

}  // namespace robocache::align_op
