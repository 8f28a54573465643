// Attention of float32, forward and backward, in float32 throughout: no tensor core computes it.
//
// A warp has a few rows. For scores a lane has one key of a chunk, for sums it has some columns.
#include "ops/attention/cuda/backward/common.h"
#include "ops/attention/cuda/launch.h"
#include "ops/attention/cuda/load.h"
#include "ops/attention/cuda/store.h"

namespace robocache::attention_op {
namespace {

constexpr int warps = 4;
constexpr int rows_per_warp = 4;
constexpr int block_rows = warps * rows_per_warp;
constexpr int chunk = warp_size;
constexpr int columns = 8;                                     // at most, of a lane: lane, lane + 32, ...
constexpr int pitch_of(int head_dim) { return head_dim + 4; }  // four floats of eight rows lie in different banks

struct Float32Call {
  Plan plan;
  FaultBox* box = nullptr;
  TileScheduler scheduler;
};

// Rows of a chunk or a block in shared memory. address(row): nullptr for a row of zeros.
struct FloatTile {
  float* data;
  int pitch;

  __device__ const float* row(int r) const { return data + r * pitch; }
  template <class Address>
  __device__ void copy(int rows, int head_dim, const Address& address) const {
    for (int r = static_cast<int>(threadIdx.x) / warp_size; r < rows; r += warps) {
      const float* const from = address(r);
      for (int d = static_cast<int>(threadIdx.x) % warp_size; d < head_dim; d += warp_size) {
        data[r * pitch + d] = from != nullptr ? from[d] : 0.0f;
      }
    }
  }
  __device__ void copy_keys(const Plan& plan, const Sequence& s, int kv_head, bool values, std::int64_t first,
                            int rows) const {
    copy(rows, static_cast<int>(plan.head_dim), [&](int r) -> const float* {
      if (first + r >= s.keys) return nullptr;
      return key_at<float>(plan, s, kv_head, values, first + r);
    });
  }
  __device__ void load_rows(const Plan& plan, const Vectors& vectors, const Rows& rows, int count) const {
    copy(count, static_cast<int>(plan.head_dim), [&](int r) -> const float* {
      return rows.exists(r) ? static_cast<const float*>(vectors.data) + rows.offset(vectors, r) : nullptr;
    });
  }
};
__device__ FloatTile tile_at(float* memory, const Plan& plan, int first_row) {
  const int pitch = pitch_of(static_cast<int>(plan.head_dim));
  return {memory + first_row * pitch, pitch};
}

__device__ float dot(const float* a, const float* b, int head_dim) {
  float sums[4] = {};
  for (int d = 0; d < head_dim; d += 4) {
    const float4 x = *reinterpret_cast<const float4*>(a + d);
    const float4 y = *reinterpret_cast<const float4*>(b + d);
    sums[0] = fmaf(x.x, y.x, sums[0]);
    sums[1] = fmaf(x.y, y.y, sums[1]);
    sums[2] = fmaf(x.z, y.z, sums[2]);
    sums[3] = fmaf(x.w, y.w, sums[3]);
  }
  return (sums[0] + sums[1]) + (sums[2] + sums[3]);
}

// sums += the weight of each lane times its row of the tile. Rows that are not seen are skipped, so that a NaN in them does no
// harm.
__device__ void add_rows(float (&sums)[columns], float weight, bool sees, const FloatTile& tile, int head_dim) {
  const auto lane = static_cast<int>(threadIdx.x % warp_size);
  for (unsigned seen = __ballot_sync(whole_warp, sees); seen != 0; seen &= seen - 1) {
    const int r = __ffs(static_cast<int>(seen)) - 1;
    const float factor = __shfl_sync(whole_warp, weight, r);
    const float* const row = tile.row(r);
#pragma unroll
    for (int k = 0; k < columns; ++k) {
      if (lane + k * warp_size < head_dim) sums[k] = fmaf(factor, row[lane + k * warp_size], sums[k]);
    }
  }
}
__device__ void store_row(float* to, const float (&sums)[columns], float factor, int head_dim) {
  const auto lane = static_cast<int>(threadIdx.x % warp_size);
#pragma unroll
  for (int k = 0; k < columns; ++k) {
    if (lane + k * warp_size < head_dim) to[lane + k * warp_size] = sums[k] * factor;
  }
}

// Loads keys and values [first, first + chunk) for the block. Returns the rank_or_hidden() of this lane's key.
__device__ __forceinline__ std::int32_t load_chunk(const Plan& plan, const Rows& rows, const FloatTile& keys,
                                                   const FloatTile& values, std::int64_t first, std::int64_t end) {
  __syncthreads();
  keys.copy_keys(plan, rows.s, rows.kv_head, false, first, chunk);
  values.copy_keys(plan, rows.s, rows.kv_head, true, first, chunk);
  __syncthreads();
  const int key = static_cast<int>(first) + static_cast<int>(threadIdx.x % warp_size);
  return KeyMask(plan, rows.s, key, static_cast<int>(end)).rank_or_hidden();
}

__global__ void __launch_bounds__(warps* warp_size) attention_f32_kernel(const __grid_constant__ Float32Call call) {
  extern __shared__ __align__(16) float memory[];
  const Plan& plan = call.plan;
  const auto head_dim = static_cast<int>(plan.head_dim);
  const auto lane = static_cast<int>(threadIdx.x % warp_size);
  const int first_row = static_cast<int>(threadIdx.x / warp_size) * rows_per_warp;
  wait_on_dependent_grids();
  launch_dependent_grids();
  check_data(plan, call.box);
  Rows rows;
  if (!set_rows<float>(plan, call.scheduler, plan.out, plan.lse, block_rows, rows)) return;
  if (plan.append && rows.first == 0) append_keys<float>(plan, rows, 0, 1, static_cast<int>(blockDim.x));
  const auto [begin, end] = keys_for(plan, rows, block_rows);

  const FloatTile queries = tile_at(memory, plan, 0);
  const FloatTile keys = tile_at(memory, plan, block_rows);
  const FloatTile values = tile_at(memory, plan, block_rows + chunk);
  queries.load_rows(plan, plan.q, rows, block_rows);
  QueryMask views[rows_per_warp];
  float most[rows_per_warp], total[rows_per_warp] = {}, sums[rows_per_warp][columns] = {};
#pragma unroll
  for (int r = 0; r < rows_per_warp; ++r) {
    views[r] = query_mask(plan, rows, first_row + r);
    most[r] = minus_infinity();
  }
  for (std::int64_t first = begin; first < end; first += chunk) {
    const std::int32_t view = load_chunk(plan, rows, keys, values, first, end);
#pragma unroll
    for (int r = 0; r < rows_per_warp; ++r) {
      float score = dot(queries.row(first_row + r), keys.row(lane), head_dim) * static_cast<float>(plan.scale);
      const auto j = static_cast<int>(first) + lane;
      const bool here = sees(views[r], view, j) && is_allowed(plan, rows, first_row + r, j);
      if (!here) score = minus_infinity();
      float now = fmaxf(most[r], score);
#pragma unroll
      for (int step = warp_size / 2; step > 0; step /= 2) now = fmaxf(now, __shfl_xor_sync(whole_warp, now, step));
      const float base = now == minus_infinity() ? 0.0f : now;
      const float factor = expf(most[r] - base);
      const float weight = expf(score - base);
      float sum = weight;
#pragma unroll
      for (int step = warp_size / 2; step > 0; step /= 2) sum += __shfl_xor_sync(whole_warp, sum, step);
      most[r] = now;
      total[r] = fmaf(total[r], factor, sum);
#pragma unroll
      for (int k = 0; k < columns; ++k) sums[r][k] *= factor;
      add_rows(sums[r], weight, here, values, head_dim);
    }
  }
#pragma unroll
  for (int r = 0; r < rows_per_warp; ++r) {
    const int row = first_row + r;
    if (!rows.exists(row)) continue;
    store_row(static_cast<float*>(plan.out.data) + rows.offset(plan.out, row), sums[r],
              total[r] == 0 ? 0.0f : 1.0f / total[r], head_dim);
    if (plan.lse != nullptr && lane == 0) {
      plan.lse[rows.lse_offset(plan, row)] = total[r] == 0 ? minus_infinity() : most[r] + logf(total[r]);
    }
  }
}

__global__ void __launch_bounds__(warps* warp_size) attention_f32_dq_kernel(const __grid_constant__ BackwardCall call) {
  extern __shared__ __align__(16) float memory[];
  const Plan& plan = call.plan.forward;
  const auto head_dim = static_cast<int>(plan.head_dim);
  const auto lane = static_cast<int>(threadIdx.x % warp_size);
  const int first_row = static_cast<int>(threadIdx.x / warp_size) * rows_per_warp;
  wait_on_dependent_grids();
  launch_dependent_grids();
  Rows rows;
  if (!set_rows<float>(plan, call.row_scheduler, call.plan.d_q, nullptr, block_rows, rows)) return;
  const auto [begin, end] = keys_for(plan, rows, block_rows);
  const FloatTile queries = tile_at(memory, plan, 0);
  const FloatTile d_outs = tile_at(memory, plan, block_rows);
  const FloatTile keys = tile_at(memory, plan, 2 * block_rows);
  const FloatTile values = tile_at(memory, plan, 2 * block_rows + chunk);
  queries.load_rows(plan, plan.q, rows, block_rows);
  d_outs.load_rows(plan, call.plan.d_out, rows, block_rows);
  float sums[rows_per_warp][columns] = {};
  for (std::int64_t first = begin; first < end; first += chunk) {
    const std::int32_t view = load_chunk(plan, rows, keys, values, first, end);
#pragma unroll
    for (int r = 0; r < rows_per_warp; ++r) {
      const int row = first_row + r;
      if (!rows.exists(row)) continue;  // the same for the whole warp
      const std::int64_t place = rows.lse_offset(plan, row);
      const float score = dot(queries.row(row), keys.row(lane), head_dim) * static_cast<float>(plan.scale);
      const float d_weight = dot(d_outs.row(row), values.row(lane), head_dim);
      const auto j = static_cast<int>(first) + lane;
      const float lse = plan.lse[place];
      const bool here =
          sees(query_mask(plan, rows, row), view, j) && is_allowed(plan, rows, row, j) && lse != minus_infinity();
      add_rows(sums[r], here ? expf(score - lse) * (d_weight - call.scratch.delta[place]) : 0.0f, here, keys, head_dim);
    }
  }
#pragma unroll
  for (int r = 0; r < rows_per_warp; ++r) {
    if (!rows.exists(first_row + r)) continue;
    store_row(static_cast<float*>(call.plan.d_q.data) + rows.offset(call.plan.d_q, first_row + r), sums[r],
              static_cast<float>(plan.scale), head_dim);
  }
}

// Rows here are keys, and a lane has one row of queries of a chunk.
__global__ void __launch_bounds__(warps* warp_size)
    attention_f32_dkv_kernel(const __grid_constant__ BackwardCall call) {
  extern __shared__ __align__(16) float memory[];
  const Plan& plan = call.plan.forward;
  const auto head_dim = static_cast<int>(plan.head_dim);
  const auto lane = static_cast<int>(threadIdx.x % warp_size);
  const int first_key = static_cast<int>(threadIdx.x / warp_size) * rows_per_warp;
  wait_on_dependent_grids();
  launch_dependent_grids();
  KeyBlock block;
  if (!set_keys<float>(call, block_rows, blockIdx.x, block)) return;
  const Sequence& s = block.s;
  Rows& rows = block.rows;
  const FloatTile keys = tile_at(memory, plan, 0);
  const FloatTile values = tile_at(memory, plan, block_rows);
  const FloatTile queries = tile_at(memory, plan, 2 * block_rows);
  const FloatTile d_outs = tile_at(memory, plan, 2 * block_rows + chunk);
  keys.copy_keys(plan, s, rows.kv_head, false, block.first_key, block_rows);
  values.copy_keys(plan, s, rows.kv_head, true, block.first_key, block_rows);
  float key_sums[rows_per_warp][columns] = {}, value_sums[rows_per_warp][columns] = {};
  for (rows.first = block.first_row; rows.first < block.end_row; rows.first += chunk) {
    __syncthreads();
    queries.load_rows(plan, plan.q, rows, chunk);
    d_outs.load_rows(plan, call.plan.d_out, rows, chunk);
    __syncthreads();
    const QueryMask view = query_mask(plan, rows, lane);
    const std::int64_t place = rows.exists(lane) ? rows.lse_offset(plan, lane) : 0;
    const float lse = plan.lse[place];
    const float delta = call.scratch.delta[place];
#pragma unroll
    for (int r = 0; r < rows_per_warp; ++r) {
      const int j = block.first_key + first_key + r;
      const float score = dot(keys.row(first_key + r), queries.row(lane), head_dim) * static_cast<float>(plan.scale);
      const float d_weight = dot(values.row(first_key + r), d_outs.row(lane), head_dim);
      const bool here = sees(view, KeyMask(plan, s, j, static_cast<int>(s.keys)).rank_or_hidden(), j) &&
                        is_allowed(plan, rows, lane, j) && lse != minus_infinity();
      const float weight = here ? expf(score - lse) : 0.0f;
      add_rows(value_sums[r], weight, here, d_outs, head_dim);
      add_rows(key_sums[r], here ? weight * (d_weight - delta) : 0.0f, here, queries, head_dim);
    }
  }
#pragma unroll
  for (int r = 0; r < rows_per_warp; ++r) {
    const std::int64_t j = block.first_key + first_key + r;
    if (float* const to = key_row<float>(plan, call.plan.d_keys, block, j)) {
      store_row(to, key_sums[r], static_cast<float>(plan.scale), head_dim);
    }
    if (float* const to = key_row<float>(plan, call.plan.d_values, block, j)) {
      store_row(to, value_sums[r], 1.0f, head_dim);
    }
  }
}

int shared_bytes(const Plan& plan, int rows) {
  return rows * pitch_of(static_cast<int>(plan.head_dim)) * static_cast<int>(sizeof(float));
}

}  // namespace

void run_f32(const Plan& plan, FaultBox* box, int device, cudaStream_t stream) {
  Float32Call call;
  call.plan = plan;
  call.box = box;
  const std::int64_t tiles = row_tiles(plan, block_rows);
  call.scheduler = TileScheduler(plan, tiles, 1);
  launch<&attention_f32_kernel>(work_tiles_of(plan, tiles), warps * warp_size,
                                shared_bytes(plan, block_rows + 2 * chunk), call, device, stream);
}

void run_backward_f32(const BackwardPlan& plan, const BackwardScratch& scratch, FaultBox* box, int device,
                      cudaStream_t stream) {
  BackwardCall call = begin_backward<float>(plan, scratch, box, device, stream);
  const int bytes = shared_bytes(plan.forward, 2 * block_rows + 2 * chunk);
  const std::int64_t blocks = set_grid(call, block_rows, 1);
  launch<&attention_f32_dq_kernel>(call.row_blocks, warps * warp_size, bytes, call, device, stream);
  if (wants(plan.d_keys) || wants(plan.d_values)) {
    launch<&attention_f32_dkv_kernel>(blocks - call.row_blocks, warps * warp_size, bytes, call, device, stream);
  }
}

}  // namespace robocache::attention_op
