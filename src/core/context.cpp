#include <robocache/robocache.h>

#include "core/cuda.h"
#include "core/text.h"
#include "robocache_config.h"

namespace robocache {

const char* version() noexcept { return ROBOCACHE_VERSION; }

std::vector<BackendInfo> backends() {
  const std::string target = simd_target();
  const std::string threads = concat(num_threads(), num_threads() == 1 ? " thread" : " threads");
  const CudaStatus& cuda = cuda_status();
  return {{"reference", true, "scalar, 1 thread"},
          {"cpu", true,
           target == "none" ? "the reference code: no SIMD target with a hardware fma" : concat(target, ", ", threads)},
          {"cuda", cuda.available, cuda.description}};
}

void synchronize() { cuda_synchronize_all(); }

}  // namespace robocache
