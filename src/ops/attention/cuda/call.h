// What select.cu decides for a call, and the entry points that are compiled for each dtype.
#pragma once

#include <cuda.h>

#include "gpu/device.h"
#include "gpu/fault_box.h"
#include "gpu/launch.h"
#include "gpu/scratch.h"
#include "ops/attention/cuda/shared_layout.h"
#include "ops/attention/cuda/tensor_maps.h"
#include "ops/attention/plan.h"

namespace robocache::attention_op {

// Tiles of a sequence's `count` rows or keys. Packed: an upper bound of the tiles of all sequences together, and one more, whose
// block zeroes the places that no sequence has.
inline std::int64_t tiles_of(const Plan& plan, std::int64_t count, int size) {
  return plan.is_packed() ? count / size + plan.batch + 1 : divide_up(count, size);
}
// Tiles of rows, which are queries times the heads that share a key head. A call that appends has at least one.
inline std::int64_t row_tiles(const Plan& plan, int size) {
  const std::int64_t tiles = tiles_of(plan, plan.queries * plan.group(), size);
  return plan.append && tiles == 0 ? 1 : tiles;
}
// All work tiles of a call, over sequences and key heads.
inline std::int64_t work_tiles_of(const Plan& plan, std::int64_t tiles) {
  return tiles * plan.kv_heads * plan.arrays();
}

enum class Masking : std::uint8_t {
  none,
  simple,   // ranks, flags or a window: fully masked keys can be told from ranks and flags alone
  general,  // a dense mask, or ranks and a window: each warp looks at its own rows
};
Masking masking_of(const Plan& plan);

// Which kernel a call takes, and how its work is divided among blocks and warps.
struct KernelConfig {
  int row_warps = 1;  // warps of a block along the rows, warp_rows each
  int key_warps = 1;  // times warps with the same rows and other keys (sliced-K)
  int split = 1;      // blocks with the same rows and other keys: a cluster (split-K)
  int stages = 1;
  bool sm90 = false;        // the sm90 kernel: consumer warpgroups with 64 rows each
  bool long_tiles = false;  // of tuning::long_keys keys
  bool has_tail = false;    // tail_rows more rows
  std::int64_t tiles = 1;   // row_tiles

  int rows() const { return row_warps * warp_rows + (has_tail ? tail_rows : 0); }
  // Keys of a tile.
  int keys(int head_dim) const { return long_tiles ? tuning::long_keys : tuning::keys(head_dim, sm90); }
};
// Sets the tensor maps that the kernel needs.
KernelConfig config_of(const Plan& plan, int device, TensorMaps& maps);

// How many clusters of `split` blocks run at once where a multiprocessor has room for one block. Multiprocessors come in groups,
// and a cluster must fit into one.
int most_clusters(int device, int split);

// The head dim of the kernel that a head dim takes: columns behind the real ones are zeros.
int padded_head_dim(std::int64_t head_dim);

void run_bf16(const Plan& plan, FaultBox* box, int device, cudaStream_t stream);
void run_f16(const Plan& plan, FaultBox* box, int device, cudaStream_t stream);
void run_f32(const Plan& plan, FaultBox* box, int device, cudaStream_t stream);

// What the kernels of a backward pass leave for later ones.
struct BackwardScratch {
  float* delta = nullptr;  // for each query and head, as lse
  // Where key_split > 1 blocks share the rows that see a tile of keys: the partial sums of each, of d_keys, then of d_values.
  float* partials = nullptr;
  int key_split = 1;
};
void run_backward_bf16(const BackwardPlan& plan, const BackwardScratch& scratch, FaultBox* box, int device,
                       cudaStream_t stream);
void run_backward_f16(const BackwardPlan& plan, const BackwardScratch& scratch, FaultBox* box, int device,
                      cudaStream_t stream);
void run_backward_f32(const BackwardPlan& plan, const BackwardScratch& scratch, FaultBox* box, int device,
                      cudaStream_t stream);

// Whether every vector begins at a multiple of 16 bytes.
inline bool is_aligned(const Vectors& vectors, std::int64_t batch) {
  constexpr std::int64_t elements = 8;
  return vectors.data == nullptr ||
         (reinterpret_cast<std::uintptr_t>(vectors.data) % 16 == 0 && vectors.head % elements == 0 &&
          vectors.row % elements == 0 && (batch <= 1 || vectors.batch % elements == 0));
}
inline bool is_aligned(const Plan& plan) {
  bool aligned = is_aligned(plan.q, plan.batch);
  for (int k = 0; k < plan.segment_count; ++k) {
    aligned =
        aligned && is_aligned(plan.segments[k].keys, plan.batch) && is_aligned(plan.segments[k].values, plan.batch);
  }
  return aligned;
}

}  // namespace robocache::attention_op
