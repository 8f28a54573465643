// What the two halves of the cpu backend share: threads.cpp makes the tables and divides the work, simd.cpp does it.
#pragma once

#include "ops/image/plan.h"

namespace robocache::image_op {

// The source pixels of a resized pixel, counted from the box's begin.
struct Span {
  std::int32_t first, count;
};

// Taps of a resized pixel by twos, from an even pixel of the box on. A weight is high * 2^12 + low, so that products of its
// halves with bytes fit the 16-bit multiplications that SIMD has.
struct PairSpan {
  std::int32_t first, count;  // in pairs
  std::int32_t weights;       // the first of its pairs in AxisTable::weights
};
struct PairWeights {
  std::int16_t low[2], high[2];
};

// One entry for each resized pixel. Resizes have pairs and weights. Depth and nearest have spans, unless both sides keep
// their size.
struct AxisTable {
  const Span* spans = nullptr;
  const PairSpan* pairs = nullptr;
  const PairWeights* weights = nullptr;
};

struct Call {
  const Plan& plan;
  AxisTable rows{}, columns{};
};

struct CpuFunctions {
  // Rows [begin, end) of an output frame: resized in two passes, or pixel by pixel.
  void (*resize_rows)(const Call&, std::int64_t frame, std::int32_t begin, std::int32_t end);
  void (*copy_rows)(const Call&, std::int64_t frame, std::int32_t begin, std::int32_t end);
};

}  // namespace robocache::image_op
