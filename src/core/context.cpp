#include <robocache/robocache.h>

#include "core/counted.h"
#include "core/names.h"
#include "core/text.h"
#include "gpu/status.h"
#include "robocache_config.h"

namespace robocache {

namespace {

std::string describe_cpu() {
  const std::string target = simd_target();
  if (target != "none") return concat(target, ", ", counted(static_cast<std::size_t>(num_threads()), "thread"));
  if (!simd_targets().empty()) return "the reference code: SIMD is switched off (ROBOCACHE_SIMD, set_simd_target)";
#define ROBOCACHE_NAME(target) " " #target
  return "the reference code: this CPU runs none of the SIMD targets of this build:" ROBOCACHE_SIMD_TARGETS(
      ROBOCACHE_NAME);
#undef ROBOCACHE_NAME
}

}  // namespace

const char* version() noexcept { return ROBOCACHE_VERSION; }

std::vector<BackendInfo> backends() {
  const CudaStatus& cuda = cuda_status();
  return {{word_of(Backend::reference), true, "scalar, 1 thread"},
          {word_of(Backend::cpu), true, describe_cpu()},
          {word_of(Backend::cuda), cuda.available, cuda.description}};
}

void synchronize() { cuda_synchronize_all(); }

}  // namespace robocache
