// YUV to RGB for 16 rows at once, straight into the transposed layout that a resize along rows reads. Luma and chroma are
// transposed instead of three colours, and the two pixels of a chroma sample share its products.
#pragma once

#include "ops/image/cpu/transpose.h"
#include "ops/image/cpu/yuv.h"

namespace robocache::image_op {
inline namespace ROBOCACHE_SIMD_TARGET {
namespace {

inline constexpr std::int32_t strip_pairs =
    128;  // pairs of pixels at a time: their luma and chroma stay in the L1 cache

// The terms that a chroma sample adds to the sums of rgb_of(), together with the constant terms.
template <class V>
struct ChromaTerms {
  V red, green, blue;
};

// 16 rows of chroma, 4 times its value between rows, with a sample on either side of the strip: [samples, 16 rows].
struct StripChroma {
  std::int16_t samples[(strip_pairs + 2 + 6) * band_rows];

  void read(const Plan& plan, const Plane& plane, const std::uint8_t* data, const std::int32_t (&rows)[band_rows],
            std::int32_t first, std::int32_t pairs) {
    const hn::Full128<std::uint8_t> d;
    constexpr std::int32_t stride = strip_pairs + 8;
    std::int16_t lines[band_rows * stride];
    for (int k = 0; k < band_rows; ++k) mix_rows(plan, plane, data, rows[k], first, pairs, lines + k * stride);
    for (std::int32_t at = 0; at < pairs + 2; at += 8) {
      for (int part = 0; part < band_rows; part += 8) {
        Bytes16 block[8];
        for (int k = 0; k < 8; ++k) {
          block[k] = hn::LoadU(d, reinterpret_cast<const std::uint8_t*>(lines + (part + k) * stride + at));
        }
        transpose(block);
        for (int k = 0; k < 8; ++k) {
          hn::StoreU(block[k], d, reinterpret_cast<std::uint8_t*>(samples + (at + k) * band_rows + part));
        }
      }
    }
  }
};

// As rgb_of(), for `pairs` pairs of pixels of 16 rows. `luma`: [pairs, 16 rows, 2]. `to`: [pairs, 3, 16 rows, 2].
template <YuvSiting siting>
void make_pairs(const YuvMatrixPlan& yuv, const std::uint8_t* luma, const StripChroma& u, const StripChroma& v,
                std::int32_t pairs, std::uint8_t* to) {
  constexpr bool centered = siting == YuvSiting::center;
  constexpr std::int32_t share = centered ? 1 : 2;  // of 4, for the far sample
  const hn::ScalableTag<std::int32_t> d;
  const hn::RebindToUnsigned<decltype(d)> words;
  const hn::Rebind<std::uint16_t, decltype(d)> luma_pairs;
  const hn::Rebind<std::int16_t, decltype(d)> chroma;
  const hn::Repartition<std::int16_t, decltype(d)> halves;
  const hn::Rebind<std::uint8_t, decltype(halves)> bytes;
  constexpr int lanes = HWY_LANES(std::int32_t);
  const std::int32_t grey = (1 << 19) - 16 * yuv.luma * yuv.luma_offset;
  constexpr std::int32_t neutral = 16 * 128;
  // A pixel's sum has 4 / share of each of these constants, which are multiples of 16.
  const auto constant = [&](std::int32_t factors) { return hn::Set(d, (grey - neutral * factors) / 4 * share); };
  const auto red0 = constant(yuv.v_red);
  const auto green0 = constant(yuv.u_green + yuv.v_green);
  const auto blue0 = constant(yuv.u_blue);
  const auto v_red = hn::Set(d, share * yuv.v_red);
  const auto u_green = hn::Set(d, share * yuv.u_green);
  const auto v_green = hn::Set(d, share * yuv.v_green);
  const auto u_blue = hn::Set(d, share * yuv.u_blue);
  const auto luma16 = hn::Set(d, 16 * yuv.luma);
  using Terms = ChromaTerms<hn::Vec<decltype(d)>>;
  for (int row = 0; row < band_rows; row += lanes) {
    const auto terms_of = [&](std::int32_t sample) HWY_ATTR {
      const auto us = hn::PromoteTo(d, hn::LoadU(chroma, u.samples + sample * band_rows + row));
      const auto vs = hn::PromoteTo(d, hn::LoadU(chroma, v.samples + sample * band_rows + row));
      return Terms{hn::Add(hn::Mul(vs, v_red), red0),
                   hn::Add(hn::Add(hn::Mul(us, u_green), hn::Mul(vs, v_green)), green0),
                   hn::Add(hn::Mul(us, u_blue), blue0)};
    };
    Terms before = terms_of(0);
    Terms here = terms_of(1);
    for (std::int32_t pair = 0; pair < pairs; ++pair) {
      const Terms next = terms_of(pair + 2);
      const auto both = hn::LoadU(luma_pairs, reinterpret_cast<const std::uint16_t*>(luma) + pair * band_rows + row);
      const auto word = hn::PromoteTo(words, both);
      const auto even = hn::Mul(hn::BitCast(d, hn::And(word, hn::Set(words, 255))), luma16);
      const auto odd = hn::Mul(hn::BitCast(d, hn::ShiftRight<8>(word)), luma16);
      const auto write = [&](int channel, auto far_before, auto near, auto far) HWY_ATTR {
        const auto near3 = centered ? hn::Add(near, hn::Add(near, near)) : near;
        const auto first = hn::Add(even, hn::Add(near3, centered ? far_before : near));
        const auto second = hn::Add(odd, hn::Add(near3, far));
        const auto values = hn::OddEven(hn::BitCast(halves, hn::ShiftRight<4>(second)),  // its upper half
                                        hn::BitCast(halves, hn::ShiftRight<20>(first)));
        hn::StoreU(hn::DemoteTo(bytes, values), bytes, to + ((pair * 3 + channel) * band_rows + row) * 2);
      };
      write(0, before.red, here.red, next.red);
      write(1, before.green, here.green, next.green);
      write(2, before.blue, here.blue, next.blue);
      before = here;
      here = next;
    }
  }
}

// Pairs of pixels of these frame rows as [pairs, 3, 16 rows, 2], from frame column `first` on, which is even. Luma lies side by
// side. The pointers are those of the frame. Columns beyond the frame get any value.
inline void read_yuv_pairs(const Plan& plan, const std::uint8_t* pixels, const std::uint8_t* u, const std::uint8_t* v,
                           const std::int32_t (&rows)[band_rows], std::int32_t first, std::int64_t pairs,
                           std::uint8_t* to) {
  std::uint8_t luma[(strip_pairs + 8) * 2 * band_rows];
  StripChroma chroma[2];
  for (std::int64_t done = 0; done < pairs; done += strip_pairs) {
    const auto some = static_cast<std::int32_t>(pairs - done < strip_pairs ? pairs - done : strip_pairs);
    const auto column = static_cast<std::int32_t>(first + 2 * done);
    const std::uint8_t* lines[band_rows];
    for (int k = 0; k < band_rows; ++k) lines[k] = pixels + rows[k] * plan.pixels.row + column;
    UnitOf<1>::transpose_in(lines, plan.width.frame - column, (some + 7) / 8, luma);
    chroma[0].read(plan, plan.u, u, rows, column / 2, some);
    chroma[1].read(plan, plan.v, v, rows, column / 2, some);
    const auto make = plan.siting == YuvSiting::center ? make_pairs<YuvSiting::center> : make_pairs<YuvSiting::left>;
    make(plan.yuv, luma, chroma[0], chroma[1], some, to + 3 * 2 * band_rows * done);
  }
}

}  // namespace
}  // namespace ROBOCACHE_SIMD_TARGET
}  // namespace robocache::image_op
