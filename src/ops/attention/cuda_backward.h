// The gradients of attention of half types on the tensor cores.
//
// First delta, of each row the sum of d_out * out. Then, in one launch, blocks of rows go through the keys for d_q, and
// blocks of keys through the rows for d_keys and d_values. A block adds in a fixed order, and so are the sums of blocks
// that share keys added: no atomics.
#pragma once

#include "core/text.h"
#include "ops/attention/cuda_call.h"
#include "ops/attention/cuda_delta.h"
#include "ops/attention/cuda_tiles.h"

namespace robocache::attention_op {
namespace {

constexpr int backward_rows = tuning::backward_rows;
constexpr int backward_threads = tuning::backward_warps * warp_size;
constexpr int sides = tuning::backward_warps * warp_rows / backward_rows;  // warps with the same rows

// What is known of a row, and which keys it sees.
struct RowFacts {
  float lse, delta;
  QueryView view;

  // From what is in memory: lse in units of log2. A row whose lse is -inf saw nothing, or nothing but -inf.
  __device__ void prepare() {
    const bool sees_any = lse != minus_infinity();
    lse = sees_any ? lse * log2_e : -minus_infinity();
    if (!sees_any) view.end = 0;
    view.rank = min(view.rank, most_rank);
  }
};

// Shared memory: two tiles that a block keeps, then two stages of two tiles, and what is known of the rows of each stage.
// At the end, sums of one side for the other.
template <int D>
struct BackwardLayout {
  static constexpr int chunk = tuning::backward_chunk(D);
  static constexpr int columns = chunk / sides;  // of a warp
  static constexpr int kept = backward_rows * Tile<D>::pitch;
  static constexpr int part = chunk * Tile<D>::pitch;
  static constexpr int facts = 2 * kept + 4 * part;
  static constexpr int bytes = facts + 2 * chunk * static_cast<int>(sizeof(RowFacts));
  static_assert(columns <= warp_size && backward_rows * D * static_cast<int>(sizeof(float)) <= facts);

  static __device__ Tile<D> kept_tile(std::uint32_t shared, int which) { return {shared + which * kept}; }
  static __device__ Tile<D> part_tile(std::uint32_t shared, int number, int which) {
    return {shared + 2 * kept + (number % 2 * 2 + which) * part};
  }
};

// Where a thread's warp works: rows [row, row + 16) of a block, columns from `column` on of a chunk.
struct Corner {
  int lane, row, column;

