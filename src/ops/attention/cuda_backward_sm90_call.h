// Hopper's backward pass as cuda.cu sees it: what it needs, and the launches for each dtype.
#pragma once

#include "ops/attention/cuda_call.h"

namespace robocache::attention_op {

namespace sm90_backward {
inline constexpr int rows = 64;   // of a tile, and of a consumer warpgroup: what one wgmma has
inline constexpr int stages = 4;  // of streamed tiles
// Consumer warpgroups of a block. Two share what is streamed. Blocks of one share a processor, and one works while the other
// begins or ends, which counts for more where there are few tiles: forward and backward of GR00T's self attention (41 x 41)
// take 48 us so and 66 by two, of its cross attention (41 x 300) 139 and 161; of ACT's encoder (602 x 602) 93 and 86.
constexpr int groups(int padded_head_dim, std::int64_t longest) {
  return padded_head_dim > 64 || longest > 384 ? 2 : 1;
}
// Where there are two: all registers of a processor.
inline constexpr int consumer_registers = 240;
inline constexpr int producer_registers = 24;
// Whether the next tile's products begin before this one's are done: beside the sums of two wide gradients there are too few
// registers.
constexpr bool pipelined(int head_dim, bool of_keys) { return !of_keys || head_dim <= 96; }
// Of head dim 32 it never ended on an H200, which is not understood. 96 was never measured.
constexpr bool has(int padded_head_dim) {
  return padded_head_dim == 48 || padded_head_dim == 64 || padded_head_dim == 80 || padded_head_dim == 128;
}
}  // namespace sm90_backward

// How TMA finds tiles of each array.
struct BackwardMaps {
  CUtensorMap q, d_out, keys, values;
};
struct Sm90Scratch {
  float *lse = nullptr, *delta = nullptr;  // of every row, each head padded to whole tiles
  float* partials = nullptr;               // as in BackwardScratch
  int key_split = 1;
  int groups = 1;  // consumer warpgroups of a block, which share what is streamed
};
void run_backward_sm90_bf16(const BackwardPlan& plan, const BackwardMaps& maps, const Sm90Scratch& scratch,
                            FaultBox* box, int device, cudaStream_t stream);
void run_backward_sm90_f16(const BackwardPlan& plan, const BackwardMaps& maps, const Sm90Scratch& scratch,
                           FaultBox* box, int device, cudaStream_t stream);

}  // namespace robocache::attention_op
