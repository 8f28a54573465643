// The plan that planner.h makes and a backend runs: every default filled in, every shape checked. Plain data, so that
// it can be a kernel argument.
#pragma once

#include <robocache/image.h>

#include "core/fault.h"
#include "core/integers.h"

namespace robocache::image_op {

inline constexpr std::int64_t most_pixels = std::int64_t{1} << 15;  // along a side
inline constexpr int max_leading = 5;                               // leading dimensions that cannot be merged
inline constexpr int max_channels = 4;

enum class Source : std::uint8_t {
  colour,  // uint8 pixels of plan.channels channels
  depth,   // uint16 readings
  yuv420,  // uint8 luma, and chroma for every second row and column
  yuv422,  // uint8 luma, and chroma for every second column
};

// Where the elements of frames lie. Strides are in elements. Semi-planar chroma is two planes with a column stride of 2.
struct Plane {
  void* data = nullptr;
  std::int64_t frame[max_leading] = {};  // strides of the leading dimensions
  std::int64_t row = 0, column = 0, channel = 0;
};

// Rows or columns, from the frame to the output. Output pixel p is pixel first + p of the resized box, or padding if
// that is outside 0 .. resized - 1.
struct Axis {
  std::int32_t frame = 0;           // pixels of the whole frame
  std::int32_t begin = 0, box = 0;  // the box: `box` pixels from `begin` on
  std::int32_t resized = 0;         // pixels that the box is resized to
  std::int32_t first = 0;           // without the offset of crop_offsets
  std::int32_t count = 0;           // pixels of the output
  std::int32_t most_offset = 0;     // the largest valid crop offset
};

// YUV to RGB, in units of 2^-16: the factors of luma and of each chroma for red, green and blue.
struct YuvMatrixPlan {
  std::int32_t luma = 0, luma_offset = 0;
  std::int32_t v_red = 0, u_green = 0, v_green = 0, u_blue = 0;
};

struct Plan {
  Source source = Source::colour;
  Filter filter = Filter::bilinear;
  bool check = true;
  std::int32_t channels = 0;  // of the output: 3 for YUV, 1 for depth
  std::int64_t frames = 0;    // of the output

  // Output frame f as an index along each leading dimension: neighbours are merged where the strides of all arrays allow.
  std::int32_t leading = 0;
  std::int64_t leading_size[max_leading] = {};

  Plane pixels, u, v;  // the source; with rows, frame[0] is the stride of the stack
  std::int64_t stack = 0;
  Integers rows;  // absent: frame f is output frame f
  YuvMatrixPlan yuv;
  YuvSiting siting = YuvSiting::left;

  Axis height, width;
  Integers tops, lefts;  // crop offsets of each output frame; both or none

  std::uint16_t pad[max_channels] = {};  // in the source's unit

  Plane out;
  DType out_dtype = DType::u8;  // u8, or u16 for depth: the resized pixels. A float: fma(x, scale, shift)
  float scale[max_channels] = {}, shift[max_channels] = {};
};

// If plan.check is set: checks rows and crop offsets in host memory, and throws an Error if one is out of range.
void check_data(const Plan& plan);

// The backends. api.cpp checks the data before reference and cpu; cuda checks it in its launch, if plan.check is
// set.
void run_reference(const Plan& plan);
void run_cpu(const Plan& plan);
void run_cuda(const Plan& plan, const Context& context, int device);

}  // namespace robocache::image_op
