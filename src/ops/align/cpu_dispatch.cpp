// Which of the cpu.cpp that were compiled runs a plan.
#include "core/simd.h"
#include "ops/align/plan.h"
#include "robocache_config.h"

namespace robocache::align_op {

#define ROBOCACHE_DECLARE(target) \
  namespace target {              \
  void run_target(const Plan&);   \
  }
ROBOCACHE_SIMD_TARGETS(ROBOCACHE_DECLARE)
#undef ROBOCACHE_DECLARE

void run_cpu(const Plan& plan) {
  using Run = void (*)(const Plan&);
#define ROBOCACHE_ENTRY(target) target::run_target,
  static constexpr Run targets[] = {ROBOCACHE_SIMD_TARGETS(ROBOCACHE_ENTRY) run_reference};
#undef ROBOCACHE_ENTRY
  constexpr int none = static_cast<int>(std::size(targets)) - 1;
  const int target = simd_target_in_use();
  targets[target < 0 ? none : target](plan);
}

}  // namespace robocache::align_op
