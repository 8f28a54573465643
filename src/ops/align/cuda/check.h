// The launch that checks what the tiles of the launch before it do not.
#pragma once

#include "gpu/fault_box.h"
#include "gpu/launch.h"
#include "ops/align/check.h"

namespace robocache::align_op {

// Streams of one launch.
inline constexpr int checked_streams = 8;

struct CheckLaunch {
  TargetPlan targets;
  FaultBox* box = nullptr;
  Operation operation = Operation::align;
  bool check_targets = false;
  bool targets_must_rise = false;
  bool follows =
      false;  // it follows a kernel of ours, which calls launch_dependent_grids() only when all work before both is done
  int streams = 0;
  StreamPlan plans[checked_streams];
};
static_assert(sizeof(CheckLaunch) <= 4096, "every launch copies its arguments");

// Reports the faults of the streams, and where asked of the targets. False where there was nothing to launch.
bool launch_checks(const CheckLaunch& launch, int device, cudaStream_t stream);

}  // namespace robocache::align_op
