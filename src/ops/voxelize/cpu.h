// The cpu backend's two halves: cpu.cpp finds the cells of points, threads.cpp does the rest.
#pragma once

#include "ops/voxelize/kernel.h"

namespace robocache::voxelize_op {

// Points [begin, end) of a cloud.
struct Piece {
  std::int64_t cloud, begin, end;
};
using LocatePiece = void (*)(const Plan&, const Piece&, std::int64_t* keys, std::int64_t (&dropped)[drop_reasons]);

}  // namespace robocache::voxelize_op
