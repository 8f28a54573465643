// What the cpu backend computes, compiled once for each SIMD target.
#include "ops/image/cpu/resize.h"

namespace robocache::image_op {
inline namespace ROBOCACHE_SIMD_TARGET {
namespace {

void resize_rows(const Call& call, std::int64_t frame, std::int32_t begin, std::int32_t end) {
  switch (call.plan.channels) {
    case 1:
      return resize_rows_of<1>(call, frame, begin, end);
    case 3:
      return resize_rows_of<3>(call, frame, begin, end);
    default:
      return resize_rows_of<4>(call, frame, begin, end);
  }
}

Span span_of(const AxisTable& table, std::int32_t at) { return table.spans == nullptr ? Span{at, 1} : table.spans[at]; }

// Row y of the resized box, columns [left, right) of it.
void copy_colours(const Call& call, const Source8& source, std::int32_t y, std::int32_t left, std::int32_t right,
                  std::uint8_t* to) {
  const Plan& plan = call.plan;
  const std::int32_t row = span_of(call.rows, y).first;
  if (call.columns.spans == nullptr) return read_line(plan, source, row, left, right, to);
  for (std::int32_t x = left; x < right; ++x, to += plan.channels) {
    const std::int32_t column = call.columns.spans[x].first;
    read_line(plan, source, row, column, column + 1, to);
  }
}

void copy_depths(const Call& call, const std::uint16_t* pixels, std::int32_t y, std::int32_t left, std::int32_t right,
                 std::uint16_t* to) {
  const Plan& plan = call.plan;
  const Span rows = span_of(call.rows, y);
  for (std::int32_t x = left; x < right; ++x, ++to) {
    const Span columns = span_of(call.columns, x);
    const std::uint16_t* const first = pixels + (plan.height.begin + rows.first) * plan.pixels.row +
                                       (plan.width.begin + columns.first) * plan.pixels.column;
    if (rows.count == 1 && columns.count == 1) {
      *to = *first;
      continue;
    }
    std::int64_t sum = 0;
    std::int64_t count = 0;
    for (std::int32_t j = 0; j < rows.count; ++j) {
      for (std::int32_t i = 0; i < columns.count; ++i) {
        const std::uint16_t here = first[j * plan.pixels.row + i * plan.pixels.column];
        sum += here;
        count += here != 0 ? 1 : 0;
      }
    }
    *to = mean_reading(sum, count);
  }
}

// copy(y, left, right, to) writes columns [left, right) of row y of the resized box.
template <class T, class Copy>
void copy_lines(const Call& call, std::int64_t frame, std::int32_t begin, std::int32_t end, const Copy& copy) {
  const Plan& plan = call.plan;
  const LineWriter writer(plan, frame);
  const Window window(plan, frame);
  const auto line =
      make_scratch<T>(static_cast<std::size_t>(std::int64_t{plan.width.count} * plan.channels + line_margin));
  pad_line(plan, 0, plan.width.count, line.get());
  bool padded = true;  // the whole line
  for (std::int32_t row = begin; row < end; ++row) {
    const bool inside = window.has_row(plan, row);
    if (!inside && !padded) pad_line(plan, 0, plan.width.count, line.get());
    padded = !inside;
    if (inside) {
      copy(window.y + row, window.x + window.left, window.x + window.right,
           line.get() + std::int64_t{window.left} * plan.channels);
    }
    writer.write(row, line.get());
  }
}

// Rows that become rows as they are: read where they lie.
void copy_dense(const Call& call, std::int64_t frame, std::int32_t begin, std::int32_t end) {
  const Plan& plan = call.plan;
  const LineWriter writer(plan, frame);
  const Window window(plan, frame);
  const Source8 source(plan, frame);
  const std::uint8_t* const first = source.pixels + (plan.width.begin + window.x) * plan.pixels.column;
  for (std::int32_t row = begin; row < end; ++row) {
    const std::int32_t y = plan.height.begin + window.y + row;
    writer.write(row, first + y * plan.pixels.row);
  }
}

void copy_rows(const Call& call, std::int64_t frame, std::int32_t begin, std::int32_t end) {
  const Plan& plan = call.plan;
  if (plan.source == Source::depth) {
    const auto* const pixels = static_cast<const std::uint16_t*>(plan.pixels.data) +
                               frame_offset(plan, plan.pixels, source_frame(plan, frame));
    return copy_lines<std::uint16_t>(call, frame, begin, end, [&](auto y, auto left, auto right, auto* to) {
      copy_depths(call, pixels, y, left, right, to);
    });
  }
  const Window window(plan, frame);
  const bool whole = window.left == 0 && window.right == plan.width.count && window.has_row(plan, begin) &&
                     window.has_row(plan, end - 1);
  if (whole && call.columns.spans == nullptr && is_dense(plan)) return copy_dense(call, frame, begin, end);
  const Source8 source(plan, frame);
  copy_lines<std::uint8_t>(call, frame, begin, end, [&](auto y, auto left, auto right, auto* to) {
    copy_colours(call, source, y, left, right, to);
  });
}

}  // namespace

extern const CpuFunctions cpu_functions;
constexpr CpuFunctions cpu_functions{resize_rows, copy_rows};

}  // namespace ROBOCACHE_SIMD_TARGET
}  // namespace robocache::image_op
