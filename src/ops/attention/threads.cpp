// The cpu backend.
#include "ops/attention/plan.h"

namespace robocache::attention_op {

void run_cpu(const Plan& plan) { run_reference(plan); }
void run_cpu_backward(const BackwardPlan& plan) { run_reference_backward(plan); }
std::string describe_cpu(const Plan&) { return "cpu: the reference code"; }

}  // namespace robocache::attention_op
