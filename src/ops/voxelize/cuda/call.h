// The argument of the kernels for dense results: the plan, what to fill, and the scratch.
#pragma once

#include "ops/voxelize/cuda/reduce.h"

namespace robocache::voxelize_op {
namespace {

struct Fill {
  void* data = nullptr;
  std::int64_t bytes = 0;
  std::uint32_t pattern = 0;  // four bytes, repeated
};
inline constexpr int max_fills = 8;

// A node of a cell's chain: a run of points that are contiguous in memory and share the cell. Stored at its first
// point.
struct alignas(8) Node {
  std::int32_t next;  // the first point of the next node; -1: none
  std::int32_t length;
};
struct HeavyCell {
  std::int64_t key;
  int points;
};

// For counts of scattered points (cuda/count_bins.h).
inline constexpr int bins = tuning::bins;
struct Bins {
  int tiles = 0;                     // of points; 0: this way is not taken
  int cells = 0;                     // of a bin
  int sorters = 0, counters = 0;     // blocks that sort and that count
  bool wide = false;                 // four counts can be written at once
  unsigned early_blocks = 0;         // of the points kernel: they read before they know whether points are scattered
  bool* scattered = nullptr;         // result of the sort kernel: whether the points are scattered
  std::int32_t* dropped = nullptr;   // points dropped, by each block that sorts
  std::uint16_t* places = nullptr;   // of each tile: the places of its points in their bins, sorted by bin
  std::uint32_t* extents = nullptr;  // of each tile and bin: the first of its points and, in the upper half, the end

  Bins() = default;
  Bins(const Plan& plan, const CudaMachine& machine);
};

// For features of a plain cloud (cuda/feature_bins.h).
inline constexpr int feature_bin_count = tuning::feature_bins;
struct FeatureBins {
  int tiles = 0;                     // of points; 0: not used
  int cells = 0;                     // of a bin
  int vectors = 0, log_vectors = 0;  // of four channels
  int shared_bytes = 0;              // of a block that reduces a bin
  int room_bytes = 0;                // the part of shared_bytes for points and their features
  int capacity = 0;                  // points that fit without features
  bool* heavy = nullptr;             // of each bin: whether it has cells with too many points, which `heads` lists
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
  Division width;          // by that of an image
  FloatReadings readings;  // of images
  FixedAxes fixed;
  ImageTiling image_tiling;
  std::int64_t all_cells = 0;  // of all grids

  std::uint8_t* occupied = nullptr;  // scratch: a byte for each cell, from which bits are packed
  std::int64_t word_cells = 0;       // the first cells of plan.occupancy, which may be set by whole words
  Bins bins;
  FeatureBins feature_bins;

  // With features only. The value of empty cells, four bytes of it:
  std::uint32_t empty_float = 0, empty_feature = 0;
  bool wide = false;  // four channels can be read and written at once
  bool sums = false;  // or means are wanted
  // Scratch:
  std::int32_t* heads = nullptr;  // of each cell: a point; -1: no point; less: -2 - its number among the heavy cells
  Node* nodes = nullptr;          // indexed by point; set for points that a head or another node names
  void* keys = nullptr;           // of each point, int32 where the plan is small; -1: dropped
  Magnitudes magnitudes;
  std::int32_t* heavy_count = nullptr;
  HeavyCell* heavy_cells = nullptr;
  Partial* heavy = nullptr;  // of each heavy cell and channel
};

// All threads of the launch must call it.
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

// `empty` as an int32; any number where it does not fit, since then no output is an integer.
__host__ __device__ std::int32_t whole(double empty) {
  return empty >= -0x1p31 && empty < 0x1p31 ? static_cast<std::int32_t>(empty) : 0;
}

}  // namespace
}  // namespace robocache::voxelize_op