  __device__ explicit Corner(int columns)
      : lane(static_cast<int>(threadIdx.x % warp_size)),
        row(static_cast<int>(threadIdx.x / warp_size) % (backward_rows / warp_rows) * warp_rows),
        column(static_cast<int>(threadIdx.x / warp_size) / (backward_rows / warp_rows) * columns) {}
};

// c[n] += a b: the corner's rows of `a` times its columns, rows of `b`, both along D.
template <class T, int D, int count>
__device__ void multiply_rows(float (&c)[count][4], const Corner& corner, const Tile<D>& a, const Tile<D>& b) {
#pragma unroll
  for (int d = 0; d < D / 16; ++d) {
    std::uint32_t left[4];
    load_matrices(left, a.left(corner.row, d * 16));
#pragma unroll
    for (int n = 0; n < count / 2; ++n) {
      std::uint32_t right[4];
      load_matrices(right, b.right(corner.column + n * 16, d * 16));
      multiply<T>(c[2 * n], left, right[0], right[1]);
      multiply<T>(c[2 * n + 1], left, right[2], right[3]);
    }
  }
}

// c[d] += weights times the corner's columns, rows of `b`. Of rows that `seen` (two bits for each eight of them) has not, nothing is taken.
template <class T, int D, int count>
__device__ void multiply_weights(float (&c)[D / 8][4], const float (&weights)[count][4], const Corner& corner,
                                 const Tile<D>& b, std::uint32_t seen) {
#pragma unroll
  for (int n = 0; n < count / 2; ++n) {
    const std::uint32_t left[4] = {
        pack<T>(weights[2 * n][0], weights[2 * n][1]), pack<T>(weights[2 * n][2], weights[2 * n][3]),
        pack<T>(weights[2 * n + 1][0], weights[2 * n + 1][1]), pack<T>(weights[2 * n + 1][2], weights[2 * n + 1][3])};
    std::uint32_t real[2];
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      real[k] = halves_of(seen >> (4 * n + 2 * k));
    }
#pragma unroll
    for (int d = 0; d < D / 16; ++d) {
      std::uint32_t right[4];
      load_transposed(right, b.left(corner.column + n * 16, d * 16));
      multiply<T>(c[2 * d], left, right[0] & real[0], right[1] & real[1]);
      multiply<T>(c[2 * d + 1], left, right[2] & real[0], right[3] & real[1]);
    }
  }
}

// What is in memory comes with the group of copies that is under way: when it is there, the same thread must prepare() it.
__device__ void fetch_facts(const BackwardCall& call, const Rows& rows, int row, RowFacts& to) {
  const Plan& plan = call.plan.forward;
  const bool real = rows.exists(row);
  const std::int64_t place = real ? rows.lse_offset(plan, row) : 0;
  copy_word_async(&to.lse, plan.lse + place, real);
  copy_word_async(&to.delta, call.scratch.delta + place, real);
  QueryView view;
  const int i = real ? rows.query(row) : 0;
  if (real) {
    const KeyRange range = keys_in_window(plan, rows.s, i);
    view.first = static_cast<int>(range.first);
    view.end = static_cast<int>(range.end);
  }
  to.view.first = view.first;
  to.view.end = view.end;
  if (plan.query_ranks.data == nullptr) {
    to.view.rank = view.rank;
  } else {
    const auto* const ranks = static_cast<const std::int32_t*>(plan.query_ranks.data);
    const std::int64_t at = rows.s.number * plan.query_ranks.batch + (rows.s.first_query + i) * plan.query_ranks.row;
    copy_word_async(&to.view.rank, ranks + at, real);
  }
}

// At most a little over 1 for a key that is there. Behind the last, where scores are 0, it stays finite; NaN stays NaN.
__device__ float weight_of(float score, float scale, const RowFacts& row) {
  float exponent;
  asm("min.NaN.f32 %0, %1, 0f3f800000;" : "=f"(exponent) : "f"(fmaf(score, scale, -row.lse)));
  return power_of_two(exponent);
}

template <Masking masking>
__device__ std::uint32_t of_any_row(std::uint32_t seen) {
  return masking == Masking::none ? ~0u : of_any_row(seen);
}

// Whether a row sees key j.
template <Masking masking>
__device__ bool sees(const Plan& plan, const Rows& rows, int row, const RowFacts& facts, std::int32_t key, int j) {
  if constexpr (masking == Masking::none) return true;  // zeros are what lies behind the last key, or row
  if constexpr (masking == Masking::simple) return sees(facts.view, key, j);
  return sees(facts.view, key, j) && is_allowed(plan, rows, row, j);
}

// The sums of the second side are added to those of the first, which is the one that is true for.
template <int D>
__device__ bool add_sides(float (&sums)[D / 8][4], const Corner& corner, unsigned char* memory) {
  auto* const others = reinterpret_cast<float*>(memory) + corner.row / warp_rows * (D / 2) * warp_size + corner.lane;
  __syncthreads();
  if (corner.column != 0) {
#pragma unroll
    for (int k = 0; k < D / 2; ++k) others[k * warp_size] = sums[k / 4][k % 4];
  }
  __syncthreads();
  if (corner.column != 0) return false;
#pragma unroll
  for (int k = 0; k < D / 2; ++k) sums[k / 4][k % 4] += others[k * warp_size];
  return true;
}

template <class T, int D, Masking masking>
__device__ void differentiate_queries(const BackwardCall& call, unsigned char* memory) {
  using L = BackwardLayout<D>;
  constexpr int chunk = L::chunk;
  const Plan& plan = call.plan.forward;
  const Corner corner(L::columns);
  Rows rows;
  if (!set_rows<T>(plan, call.row_units, call.plan.d_q, nullptr, backward_rows, rows)) return;
  const Sequence& s = rows.s;
  const KeyRange range = keys_for(plan, rows, backward_rows);
  const auto begin = static_cast<int>(range.first);
  const auto end = static_cast<int>(range.end);

  const auto shared = static_cast<std::uint32_t>(__cvta_generic_to_shared(memory));
  auto* const all_facts = reinterpret_cast<RowFacts*>(memory + L::facts);
  KeySource<T, D, Tile<D>> source(plan, s, rows.kv_head, call.aligned);
  const auto fetch = [&](int number) {
    const int first = begin + number * chunk;
    if (first < end) {
      source.copy(first, end, L::part_tile(shared, number, 0), L::part_tile(shared, number, 1), chunk);
    }
    end_group();
  };
  copy_rows<T, D>(plan, plan.q, rows, L::kept_tile(shared, 0), backward_rows, call.aligned);
  copy_rows<T, D>(plan, call.plan.d_out, rows, L::kept_tile(shared, 1), backward_rows, call.aligned);
  if (threadIdx.x < backward_rows) {
    const auto row = static_cast<int>(threadIdx.x);
    fetch_facts(call, rows, row, all_facts[row]);
  }
  fetch(0);
  RowFacts facts[2];
  const float scale = static_cast<float>(plan.scale) * log2_e;
  float sums[D / 8][4] = {};
  for (int number = 0; begin + number * chunk < end; ++number) {
    const int first = begin + number * chunk + corner.column;
    std::int32_t key_view = 0;
    if constexpr (masking != Masking::none) key_view = KeyView(plan, s, first + corner.lane, end).view();
    wait_for_groups<0>();
    if (number == 0 && threadIdx.x < backward_rows) all_facts[threadIdx.x].prepare();
    __syncthreads();
    if (number == 0) {
#pragma unroll
      for (int k = 0; k < 2; ++k) facts[k] = all_facts[corner.row + corner.lane / 4 + k * 8];
    }
    fetch(number + 1);
    float scores[L::columns / 8][4] = {};
    float weights[L::columns / 8][4] = {};
    multiply_rows<T, D>(scores, corner, L::kept_tile(shared, 0), L::part_tile(shared, number, 0));
    multiply_rows<T, D>(weights, corner, L::kept_tile(shared, 1), L::part_tile(shared, number, 1));
    std::uint32_t seen = 0;
#pragma unroll
    for (int n = 0; n < L::columns / 8; ++n) {
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        const int column = n * 8 + corner.lane % 4 * 2 + k % 2;
        const std::int32_t key = masking == Masking::none ? 0 : __shfl_sync(whole_warp, key_view, column);
        const RowFacts& mine = facts[k / 2];
        const int row = corner.row + corner.lane / 4 + k / 2 * 8;
        const bool here = sees<masking>(plan, rows, row, mine, key, first + column);
        const float weight = weight_of(scores[n][k], scale, mine);
        weights[n][k] = here ? weight * (weights[n][k] - mine.delta) : 0.0f;
        if (here) seen |= 1u << (n * 2 + k % 2);
      }
    }
    multiply_weights<T, D>(sums, weights, corner, L::part_tile(shared, number, 0), of_any_row<masking>(seen));
  }
  wait_for_groups<0>();
  if (!add_sides<D>(sums, corner, memory)) return;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = corner.row + corner.lane / 4 + 8 * half;
    if (!rows.exists(row)) continue;
    T* const to = static_cast<T*>(call.plan.d_q.data) + rows.offset(call.plan.d_q, row);
    store_row<T, D>(to, sums, half, static_cast<float>(plan.scale), static_cast<int>(plan.head_dim), call.aligned);
  }
}

