#include "ops/attention/cuda_backward_sm90.h"

namespace robocache::attention_op {

void run_backward_sm90_bf16(const BackwardPlan& plan, const BackwardMaps& maps, const Sm90Scratch& scratch,
                            FaultBox* box, int device, cudaStream_t stream) {
  run_sm90_backward<bf16>(plan, maps, scratch, box, device, stream);
}

}  // namespace robocache::attention_op
