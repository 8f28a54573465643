// Frames that are gathered, cropped, normalised and laid out anew, but not resized: a thread writes vectors of 16 bytes.
#pragma once

#include "core/division.h"
#include "gpu/device.h"
#include "ops/image/cuda/bytes.h"
#include "ops/image/cuda/call.h"

namespace robocache::image_op {
namespace {

struct CopyCall {
  Call call;
  // A unit becomes one vector in each plane of the output. Rows that are contiguous in memory count as one row.
  std::uint32_t units = 0;    // of this launch
  Division by_frame, by_row;  // by the units of a frame, and of a row
  std::uint32_t frame_units = 1, row_units = 1;
  std::int64_t row_bytes = 0;     // of the source, in the frame
  std::int64_t row_elements = 0;  // of the output, in a plane
};

// Elements of a vector; T is the output's dtype.
template <class T>
inline constexpr int lanes_of = 16 / static_cast<int>(sizeof(T));

// Two floats as a word of two elements of the output.
__device__ __forceinline__ std::uint32_t pair_as(f16, float low, float high) {
  const __half2 pair = __floats2half2_rn(low, high);
  return bit_copy<std::uint32_t>(pair);
}
__device__ __forceinline__ std::uint32_t pair_as(bf16, float low, float high) {
#if __CUDA_ARCH__ >= 800
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return bit_copy<std::uint32_t>(pair);
#else
  return round_to_bf16(low).bits | static_cast<std::uint32_t>(round_to_bf16(high).bits) << 16;
#endif
}

// Stores lanes_of<T> bytes as T. value(k) is byte k normalised.
template <class T, class Value>
__device__ __forceinline__ void store_vector(T* to, const Value& value) {
  std::uint32_t words[4];
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    if constexpr (sizeof(T) == 2) {
      words[k] = pair_as(T{}, value(2 * k), value(2 * k + 1));
    } else {
      words[k] = __float_as_uint(value(k));
    }
  }
  *reinterpret_cast<uint4*>(to) = uint4{words[0], words[1], words[2], words[3]};
}

// The place of a unit in the source and in the output.
struct Unit {
  const std::uint8_t *from, *begin, *end;  // the row's bytes
  std::int64_t to;                         // element of the output
  std::int64_t first;                      // value of the row
  int left;                                // values of a plane that the row still has

  // `values`: elements of a unit in a plane; `each`: source bytes for each element.
  __device__ Unit(const CopyCall& copy, std::uint32_t unit, int values, int each) {
    const Plan& plan = copy.call.plan;
    const std::uint32_t number = copy.by_frame.divide(unit);
    const std::uint32_t rest = unit - number * copy.frame_units;
    const std::uint32_t row = copy.by_row.divide(rest);
    first = static_cast<std::int64_t>(rest - row * copy.row_units) * values;
    const std::int64_t frame = copy.call.frame + number;
    const std::int64_t y = plan.height.begin + first_pixel(plan.height, plan.tops, frame) + row;
    const std::int64_t x = plan.width.begin + first_pixel(plan.width, plan.lefts, frame);
    begin = static_cast<const std::uint8_t*>(plan.pixels.data) +
            frame_offset(plan, plan.pixels, source_frame(plan, frame)) + y * plan.pixels.row + x * plan.pixels.column;
    end = begin + copy.row_bytes;
    from = begin + first * each;
    to = frame_offset(plan, plan.out, frame) + row * plan.out.row + first;
    left = static_cast<int>(min(static_cast<std::int64_t>(values), copy.row_elements - first));
  }
};

// channels: interleaved channels that become planes; 1: the order stays. period: values after which scale and shift repeat.
template <class T, int channels, int period>
__global__ void __launch_bounds__(tuning::copy_threads) image_copy_kernel(const __grid_constant__ CopyCall copy) {
  constexpr int values = lanes_of<T>;
  constexpr int flight = tuning::copy_flight;
  constexpr int words = values * channels / 4;
  const Plan& plan = copy.call.plan;
  begin(copy.call);
  std::uint32_t raw[flight][words];
  const std::uint32_t first = blockIdx.x * (tuning::copy_threads * flight) + threadIdx.x;
#pragma unroll
  for (int n = 0; n < flight; ++n) {
    const std::uint32_t number = first + n * tuning::copy_threads;
    if (number >= copy.units) break;
    const Unit unit(copy, number, values, channels);
    load_bytes<4 * words>(raw[n], unit.from, unit.begin, unit.end);
  }
  auto* const out = static_cast<T*>(plan.out.data);
#pragma unroll
  for (int n = 0; n < flight; ++n) {
    const std::uint32_t number = first + n * tuning::copy_threads;
    if (number >= copy.units) break;
    const Unit unit(copy, number, values, channels);
    std::uint32_t planes[channels][values / 4];
#pragma unroll
    for (int k = 0; k < values / 4; ++k) {
      std::uint32_t four[channels];
      take_apart<channels>(raw[n] + k * channels, four);
#pragma unroll
      for (int c = 0; c < channels; ++c) planes[c][k] = four[c];
    }
    // A unit of interleaved values may begin with any channel.
    float scale[max_channels];
    float shift[max_channels];
    const int turn = period == 1 ? 0 : static_cast<int>(unit.first % period);
#pragma unroll
    for (int c = 0; c < max_channels; ++c) {
      scale[c] = shift[c] = 0;
      if (c >= max(channels, period)) continue;
#pragma unroll
      for (int of = 0; of < max_channels; ++of) {
        if (of < max(channels, period) && of == (c + turn) % max(channels, period)) {
          scale[c] = plan.scale[of];
          shift[c] = plan.shift[of];
        }
      }
    }
#pragma unroll
    for (int c = 0; c < channels; ++c) {
      T* const to = out + unit.to + c * (channels > 1 ? plan.out.channel : 0);
      const auto value = [&](int k) {
        const int of = channels > 1 ? c : k % period;
        return fused(byte_as_float(planes[c][k / 4], k % 4), scale[of], shift[of]);
      };
      if (unit.left == values) {
        if constexpr (sizeof(T) == 1) {
          *reinterpret_cast<uint4*>(to) = uint4{planes[c][0], planes[c][1], planes[c][2], planes[c][3]};
        } else {
          store_vector(to, value);
        }
      } else {
#pragma unroll
        for (int k = 0; k < values; ++k) {
          if (k >= unit.left) break;
          if constexpr (sizeof(T) == 1) {
            to[k] = static_cast<T>(planes[c][k / 4] >> 8 * (k % 4));
          } else {
            to[k] = narrow<T>(value(k));
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace robocache::image_op