// The place of key j's sums among those of its kind and rank.
__device__ std::int64_t partial_of(const BackwardCall& call, bool of_keys, int rank, const KeyBlock& block,
                                   std::int64_t j) {
  const Plan& plan = call.plan.forward;
  const std::int64_t group = ((of_keys ? 0 : call.scratch.key_split) + rank) * plan.batch + block.s.number;
  return (group * plan.kv_heads + block.rows.kv_head) * plan.keys + j;
}

// What a block has summed up for its keys: the gradient, or a part of it.
template <class T, int D>
__device__ void store_keys(const BackwardCall& call, const KeyBlock& block, bool of_keys, float (&sums)[D / 8][4],
                           const Corner& corner) {
  const Plan& plan = call.plan.forward;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int j = block.first_key + corner.row + corner.lane / 4 + 8 * half;
    if (j >= block.s.keys) {  // behind a cache's length there is nothing
#pragma unroll
      for (int n = 0; n < D / 8; ++n) sums[n][2 * half] = sums[n][2 * half + 1] = 0;
    }
    if (call.scratch.key_split > 1) {
      if (j >= plan.keys) continue;
      float* const to =
          call.scratch.partials + partial_of(call, of_keys, block.rank, block, j) * D + corner.lane % 4 * 2;
#pragma unroll
      for (int n = 0; n < D / 8; ++n) {
        *reinterpret_cast<float2*>(to + n * 8) = make_float2(sums[n][2 * half], sums[n][2 * half + 1]);
      }
    } else if (T* const to = key_row<T>(plan, of_keys ? call.plan.d_keys : call.plan.d_values, block, j)) {
      const float factor = of_keys ? static_cast<float>(plan.scale) : 1.0f;
      store_row<T, D>(to, sums, half, factor, static_cast<int>(plan.head_dim), call.aligned);
    }
  }
}

