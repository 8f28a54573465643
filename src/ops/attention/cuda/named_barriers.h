// The named barriers of the forward kernels.
#pragma once

#include "gpu/named_barrier.h"
#include "ops/attention/cuda/tuning.h"

namespace robocache::attention_op {
namespace {

enum class NamedBarrier : int {
  consumers = 0,        // all warps of the consumer warpgroups
  key_slice = 1,        // + key slice: the warps with the same keys and other rows
  warpgroup_order = 2,  // + warpgroup: its turn to issue wgmma (only without a mask, where key_slice is not used)
  values_zeroed = 4,    // + stage: masked values were zeroed, tail rows may read them
  tail_rows = 15,       // the warps with tail rows
};
constexpr int barrier_id(NamedBarrier barrier, int which = 0) { return static_cast<int>(barrier) + which; }
// Where there are tail rows, there are at most as many key slices as warpgroups.
static_assert(barrier_id(NamedBarrier::key_slice, tuning::warpgroups(64, true)) <=
              barrier_id(NamedBarrier::values_zeroed));
static_assert(barrier_id(NamedBarrier::values_zeroed, tuning::most_stages) <= barrier_id(NamedBarrier::tail_rows));
static_assert(barrier_id(NamedBarrier::tail_rows) < hardware_barriers);

// Warps at values_zeroed: the row warps of the consumers arrive, and the one warp with tail rows that has this tile waits. Both
// sides ask this function for the count, and is_fully_masked() for which tiles have masked values.
constexpr int values_zeroed_warps(int row_warps) { return row_warps + 1; }

}  // namespace
}  // namespace robocache::attention_op
