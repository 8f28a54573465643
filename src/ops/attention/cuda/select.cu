// attention on a GPU: which kernel a call takes, and how it is cut into blocks.
#include <cudaTypedefs.h>

#include <algorithm>
#include <array>
#include <limits>
#include <numeric>
#include <optional>

#include "core/text.h"
#include "ops/attention/cuda/backward_sm90/call.h"

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

namespace {

// Encodes the TMA descriptor of an array of half types. strides: in elements, from the second dimension on. False: TMA cannot
// express these strides.
template <int dimensions>
bool encode_tensor_map(CUtensorMap& map, void* data, const std::int64_t (&sizes)[dimensions],
                       const std::int64_t (&strides)[dimensions - 1], const cuuint32_t (&box)[dimensions]) {
  static const auto encode = [] {
    void* function = nullptr;
    cudaDriverEntryPointQueryResult result{};
    // This library does not link the driver.
#if CUDART_VERSION >= 12050
    cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000, cudaEnableDefault, &result);
#else
    cudaGetDriverEntryPoint("cuTensorMapEncodeTiled", &function, cudaEnableDefault, &result);
#endif
    return reinterpret_cast<PFN_cuTensorMapEncodeTiled_v12000>(result == cudaDriverEntryPointSuccess ? function
                                                                                                     : nullptr);
  }();
  if (encode == nullptr) return false;
  cuuint64_t counts[dimensions], bytes[dimensions - 1];
  cuuint32_t steps[dimensions];
  for (int k = 0; k < dimensions; ++k) {
    counts[k] = static_cast<cuuint64_t>(std::max<std::int64_t>(sizes[k], 1));
    steps[k] = 1;
    if (k == 0) continue;
    // A dimension of 1 may have any stride, which is never used.
    bytes[k - 1] = static_cast<cuuint64_t>(counts[k] == 1 ? 16 : strides[k - 1] * 2);
    if (bytes[k - 1] == 0 || bytes[k - 1] >= cuuint64_t{1} << 40) return false;
  }
  const auto set = [&] {
    return encode(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, dimensions, data, counts, bytes, box, steps,
                  CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
                  CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
  };
  if (set()) return true;
  // The driver refuses in a thread that has no context yet, as autograd's threads at their first call. That call would take
  // another kernel than the next one, and give other bits. The runtime gives the thread its context.
  int device = 0;
  return cudaGetDevice(&device) == cudaSuccess && cudaSetDevice(device) == cudaSuccess && set();
}

// Descriptors of keys and values of each segment, with a box of `keys` keys.
bool set_key_value_maps(const Plan& plan, bool sm90, int keys, CUtensorMap (&maps)[max_attention_segments][2]) {
  const std::int64_t blocks = sm90 && SharedLayout::tma_copies(plan.head_dim) == 1 ? divide_up(plan.head_dim, 64) : 1;
  for (int k = 0; k < plan.segment_count; ++k) {
    const Segment& segment = plan.segments[k];
    if (segment.count == 0) continue;
    const auto set = [&](CUtensorMap& map, const Vectors& vectors) {
      return encode_tensor_map<5>(map, vectors.data,
                                  {plan.head_dim / blocks, segment.count, blocks, plan.kv_heads, plan.arrays()},
                                  {vectors.row, 64, vectors.head, vectors.batch},
                                  {64, static_cast<cuuint32_t>(keys), static_cast<cuuint32_t>(blocks), 1, 1});
    };
    if (!set(maps[k][0], segment.keys) || !set(maps[k][1], segment.values)) return false;
  }
  return true;
}

// Descriptor of a block's rows of queries. False: the heads of a query would lie in different blocks.
bool set_query_map(const Plan& plan, int rows, CUtensorMap& map) {
  const std::int64_t group = plan.group();
  if (group == 0 || rows % group != 0 || plan.queries == 0) return false;
  return encode_tensor_map<5>(map, plan.q.data, {plan.head_dim, group, plan.queries, plan.kv_heads, plan.arrays()},
                              {plan.q.head, plan.q.row, plan.q.head * group, plan.q.batch},
                              {64, static_cast<cuuint32_t>(group), static_cast<cuuint32_t>(rows / group), 1, 1});
}

}  // namespace