// Rows here are keys.
template <class T, int D, Masking masking, bool of_keys, bool of_values>
__device__ void differentiate_keys(const BackwardCall& call, std::uint32_t block_number, unsigned char* memory) {
  using L = BackwardLayout<D>;
  constexpr int chunk = L::chunk;
  const Plan& plan = call.plan.forward;
  const Corner corner(L::columns);
  KeyBlock block;
  if (!set_keys<T>(call, backward_rows, block_number, block)) return;
  const Sequence& s = block.s;
  // This block's part of the rows.
  const int chunks = divide_up(divide_up(block.end_row - block.first_row, chunk), call.scratch.key_split);
  const int begin = block.first_row + block.rank * chunks * chunk;
  const int end = min(block.end_row, begin + chunks * chunk);

  const auto shared = static_cast<std::uint32_t>(__cvta_generic_to_shared(memory));
  auto* const all_facts = reinterpret_cast<RowFacts*>(memory + L::facts);
  Rows rows = block.rows;
  const auto fetch = [&](int number) {
    rows.first = begin + number * chunk;
    if (rows.first < end) {
      copy_rows<T, D>(plan, plan.q, rows, L::part_tile(shared, number, 0), chunk, call.aligned);
      copy_rows<T, D>(plan, call.plan.d_out, rows, L::part_tile(shared, number, 1), chunk, call.aligned);
      if (threadIdx.x < chunk) {
        const auto row = static_cast<int>(threadIdx.x);
        fetch_facts(call, rows, row, all_facts[number % 2 * chunk + row]);
      }
    }
    end_group();
  };
  KeySource<T, D, Tile<D>>(plan, s, rows.kv_head, call.aligned)
      .copy(block.first_key, static_cast<int>(s.keys), L::kept_tile(shared, 0), L::kept_tile(shared, 1), backward_rows);
  fetch(0);
  int keys[2];
  std::int32_t views[2];
#pragma unroll
  for (int k = 0; k < 2; ++k) {
    keys[k] = block.first_key + corner.row + corner.lane / 4 + 8 * k;
    views[k] = masking == Masking::none ? 0 : KeyView(plan, s, keys[k], static_cast<int>(s.keys)).view();
  }
  const float scale = static_cast<float>(plan.scale) * log2_e;
  float key_sums[of_keys ? D / 8 : 1][4] = {};
  float value_sums[of_values ? D / 8 : 1][4] = {};
  for (int number = 0; begin + number * chunk < end; ++number) {
    wait_for_groups<0>();
    if (threadIdx.x < chunk) all_facts[number % 2 * chunk + threadIdx.x].prepare();
    __syncthreads();
    fetch(number + 1);
    rows.first = begin + number * chunk;
    float weights[L::columns / 8][4] = {};
    multiply_rows<T, D>(weights, corner, L::kept_tile(shared, 0), L::part_tile(shared, number, 0));
    std::uint32_t seen = 0;
#pragma unroll
    for (int n = 0; n < L::columns / 8; ++n) {
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        const int row = corner.column + n * 8 + corner.lane % 4 * 2 + k % 2;
        const RowFacts& facts = all_facts[number % 2 * chunk + row];
        const bool here = sees<masking>(plan, rows, row, facts, views[k / 2], keys[k / 2]);
        const float weight = weight_of(weights[n][k], scale, facts);
        weights[n][k] = here ? weight : 0.0f;
        if (here) seen |= 1u << (n * 2 + k % 2);
      }
    }
    seen = of_any_row<masking>(seen);
    if constexpr (of_values) {
      multiply_weights<T, D>(value_sums, weights, corner, L::part_tile(shared, number, 1), seen);
    }
    if constexpr (of_keys) {
      float slopes[L::columns / 8][4] = {};
      multiply_rows<T, D>(slopes, corner, L::kept_tile(shared, 1), L::part_tile(shared, number, 1));
#pragma unroll
      for (int n = 0; n < L::columns / 8; ++n) {
#pragma unroll
        for (int k = 0; k < 4; ++k) {
          const int row = corner.column + n * 8 + corner.lane % 4 * 2 + k % 2;
          const float slope = weights[n][k] * (slopes[n][k] - all_facts[number % 2 * chunk + row].delta);
          // Where there is a mask, poison may be in what is not seen.
          weights[n][k] = masking == Masking::none || weights[n][k] != 0.0f ? slope : 0.0f;
        }
      }
      multiply_weights<T, D>(key_sums, weights, corner, L::part_tile(shared, number, 0), seen);
    }
  }
  wait_for_groups<0>();
  if constexpr (of_keys) {
    if (add_sides<D>(key_sums, corner, memory)) store_keys<T, D>(call, block, true, key_sums, corner);
  }
  if constexpr (of_values) {
    if (add_sides<D>(value_sums, corner, memory)) store_keys<T, D>(call, block, false, value_sums, corner);
  }
}

