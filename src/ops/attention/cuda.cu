// attention on a GPU: which kernel a call takes, and how it is cut into blocks.
#include <cudaTypedefs.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "core/text.h"
#include "ops/attention/cuda_call.h"

namespace robocache::attention_op {
namespace {

// Rows of a key head; packed: of all sequences, so that a sequence has about rows / batch.
std::int64_t rows_of(const Plan& plan) { return plan.queries * plan.group(); }

}  // namespace

int padded_head_dim(std::int64_t head_dim) {
  for (const int padded : {32, 48, 64, 80, 96, 128, 192}) {
    if (head_dim <= padded) return padded;
  }
  return 256;
}

bool set_maps(const Plan& plan, CUtensorMap (&maps)[max_attention_segments][2]) {
  static const auto encode = [] {
    void* function = nullptr;
    cudaDriverEntryPointQueryResult result{};
    // Nothing here links the driver.
#if CUDART_VERSION >= 12050
    cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000, cudaEnableDefault, &result);
#else
    cudaGetDriverEntryPoint("cuTensorMapEncodeTiled", &function, cudaEnableDefault, &result);
#endif
    return reinterpret_cast<PFN_cuTensorMapEncodeTiled_v12000>(result == cudaDriverEntryPointSuccess ? function
                                                                                                      : nullptr);
  }();
  if (encode == nullptr) return false;
  const bool packed = plan.query_offsets.data != nullptr;
  const auto set = [&](CUtensorMap& map, const Vectors& vectors, std::int64_t count) {
    const auto size = [](std::int64_t n) { return static_cast<cuuint64_t>(n < 1 ? 1 : n); };
    const auto batch = size(packed ? 1 : plan.batch);
    // Where there is one, its stride is never used, and may be anything.
    const auto stride = [](std::int64_t elements, cuuint64_t of) {
      return static_cast<cuuint64_t>(of == 1 ? 16 : elements * 2);
    };
    const cuuint64_t sizes[] = {size(plan.head_dim), size(count), size(plan.kv_heads), batch};
    const cuuint64_t strides[] = {stride(vectors.row, sizes[1]), stride(vectors.head, sizes[2]),
                                  stride(vectors.batch, sizes[3])};
    for (const cuuint64_t bytes : strides) {
      if (bytes == 0 || bytes >= cuuint64_t{1} << 40) return false;
    }
    const cuuint32_t box[] = {64, static_cast<cuuint32_t>(tuning::keys(padded_head_dim(plan.head_dim))), 1, 1};
    const cuuint32_t steps[] = {1, 1, 1, 1};
    return encode(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 4, vectors.data, sizes, strides, box, steps,
                  CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
                  CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
  };
  for (int k = 0; k < plan.segment_count; ++k) {
    const Segment& segment = plan.segments[k];
    if (segment.count == 0) continue;
    if (!set(maps[k][0], segment.keys, segment.count) || !set(maps[k][1], segment.values, segment.count)) return false;
  }
  return true;
}

Masking masking_of(const Plan& plan) {
  const bool window = plan.left < unbounded || plan.right < unbounded;
  const bool ranks = plan.key_ranks.data != nullptr;
  if (plan.dense != nullptr || (ranks && window)) return Masking::general;
  return window || ranks || plan.key_valid.data != nullptr ? Masking::simple : Masking::none;
}

Cut cut_of(const Plan& plan, int device) {
  const CudaMachine& machine = cuda_machine(device);
  const bool packed = plan.query_offsets.data != nullptr;
  const int head_dim = padded_head_dim(plan.head_dim);
  const std::int64_t sequences = packed ? std::max<std::int64_t>(plan.batch, 1) : 1;
  const std::int64_t warps = std::max<std::int64_t>(divide_up(divide_up(rows_of(plan), sequences), warp_rows), 1);
  const std::int64_t keys = divide_up(plan.keys, sequences);
  Cut cut;
  // As even as possible.
  const std::int64_t tiles = divide_up(warps, warps <= 5 ? 5 : 4);
  cut.row_warps = static_cast<int>(divide_up(warps, tiles));
  if (const char* const text = std::getenv("ROBOCACHE_SWEEP")) {
    std::sscanf(text, "%d,%d,%d", &cut.row_warps, &cut.key_warps, &cut.split);
    cut.tiles = row_tiles(plan, cut.row_warps * warp_rows);
  } else {
    cut.tiles = row_tiles(plan, cut.row_warps * warp_rows);
    const std::int64_t units = units_of(plan, cut.tiles);
    const std::int64_t chunks = divide_up(keys, tuning::keys(head_dim));
    while (machine.major >= 9 && cut.split < 8 && cut.split * 2 <= chunks && units * cut.split * 2 <= machine.processors) {
      cut.split *= 2;
    }
    while (cut.split * cut.key_warps < chunks && (cut.key_warps + 1) * cut.row_warps <= tuning::max_warps(head_dim)) {
      ++cut.key_warps;
    }
  }
  const auto set_stages = [&] {
    const std::int64_t per_block = divide_up(keys, cut.split) + warp_rows;
    const std::int64_t per_stage = cut.key_warps * tuning::keys(head_dim);
    cut.stages = static_cast<int>(std::clamp<std::int64_t>(divide_up(per_block, per_stage), 1, tuning::stages(head_dim)));
    return Memory(head_dim, cut.row_warps, cut.key_warps, cut.stages).bytes();
  };
  while (set_stages() > machine.shared_bytes && cut.key_warps > 1) --cut.key_warps;
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
  std::string text = concat("tensor cores, blocks of ", cut.row_warps * warp_rows, " rows (queries times the ",
                            plan.group(), " heads of a key head) by ", cut.key_warps, " warps along the keys");
  if (cut.split > 1) {
    text += concat(", keys split over clusters of ", cut.split, " blocks because rows alone give ",
                   units_of(plan, cut.tiles), " blocks for ", cuda_machine(device).processors, " processors");
  }
  constexpr const char* maskings[] = {"", ", masked", ", masked by a dense mask or by ranks in a window"};
  return text + maskings[static_cast<int>(masking_of(plan))];
}

}  // namespace robocache::attention_op
