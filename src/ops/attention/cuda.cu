// attention on a GPU: which kernel a call takes, and how it is cut into blocks.
#include <cudaTypedefs.h>

#include <algorithm>
#include <array>
#include <limits>
#include <numeric>
#include <optional>

#include "core/text.h"
#include "ops/attention/cuda_backward_sm90_call.h"

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

// How the copy engine finds a box of an array of half types. strides: in elements, from the second dimension on.
// False: they are none that it knows.
template <int dimensions>
bool set_map(CUtensorMap& map, void* data, const std::int64_t (&sizes)[dimensions],
             const std::int64_t (&strides)[dimensions - 1], const cuuint32_t (&box)[dimensions]) {
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
  cuuint64_t counts[dimensions], bytes[dimensions - 1];
  cuuint32_t steps[dimensions];
  for (int k = 0; k < dimensions; ++k) {
    counts[k] = static_cast<cuuint64_t>(std::max<std::int64_t>(sizes[k], 1));
    steps[k] = 1;
    if (k == 0) continue;
    // Where there is one, its stride is never used, and may be anything.
    bytes[k - 1] = static_cast<cuuint64_t>(counts[k] == 1 ? 16 : strides[k - 1] * 2);
    if (bytes[k - 1] == 0 || bytes[k - 1] >= cuuint64_t{1} << 40) return false;
  }
  const auto set = [&] {
    return encode(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, dimensions, data, counts, bytes, box, steps,
                  CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
                  CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
  };
  if (set()) return true;
  // The driver refuses in a thread that has no context yet (autograd's threads at their first call), and the call would take
  // another kernel, with other bits, than the next one. The runtime gives the thread its context.
  int device = 0;
  return cudaGetDevice(&device) == cudaSuccess && cudaSetDevice(device) == cudaSuccess && set();
}

// Keys and values of each segment, so many at a time.
bool set_maps(const Plan& plan, bool wide, int keys, CUtensorMap (&maps)[max_attention_segments][2]) {
  const std::int64_t blocks = wide && Memory::tile_copies(plan.head_dim) == 1 ? divide_up(plan.head_dim, 64) : 1;
  for (int k = 0; k < plan.segment_count; ++k) {
    const Segment& segment = plan.segments[k];
    if (segment.count == 0) continue;
    const auto set = [&](CUtensorMap& map, const Vectors& vectors) {
      return set_map<5>(map, vectors.data,
                        {plan.head_dim / blocks, segment.count, blocks, plan.kv_heads, plan.arrays()},
                        {vectors.row, 64, vectors.head, vectors.batch},
                        {64, static_cast<cuuint32_t>(keys), static_cast<cuuint32_t>(blocks), 1, 1});
    };
    if (!set(maps[k][0], segment.keys) || !set(maps[k][1], segment.values)) return false;
  }
  return true;
}

// A block's rows of queries, where all heads of a query are in the same one.
bool set_query_map(const Plan& plan, int rows, CUtensorMap& map) {
  const std::int64_t group = plan.group();
  if (group == 0 || rows % group != 0 || plan.queries == 0) return false;
  return set_map<5>(map, plan.q.data, {plan.head_dim, group, plan.queries, plan.kv_heads, plan.arrays()},
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

// What decides how a call is cut.
struct Shape {
  int device = -1;
  std::int64_t rows = 0, keys = 0;  // of a sequence; packed: on average,
  std::int64_t most_keys = 0;       // and at most
  std::int64_t sequences = 0;       // times key heads
  int head_dim = 0;
  int segments = 1;
  bool wide = false;    // may be,
  bool narrow = false;  // and so may narrow rows beside

  friend bool operator==(const Shape&, const Shape&) = default;
};

// Microseconds that a cut may take; none where it cannot be. Sets its stages.
std::optional<double> cost_of(const Shape& shape, Cut& cut) {
  const CudaMachine& machine = cuda_machine(shape.device);
  const int summing = cut.row_warps * cut.key_warps;
  const int warps = summing + (cut.wide ? 4 : 0);
  const int keys = cut.keys(shape.head_dim);
  const auto stages_for = [&](std::int64_t count, int keys_of_stage) {
    const int least = cut.wide ? keys : warp_rows;
    return std::max<std::int64_t>(divide_up(divide_up(divide_up(count, cut.split), least) * least, keys_of_stage), 1);
  };
  const auto bytes_with = [&](int stages) {
    return Memory(shape.head_dim, cut.wide, cut.row_warps, cut.key_warps, stages, cut.split, keys, cut.narrow).bytes();
  };
  // Blocks that there are registers for on a processor; a ring leaves as much room.
  constexpr int all_registers = 65536;
  int room = std::clamp(all_registers / (tuning::registers(shape.head_dim, cut.wide, cut.narrow) * warps * warp_size),
                        1, 32 / warps);
  if (cut.wide) {
    constexpr int of_each_block = 1024;  // that the machine keeps
    const int limit = (machine.shared_bytes + of_each_block) / room - of_each_block;
    const std::int64_t spots = shape.most_keys + (shape.segments - 1) * std::int64_t{keys - 1};  // of all keys (Span)
    const std::int64_t wanted = std::max<std::int64_t>(stages_for(spots, keys), cut.key_warps);
    cut.stages = static_cast<int>(std::min<std::int64_t>(wanted, tuning::most_stages));
    while (cut.stages > cut.key_warps && bytes_with(cut.stages) > limit) --cut.stages;
    // Stages that are used again must come back to the same warps: others may look at them a turn too early, when a
    // barrier's parity is that of the turn before. One more than there are shares, so that keys come while others are used.
    if (stages_for(spots, keys) > cut.stages) {
      const int turn = std::lcm(cut.key_warps, cut.narrow ? narrow_warps : 1);
      cut.stages -= cut.stages % turn;
      if (cut.stages <= cut.key_warps) return {};
    }
  } else {
    cut.stages = static_cast<int>(
        std::min<std::int64_t>(stages_for(shape.most_keys, cut.key_warps * keys), tuning::stages(shape.head_dim)));
  }
  const int bytes = bytes_with(cut.stages);
  if (bytes > machine.shared_bytes) return {};
  room = std::min(room, machine.shared_bytes / bytes);
  const std::int64_t units = divide_up(shape.rows, cut.rows()) * shape.sequences;
  const std::int64_t at_once =
      cut.split == 1 ? machine.processors : static_cast<std::int64_t>(most_clusters(shape.device, cut.split));
  if (at_once == 0) return {};
  const std::int64_t waves = divide_up(units, at_once * room);
  const auto shared_by = static_cast<double>(std::min<std::int64_t>(divide_up(units, at_once), room));
  const double stage = tuning::stage_us(shape.head_dim, cut.wide, summing * shared_by, keys);
  return static_cast<double>(waves) * (tuning::block_us(shape.head_dim, cut.wide, keys, cut.narrow) +
                                       static_cast<double>(stages_for(shape.keys, cut.key_warps * keys)) * stage) +
         tuning::merge_us(shape.head_dim, cut.wide, cut.key_warps, cut.split) +
         static_cast<double>(units * cut.split * warps) * tuning::start_us;
}

Cut best_cut(const Shape& shape) {
  Cut best;
  double least = std::numeric_limits<double>::infinity();
  const bool clusters = cuda_machine(shape.device).major >= 9;
  const std::int64_t row_warps = std::max<std::int64_t>(divide_up(shape.rows, warp_rows), 1);
  struct Kind {
    bool wide, long_tiles, narrow;
  };
  for (const auto& [wide, long_tiles, narrow] :
       {Kind{true, false, false}, Kind{true, true, false}, Kind{true, false, true}, Kind{false, false, false}}) {
    if ((wide && !shape.wide) || (long_tiles && !tuning::has_long_tiles(shape.head_dim)) || (narrow && !shape.narrow)) {
      continue;
    }
    Cut cut;
    cut.wide = wide;
    cut.long_tiles = long_tiles;
    cut.narrow = narrow;
    const std::int64_t chunks = std::max<std::int64_t>(divide_up(shape.keys, cut.keys(shape.head_dim)), 1);
    const int step = wide ? 4 : 1;
    const int warps = wide ? 4 * tuning::warpgroups(shape.head_dim, narrow) : tuning::max_warps(shape.head_dim);
    for (int rows = step; rows <= warps && rows - step < row_warps; rows += step) {
      for (int keys = 1; rows * keys <= warps && keys <= 4 && keys <= chunks; ++keys) {
        for (const int split : {1, 2, 3, 4, 5, 6, 8, 16}) {
          if (split > 1 && (!clusters || split > chunks)) continue;
          if (split == 1 && narrow) continue;
          if (keys > 1 && Memory::exchanges(shape.head_dim, wide, split)) continue;  // each warp sends for itself
          cut.row_warps = rows;
          cut.key_warps = keys;
          cut.split = split;
          const std::optional<double> cost = cost_of(shape, cut);
          if (cost && *cost < least) {
            least = *cost;
            best = cut;
          }
        }
      }
    }
  }
  return best;
}

// wide, narrow: where that may be.
Cut cut_of(const Plan& plan, int device, bool wide, bool narrow) {
  const std::int64_t packed = plan.is_packed() ? std::max<std::int64_t>(plan.batch, 1) : 1;
  Shape shape;
  shape.device = device;
  shape.rows = divide_up(rows_of(plan), packed);
  shape.keys = divide_up(plan.keys, packed);
  shape.most_keys = plan.keys;
  shape.sequences = plan.batch * plan.kv_heads;
  shape.head_dim = padded_head_dim(plan.head_dim);
  shape.segments = plan.segment_count;
#if defined(ROBOCACHE_WITH_WARPGROUPS)
  shape.wide = wide && cuda_machine(device).major == 9 && masking_of(plan) != Masking::general && is_aligned(plan);
#endif
  // Of queries that the engine copies whole, and keys behind which it leaves zeros.
  shape.narrow = narrow && shape.wide && tuning::has_narrow(shape.head_dim) &&
                 narrow_rows % std::max<std::int64_t>(plan.group(), 1) == 0 && plan.segment_count == 1 &&
                 !plan.is_packed() && plan.lengths.data == nullptr && plan.scale >= 0;
  // A policy calls with a few shapes, again and again.
  struct Known {
    Shape shape;
    Cut cut;
  };
  thread_local std::array<Known, 16> known;
  thread_local std::size_t oldest = 0;
  const auto* found = std::find_if(known.begin(), known.end(), [&](const Known& k) { return k.shape == shape; });
  if (found == known.end()) {
    known[oldest] = {shape, best_cut(shape)};
    found = &known[oldest];
    oldest = (oldest + 1) % known.size();
  }
  Cut cut = found->cut;
  cut.tiles = row_tiles(plan, cut.rows());
  return cut;
}

}  // namespace

// Where the engine cannot copy as the best cut wants it, the best that wants less of it.
Cut cut_of(const Plan& plan, int device, EngineMaps& maps) {
  const bool aligned = is_aligned(plan) && is_aligned(plan.out, plan.batch) && cuda_machine(device).major >= 9;
  struct Kinds {
    bool wide, narrow;
  };
  Cut cut;
  for (const auto& [wide, narrow] : {Kinds{true, true}, Kinds{true, false}, Kinds{false, false}}) {
    cut = cut_of(plan, device, wide, narrow);
    maps.engine = aligned && (cut.wide || cut.stages > 1) &&
                  set_maps(plan, cut.wide, cut.keys(padded_head_dim(plan.head_dim)), maps.maps);
    maps.engine_queries = cut.wide && maps.engine && set_query_map(plan, cut.rows(), maps.query_map);
    if (!cut.wide || (cut.narrow ? maps.engine_queries : maps.engine)) break;
  }
  return cut;
}

namespace {

// What Hopper's backward pass needs: nothing where it cannot run this call, or where it is the slower one.
std::optional<BackwardMaps> sm90_backward_maps([[maybe_unused]] const BackwardPlan& backward,
                                               [[maybe_unused]] int device) {
#if defined(ROBOCACHE_WITH_WARPGROUPS)
  const Plan& plan = backward.forward;
  if (plan.dtype == DType::f32 || cuda_machine(device).major != 9) return {};
  if (plan.dense != nullptr || plan.key_ranks.data != nullptr || plan.key_valid.data != nullptr) return {};
  if (plan.is_packed() || plan.lengths.data != nullptr || plan.segment_count != 1) return {};
  // What nobody sees may be NaN, which a weight of zero does not stop: each query must see a key, and each key be seen.
  const std::int64_t shift = plan.keys - plan.queries;
  if (plan.queries == 0 || plan.keys == 0 || plan.left < std::max<std::int64_t>(shift, 0) ||
      plan.right < std::max<std::int64_t>(-shift, 0) || std::max(plan.queries, plan.keys) >= 1 << 27) {
    return {};
  }
  constexpr std::int64_t most_rows = std::int64_t{1} << 27;  // 16 threads of one launch have each
  if (plan.batch * plan.heads * (plan.queries + sm90_backward::rows) >= most_rows) return {};
  if (!sm90_backward::has(padded_head_dim(plan.head_dim)) || plan.head_dim % 8 != 0) return {};
  const auto aligned = [&](const Vectors& vectors) { return is_aligned(vectors, plan.batch); };
  if (!is_aligned(plan) || !aligned(plan.out) || !aligned(backward.d_out) || !aligned(backward.d_q) ||
      !aligned(backward.d_keys[0]) || !aligned(backward.d_values[0])) {
    return {};
  }
  const std::int64_t blocks = Memory::tile_copies(plan.head_dim) == 1 ? divide_up(plan.head_dim, 64) : 1;
  const auto set = [&](CUtensorMap& map, const Vectors& vectors, std::int64_t rows, std::int64_t heads) {
    return set_map<5>(map, vectors.data, {plan.head_dim / blocks, rows, blocks, heads, plan.batch},
                      {vectors.row, 64, vectors.head, vectors.batch},
                      {64, sm90_backward::rows, static_cast<cuuint32_t>(blocks), 1, 1});
  };
  BackwardMaps maps;
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

void run_sm90_backward(const BackwardPlan& plan, const BackwardMaps& maps, FaultBox* box, const Context& context,
                       int device) {
  const Plan& forward = plan.forward;
  const auto stream = static_cast<cudaStream_t>(context.stream);
  const std::int64_t rows =
      forward.batch * forward.heads * divide_up(forward.queries, sm90_backward::rows) * sm90_backward::rows;
  const std::int64_t tiles = forward.group() * divide_up(forward.queries, sm90_backward::rows);
  Sm90Scratch parts;
  parts.groups = sm90_backward::groups(padded_head_dim(forward.head_dim), std::max(forward.queries, forward.keys));
  const std::int64_t blocks = units_of(forward, divide_up(forward.keys, sm90_backward::rows * parts.groups));
  const std::int64_t room = cuda_machine(device).processors * (parts.groups == 1 ? 2 : 1);
  parts.key_split = static_cast<int>(std::clamp<std::int64_t>(std::min<std::int64_t>(room / blocks, tiles / 4), 1, 16));
  const std::int64_t partials =
      parts.key_split == 1 ? 0
                           : 2 * parts.key_split * units_of(forward, forward.keys) * padded_head_dim(forward.head_dim);
  const CudaScratch scratch(context.workspace, device, static_cast<std::size_t>(partials + 2 * rows) * sizeof(float),
                            stream);
  parts.lse = static_cast<float*>(scratch.data());
  parts.delta = parts.lse + rows;
  parts.partials = parts.delta + rows;
  (forward.dtype == DType::bf16 ? run_backward_sm90_bf16 : run_backward_sm90_f16)(plan, maps, parts, box, device,
                                                                                  stream);
}

// Into how many blocks the rows that see a tile of keys are cut: few keys, of one head, leave most of a GPU idle.
int key_split_of(const Plan& plan, int device) {
  if (plan.dtype == DType::f32 || plan.is_packed()) return 1;
  const int head_dim = padded_head_dim(plan.head_dim);
  const std::int64_t blocks =
      units_of(plan, divide_up(plan.keys, tuning::backward_rows)) * (tuning::backward_together(head_dim) ? 1 : 2);
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
  if (const std::optional<BackwardMaps> maps = sm90_backward_maps(plan, device)) {
    return run_sm90_backward(plan, *maps, box, context, device);
  }
  const Plan& forward = plan.forward;
  const std::int64_t rows = forward.heads * forward.queries * forward.arrays();
  BackwardScratch parts;
  parts.key_split = key_split_of(forward, device);
  const std::int64_t partials =
      parts.key_split == 1 ? 0
                           : 2 * parts.key_split * units_of(forward, forward.keys) * padded_head_dim(forward.head_dim);
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
  EngineMaps maps;
  const Cut cut = cut_of(plan, device, maps);
  std::string text = concat("cuda: ", cut.wide ? "warpgroups" : "tensor cores", ", blocks of ", cut.rows(),
                            " rows (queries times the ", plan.group(), " heads of a key head) by ", cut.key_warps,
                            " warps along the keys");
  if (cut.narrow) text += concat(" (", narrow_warps, " for the last ", narrow_rows, " rows)");
  if (cut.split > 1) {
    text += concat(", keys split over clusters of ", cut.split, " blocks because rows alone give ",
                   units_of(plan, cut.tiles), " blocks for ", cuda_machine(device).processors, " processors");
  }
  constexpr const char* maskings[] = {"", ", masked", ", masked by a dense mask or by ranks in a window"};
  return text + maskings[static_cast<int>(masking_of(plan))];
}

}  // namespace robocache::attention_op
