// What the kernels of image share: their argument, the tables of taps, the checks.
#pragma once

#include "gpu/data_check.h"
#include "gpu/launch.h"
#include "ops/image/check.h"
#include "ops/image/cuda/tuning.h"
#include "ops/image/math.h"

namespace robocache::image_op {
namespace {

// The source pixels of a resized pixel along one axis, counted from the box's begin.
struct Span {
  std::int32_t first, count;
};

// The tables of one axis, in scratch; one entry for each resized pixel.
struct AxisTable {
  Span* spans = nullptr;            // absent: each pixel is itself
  std::int32_t* weights = nullptr;  // [resized, taps]
  std::uint32_t* packed = nullptr;  // [resized, packed_words(words)], for tiles
  std::int32_t taps = 0;            // the most of any pixel
};

struct Call {
  Plan plan;
  FaultBox* box = nullptr;
  AxisTable rows, columns;
  int words = 0;            // of a resized pixel, with four taps each; 0: without packed weights
  std::int64_t frame = 0;   // the first of this launch
  std::int64_t frames = 0;  // of this launch
  std::int64_t pieces = 0;  // blocks of a frame
  int tiles = 0;            // of a row of tiles
  int tile_rows = 0, tile_columns = 0;
  int pitch = 0;                   // bytes of a row of one channel in shared memory
  std::uint8_t* middle = nullptr;  // [frames, box rows, resized columns, channels]: resized along rows
};
static_assert(sizeof(Call) <= 4096, "every launch copies its argument");

// A resized pixel's first tap and its weights for dp4a: of each four taps the lowest, the middle and the highest bytes of
// their weights. Rounded up to 16 bytes.
ROBOCACHE_HD constexpr int packed_words(int words) { return (1 + 3 * words + 3) / 4 * 4; }

__device__ inline void check_data(const Plan& plan, FaultBox* box) {
  if (plan.check) check_with_all_threads(DataCheck{&plan}, box);
}

// What every kernel does first.
__device__ inline void begin(const Call& call) {
  wait_on_dependent_grids();
  launch_dependent_grids();
  if (call.frame == 0) check_data(call.plan, call.box);
}

// Pointers to a frame's part of the planes.
struct Source8 {
  const std::uint8_t *pixels, *u, *v;

  __device__ Source8(const Plan& plan, std::int64_t frame) {
    const std::int64_t from = source_frame(plan, frame);
    pixels = static_cast<const std::uint8_t*>(plan.pixels.data) + frame_offset(plan, plan.pixels, from);
    u = v = nullptr;
    if (plan.source == Source::colour) return;
    u = static_cast<const std::uint8_t*>(plan.u.data) + frame_offset(plan, plan.u, from);
    v = static_cast<const std::uint8_t*>(plan.v.data) + frame_offset(plan, plan.v, from);
  }
};

__device__ inline bool is_inside(const Axis& axis, std::int32_t at) { return at >= 0 && at < axis.resized; }

}  // namespace
}  // namespace robocache::image_op
