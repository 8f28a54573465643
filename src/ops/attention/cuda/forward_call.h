// The argument of the forward kernels.
#pragma once

#include "ops/attention/check.h"
#include "ops/attention/cuda/tensor_maps.h"
#include "ops/attention/cuda/work_tile.h"

namespace robocache::attention_op {
namespace {

struct ForwardCall : TensorMaps {
  Plan plan;
  FaultBox* box = nullptr;  // nullptr: there is nothing to check
  TileScheduler scheduler;
  int row_warps = 1, key_warps = 1;
  int stages = 1;
  // The sm80 kernel: of 32 keys, those whose masked values this row warp zeroes. Warps with the same keys share that work.
  std::uint32_t zero_keys[16] = {};
  bool aligned = false;  // every row of queries, keys, values and the output begins at a multiple of 16 bytes
};

// Not inlined: most calls have nothing to check, and their code stays short.
__device__ __noinline__ void check_data_slow_path(const Plan& plan, FaultBox* box) { check_data(plan, box); }

}  // namespace
}  // namespace robocache::attention_op