template <class T, int D, Masking masking>
__global__ void __launch_bounds__(backward_threads, D <= 64 ? 2 : 1)
    attention_backward_kernel(const __grid_constant__ BackwardCall call) {
  extern __shared__ __align__(1024) unsigned char memory[];
  after_earlier_work();
  let_next_begin();
  if (blockIdx.x < call.row_blocks) return differentiate_queries<T, D, masking>(call, memory);
  const unsigned block = blockIdx.x - call.row_blocks;
  if constexpr (tuning::backward_together(D)) {
    differentiate_keys<T, D, masking, true, true>(call, block, memory);
  } else if (block < call.key_blocks) {
    differentiate_keys<T, D, masking, true, false>(call, block, memory);
  } else {
    differentiate_keys<T, D, masking, false, true>(call, block - call.key_blocks, memory);
  }
}

// The parts of each key's gradients, added in the order of the rows. A warp for each key and kind.
template <class T>
__global__ void __launch_bounds__(delta_threads) attention_sum_kernel(const __grid_constant__ BackwardCall call) {
  const Plan& plan = call.plan.forward;
  after_earlier_work();
  let_next_begin();
  const std::int64_t number = (static_cast<std::int64_t>(blockIdx.x) * delta_threads + threadIdx.x) / warp_size;
  const std::int64_t keys = plan.batch * plan.kv_heads * plan.keys;
  if (number >= 2 * keys) return;
  const bool of_keys = number < keys;
  const std::int64_t key = of_keys ? number : number - keys;
  KeyBlock block;
  block.s = sequence_of(plan, key / plan.keys / plan.kv_heads);
  block.rows.kv_head = static_cast<int>(key / plan.keys % plan.kv_heads);
  const std::int64_t j = key % plan.keys;
  T* const to = key_row<T>(plan, of_keys ? call.plan.d_keys : call.plan.d_values, block, j);
  if (to == nullptr) return;
  for (auto d = static_cast<int>(threadIdx.x % warp_size) * 2; d < plan.head_dim; d += 2 * warp_size) {
    float2 sum{};
    for (int rank = 0; rank < call.scratch.key_split; ++rank) {
      const std::int64_t place = partial_of(call, of_keys, rank, block, j) * call.padded_head_dim + d;
      const float2 part = *reinterpret_cast<const float2*>(call.scratch.partials + place);
      sum.x += part.x;
      sum.y += part.y;
    }
    const float factor = of_keys ? static_cast<float>(plan.scale) : 1.0f;
    store_pair(to + d, call.aligned, sum.x * factor, sum.y * factor);
  }
}

