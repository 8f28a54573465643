// The functions of src/gpu in a build without CUDA.
#include <robocache/error.h>

#include "core/components.h"
#include "gpu/memory.h"
#include "gpu/status.h"
#include "robocache_config.h"

namespace robocache {
namespace {
constexpr const char* reason = "this build has no CUDA kernels: " ROBOCACHE_WITHOUT_CUDA;
}  // namespace

void refuse_cuda() { throw Error(ErrorKind::unavailable, std::string("the cuda backend cannot run: ") + reason); }

const CudaStatus& cuda_status() {
  static const CudaStatus status{false, reason};
  return status;
}
void cuda_synchronize_all() {}
void* cuda_allocate(int, std::size_t, void*) { refuse_cuda(); }
void cuda_free(int, void*, void*) noexcept {}
void cuda_synchronize(int, void*) { refuse_cuda(); }
void cuda_wait(int) noexcept {}
Components cuda_components() { return {}; }

}  // namespace robocache
