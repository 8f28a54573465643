#include <cuda_runtime_api.h>

#include <cub/version.cuh>

#include "core/components.h"
#include "core/text.h"

namespace robocache {

Components cuda_components() {
  return {
      {"CUDA", concat(CUDART_VERSION / 1000, ".", CUDART_VERSION % 1000 / 10)},
      {"CCCL", concat(CUB_MAJOR_VERSION, ".", CUB_MINOR_VERSION, ".", CUB_SUBMINOR_VERSION)},
  };
}

}  // namespace robocache