template <class T>
void run_half_backward(const BackwardPlan& plan, const BackwardScratch& scratch, FaultBox* box, int device,
                       cudaStream_t stream) {
  BackwardCall call = begin_backward<T>(plan, scratch, box, device, stream);
  const Plan& forward = plan.forward;
  call.aligned = is_aligned(forward) && is_aligned(plan.d_out, forward.batch) && is_aligned(plan.d_q, forward.batch);
  for (int k = 0; k < forward.segment_count; ++k) {
    call.aligned =
        call.aligned && is_aligned(plan.d_keys[k], forward.batch) && is_aligned(plan.d_values[k], forward.batch);
  }
  with_head_dim(forward.head_dim, [&](auto padded) {
    constexpr int D = decltype(padded)::value;
    constexpr int bytes = BackwardLayout<D>::bytes;
    if (bytes > cuda_machine(device).shared_bytes) {
      throw Error(ErrorKind::value,
                  concat("attention_backward: a head dim of ", forward.head_dim, " needs ", bytes,
                         " bytes of shared memory in a block, and this GPU has ", cuda_machine(device).shared_bytes));
    }
    const bool of_keys = wants(plan.d_keys) || wants(plan.d_values);
    const std::int64_t blocks = cut(call, backward_rows, of_keys ? (tuning::backward_together(D) ? 1 : 2) : 0);
    switch (masking_of(forward)) {
      case Masking::none:
        launch<&attention_backward_kernel<T, D, Masking::none>>(blocks, backward_threads, bytes, call, device, stream);
        break;
      case Masking::simple:
        launch<&attention_backward_kernel<T, D, Masking::simple>>(blocks, backward_threads, bytes, call, device,
                                                                  stream);
        break;
      case Masking::general:
        launch<&attention_backward_kernel<T, D, Masking::general>>(blocks, backward_threads, bytes, call, device,
                                                                   stream);
        break;
    }
    if (of_keys && scratch.key_split > 1) {
      call.padded_head_dim = D;
      const std::int64_t sums = 2 * forward.batch * forward.kv_heads * forward.keys;
      launch<&attention_sum_kernel<T>>(divide_up(sums * warp_size, delta_threads), delta_threads, 0, call, device,
                                       stream);
    }
  });
}

}  // namespace
}  // namespace robocache::attention_op
