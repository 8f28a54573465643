// The cpu backend's two halves: cpu.cpp finds the cells of points, threads.cpp does the rest.
#pragma once

#include "ops/voxelize/kernel.h"

namespace robocache::voxelize_op {

// Points [begin, end) of a cloud.
struct Piece {
  std::int64_t cloud, begin, end;
};
// `located`, where given: the piece's points in the grid's frame.
using LocatePiece = void (*)(const Plan&, const Piece&, std::int64_t* keys, void* located,
                             std::int64_t (&dropped)[drop_reasons]);
// Widens low .. high to the cells that the piece's points have in a grid without end.
using BoundPiece = void (*)(const Plan&, const Piece&, std::int64_t (&low)[3], std::int64_t (&high)[3]);
struct PieceFunctions {
  LocatePiece locate;
  BoundPiece bound;
};

}  // namespace robocache::voxelize_op
