#include "ops/attention/cuda/backward_sm90/kernel.h"

namespace robocache::attention_op {

void run_backward_sm90_bf16(const BackwardPlan& plan, const BackwardTensorMaps& maps, const Sm90Scratch& scratch,
                            FaultBox* box, int device, cudaStream_t stream) {
  run_sm90_backward<bf16>(plan, maps, scratch, box, device, stream);
}

}  // namespace robocache::attention_op