Masking masking_of(const Plan& plan) {
  const bool window = plan.left < unbounded || plan.right < unbounded;
  const bool ranks = plan.key_ranks.data != nullptr;
  if (plan.dense != nullptr || (ranks && window)) return Masking::general;
  return window || ranks || plan.key_valid.data != nullptr ? Masking::simple : Masking::none;
}

namespace {

// What the choice of a configuration depends on.
struct Shape {
  int device = -1;
  std::int64_t rows = 0, keys = 0;  // of a sequence; packed: on average
  std::int64_t most_keys = 0;       // of the longest sequence
  std::int64_t sequences = 0;       // times key heads
  int head_dim = 0;
  int segments = 1;
  bool sm90 = false;      // whether it may be the sm90 kernel,
  bool has_tail = false;  // and whether that may have tail rows

  friend bool operator==(const Shape&, const Shape&) = default;
};

// The cost of a configuration in microseconds; none where it does not fit this GPU. Sets its stages.
std::optional<double> cost_of(const Shape& shape, KernelConfig& config) {
  const CudaMachine& machine = cuda_machine(shape.device);
  const int summing = config.row_warps * config.key_warps;
  const int warps = summing + (config.sm90 ? 4 : 0);
  const int keys = config.keys(shape.head_dim);
  const auto stages_for = [&](std::int64_t count, int keys_of_stage) {
    const int least = config.sm90 ? keys : warp_rows;
    return std::max<std::int64_t>(divide_up(divide_up(divide_up(count, config.split), least) * least, keys_of_stage),
                                  1);
  };
  const auto bytes_with = [&](int stages) {
    return SharedLayout(shape.head_dim, config.sm90, config.row_warps, config.key_warps, stages, config.split, keys,
                        config.has_tail)
        .bytes();
  };
  // Blocks of a multiprocessor, as far as registers allow. The pipeline leaves shared memory for as many.
  constexpr int all_registers = 65536;
  int room =
      std::clamp(all_registers / (tuning::registers(shape.head_dim, config.sm90, config.has_tail) * warps * warp_size),
                 1, 32 / warps);
  if (config.sm90) {
    constexpr int of_each_block = 1024;  // reserved by the hardware
    const int limit = (machine.shared_bytes + of_each_block) / room - of_each_block;
    const std::int64_t slots = shape.most_keys + (shape.segments - 1) * std::int64_t{keys - 1};  // SegmentSlots
    const std::int64_t wanted = std::max<std::int64_t>(stages_for(slots, keys), config.key_warps);
    config.stages = static_cast<int>(std::min<std::int64_t>(wanted, tuning::most_stages));
    while (config.stages > config.key_warps && bytes_with(config.stages) > limit) --config.stages;
    // A stage that is used again must come back to the same warps: a phase has only a parity, and other warps could take the
    // phase before for this one. More stages than key slices, so that keys are loaded while others are used.
    if (stages_for(slots, keys) > config.stages) {
      const int period = std::lcm(config.key_warps, config.has_tail ? tail_warps : 1);
      config.stages -= config.stages % period;
      if (config.stages <= config.key_warps) return {};
    }
  } else {
    config.stages = static_cast<int>(
        std::min<std::int64_t>(stages_for(shape.most_keys, config.key_warps * keys), tuning::stages(shape.head_dim)));
  }
  const int bytes = bytes_with(config.stages);
  if (bytes > machine.shared_bytes) return {};
  room = std::min(room, machine.shared_bytes / bytes);
  const std::int64_t units = divide_up(shape.rows, config.rows()) * shape.sequences;
  const std::int64_t at_once =
      config.split == 1 ? machine.processors : static_cast<std::int64_t>(most_clusters(shape.device, config.split));
  if (at_once == 0) return {};
  const std::int64_t waves = divide_up(units, at_once * room);
  const auto shared_by = static_cast<double>(std::min<std::int64_t>(divide_up(units, at_once), room));
  const double stage = tuning::stage_us(shape.head_dim, config.sm90, summing * shared_by, keys);
  return static_cast<double>(waves) * (tuning::block_us(shape.head_dim, config.sm90, keys, config.has_tail) +
                                       static_cast<double>(stages_for(shape.keys, config.key_warps * keys)) * stage) +
         tuning::merge_us(shape.head_dim, config.sm90, config.key_warps, config.split) +
         static_cast<double>(units * config.split * warps) * tuning::start_us;
}

KernelConfig best_config(const Shape& shape) {
  KernelConfig best;
  double least = std::numeric_limits<double>::infinity();
  const bool clusters = cuda_machine(shape.device).major >= 9;
  const std::int64_t row_warps = std::max<std::int64_t>(divide_up(shape.rows, warp_rows), 1);
  struct Candidate {
    bool sm90, long_tiles, has_tail;
  };
  for (const auto& [sm90, long_tiles, has_tail] : {Candidate{true, false, false}, Candidate{true, true, false},
                                                   Candidate{true, false, true}, Candidate{false, false, false}}) {
    if ((sm90 && !shape.sm90) || (long_tiles && !tuning::has_long_tiles(shape.head_dim)) ||
        (has_tail && !shape.has_tail)) {
      continue;
    }
    KernelConfig config;
    config.sm90 = sm90;
    config.long_tiles = long_tiles;
    config.has_tail = has_tail;
    const std::int64_t chunks = std::max<std::int64_t>(divide_up(shape.keys, config.keys(shape.head_dim)), 1);
    const int step = sm90 ? 4 : 1;
    const int warps = sm90 ? 4 * tuning::warpgroups(shape.head_dim, has_tail) : tuning::max_warps(shape.head_dim);
    for (int rows = step; rows <= warps && rows - step < row_warps; rows += step) {
      for (int keys = 1; rows * keys <= warps && keys <= 4 && keys <= chunks; ++keys) {
        for (const int split : {1, 2, 3, 4, 5, 6, 8, 16}) {
          if (split > 1 && (!clusters || split > chunks)) continue;
          if (split == 1 && has_tail) continue;
          if (keys > 1 && SharedLayout::pushes_partials(shape.head_dim, sm90, split))
            continue;  // each block has one key slice then
          config.row_warps = rows;
          config.key_warps = keys;
          config.split = split;
          const std::optional<double> cost = cost_of(shape, config);
          if (cost && *cost < least) {
            least = *cost;
            best = config;
          }
        }
      }
    }
  }
  return best;
}

// The cheapest configuration. sm90, has_tail: whether it may be the sm90 kernel, and have tail rows.
KernelConfig config_of(const Plan& plan, int device, bool sm90, bool has_tail) {
  const std::int64_t packed = plan.is_packed() ? std::max<std::int64_t>(plan.batch, 1) : 1;
  Shape shape;
  shape.device = device;
  shape.rows = divide_up(rows_of(plan), packed);
  shape.keys = divide_up(plan.keys, packed);
  shape.most_keys = plan.keys;
  shape.sequences = plan.batch * plan.kv_heads;
  shape.head_dim = padded_head_dim(plan.head_dim);
  shape.segments = plan.segment_count;
#if defined(ROBOCACHE_WITH_WGMMA)
  shape.sm90 = sm90 && cuda_machine(device).major == 9 && masking_of(plan) != Masking::general && is_aligned(plan);
#endif
  // Tail rows need queries that TMA loads, and zeros behind the last key.
  shape.has_tail = has_tail && shape.sm90 && tuning::has_tail_rows(shape.head_dim) &&
                   tail_rows % std::max<std::int64_t>(plan.group(), 1) == 0 && plan.segment_count == 1 &&
                   !plan.is_packed() && plan.lengths.data == nullptr && plan.scale >= 0;
  // A policy calls with a few shapes again and again.
  struct Cached {
    Shape shape;
    KernelConfig config;
  };
  thread_local std::array<Cached, 16> cache;
  thread_local std::size_t oldest = 0;
  const auto* found = std::find_if(cache.begin(), cache.end(), [&](const Cached& k) { return k.shape == shape; });
  if (found == cache.end()) {
    cache[oldest] = {shape, best_config(shape)};
    found = &cache[oldest];
    oldest = (oldest + 1) % cache.size();
  }
  KernelConfig config = found->config;
  config.tiles = row_tiles(plan, config.rows());
  return config;
}

}  // namespace

