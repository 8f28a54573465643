// The arithmetic of image, once for every backend: where a pixel lies, which source pixels a resized pixel is made of and
// with which weights, YUV to RGB, and the value that is stored. docs/semantics.md says the same in words.
#pragma once

#include "core/element.h"
#include "ops/image/plan.h"

namespace robocache::image_op {
inline namespace ROBOCACHE_SIMD_TARGET {

// ---- places --------------------------------------------------------------------------------------------------------

// The element offset of frame `frame`, counted over the leading dimensions.
ROBOCACHE_HD std::int64_t frame_offset(const Plan& plan, const Plane& plane, std::int64_t frame) {
  if (plan.leading <= 1) return frame * plane.frame[0];
  std::int64_t offset = 0;
  for (int d = plan.leading - 1; d >= 0; --d) {
    const std::int64_t next = frame / plan.leading_size[d];
    offset += (frame - next * plan.leading_size[d]) * plane.frame[d];
    frame = next;
  }
  return offset;
}

// The source frame of output frame `frame`. If `rows` is out of range, it is clamped, so that no memory out of bounds is
// read; the check reports the mistake.
ROBOCACHE_HD std::int64_t source_frame(const Plan& plan, std::int64_t frame) {
  if (plan.rows.data == nullptr) return frame;
  return clamp_to(integer(plan.rows, frame), 0, plan.stack - 1);
}

// The pixel of the resized box that becomes output pixel 0 of a frame. `offsets`: plan.tops or plan.lefts.
ROBOCACHE_HD std::int32_t first_pixel(const Axis& axis, const Integers& offsets, std::int64_t frame) {
  if (offsets.data == nullptr) return axis.first;
  return axis.first + static_cast<std::int32_t>(clamp_to(integer(offsets, frame), 0, axis.most_offset));
}

// ---- resize --------------------------------------------------------------------------------------------------------

inline constexpr int weight_bits = 22;  // of a weight's fraction: a sum of weights times bytes fits in 32 bits

ROBOCACHE_HD double support_of(Filter filter) {
  return filter == Filter::box ? 0.5 : (filter == Filter::bilinear ? 1.0 : 2.0);
}

// The filter's value at a distance of x pixels. The order of operations is Pillow's.
ROBOCACHE_HD double filter_at(Filter filter, double x) {
  if (filter == Filter::box) return x > -0.5 && x <= 0.5 ? 1.0 : 0.0;
  const double distance = x < 0.0 ? -x : x;
  if (filter == Filter::bilinear) return distance < 1.0 ? 1.0 - distance : 0.0;
  if (distance < 1.0) return (1.5 * distance - 2.5) * distance * distance + 1.0;
  if (distance < 2.0) return (((distance - 5.0) * distance + 8.0) * distance - 4.0) * -0.5;
  return 0.0;
}

// The source pixels of resized pixel `at` of an axis: first .. first + count - 1, counted from the box's begin.
// weight_of() gives their weights. For bilinear, box and bicubic.
struct Taps {
  Filter filter = Filter::bilinear;
  std::int32_t first = 0, count = 0;
  double centre = 0, narrowing = 1;  // of the filter: 1 / max(1, box / resized)
  double total = 0;                  // of all values of the filter
};

ROBOCACHE_HD double value_of(const Taps& taps, std::int32_t k) {
  return filter_at(taps.filter, (static_cast<double>(k + taps.first) - taps.centre + 0.5) * taps.narrowing);
}

ROBOCACHE_HD Taps taps_of(Filter filter, std::int32_t box, std::int32_t resized, std::int32_t at) {
  const double scale = static_cast<double>(box) / static_cast<double>(resized);
  const double widening = scale < 1.0 ? 1.0 : scale;
  const double support = support_of(filter) * widening;
  Taps taps;
  taps.filter = filter;
  taps.centre = (static_cast<double>(at) + 0.5) * scale;
  taps.narrowing = 1.0 / widening;
  const double lower = taps.centre - support + 0.5;
  const double upper = taps.centre + support + 0.5;
  const auto begin = static_cast<std::int32_t>(lower);  // truncated, also where it is negative
  const auto end = static_cast<std::int32_t>(upper);
  taps.first = begin < 0 ? 0 : begin;
  taps.count = (end > box ? box : end) - taps.first;
  for (std::int32_t k = 0; k < taps.count; ++k) taps.total += value_of(taps, k);
  return taps;
}

// An upper bound of the tap counts of this filter and these sizes.
ROBOCACHE_HD std::int32_t most_taps(Filter filter, std::int32_t box, std::int32_t resized) {
  const double scale = static_cast<double>(box) / static_cast<double>(resized);
  const double reach = support_of(filter) * (scale < 1.0 ? 1.0 : scale);
  const std::int32_t most = 2 * static_cast<std::int32_t>(reach) + 3;
  return most < box ? most : box;
}

// The weight of tap k, as a multiple of 2^-22.
ROBOCACHE_HD std::int32_t weight_of(const Taps& taps, std::int32_t k) {
  const double share = (taps.total != 0.0 ? value_of(taps, k) / taps.total : 0.0) * (1 << weight_bits);
  return static_cast<std::int32_t>(share < 0.0 ? share - 0.5 : share + 0.5);
}

// A sum of weights times bytes that starts with weighted_half is rounded to a byte by byte_of().
inline constexpr std::int32_t weighted_half = 1 << (weight_bits - 1);
ROBOCACHE_HD std::uint8_t byte_of(std::int32_t sum) {
  return static_cast<std::uint8_t>(clamp_to(sum >> weight_bits, 0, 255));
}

// The source pixel for nearest, counted from the box's begin.
ROBOCACHE_HD std::int32_t nearest_of(std::int32_t box, std::int32_t resized, std::int32_t at) {
  return static_cast<std::int32_t>((2 * std::int64_t{at} + 1) * box / (2 * std::int64_t{resized}));
}

// For depth with the box filter: only the taps with a weight above 0, which are neighbours.
ROBOCACHE_HD Taps with_weight(Taps taps) {
  while (taps.count > 1 && value_of(taps, 0) == 0.0) {
    ++taps.first;
    --taps.count;
  }
  while (taps.count > 1 && value_of(taps, taps.count - 1) == 0.0) --taps.count;
  return taps;
}
// The mean of the readings that are not zero, ties up; 0 if there are none.
ROBOCACHE_HD std::uint16_t mean_reading(std::int64_t sum, std::int64_t count) {
  return static_cast<std::uint16_t>(count == 0 ? 0 : (2 * sum + count) / (2 * count));
}

// ---- colour --------------------------------------------------------------------------------------------------------

struct Colour {
  std::uint8_t value[max_channels];
};

// From luma and 16 times chroma.
ROBOCACHE_HD Colour rgb_of(const YuvMatrixPlan& yuv, std::int32_t luma, std::int32_t u16, std::int32_t v16) {
  const std::int32_t u = u16 - 16 * 128;
  const std::int32_t v = v16 - 16 * 128;
  const std::int32_t grey = yuv.luma * (luma - yuv.luma_offset) * 16 + (1 << 19);
  const std::int32_t sums[3] = {grey + yuv.v_red * v, grey + yuv.u_green * u + yuv.v_green * v, grey + yuv.u_blue * u};
  Colour colour{};
  for (int c = 0; c < 3; ++c) colour.value[c] = static_cast<std::uint8_t>(clamp_to(sums[c] >> 20, 0, 255));
  return colour;
}

// Two chroma samples along an axis. The near one has a weight of `weight` quarters, the far one the rest.
struct ChromaPair {
  std::int32_t near, far, weight;
};
// For luma pixel `at` of `frame` pixels.
ROBOCACHE_HD ChromaPair chroma_pair(YuvSiting siting, std::int32_t at, std::int32_t frame) {
  const std::int32_t near = at >> 1;
  const bool is_odd = (at & 1) != 0;
  const std::int32_t last = (frame + 1) / 2 - 1;
  const std::int32_t far = is_odd ? (near < last ? near + 1 : last) : (near > 0 ? near - 1 : 0);
  return {near, far, siting == YuvSiting::center ? 3 : (is_odd ? 2 : 4)};
}

// 16 times a plane's chroma at pixel (y, x) of a frame; `data`: the frame's part of the plane. Between rows (4:2:0) chroma
// always lies in the middle.
ROBOCACHE_HD std::int32_t chroma_of(const Plan& plan, const Plane& plane, const std::uint8_t* data, std::int32_t y,
                                    std::int32_t x) {
  const ChromaPair columns = chroma_pair(plan.siting, x, plan.width.frame);
  const auto mixed = [&](std::int64_t row) {
    return columns.weight * data[row * plane.row + columns.near * plane.column] +
           (4 - columns.weight) * data[row * plane.row + columns.far * plane.column];
  };
  if (plan.source == Source::yuv422) return 4 * mixed(y);
  const ChromaPair rows = chroma_pair(YuvSiting::center, y, plan.height.frame);
  return rows.weight * mixed(rows.near) + (4 - rows.weight) * mixed(rows.far);
}

// A pixel of a uint8 source as RGB, or with its own channels. `pixels`, `u` and `v` point at the frame; (y, x) counts from
// the frame's first pixel.
ROBOCACHE_HD Colour colour_at(const Plan& plan, const std::uint8_t* pixels, const std::uint8_t* u,
                              const std::uint8_t* v, std::int32_t y, std::int32_t x) {
  const std::uint8_t* const pixel = pixels + y * plan.pixels.row + x * plan.pixels.column;
  if (plan.source != Source::colour) {
    return rgb_of(plan.yuv, *pixel, chroma_of(plan, plan.u, u, y, x), chroma_of(plan, plan.v, v, y, x));
  }
  Colour colour{};
  for (int c = 0; c < plan.channels; ++c) colour.value[c] = pixel[c * plan.pixels.channel];
  return colour;
}

// ---- output --------------------------------------------------------------------------------------------------------

// Writes a value of channel c to element `offset` of the output.
ROBOCACHE_HD void store(const Plan& plan, std::int64_t offset, int c, std::uint16_t value) {
  if (plan.out_dtype == DType::u8) {
    static_cast<std::uint8_t*>(plan.out.data)[offset] = static_cast<std::uint8_t>(value);
  } else if (plan.out_dtype == DType::u16) {
    static_cast<std::uint16_t*>(plan.out.data)[offset] = value;
  } else {
    store_as(plan.out_dtype, plan.out.data, offset, fused(static_cast<float>(value), plan.scale[c], plan.shift[c]));
  }
}

}  // namespace ROBOCACHE_SIMD_TARGET
}  // namespace robocache::image_op
