// Resizes some rows of a frame in two passes, with exact integers.
//
// Both passes use one function, weigh(): vectors of bytes, two taps side by side, times weights. Along columns a vector is
// pixels of one row. Along rows a vector is 16 rows at one column, so 16 source rows at a time are transposed before and back
// after. Between the passes, rows are stored in pairs: the bytes of rows 2 k and 2 k + 1 side by side.
#pragma once

#include "core/scratch.h"
#include "ops/image/cpu/lines.h"

namespace robocache::image_op {
inline namespace ROBOCACHE_SIMD_TARGET {
namespace {

inline constexpr int band_rows = 16;
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
inline void weigh(const std::uint8_t* from, std::int64_t stride, const PairWeights* weights, std::int32_t pairs,
                  std::int64_t lanes, std::uint8_t* to) {
  std::int64_t k = 0;
  const auto run = [&]<int vectors>(std::integral_constant<int, vectors>) {
    weigh_vectors<vectors>(from + 2 * k, stride, weights, pairs, to + k);
    k += vectors * vector_lanes;
  };
  while (lanes - k > 3 * vector_lanes) run(std::integral_constant<int, 4>());
  if (lanes - k > 2 * vector_lanes) return run(std::integral_constant<int, 3>());
  if (lanes - k > vector_lanes) return run(std::integral_constant<int, 2>());
  if (lanes - k > 0) run(std::integral_constant<int, 1>());
}

// ---- transposes ----------------------------------------------------------------------------------------------------

using Bytes16 = hn::Vec<hn::Full128<std::uint8_t>>;

// Eight vectors of eight numbers of 16 bits.
HWY_INLINE void transpose(Bytes16 (&rows)[8]) {
  const hn::Full128<std::uint8_t> bytes;
  const hn::Full128<std::uint16_t> d16;
  const hn::Full128<std::uint32_t> d32;
  const hn::Full128<std::uint64_t> d64;
  Bytes16 a[8];
  Bytes16 b[8];
  for (int k = 0; k < 8; k += 2) {
    const auto x = hn::BitCast(d16, rows[k]);
    const auto y = hn::BitCast(d16, rows[k + 1]);
    a[k] = hn::BitCast(bytes, hn::InterleaveLower(d16, x, y));
    a[k + 1] = hn::BitCast(bytes, hn::InterleaveUpper(d16, x, y));
  }
  for (int k = 0; k < 8; k += 4) {
    for (int n = 0; n < 2; ++n) {
      const auto x = hn::BitCast(d32, a[k + n]);
      const auto y = hn::BitCast(d32, a[k + n + 2]);
      b[k + 2 * n] = hn::BitCast(bytes, hn::InterleaveLower(d32, x, y));
      b[k + 2 * n + 1] = hn::BitCast(bytes, hn::InterleaveUpper(d32, x, y));
    }
  }
  for (int k = 0; k < 4; ++k) {
    const auto x = hn::BitCast(d64, b[k]);
    const auto y = hn::BitCast(d64, b[k + 4]);
    rows[2 * k] = hn::BitCast(bytes, hn::InterleaveLower(d64, x, y));
    rows[2 * k + 1] = hn::BitCast(bytes, hn::InterleaveUpper(d64, x, y));
  }
}

// A unit is what is transposed at a time: up to 16 bytes of a row, whole pairs of pixels.
template <int channels>
struct UnitOf {
  static constexpr int pixels = channels == 1 ? 16 : 4;
  static constexpr int planes = pixels / 2 * channels;  // pairs of bytes

  // Bytes of a channel of two neighbouring pixels side by side.
  HWY_INLINE static Bytes16 pair_up(Bytes16 pixels16) {
    const hn::Full128<std::uint8_t> d;
    if constexpr (channels == 3) {
      alignas(16) static constexpr std::uint8_t order[16] = {0, 3, 1, 4, 2, 5, 6, 9, 7, 10, 8, 11, 12, 12, 12, 12};
      return hn::TableLookupBytes(pixels16, hn::Load(d, order));
    } else if constexpr (channels == 4) {
      alignas(16) static constexpr std::uint8_t order[16] = {0, 4, 1, 5, 2, 6, 3, 7, 8, 12, 9, 13, 10, 14, 11, 15};
      return hn::TableLookupBytes(pixels16, hn::Load(d, order));
    } else {
      return pixels16;
    }
  }

  // 16 rows, of which `bytes` bytes may be read, become [units, planes, 16 rows, 2].
  static void transpose_in(const std::uint8_t* const (&rows)[band_rows], std::int64_t bytes, std::int64_t units,
                           std::uint8_t* to) {
    const hn::Full128<std::uint8_t> d;
    for (std::int64_t unit = 0; unit < units; ++unit) {
      const std::int64_t at = unit * pixels * channels;
      const std::int64_t there = bytes - at < 16 ? bytes - at : 16;
      for (int part = 0; part < 2; ++part) {
        Bytes16 block[8];
        for (int k = 0; k < 8; ++k) {
          const std::uint8_t* const from = rows[8 * part + k] + at;
          if (there == 16) {
            block[k] = hn::LoadU(d, from);
          } else {
            std::uint8_t rest[16] = {};
            for (std::int64_t b = 0; b < there; ++b) rest[b] = from[b];
            block[k] = hn::LoadU(d, rest);
          }
          block[k] = pair_up(block[k]);
        }
        transpose(block);
        for (int plane = 0; plane < planes; ++plane) {
          hn::StoreU(block[plane], d, to + (unit * planes + plane) * 2 * band_rows + 16 * part);
        }
      }
    }
  }
};

// [lanes, 16 rows] become [8, stride, 2]: pairs of rows. `lanes` is rounded up to 8.
inline void transpose_out(const std::uint8_t* from, std::int64_t lanes, std::int64_t stride, std::uint8_t* to) {
  const hn::Full128<std::uint8_t> d;
  for (std::int64_t k = 0; k < lanes; k += 8) {
    Bytes16 block[8];
    for (int n = 0; n < 8; ++n) block[n] = hn::LoadU(d, from + (k + n) * band_rows);
    transpose(block);
    for (int n = 0; n < 8; ++n) hn::StoreU(block[n], d, to + (n * stride + k) * 2);
  }
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

    const std::int64_t line = is_dense(plan_) ? 0 : units_ * Unit::pixels * channels;
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

  // 16 source rows along their rows.
  void resize_band(std::int64_t band) {
    const std::uint8_t* rows[band_rows];
    const std::int32_t first_pixel = static_cast<std::int32_t>(first_unit_) * Unit::pixels;
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
    constexpr std::int64_t pair_bytes = 2 * channels * band_rows;
    const std::int64_t first = std::int64_t{first_unit_} * (Unit::pixels / 2);
    std::int64_t fetched = dense && band + 1 < bands_ ? 0 : bytes;
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
  for (std::int32_t row = top; row < bottom; ++row) {
    resized.row(window.y + row, line.get() + std::int64_t{window.left} * channels);
    pad_line(plan, window.right, plan.width.count, line.get());
    writer.write(row, line.get());
  }
}

}  // namespace
}  // namespace ROBOCACHE_SIMD_TARGET
}  // namespace robocache::image_op
