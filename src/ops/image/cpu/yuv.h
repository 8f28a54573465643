// YUV to RGB, a block of a row at a time: chroma between rows, chroma between columns, then colours.
#pragma once

#include "core/vectors.h"
#include "ops/image/math.h"

namespace robocache::image_op {
inline namespace ROBOCACHE_SIMD_TARGET {
namespace {

inline constexpr std::int32_t yuv_block = 512;  // pixels

// 4 times a plane's chroma between rows, for frame row y: of the samples first - 1 .. first + pairs. Beyond an edge the edge
// sample is repeated. `data`: the frame's part of the plane.
inline void mix_rows(const Plan& plan, const Plane& plane, const std::uint8_t* data, std::int32_t y, std::int32_t first,
                     std::int32_t pairs, std::int16_t* samples) {
  const bool halved = plan.source == Source::yuv420;
  const ChromaPair rows = halved ? chroma_pair(YuvSiting::center, y, plan.height.frame) : ChromaPair{y, y, 4};
  const std::int32_t last = (plan.width.frame + 1) / 2 - 1;
  const std::int32_t begin = first > 0 ? first - 1 : 0;
  const std::int32_t end = first + pairs < last ? first + pairs : last;  // included
  std::int16_t* const inner = samples + (begin - (first - 1));
  const std::uint8_t* const near = data + rows.near * plane.row + begin * plane.column;
  const std::uint8_t* const far = data + rows.far * plane.row + begin * plane.column;
  const std::int32_t count = end - begin + 1;
  const hn::ScalableTag<std::int16_t> d;
  const hn::Rebind<std::uint8_t, decltype(d)> bytes;
  constexpr int lanes = HWY_LANES(std::int16_t);
  const auto mix = [&](auto step) {
    for (std::int32_t k = 0; k < count; ++k) {
      inner[k] = static_cast<std::int16_t>(rows.weight * near[k * step] + (4 - rows.weight) * far[k * step]);
    }
  };
  if (plane.column == 1 && count >= lanes) {
    const auto near_weight = hn::Set(d, static_cast<std::int16_t>(rows.weight));
    const auto far_weight = hn::Set(d, static_cast<std::int16_t>(4 - rows.weight));
    for (std::int32_t k = 0; k < count; k += lanes) {
      if (k > count - lanes) k = count - lanes;  // the last vector overlaps the one before
      const auto here = hn::Mul(hn::PromoteTo(d, hn::LoadU(bytes, near + k)), near_weight);
      hn::StoreU(hn::Add(here, hn::Mul(hn::PromoteTo(d, hn::LoadU(bytes, far + k)), far_weight)), d, inner + k);
    }
  } else if (plane.column == 2) {  // a constant, so that compilers vectorise
    mix(std::integral_constant<int, 2>());
  } else {
    mix(plane.column);
  }
  if (first == 0) samples[0] = samples[1];
  for (std::int32_t k = end + 1; k <= first + pairs; ++k) samples[k - first + 1] = inner[end - begin];
}

// 16 times a plane's chroma at `pairs` pairs of pixels of frame row y, from pair `first` on.
inline void read_chroma(const Plan& plan, const Plane& plane, const std::uint8_t* data, std::int32_t y,
                        std::int32_t first, std::int32_t pairs, std::int16_t* to) {
  std::int16_t samples[yuv_block / 2 + 2];
  mix_rows(plan, plane, data, y, first, pairs, samples);
  const auto even = static_cast<std::int16_t>(plan.siting == YuvSiting::center ? 3 : 4);
  const auto odd = static_cast<std::int16_t>(plan.siting == YuvSiting::center ? 3 : 2);
  for (std::int32_t k = 0; k < pairs; ++k) {
    to[2 * k] = static_cast<std::int16_t>(even * samples[k + 1] + (4 - even) * samples[k]);
    to[2 * k + 1] = static_cast<std::int16_t>(odd * samples[k + 1] + (4 - odd) * samples[k + 2]);
  }
}

// As rgb_of(), for `count` pixels of a block. Reads whole vectors of chroma.
inline void make_colours(const YuvMatrixPlan& yuv, const std::uint8_t* luma, const std::int16_t* u16,
                         const std::int16_t* v16, std::int32_t count, std::uint8_t* to) {
  const hn::ScalableTag<std::int32_t> d;
  const hn::Rebind<std::uint8_t, decltype(d)> bytes;
  const hn::Rebind<std::int16_t, decltype(d)> halves;
  const hn::Repartition<std::int16_t, decltype(d)> parts;
  const hn::Repartition<std::uint8_t, decltype(d)> all;
  constexpr int lanes = HWY_LANES(std::int32_t);
  static_assert(yuv_block % lanes == 0);
  // The first terms of the sums include the offsets of luma and chroma.
  const std::int32_t grey = (1 << 19) - 16 * yuv.luma * yuv.luma_offset;
  constexpr std::int32_t neutral = 16 * 128;
  const auto red0 = hn::Set(d, grey - neutral * yuv.v_red);
  const auto green0 = hn::Set(d, grey - neutral * (yuv.u_green + yuv.v_green));
  const auto blue0 = hn::Set(d, grey - neutral * yuv.u_blue);
  // A block of 16 bytes has four pixels of red, blue, green, 0. It becomes 12 bytes, and then the blocks are joined.
  alignas(16) static constexpr std::uint8_t order[16] = {0, 2, 1, 4, 6, 5, 8, 10, 9, 12, 14, 13, 3, 7, 11, 15};
  std::int32_t words[lanes];
  for (int k = 0; k < lanes; ++k) words[k] = k < lanes / 4 * 3 ? k / 3 * 4 + k % 3 : 3;
  const auto places = hn::SetTableIndices(d, words);
  const auto colours = [&](const std::uint8_t* from, std::int32_t x) HWY_ATTR {
    const auto y = hn::Mul(hn::PromoteTo(d, hn::LoadU(bytes, from)), hn::Set(d, 16 * yuv.luma));
    const auto u = hn::PromoteTo(d, hn::LoadU(halves, u16 + x));
    const auto v = hn::PromoteTo(d, hn::LoadU(halves, v16 + x));
    const auto red = hn::Add(hn::Add(y, red0), hn::Mul(v, hn::Set(d, yuv.v_red)));
    const auto blue = hn::Add(hn::Add(y, blue0), hn::Mul(u, hn::Set(d, yuv.u_blue)));
    const auto green =
        hn::Add(hn::Add(hn::Add(y, green0), hn::Mul(u, hn::Set(d, yuv.u_green))), hn::Mul(v, hn::Set(d, yuv.v_green)));
    const auto clamped = [&](auto sums) HWY_ATTR {
      return hn::BitCast(d, hn::Min(hn::Max(sums, hn::Zero(parts)), hn::Set(parts, 255)));
    };
    const auto red_green = hn::OddEven(hn::BitCast(parts, hn::ShiftRight<4>(green)),  // its upper half is the green
                                       hn::BitCast(parts, hn::ShiftRight<20>(red)));
    const auto blues = clamped(hn::BitCast(parts, hn::ShiftRight<20>(blue)));  // and in the upper halves 0
    const auto pixels = hn::BitCast(all, hn::Or(clamped(red_green), hn::ShiftLeft<8>(blues)));
    return hn::BitCast(
        all, hn::TableLookupLanes(hn::BitCast(d, hn::TableLookupBytes(pixels, hn::LoadDup128(all, order))), places));
  };
  std::int32_t x = 0;
  for (; 3 * x + 4 * lanes <= 3 * count; x += lanes) hn::StoreU(colours(luma + x, x), all, to + 3 * x);
  for (; x < count; x += lanes) {  // reads and writes only these pixels
    const auto some = static_cast<std::size_t>(count - x < lanes ? count - x : lanes);
    std::uint8_t last[lanes] = {};
    std::memcpy(last, luma + x, some);
    std::uint8_t rest[4 * lanes];
    hn::StoreU(colours(last, x), all, rest);
    std::memcpy(to + 3 * x, rest, 3 * some);
  }
}

// Pixels [begin, end) of frame row y as RGB. The pointers are those of the frame.
inline void read_yuv(const Plan& plan, const std::uint8_t* pixels, const std::uint8_t* u, const std::uint8_t* v,
                     std::int32_t y, std::int32_t begin, std::int32_t end, std::uint8_t* to) {
  std::uint8_t some[yuv_block];
  std::int16_t chroma[2][yuv_block];
  for (std::int32_t first = begin / 2 * 2; first < end; first += yuv_block) {
    const std::int32_t left = end - first;
    const std::int32_t count = left < yuv_block ? left : yuv_block;
    const std::uint8_t* luma = pixels + y * plan.pixels.row + first * plan.pixels.column;
    if (plan.pixels.column != 1) {
      for (std::int32_t x = 0; x < count; ++x) some[x] = luma[x * plan.pixels.column];
      luma = some;
    }
    const std::int32_t pairs = (count + 1) / 2;
    read_chroma(plan, plan.u, u, y, first / 2, pairs, chroma[0]);
    read_chroma(plan, plan.v, v, y, first / 2, pairs, chroma[1]);
    for (auto& plane : chroma) {
      for (std::int32_t x = 2 * pairs; x % HWY_LANES(std::int32_t) != 0; ++x) plane[x] = 0;
    }
    if (first >= begin) {
      make_colours(plan.yuv, luma, chroma[0], chroma[1], count, to);
      to += 3 * static_cast<std::int64_t>(count);
      continue;
    }
    std::uint8_t colours[3 * yuv_block];
    make_colours(plan.yuv, luma, chroma[0], chroma[1], count, colours);
    const auto bytes = 3 * static_cast<std::size_t>(count - 1);  // without the pixel before begin
    std::memcpy(to, colours + 3, bytes);
    to += bytes;
  }
}

}  // namespace
}  // namespace ROBOCACHE_SIMD_TARGET
}  // namespace robocache::image_op
