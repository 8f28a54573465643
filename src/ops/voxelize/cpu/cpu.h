// What the two halves of the cpu backend share: threads.cpp divides the work, simd.cpp does it.
#pragma once

#include "ops/voxelize/reduce.h"

namespace robocache::voxelize_op {

// Points [begin, end) of a cloud.
struct Part {
  std::int64_t cloud, begin, end;
};

// The lowest and the highest cell along each axis.
struct Bounds {
  std::int64_t low[3] = {farthest, farthest, farthest};
  std::int64_t high[3] = {-farthest, -farthest, -farthest};
};

// 32 cells whose keys follow one another: which of them have points, and how many cells before them have some.
struct Marks {
  std::uint32_t bits, before;
};

// The sum of the points of a voxel, each axis as in Sum.
struct PointSum {
  std::int64_t fixed[3], count;
};

struct CpuFunctions {
  // Keys of a part's points, -1 where one is dropped. `located`, where given: the points in the grid's frame.
  void (*locate)(const Plan&, const Part&, std::int64_t* keys, void* located, std::int64_t (&dropped)[drop_reasons]);
  // Widens the bounds to the cells that the part's points have in a grid without end, and raises `largest` to the
  // magnitudes of the points along each axis.
  void (*bound)(const Plan&, const Part&, Bounds&, std::uint32_t (&largest)[3]);
  // Raises `largest` of each channel to the magnitudes of features: of `count` points from number `first` on, where keys
  // are not negative.
  void (*measure)(const Plan&, std::int64_t first, std::int64_t count, const std::int64_t* keys,
                  std::uint32_t* largest);
  std::int64_t (*count_marks)(const Marks*, std::int64_t words);
  // Sets `before` of marks, which is what is given for the first.
  void (*rank_marks)(Marks*, std::int64_t words, std::int64_t before);
  // Adds a part's points to the sums of their voxels, which are in the order of the marks. `exponents` are those of its
  // grid.
  void (*add)(const Plan&, const Part&, const std::int64_t* keys, const Marks*, const int* exponents, PointSum* sums);
  // As in reduce.h.
  void (*reduce)(const Plan&, const Voxels&, std::int64_t begin, std::int64_t end, const int* exponents);
};

}  // namespace robocache::voxelize_op
