// Counts and occupancy of many points on a GPU without scattered accesses to memory: see cuda_bins.cu.
#pragma once

#include "core/cuda.h"
#include "ops/voxelize/plan.h"

namespace robocache::voxelize_op {

// Whether a plan that is_plain() is for bins, and the scratch that it needs.
bool bins_serve(const Plan& plan, int device);
std::int64_t bins_scratch(const Plan& plan);

// Writes count and occupancy, and a byte a cell into `occupied` where that is given; adds to plan.dropped.
void run_bins(const Plan& plan, void* scratch, std::uint8_t* occupied, int device, cudaStream_t stream);

}  // namespace robocache::voxelize_op
