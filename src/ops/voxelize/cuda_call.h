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

// For points in no order (cuda_bins.h).
inline constexpr int bins = tuning::bins;
struct Bins {
  int tiles = 0;                     // of points; 0: not used
  int cells = 0;                     // of a bin
  int sorters = 0, counters = 0;     // blocks that sort and that count
  bool wide = false;                 // four counts can be written at once
  bool* scattered = nullptr;         // whether they are
  std::int32_t* dropped = nullptr;   // by each of those that sort
  std::uint16_t* places = nullptr;   // in their bins, of the points of each tile
  std::uint32_t* extents = nullptr;  // of each tile and bin: the first of its points and, in the upper half, the end

  Bins() = default;
  Bins(const Plan& plan, const CudaMachine& machine);
};

// For features of a plain cloud (cuda_feature_bins.h).
inline constexpr int feature_bin_count = tuning::feature_bins;
struct FeatureBins {
  int tiles = 0;                     // of points; 0: not used
  int cells = 0;                     // of a bin
  int vectors = 0, log_vectors = 0;  // of four channels
  int shared_bytes = 0;              // of a block that reduces a bin
  int room_bytes = 0;                // of those: for points and their features
  int capacity = 0;                  // points that have room without features
  bool* heavy = nullptr;             // of each bin: whether it has cells of too many points, and heads say which
  int2* dropped = nullptr;           // of each tile: points that are not finite, and outside
  std::uint32_t* entries = nullptr;  // of each tile: its points by bin, their places there and, below, their numbers
  std::uint32_t* extents = nullptr;  // of each tile and bin: the first of its entries and, in the upper half, the end
  std::uint32_t* largest = nullptr;  // of each tile and channel: magnitudes

  FeatureBins() = default;
  FeatureBins(const Plan& plan, const CudaMachine& machine);
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
  FixedAxes fixed;
  ImageTiling image_tiling;
  std::int64_t all_cells = 0;  // of all grids

  std::uint8_t* occupied = nullptr;  // scratch: what bits are packed from
  std::int64_t word_cells = 0;       // that lie in words of plan.occupancy all of which hold 0 or 1
  Bins bins;
  FeatureBins feature_bins;

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

// By all threads of a launch.
__device__ void fill_all(const Call& call) {
  const std::int64_t thread = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  const std::int64_t stride = static_cast<std::int64_t>(gridDim.x) * blockDim.x;
  for (int n = 0; n < call.fill_count; ++n) {
    const Fill& fill = call.fills[n];
    auto* const bytes = static_cast<std::uint8_t*>(fill.data);
    const std::int64_t before =
        min(static_cast<std::int64_t>(-reinterpret_cast<std::uintptr_t>(bytes) % 16), fill.bytes);
    const std::int64_t wide = (fill.bytes - before) / 16;
    const std::uint32_t word = __funnelshift_r(fill.pattern, fill.pattern, static_cast<unsigned>(before) * 8u);
    const uint4 four{word, word, word, word};
    uint4* const to = reinterpret_cast<uint4*>(bytes + before);
    for (std::int64_t k = thread; k < wide; k += stride) to[k] = four;
    for (std::int64_t k = thread; k < fill.bytes - wide * 16; k += stride) {
      const std::int64_t at = k < before ? k : k + wide * 16;
      bytes[at] = static_cast<std::uint8_t>(fill.pattern >> at % 4 * 8);
    }
  }
}

// `empty` need be no integer where no output is one.
__host__ __device__ std::int32_t whole(double empty) {
  return empty >= -0x1p31 && empty < 0x1p31 ? static_cast<std::int32_t>(empty) : 0;
}

}  // namespace
}  // namespace robocache::voxelize_op
