#include "ops/attention/cuda/backward/kernel.h"
#include "ops/attention/cuda/forward.h"

namespace robocache::attention_op {

void run_bf16(const Plan& plan, FaultBox* box, int device, cudaStream_t stream) {
  run_forward<bf16>(plan, box, device, stream);
}
void run_backward_bf16(const BackwardPlan& plan, const BackwardScratch& scratch, FaultBox* box, int device,
                       cudaStream_t stream) {
  run_backward<bf16>(plan, scratch, box, device, stream);
}

// Any kernel does whose blocks leave no room for a second one.
int most_clusters(int device, int split) {
  static std::atomic<int> known[max_devices][17];
  std::atomic<int>& answer = known[device][split];
  if (const int clusters = answer.load(std::memory_order_relaxed)) return clusters - 1;
  constexpr auto* kernel = &attention_sm80_kernel<bf16, 64, Masking::none>;
  allow_large_blocks(reinterpret_cast<const void*>(kernel), device);
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim.x = static_cast<unsigned>(split);
  attribute.val.clusterDim.y = attribute.val.clusterDim.z = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(split));
  config.blockDim = dim3(tuning::max_warps(64) * warp_size);
  config.dynamicSmemBytes = static_cast<std::size_t>(cuda_machine(device).shared_bytes);
  config.attrs = &attribute;
  config.numAttrs = 1;
  int clusters = 0;
  if (cudaOccupancyMaxActiveClusters(&clusters, kernel, &config) != cudaSuccess) {
    cudaGetLastError();
    clusters = 0;
  }
  answer.store(clusters + 1, std::memory_order_relaxed);
  return clusters;
}

}  // namespace robocache::attention_op
