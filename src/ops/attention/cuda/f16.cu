#include "ops/attention/cuda/backward/kernel.h"
#include "ops/attention/cuda/forward.h"

namespace robocache::attention_op {

void run_f16(const Plan& plan, FaultBox* box, int device, cudaStream_t stream) {
  run_forward<f16>(plan, box, device, stream);
}
void run_backward_f16(const BackwardPlan& plan, const BackwardScratch& scratch, FaultBox* box, int device,
                      cudaStream_t stream) {
  run_backward<f16>(plan, scratch, box, device, stream);
}

}  // namespace robocache::attention_op
