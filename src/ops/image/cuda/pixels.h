// Kernels with a thread for each pixel: frames of any strides that are not resized, nearest, depth; and resizes with too many
// taps for a tile, in two launches, one for each axis.
#pragma once

#include "ops/image/cuda/call.h"

namespace robocache::image_op {
namespace {

// The output pixel of a thread.
struct Place {
  std::int64_t frame;
  std::int32_t row, column;  // of the output
  std::int32_t y, x;         // of the resized box
  bool exists, inside;

  __device__ explicit Place(const Call& call) {
    const Plan& plan = call.plan;
    frame = call.frame + blockIdx.x / call.pieces;
    const auto pixel = static_cast<std::uint32_t>(blockIdx.x % call.pieces * tuning::pixel_threads + threadIdx.x);
    row = static_cast<std::int32_t>(pixel / static_cast<std::uint32_t>(plan.width.count));
    column = static_cast<std::int32_t>(pixel % static_cast<std::uint32_t>(plan.width.count));
    exists = row < plan.height.count;
    y = first_pixel(plan.height, plan.tops, frame) + row;
    x = first_pixel(plan.width, plan.lefts, frame) + column;
    inside = is_inside(plan.height, y) && is_inside(plan.width, x);
  }
  template <class Value>
  __device__ void store_all(const Plan& plan, const Value& value) const {
    const std::int64_t offset = frame_offset(plan, plan.out, frame) + row * plan.out.row + column * plan.out.column;
    for (int c = 0; c < plan.channels; ++c) store(plan, offset + c * plan.out.channel, c, value(c));
  }
};

__device__ inline Span span_of(const AxisTable& table, std::int32_t at) {
  return table.spans == nullptr ? Span{at, 1} : table.spans[at];
}

__device__ inline std::uint16_t depth_of(const Plan& plan, std::int64_t frame, Span rows, Span columns) {
  const auto* const pixels =
      static_cast<const std::uint16_t*>(plan.pixels.data) + frame_offset(plan, plan.pixels, source_frame(plan, frame)) +
      (plan.height.begin + rows.first) * plan.pixels.row + (plan.width.begin + columns.first) * plan.pixels.column;
  if (rows.count == 1 && columns.count == 1) return *pixels;
  std::int64_t sum = 0;
  std::int64_t count = 0;
  for (int j = 0; j < rows.count; ++j) {
    for (int i = 0; i < columns.count; ++i) {
      const std::uint16_t here = pixels[j * plan.pixels.row + i * plan.pixels.column];
      sum += here;
      count += here != 0 ? 1 : 0;
    }
  }
  return mean_reading(sum, count);
}

__global__ void __launch_bounds__(tuning::pixel_threads) image_pixels_kernel(const __grid_constant__ Call call) {
  const Plan& plan = call.plan;
  begin(call);
  const Place place(call);
  if (!place.exists) return;
  if (!place.inside) return place.store_all(plan, [&](int c) { return plan.pad[c]; });
  const Span rows = span_of(call.rows, place.y);
  const Span columns = span_of(call.columns, place.x);
  if (plan.source == Source::depth) {
    const std::uint16_t depth = depth_of(plan, place.frame, rows, columns);
    return place.store_all(plan, [&](int) { return depth; });
  }
  const Source8 source(plan, place.frame);
  const Colour colour = colour_at(plan, source.pixels, source.u, source.v, plan.height.begin + rows.first,
                                  plan.width.begin + columns.first);
  place.store_all(plan, [&](int c) { return std::uint16_t{colour.value[c]}; });
}

// Resizes along rows: a thread has a pixel of call.middle.
__global__ void __launch_bounds__(tuning::pixel_threads) image_wide_rows_kernel(const __grid_constant__ Call call) {
  const Plan& plan = call.plan;
  begin(call);
  const std::int64_t number = blockIdx.x / call.pieces;
  const auto pixel = static_cast<std::uint32_t>(blockIdx.x % call.pieces * tuning::pixel_threads + threadIdx.x);
  const auto columns = static_cast<std::uint32_t>(plan.width.resized);
  const auto y = static_cast<std::int32_t>(pixel / columns);
  const auto x = static_cast<std::int32_t>(pixel % columns);
  if (y >= plan.height.box) return;
  const Source8 source(plan, call.frame + number);
  const Span span = call.columns.spans[x];
  const std::int32_t* const weights = call.columns.weights + static_cast<std::int64_t>(x) * call.columns.taps;
  std::int32_t sums[max_channels] = {weighted_half, weighted_half, weighted_half, weighted_half};
  for (int k = 0; k < span.count; ++k) {
    const Colour colour =
        colour_at(plan, source.pixels, source.u, source.v, plan.height.begin + y, plan.width.begin + span.first + k);
#pragma unroll
    for (int c = 0; c < max_channels; ++c) sums[c] += weights[k] * colour.value[c];
  }
  std::uint8_t* const to = call.middle + ((number * plan.height.box + y) * plan.width.resized + x) * plan.channels;
#pragma unroll
  for (int c = 0; c < max_channels; ++c) {
    if (c < plan.channels) to[c] = byte_of(sums[c]);
  }
}

// Resizes call.middle along columns: a thread has a pixel of the output.
__global__ void __launch_bounds__(tuning::pixel_threads) image_wide_columns_kernel(const __grid_constant__ Call call) {
  const Plan& plan = call.plan;
  wait_on_dependent_grids();
  launch_dependent_grids();
  const Place place(call);
  if (!place.exists) return;
  if (!place.inside) return place.store_all(plan, [&](int c) { return plan.pad[c]; });
  const Span span = call.rows.spans[place.y];
  const std::int32_t* const weights = call.rows.weights + static_cast<std::int64_t>(place.y) * call.rows.taps;
  const std::int64_t row = static_cast<std::int64_t>(plan.width.resized) * plan.channels;
  const std::uint8_t* const from =
      call.middle + ((place.frame - call.frame) * plan.height.box + span.first) * row + place.x * plan.channels;
  place.store_all(plan, [&](int c) {
    std::int32_t sum = weighted_half;
    for (int k = 0; k < span.count; ++k) sum += weights[k] * from[k * row + c];
    return std::uint16_t{byte_of(sum)};
  });
}

}  // namespace
}  // namespace robocache::image_op
