// The sm90 backward pass as select.cu sees it: what it needs, and the entry points for each dtype.
#pragma once

#include "ops/attention/cuda/call.h"

namespace robocache::attention_op {

namespace sm90_backward {
inline constexpr int rows = 64;   // of a tile, and of a consumer warpgroup: the rows of one wgmma
inline constexpr int stages = 4;  // of streamed tiles
// Consumer warpgroups of a block. Two share the streamed tiles. Two blocks of one share a multiprocessor: one works while the
// other begins or ends, which matters where there are few tiles. Forward and backward with one or two take, in microseconds: GR00T's
// self attention (41 x 41) 48 and 66, its cross attention (41 x 300) 139 and 161, ACT's encoder (602 x 602) 93 and 86.
constexpr int groups(int padded_head_dim, std::int64_t longest) {
  return padded_head_dim > 64 || longest > 384 ? 2 : 1;
}
// Registers of a thread. With two consumer warpgroups they are together all registers of a multiprocessor.
inline constexpr int consumer_registers = 240;
inline constexpr int producer_registers = 24;
// Whether the next tile's products begin before this one's are done. The accumulators of two wide gradients leave too few
// registers for that.
constexpr bool pipelined(int head_dim, bool of_keys) { return !of_keys || head_dim <= 96; }
// Head dims with a kernel. With 32 it hung on an H200, for an unknown reason; 96 was never measured.
constexpr bool has(int padded_head_dim) {
  return padded_head_dim == 48 || padded_head_dim == 64 || padded_head_dim == 80 || padded_head_dim == 128;
}
}  // namespace sm90_backward

// TMA descriptors.
struct BackwardTensorMaps {
  CUtensorMap q, d_out, keys, values;
};
struct Sm90Scratch {
  float *lse = nullptr, *delta = nullptr;  // of every row, each head padded to whole tiles
  float* partials = nullptr;               // as in BackwardScratch
  int key_split = 1;
  int groups = 1;  // consumer warpgroups of a block, which share what is streamed
};
void run_backward_sm90_bf16(const BackwardPlan& plan, const BackwardTensorMaps& maps, const Sm90Scratch& scratch,
                            FaultBox* box, int device, cudaStream_t stream);
void run_backward_sm90_f16(const BackwardPlan& plan, const BackwardTensorMaps& maps, const Sm90Scratch& scratch,
                           FaultBox* box, int device, cudaStream_t stream);

}  // namespace robocache::attention_op
