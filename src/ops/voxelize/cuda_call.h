// What a launch of voxelize is told: the plan, what to fill, and where the scratch is.
#pragma once

#include "ops/voxelize/cuda_cells.h"

namespace robocache::voxelize_op {
namespace {

struct Fill {
  void* data = nullptr;
  std::int64_t bytes = 0;
  std::uint32_t pattern = 0;  // four bytes, again and again
};
inline constexpr int max_fills = 8;

// Points that follow each other in memory and share a cell. The first of them has it.
struct alignas(8) Node {
  std::int32_t next;  // the first of those that came before; -1: none
  std::int32_t length;
};
struct HeavyCell {
  std::int64_t key;
  int points;
};

struct Call {
  Plan plan;
  FaultBox* box = nullptr;
  Fill fills[max_fills];
  int fill_count = 0;
  Tiling tiling;
  Axes axes;
  Division width;     // by that of an image
  Readings readings;  // of images
  ImageTiling image_tiling;
  std::int64_t all_cells = 0;  // of all grids

  std::uint8_t* occupied = nullptr;  // scratch: what bits are packed from
  std::int64_t word_cells = 0;       // that lie in words of plan.occupancy all of which hold 0 or 1

  // With features only: what empty cells hold, four bytes of it,
  std::uint32_t empty_float = 0, empty_feature = 0;
  bool wide = false;  // four channels can be read and written at once
  bool sums = false;  // or means are wanted
  // and scratch.
  std::int32_t* heads = nullptr;  // of each cell: a point; -1: it has none; below: -2 - its number among the heavy
  Node* nodes = nullptr;          // of each point that a head or a node leads to
  void* keys = nullptr;           // of each point, int32 where the plan is small; -1: dropped
  Magnitudes magnitudes;
  std::int32_t* heavy_count = nullptr;
  HeavyCell* heavy_cells = nullptr;
  Partial* heavy = nullptr;  // of each of them and channel
};

// `empty` need be no integer where no output is one.
__host__ __device__ std::int32_t whole(double empty) {
  return empty >= -0x1p31 && empty < 0x1p31 ? static_cast<std::int32_t>(empty) : 0;
}

}  // namespace
}  // namespace robocache::voxelize_op
