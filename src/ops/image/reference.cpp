// The reference backend: one frame after the other, one step after the other.
#include <vector>

#include "core/interrupt.h"
#include "ops/image/math.h"

namespace robocache::image_op {
namespace {

using Bytes = std::vector<std::uint8_t>;  // [rows, columns, channels]

template <class T>
const T* frame_of(const Plan& plan, const Plane& plane, std::int64_t frame) {
  return static_cast<const T*>(plane.data) + frame_offset(plan, plane, frame);
}

// The box of a frame, as RGB or as the channels that it has.
Bytes box_of(const Plan& plan, std::int64_t frame) {
  const std::int64_t from = source_frame(plan, frame);
  const auto* const pixels = frame_of<std::uint8_t>(plan, plan.pixels, from);
  const bool yuv = plan.source != Source::colour;
  const auto* const u = yuv ? frame_of<std::uint8_t>(plan, plan.u, from) : nullptr;
  const auto* const v = yuv ? frame_of<std::uint8_t>(plan, plan.v, from) : nullptr;
  Bytes box;
  box.reserve(static_cast<std::size_t>(plan.height.box) * static_cast<std::size_t>(plan.width.box) *
              static_cast<std::size_t>(plan.channels));
  for (std::int32_t y = 0; y < plan.height.box; ++y) {
    for (std::int32_t x = 0; x < plan.width.box; ++x) {
      const Colour colour = colour_at(plan, pixels, u, v, plan.height.begin + y, plan.width.begin + x);
      box.insert(box.end(), colour.value, colour.value + plan.channels);
    }
  }
  return box;
}

// One direction of the resize. The image is [outer, axis.box, inner] before and [outer, axis.resized, inner] after.
Bytes resized(const Plan& plan, const Axis& axis, const Bytes& image, std::size_t outer, std::size_t inner) {
  const auto before = static_cast<std::size_t>(axis.box);
  const auto after = static_cast<std::size_t>(axis.resized);
  Bytes result(outer * after * inner);
  for (std::size_t at = 0; at < after; ++at) {
    check_interrupt();
    const auto place = static_cast<std::int32_t>(at);
    Taps taps;
    std::vector<std::int32_t> weights;
    if (plan.filter == Filter::nearest) {
      taps.first = nearest_of(axis.box, axis.resized, place);
    } else {
      taps = taps_of(plan.filter, axis.box, axis.resized, place);
      for (std::int32_t k = 0; k < taps.count; ++k) weights.push_back(weight_of(taps, k));
    }
    for (std::size_t o = 0; o < outer; ++o) {
      for (std::size_t i = 0; i < inner; ++i) {
        const std::uint8_t* const first = &image[(o * before + static_cast<std::size_t>(taps.first)) * inner + i];
        std::int32_t sum = weighted_half;
        for (std::size_t k = 0; k < weights.size(); ++k) sum += weights[k] * first[k * inner];
        result[(o * after + at) * inner + i] = plan.filter == Filter::nearest ? *first : byte_of(sum);
      }
    }
  }
  return result;
}

// A resized pixel of depth. (y, x) lies in the resized box.
std::uint16_t depth_at(const Plan& plan, const std::uint16_t* pixels, std::int32_t y, std::int32_t x) {
  const auto reading = [&](std::int32_t row, std::int32_t column) {
    return pixels[(plan.height.begin + row) * plan.pixels.row + (plan.width.begin + column) * plan.pixels.column];
  };
  if (plan.filter == Filter::nearest) {
    return reading(nearest_of(plan.height.box, plan.height.resized, y),
                   nearest_of(plan.width.box, plan.width.resized, x));
  }
  const Taps rows = with_weight(taps_of(plan.filter, plan.height.box, plan.height.resized, y));
  const Taps columns = with_weight(taps_of(plan.filter, plan.width.box, plan.width.resized, x));
  std::int64_t sum = 0;
  std::int64_t count = 0;
  for (std::int32_t j = 0; j < rows.count; ++j) {
    for (std::int32_t i = 0; i < columns.count; ++i) {
      const std::uint16_t here = reading(rows.first + j, columns.first + i);
      sum += here;
      count += here != 0 ? 1 : 0;
    }
  }
  return mean_reading(sum, count);
}

// Writes an output frame. pixel(y, x, c) is a value of the resized box.
template <class Pixel>
void write_frame(const Plan& plan, std::int64_t frame, const Pixel& pixel) {
  const std::int64_t offset = frame_offset(plan, plan.out, frame);
  const std::int32_t top = first_pixel(plan.height, plan.tops, frame);
  const std::int32_t left = first_pixel(plan.width, plan.lefts, frame);
  for (std::int32_t row = 0; row < plan.height.count; ++row) {
    check_interrupt();
    for (std::int32_t column = 0; column < plan.width.count; ++column) {
      const std::int32_t y = top + row;
      const std::int32_t x = left + column;
      const bool inside = y >= 0 && y < plan.height.resized && x >= 0 && x < plan.width.resized;
      for (int c = 0; c < plan.channels; ++c) {
        const std::int64_t place = offset + row * plan.out.row + column * plan.out.column + c * plan.out.channel;
        store(plan, place, c, inside ? pixel(y, x, c) : plan.pad[c]);
      }
    }
  }
}

}  // namespace

void run_reference(const Plan& plan) {
  const auto channels = static_cast<std::size_t>(plan.channels);
  const auto width = static_cast<std::size_t>(plan.width.resized);
  for (std::int64_t frame = 0; frame < plan.frames; ++frame) {
    check_interrupt();
    if (plan.source == Source::depth) {
      const auto* const pixels = frame_of<std::uint16_t>(plan, plan.pixels, source_frame(plan, frame));
      write_frame(plan, frame, [&](std::int32_t y, std::int32_t x, int) { return depth_at(plan, pixels, y, x); });
      continue;
    }
    Bytes image = box_of(plan, frame);
    image = resized(plan, plan.width, image, static_cast<std::size_t>(plan.height.box), channels);
    image = resized(plan, plan.height, image, 1, width * channels);
    write_frame(plan, frame, [&](std::int32_t y, std::int32_t x, int c) {
      return std::uint16_t{image[(static_cast<std::size_t>(y) * width + static_cast<std::size_t>(x)) * channels +
                                 static_cast<std::size_t>(c)]};
    });
  }
}

}  // namespace robocache::image_op