// The best configuration whose TMA descriptors can be encoded.
KernelConfig config_of(const Plan& plan, int device, TensorMaps& maps) {
  const bool aligned = is_aligned(plan) && is_aligned(plan.out, plan.batch) && cuda_machine(device).major >= 9;
  struct Variant {
    bool sm90, has_tail;
  };
  KernelConfig config;
  for (const auto& [sm90, has_tail] : {Variant{true, true}, Variant{true, false}, Variant{false, false}}) {
    config = config_of(plan, device, sm90, has_tail);
    maps.tma_keys = aligned && (config.sm90 || config.stages > 1) &&
                    set_key_value_maps(plan, config.sm90, config.keys(padded_head_dim(plan.head_dim)), maps.maps);
    maps.tma_queries = config.sm90 && maps.tma_keys && set_query_map(plan, config.rows(), maps.query_map);
    if (!config.sm90 || (config.has_tail ? maps.tma_queries : maps.tma_keys)) break;
  }
  return config;
}

namespace {

// The descriptors of the sm90 backward pass; none where it cannot run this call, or where the other kernel is faster.
std::optional<BackwardTensorMaps> sm90_backward_maps([[maybe_unused]] const BackwardPlan& backward,
                                                     [[maybe_unused]] int device) {
#if defined(ROBOCACHE_WITH_WGMMA)
  const Plan& plan = backward.forward;
  if (plan.dtype == DType::f32 || cuda_machine(device).major != 9) return {};
  if (plan.dense != nullptr || plan.key_ranks.data != nullptr || plan.key_valid.data != nullptr) return {};
  if (plan.is_packed() || plan.lengths.data != nullptr || plan.segment_count != 1) return {};
  // Each query must see a key, and each key must be seen: what is not seen may be NaN, which a weight of 0 does not stop.
  const std::int64_t shift = plan.keys - plan.queries;
  if (plan.queries == 0 || plan.keys == 0 || plan.left < std::max<std::int64_t>(shift, 0) ||
      plan.right < std::max<std::int64_t>(-shift, 0) || std::max(plan.queries, plan.keys) >= 1 << 27) {
    return {};
  }
  constexpr std::int64_t most_rows = std::int64_t{1} << 27;  // one launch has 16 threads for each
  if (plan.batch * plan.heads * (plan.queries + sm90_backward::rows) >= most_rows) return {};
  if (!sm90_backward::has(padded_head_dim(plan.head_dim)) || plan.head_dim % 8 != 0) return {};
  const auto aligned = [&](const Vectors& vectors) { return is_aligned(vectors, plan.batch); };
  if (!is_aligned(plan) || !aligned(plan.out) || !aligned(backward.d_out) || !aligned(backward.d_q) ||
      !aligned(backward.d_keys[0]) || !aligned(backward.d_values[0])) {
    return {};
  }
  const std::int64_t blocks = SharedLayout::tma_copies(plan.head_dim) == 1 ? divide_up(plan.head_dim, 64) : 1;
  const auto set = [&](CUtensorMap& map, const Vectors& vectors, std::int64_t rows, std::int64_t heads) {
    return encode_tensor_map<5>(map, vectors.data, {plan.head_dim / blocks, rows, blocks, heads, plan.batch},
                                {vectors.row, 64, vectors.head, vectors.batch},
                                {64, sm90_backward::rows, static_cast<cuuint32_t>(blocks), 1, 1});
  };
  BackwardTensorMaps maps;
  const Segment& segment = plan.segments[0];
  if (!set(maps.q, plan.q, plan.queries, plan.heads) || !set(maps.d_out, backward.d_out, plan.queries, plan.heads) ||
      !set(maps.keys, segment.keys, plan.keys, plan.kv_heads) ||
      !set(maps.values, segment.values, plan.keys, plan.kv_heads)) {
    return {};
  }
  return maps;
#else
  return {};
#endif
}

void run_sm90_backward(const BackwardPlan& plan, const BackwardTensorMaps& maps, FaultBox* box, const Context& context,
                       int device) {
  const Plan& forward = plan.forward;
  const auto stream = static_cast<cudaStream_t>(context.stream);
  const std::int64_t rows =
      forward.batch * forward.heads * divide_up(forward.queries, sm90_backward::rows) * sm90_backward::rows;
  const std::int64_t tiles = forward.group() * divide_up(forward.queries, sm90_backward::rows);
  Sm90Scratch parts;
  parts.groups = sm90_backward::groups(padded_head_dim(forward.head_dim), std::max(forward.queries, forward.keys));
  const std::int64_t blocks = work_tiles_of(forward, divide_up(forward.keys, sm90_backward::rows * parts.groups));
  const std::int64_t room = cuda_machine(device).processors * (parts.groups == 1 ? 2 : 1);
  parts.key_split = static_cast<int>(std::clamp<std::int64_t>(std::min<std::int64_t>(room / blocks, tiles / 4), 1, 16));
  const std::int64_t partials = parts.key_split == 1 ? 0
                                                     : 2 * parts.key_split * work_tiles_of(forward, forward.keys) *
                                                           padded_head_dim(forward.head_dim);
  const CudaScratch scratch(context.workspace, device, static_cast<std::size_t>(partials + 2 * rows) * sizeof(float),
                            stream);
  parts.lse = static_cast<float*>(scratch.data());
  parts.delta = parts.lse + rows;
  parts.partials = parts.delta + rows;
  (forward.dtype == DType::bf16 ? run_backward_sm90_bf16 : run_backward_sm90_f16)(plan, maps, parts, box, device,
                                                                                  stream);
}

// How many blocks share the rows that see a tile of keys: few keys of one head would leave most of a GPU idle.
int key_split_of(const Plan& plan, int device) {
  if (plan.dtype == DType::f32 || plan.is_packed()) return 1;
  const int head_dim = padded_head_dim(plan.head_dim);
  const std::int64_t blocks =
      work_tiles_of(plan, divide_up(plan.keys, tuning::backward_rows)) * (tuning::backward_together(head_dim) ? 1 : 2);
  const std::int64_t chunks = divide_up(rows_of(plan), tuning::backward_chunk(head_dim));
  if (blocks == 0) return 1;
  const std::int64_t wanted = tuning::backward_blocks * cuda_machine(device).processors / blocks;
  return static_cast<int>(std::clamp<std::int64_t>(std::min<std::int64_t>(wanted, chunks / 2), 1, 16));
}

}  // namespace

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
  if (const std::optional<BackwardTensorMaps> maps = sm90_backward_maps(plan, device)) {
    return run_sm90_backward(plan, *maps, box, context, device);
  }
  const Plan& forward = plan.forward;
  const std::int64_t rows = forward.heads * forward.queries * forward.arrays();
  BackwardScratch parts;
  parts.key_split = key_split_of(forward, device);
  const std::int64_t partials = parts.key_split == 1 ? 0
                                                     : 2 * parts.key_split * work_tiles_of(forward, forward.keys) *
                                                           padded_head_dim(forward.head_dim);
  const CudaScratch scratch(context.workspace, device, static_cast<std::size_t>(partials + rows) * sizeof(float),
                            stream);
  parts.partials = static_cast<float*>(scratch.data());
  parts.delta = parts.partials + partials;
  switch (forward.dtype) {
    case DType::bf16:
      return run_backward_bf16(plan, parts, box, device, stream);
    case DType::f16:
      return run_backward_f16(plan, parts, box, device, stream);
    default:
      return run_backward_f32(plan, parts, box, device, stream);
  }
}

std::string describe_cuda(const Plan& plan, int device) {
  cuda_fault_box(device);
  if (plan.dtype == DType::f32) return "cuda: float32 units, exactly: no tensor core computes float32";
  TensorMaps maps;
  const KernelConfig config = config_of(plan, device, maps);
  std::string text = concat("cuda: ", config.sm90 ? "warpgroups" : "tensor cores", ", blocks of ", config.rows(),
                            " rows (queries times the ", plan.group(), " heads of a key head) by ", config.key_warps,
                            " warps along the keys");
  if (config.has_tail) text += concat(" (", tail_warps, " for the last ", tail_rows, " rows)");
  if (config.split > 1) {
    text += concat(", keys split over clusters of ", config.split, " blocks because rows alone give ",
                   work_tiles_of(plan, config.tiles), " blocks for ", cuda_machine(device).processors, " processors");
  }
  constexpr const char* maskings[] = {"", ", masked", ", masked by a dense mask or by ranks in a window"};
  return text + maskings[static_cast<int>(masking_of(plan))];
}

}  // namespace robocache::attention_op
