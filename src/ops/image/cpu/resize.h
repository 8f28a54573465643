// Resizes some rows of a frame in two passes, with exact integers.
//
// Both passes use one function, weigh(): vectors of bytes, two taps side by side, times weights. Along columns a vector is
// pixels of one row. Along rows a vector is 16 rows at one column, so 16 source rows at a time are transposed before and back
// after. Between the passes, rows are stored in pairs: the bytes of rows 2 k and 2 k + 1 side by side.
#pragma once

#include "core/scratch.h"
#include "ops/image/cpu/lines.h"
#include "ops/image/cpu/transpose.h"
#include "ops/image/cpu/yuv_pairs.h"

namespace robocache::image_op {
inline namespace ROBOCACHE_SIMD_TARGET {
namespace {

inline constexpr int vector_lanes = HWY_LANES(std::int32_t);

// ---- weights times bytes -------------------------------------------------------------------------------------------

// `vectors` vectors of results. Pair k of taps lies at from + k * stride.
template <int vectors>
HWY_INLINE void weigh_vectors(const std::uint8_t* from, std::int64_t stride, const PairWeights* weights,
                              std::int32_t pairs, std::uint8_t* to) {
  const hn::ScalableTag<std::int32_t> d;
  const hn::Repartition<std::int16_t, decltype(d)> halves;
  const hn::Rebind<std::uint8_t, decltype(halves)> bytes;
  hn::Vec<decltype(d)> low[vectors], low_rest[vectors], high[vectors], high_rest[vectors];
  for (int n = 0; n < vectors; ++n) low[n] = low_rest[n] = high[n] = high_rest[n] = hn::Zero(d);
  for (std::int32_t k = 0; k < pairs; ++k, from += stride) {
    const auto both = [&](const std::int16_t(&pair)[2]) {
      std::int32_t bits = 0;
      std::memcpy(&bits, pair, sizeof bits);
      return hn::BitCast(halves, hn::Set(d, bits));
    };
    const auto low_weights = both(weights[k].low);
    const auto high_weights = both(weights[k].high);
    for (int n = 0; n < vectors; ++n) {
      const auto taps = hn::PromoteTo(halves, hn::LoadU(bytes, from + 2 * vector_lanes * n));
      low[n] = hn::ReorderWidenMulAccumulate(d, taps, low_weights, low[n], low_rest[n]);
      high[n] = hn::ReorderWidenMulAccumulate(d, taps, high_weights, high[n], high_rest[n]);
    }
  }
  const hn::Rebind<std::uint8_t, decltype(d)> narrow_bytes;
  const auto half = hn::Set(d, weighted_half);
  for (int n = 0; n < vectors; ++n) {
    const auto low_sum = hn::RearrangeToOddPlusEven(low[n], low_rest[n]);
    const auto high_sum = hn::RearrangeToOddPlusEven(high[n], high_rest[n]);
    const auto sum = hn::Add(hn::Add(low_sum, half), hn::ShiftLeft<12>(high_sum));
    hn::StoreU(hn::DemoteTo(narrow_bytes, hn::ShiftRight<weight_bits>(sum)), narrow_bytes, to + vector_lanes * n);
  }
}

// `lanes` results, rounded up to vectors.
HWY_INLINE void weigh(const std::uint8_t* from, std::int64_t stride, const PairWeights* weights, std::int32_t pairs,
                      std::int64_t lanes, std::uint8_t* to) {
  std::int64_t k = 0;
  const auto run = [&]<int vectors>(std::integral_constant<int, vectors>) HWY_ATTR {
    weigh_vectors<vectors>(from + 2 * k, stride, weights, pairs, to + k);
    k += vectors * vector_lanes;
  };
  while (lanes - k > 3 * vector_lanes) run(std::integral_constant<int, 4>());
  if (lanes - k > 2 * vector_lanes) return run(std::integral_constant<int, 3>());
  if (lanes - k > vector_lanes) return run(std::integral_constant<int, 2>());
  if (lanes - k > 0) run(std::integral_constant<int, 1>());
}

// ---- a tile --------------------------------------------------------------------------------------------------------

// Rows of one output frame.
template <int channels>
class ResizedRows {
 public:
  using Unit = UnitOf<channels>;

  // Rows [begin, end) of the resized box, columns [left, right) of it; there are some.
  ResizedRows(const Call& call, std::int64_t frame, std::int32_t begin, std::int32_t end, std::int32_t left,
              std::int32_t right)
      : call_(call), plan_(call.plan), source_(plan_, frame), left_(left), right_(right) {
    const PairSpan* const columns = call.columns.pairs;
    const PairSpan* const rows = call.rows.pairs;
    constexpr int pairs = Unit::pixels / 2;
    first_unit_ = columns[left].first / pairs;
    const std::int32_t last = columns[right - 1].first + columns[right - 1].count;  // not included
    units_ = (last + pairs - 1) / pairs - first_unit_;
    first_pair_ = rows[begin].first;
    bands_ = divide_up(2 * (rows[end - 1].first + rows[end - 1].count - first_pair_), band_rows);
    lanes_ = std::int64_t{right - left} * channels;
    stride_ = divide_up(lanes_, 64) * 64;

    makes_pairs_ = plan_.source != Source::colour && plan_.pixels.column == 1 && plan_.width.begin % 2 == 0;
    const std::int64_t line = makes_pairs_ || is_dense(plan_) ? 0 : units_ * Unit::pixels * channels;
    const std::int64_t sizes[] = {units_ * Unit::planes * 2 * band_rows, (lanes_ + 64) * band_rows,
                                  bands_ * band_rows * stride_ + 64, band_rows * line};
    std::int64_t bytes = 0;
    for (const std::int64_t size : sizes) bytes += size;
    memory_ = make_scratch<std::uint8_t>(static_cast<std::size_t>(bytes));
    pairs_ = memory_.get();
    columns_ = pairs_ + sizes[0];
    middle_ = columns_ + sizes[1];
    lines_ = middle_ + sizes[2];
    for (std::int64_t band = 0; band < bands_; ++band) resize_band(band);
  }

  // Computes a row of the resized box; overwrites line_margin bytes after it.
  void row(std::int32_t y, std::uint8_t* line) const {
    const PairSpan& span = call_.rows.pairs[y];
    weigh(middle_ + (span.first - first_pair_) * stride_ * 2, stride_ * 2, call_.rows.weights + span.weights,
          span.count, lanes_, line);
  }

 private:
  // Row k of a band. Behind the box its last row is repeated.
  std::int32_t source_row(std::int64_t band, int k) const {
    const std::int64_t y = 2 * first_pair_ + band * band_rows + k;
    return static_cast<std::int32_t>(y < plan_.height.box ? y : plan_.height.box - 1);
  }
  const std::uint8_t* dense_row(std::int32_t y, std::int32_t first_pixel) const {
    return source_.pixels + (plan_.height.begin + y) * plan_.pixels.row +
           std::int64_t{plan_.width.begin + first_pixel} * channels;
  }

  // 16 source rows become [units, planes, 16 rows, 2]. Returns how many bytes of a row were read, if they are dense.
  std::int64_t read_band(std::int64_t band) {
    const std::int32_t first_pixel = static_cast<std::int32_t>(first_unit_) * Unit::pixels;
    if constexpr (channels == 3) {
      if (makes_pairs_) {
        std::int32_t frame_rows[band_rows];
        for (int k = 0; k < band_rows; ++k) frame_rows[k] = plan_.height.begin + source_row(band, k);
        read_yuv_pairs(plan_, source_.pixels, source_.u, source_.v, frame_rows, plan_.width.begin + first_pixel,
                       units_ * Unit::pixels / 2, pairs_);
        return 0;
      }
    }
    const std::uint8_t* rows[band_rows];
    std::int64_t bytes = std::int64_t{plan_.width.frame - plan_.width.begin - first_pixel} * channels;
    const bool dense = is_dense(plan_);
    const std::int64_t line_pixels = units_ * Unit::pixels;
    for (int k = 0; k < band_rows; ++k) {
      const std::int32_t y = source_row(band, k);
      if (dense) {
        rows[k] = dense_row(y, first_pixel);
      } else {
        std::uint8_t* const line = lines_ + k * line_pixels * channels;
        const std::int64_t there = plan_.width.box - first_pixel;
        const auto count = static_cast<std::int32_t>(there < line_pixels ? there : line_pixels);
        read_line(plan_, source_, y, first_pixel, first_pixel + count, line);
        rows[k] = line;
        bytes = std::int64_t{count} * channels;
      }
    }
    Unit::transpose_in(rows, bytes, units_, pairs_);
    return dense ? bytes : 0;
  }

  // 16 source rows along their rows.
  void resize_band(std::int64_t band) {
    const std::int64_t bytes = read_band(band);
    const std::int32_t first_pixel = static_cast<std::int32_t>(first_unit_) * Unit::pixels;
    constexpr std::int64_t pair_bytes = 2 * channels * band_rows;
    const std::int64_t first = std::int64_t{first_unit_} * (Unit::pixels / 2);
    std::int64_t fetched = band + 1 < bands_ ? 0 : bytes;
    for (std::int32_t x = left_; x < right_; ++x) {
      // Prefetch the next band: 16 rows side by side are more streams than the hardware follows.
      for (; fetched * (right_ - left_) < bytes * (x + 1 - left_); fetched += 64) {
        for (int k = 0; k < band_rows; ++k)
          __builtin_prefetch(dense_row(source_row(band + 1, k), first_pixel) + fetched);
      }
      const PairSpan& span = call_.columns.pairs[x];
      weigh(pairs_ + (span.first - first) * pair_bytes, pair_bytes, call_.columns.weights + span.weights, span.count,
            channels * band_rows, columns_ + std::int64_t{x - left_} * channels * band_rows);
    }
    transpose_out(columns_, lanes_, stride_, middle_ + band * band_rows * stride_);
  }

  const Call& call_;
  const Plan& plan_;
  Source8 source_;
  std::int32_t left_, right_;
  bool makes_pairs_ = false;  // of YUV, without rows of RGB in between
  std::int64_t first_unit_ = 0, units_ = 0, first_pair_ = 0, bands_ = 0, lanes_ = 0, stride_ = 0;
  Scratch<std::uint8_t> memory_;
  std::uint8_t *pairs_, *columns_, *middle_, *lines_;
};

template <int channels>
void resize_rows_of(const Call& call, std::int64_t frame, std::int32_t begin, std::int32_t end) {
  const Plan& plan = call.plan;
  const LineWriter writer(plan, frame);
  const Window window(plan, frame);
  const auto line =
      make_scratch<std::uint8_t>(static_cast<std::size_t>(std::int64_t{plan.width.count} * channels + line_margin));
  // Rows [top, bottom) of the output are inside.
  std::int32_t top = begin;
  std::int32_t bottom = end;
  while (top < end && !window.has_row(plan, top)) ++top;
  while (bottom > top && !window.has_row(plan, bottom - 1)) --bottom;
  pad_line(plan, 0, plan.width.count, line.get());
  for (std::int32_t row = begin; row < top; ++row) writer.write(row, line.get());
  for (std::int32_t row = bottom; row < end; ++row) writer.write(row, line.get());
  if (top >= bottom) return;
  const ResizedRows<channels> resized(call, frame, window.y + top, window.y + bottom, window.x + window.left,
                                      window.x + window.right);
  const bool is_whole = window.left == 0 && window.right == plan.width.count;
  for (std::int32_t row = top; row < bottom; ++row) {
    // The last row goes through the line, because another thread may have written the next one.
    if (std::uint8_t* const place = writer.place_of(row); is_whole && place != nullptr && row + 1 < bottom) {
      resized.row(window.y + row, place);
      continue;
    }
    resized.row(window.y + row, line.get() + std::int64_t{window.left} * channels);
    pad_line(plan, window.right, plan.width.count, line.get());
    writer.write(row, line.get());
  }
}

}  // namespace
}  // namespace ROBOCACHE_SIMD_TARGET
}  // namespace robocache::image_op
