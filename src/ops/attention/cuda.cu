// attention on a GPU: which kernel a call takes, and how it is cut into blocks.
#include <algorithm>
#include <cstdlib>

#include "core/text.h"
#include "ops/attention/cuda_call.h"

namespace robocache::attention_op {
namespace {

bool is_masked(const Plan& plan) {
  return plan.left < unbounded || plan.right < unbounded || plan.key_ranks.data != nullptr ||
         plan.key_valid.data != nullptr || plan.dense != nullptr;
}

// Rows of a key head; packed: of all sequences, so that a sequence has about rows / batch.
std::int64_t rows_of(const Plan& plan) { return plan.queries * plan.group(); }

}  // namespace

int padded_head_dim(std::int64_t head_dim) {
  for (const int padded : {32, 48, 64, 80, 96, 128, 192}) {
    if (head_dim <= padded) return padded;
  }
  return 256;
}

Cut cut_of(const Plan& plan, int device) {
  const CudaMachine& machine = cuda_machine(device);
  const bool packed = plan.query_offsets.data != nullptr;
  const int head_dim = padded_head_dim(plan.head_dim);
  const std::int64_t sequences = packed ? std::max<std::int64_t>(plan.batch, 1) : 1;
  const std::int64_t warps = std::max<std::int64_t>(divide_up(divide_up(rows_of(plan), sequences), warp_rows), 1);
  Cut cut;
  cut.masked = is_masked(plan);
  // As even as possible.
  const std::int64_t tiles = divide_up(warps, warps <= 5 ? 5 : 4);
  cut.warps = static_cast<int>(divide_up(warps, tiles));
  if (const char* const text = std::getenv("ROBOCACHE_SWEEP")) {
    cut.warps = std::atoi(text);
    cut.split = std::atoi(std::strchr(text, ',') + 1);
    cut.tiles = row_tiles(plan, cut.warps * warp_rows);
    return cut;
  }
  cut.tiles = row_tiles(plan, cut.warps * warp_rows);
  const std::int64_t units = units_of(plan, cut.tiles);
  const std::int64_t chunks = divide_up(plan.keys / sequences, tuning::chunk);
  const int room = machine.processors * (head_dim > 80 ? 1 : 2);
  while (machine.major >= 9 && cut.split < 8 && cut.split * 2 <= chunks && units * cut.split * 2 <= room) cut.split *= 2;
  return cut;
}

void run_cuda(const Plan& plan, const Context& context, int device) {
  FaultBox* const box = cuda_fault_box(device);
  const CudaDevice current(device);
  const auto stream = static_cast<cudaStream_t>(context.stream);
  switch (plan.dtype) {
    case DType::bf16:
      return run_bf16(plan, box, device, stream);
    case DType::f16:
      return run_f16(plan, box, device, stream);
    default:
      return run_f32(plan, box, device, stream);
  }
}

void run_cuda_backward(const BackwardPlan& plan, const Context& context, int device) {
  FaultBox* const box = cuda_fault_box(device);
  const CudaDevice current(device);
  const auto stream = static_cast<cudaStream_t>(context.stream);
  const Plan& forward = plan.forward;
  const std::int64_t rows =
      forward.heads * forward.queries * (forward.query_offsets.data != nullptr ? 1 : forward.batch);
  const CudaScratch scratch(context.workspace, device, static_cast<std::size_t>(rows) * sizeof(float), stream);
  auto* const delta = static_cast<float*>(scratch.data());
  switch (forward.dtype) {
    case DType::bf16:
      return run_backward_bf16(plan, delta, box, device, stream);
    case DType::f16:
      return run_backward_f16(plan, delta, box, device, stream);
    default:
      return run_backward_f32(plan, delta, box, device, stream);
  }
}

std::string describe_cuda(const Plan& plan, int device) {
  cuda_fault_box(device);
  if (plan.dtype == DType::f32) return "float32 units, exactly: no tensor core computes float32";
  const Cut cut = cut_of(plan, device);
  std::string text = concat("tensor cores, ", cut.warps * warp_rows, " rows a block (queries times the ", plan.group(),
                            " heads of a key head), head dim padded to ", padded_head_dim(plan.head_dim));
  if (cut.split > 1) {
    text += concat("; keys split over clusters of ", cut.split, " blocks, because rows alone give ",
                   units_of(plan, cut.tiles), " for ", cuda_machine(device).processors, " processors");
  } else {
    text += "; keys not split";
  }
  return text + (cut.masked ? "; masked" : "");
}

}  // namespace robocache::attention_op
