// Rows of the output: bytes of interleaved channels are converted to the output's dtype and layout.
#pragma once

#include <cstring>

#include "core/vectors.h"
#include "ops/image/cpu/cpu.h"
#include "ops/image/cpu/yuv.h"

namespace robocache::image_op {
inline namespace ROBOCACHE_SIMD_TARGET {
namespace {

inline constexpr std::int64_t line_margin = 64;  // bytes past the end of a line that may be written

// Writes whole rows of an output frame.
class LineWriter {
 public:
  LineWriter(const Plan& plan, std::int64_t frame) : plan_(plan), frame_(frame_offset(plan, plan.out, frame)) {
    const int channels = plan.channels;
    interleaved_ = plan.out.column == channels && (channels == 1 || plan.out.channel == 1);
    planes_ = !interleaved_ && plan.out.column == 1;
    for (int k = 0; k < max_channels * lanes; ++k) {
      scale_[k] = plan.scale[k % channels];
      shift_[k] = plan.shift[k % channels];
    }
  }

  // Where a row lies, if its bytes are the line's and the next row follows at once, so that what is written behind a row may
  // reach into the next one. Else nullptr.
  std::uint8_t* place_of(std::int32_t row) const {
    const std::int64_t bytes = std::int64_t{plan_.width.count} * plan_.channels;
    if (plan_.out_dtype != DType::u8 || !interleaved_ || plan_.out.row != bytes || bytes < line_margin) return nullptr;
    return static_cast<std::uint8_t*>(plan_.out.data) + frame_ + row * plan_.out.row;
  }

  // `line` has plan.width.count pixels.
  void write(std::int32_t row, const std::uint8_t* line) const {
    const std::int64_t to = frame_ + row * plan_.out.row;
    switch (plan_.out_dtype) {
      case DType::u8:
        return write_as<std::uint8_t>(to, line);
      case DType::f16:
        return write_as<f16>(to, line);
      case DType::bf16:
        return write_as<bf16>(to, line);
      default:
        return write_as<float>(to, line);
    }
  }

  // Depth.
  void write(std::int32_t row, const std::uint16_t* line) const {
    const std::int64_t to = frame_ + row * plan_.out.row;
    if (plan_.out_dtype == DType::u16 && plan_.out.column == 1) {
      std::memcpy(static_cast<std::uint16_t*>(plan_.out.data) + to, line,
                  static_cast<std::size_t>(plan_.width.count) * sizeof(std::uint16_t));
      return;
    }
    for (std::int32_t x = 0; x < plan_.width.count; ++x) store(plan_, to + x * plan_.out.column, 0, line[x]);
  }

 private:
  static constexpr int lanes = HWY_LANES(float);
  static constexpr int block = 16;  // pixels whose channels are taken apart at a time

  template <class T>
  void write_as(std::int64_t to, const std::uint8_t* line) const {
    std::int64_t done = 0;  // pixels
    T* const out = static_cast<T*>(plan_.out.data) + to;
    if (interleaved_) {
      done = write_interleaved(out, line);
    } else if (planes_ && plan_.channels == 3) {
      done = write_planes<3>(out, line);
    } else if (planes_ && plan_.channels == 4) {
      done = write_planes<4>(out, line);
    }
    for (; done < plan_.width.count; ++done) {
      for (int c = 0; c < plan_.channels; ++c) {
        store(plan_, to + done * plan_.out.column + c * plan_.out.channel, c, line[done * plan_.channels + c]);
      }
    }
  }

  // Normalises a vector of bytes.
  template <class T>
  HWY_INLINE static void normalise(const std::uint8_t* from, hn::Vec<hn::ScalableTag<float>> scale,
                                   hn::Vec<hn::ScalableTag<float>> shift, T* to) {
    const hn::ScalableTag<float> d;
    const hn::RebindToSigned<decltype(d)> whole;
    const auto bytes = hn::LoadU(hn::Rebind<std::uint8_t, decltype(d)>(), from);
    robocache::store(d, hn::MulAdd(hn::ConvertTo(d, hn::PromoteTo(whole, bytes)), scale, shift), to);
  }

  // Returns how many pixels it wrote.
  template <class T>
  std::int64_t write_interleaved(T* out, const std::uint8_t* line) const {
    const hn::ScalableTag<float> d;
    const std::int64_t channels = plan_.channels;
    const std::int64_t values = plan_.width.count * channels;
    if constexpr (sizeof(T) == 1) {
      std::memcpy(out, line, static_cast<std::size_t>(values));
      return plan_.width.count;
    } else {
      std::int64_t k = 0;
      for (; k + channels * lanes <= values; k += channels * lanes) {
        for (std::int64_t c = 0; c < channels; ++c) {
          const std::int64_t at = c * lanes;
          normalise(line + k + at, hn::LoadU(d, scale_ + at), hn::LoadU(d, shift_ + at), out + k + at);
        }
      }
      return k / channels;
    }
  }

  template <int channels, class T>
  std::int64_t write_planes(T* out, const std::uint8_t* line) const {
    const hn::Full128<std::uint8_t> bytes;
    const hn::ScalableTag<float> d;
    std::int64_t x = 0;
    for (; x + block <= plan_.width.count; x += block) {
      hn::Vec<decltype(bytes)> planes[4];
      if constexpr (channels == 3) {
        hn::LoadInterleaved3(bytes, line + x * channels, planes[0], planes[1], planes[2]);
      } else {
        hn::LoadInterleaved4(bytes, line + x * channels, planes[0], planes[1], planes[2], planes[3]);
      }
      for (int c = 0; c < channels; ++c) {
        T* const to = out + c * plan_.out.channel + x;
        if constexpr (sizeof(T) == 1) {
          hn::StoreU(planes[c], bytes, to);
        } else {
          std::uint8_t plane[block];
          hn::StoreU(planes[c], bytes, plane);
          for (int k = 0; k < block; k += lanes) {
            normalise(plane + k, hn::Set(d, plan_.scale[c]), hn::Set(d, plan_.shift[c]), to + k);
          }
        }
      }
    }
    return x;
  }

  const Plan& plan_;
  std::int64_t frame_;
  bool interleaved_ = false, planes_ = false;
  float scale_[max_channels * lanes], shift_[max_channels * lanes];  // of interleaved values
};

// Pointers to a frame's part of the planes.
struct Source8 {
  const std::uint8_t *pixels = nullptr, *u = nullptr, *v = nullptr;

  Source8(const Plan& plan, std::int64_t frame) {
    const std::int64_t from = source_frame(plan, frame);
    pixels = static_cast<const std::uint8_t*>(plan.pixels.data) + frame_offset(plan, plan.pixels, from);
    if (plan.source == Source::colour) return;
    u = static_cast<const std::uint8_t*>(plan.u.data) + frame_offset(plan, plan.u, from);
    v = static_cast<const std::uint8_t*>(plan.v.data) + frame_offset(plan, plan.v, from);
  }
};

// Whether the bytes of a source row lie side by side.
inline bool is_dense(const Plan& plan) {
  return plan.source == Source::colour && plan.pixels.column == plan.channels &&
         (plan.channels == 1 || plan.pixels.channel == 1);
}

// Pixels [begin, end) of row y of the box, interleaved.
inline void read_line(const Plan& plan, const Source8& source, std::int32_t y, std::int32_t begin, std::int32_t end,
                      std::uint8_t* to) {
  const std::int32_t row = plan.height.begin + y;
  const std::int32_t column = plan.width.begin;
  if (plan.source != Source::colour && end - begin > 1) {
    return read_yuv(plan, source.pixels, source.u, source.v, row, column + begin, column + end, to);
  }
  for (std::int32_t x = begin; x < end; ++x, to += plan.channels) {
    const Colour colour = colour_at(plan, source.pixels, source.u, source.v, row, column + x);
    for (int c = 0; c < plan.channels; ++c) to[c] = colour.value[c];
  }
}

// Output pixels [begin, end) of a line become padding.
template <class T>
void pad_line(const Plan& plan, std::int32_t begin, std::int32_t end, T* line) {
  for (std::int32_t x = begin; x < end; ++x) {
    for (int c = 0; c < plan.channels; ++c) line[x * plan.channels + c] = static_cast<T>(plan.pad[c]);
  }
}

// The place of an output frame in the resized box.
struct Window {
  std::int32_t y, x;         // the resized pixel of output pixel (0, 0)
  std::int32_t left, right;  // columns of the output inside the box

  Window(const Plan& plan, std::int64_t frame)
      : y(first_pixel(plan.height, plan.tops, frame)), x(first_pixel(plan.width, plan.lefts, frame)) {
    left = -x > 0 ? (-x < plan.width.count ? -x : plan.width.count) : 0;
    right = plan.width.resized - x < plan.width.count ? plan.width.resized - x : plan.width.count;
    if (right < left) right = left;
  }
  bool has_row(const Plan& plan, std::int32_t row) const {
    return y + row >= 0 && y + row < plan.height.resized && left < right;
  }
};

}  // namespace
}  // namespace ROBOCACHE_SIMD_TARGET
}  // namespace robocache::image_op
