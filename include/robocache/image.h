// Image: camera frames as tensors for a policy: colour, resize, crop and normalise in one pass.
//
// ```cpp
// using robocache::Array, robocache::DType;
// const Array frames = Array::zeros(DType::u8, {8, 480, 640, 3});  // RGB
// const robocache::ImageOptions options{.size = robocache::ImageSize{224, 224},
//                                       .fit = robocache::Fit::contain,
//                                       .dtype = DType::f32,
//                                       .mean = {0.485, 0.456, 0.406},
//                                       .std = {0.229, 0.224, 0.225},
//                                       .layout = robocache::ImageLayout::nchw};
// const robocache::TensorView wanted = robocache::image_output({.pixels = frames.view()}, options);
// const Array tensor = Array::zeros(wanted.dtype, {8, 3, 224, 224});  // wanted has this shape
// robocache::image({}, {.pixels = frames.view()}, options, tensor.view());
//
// // NV12, as video decoders give it: a plane of luma, and one of chroma at half the size.
// const Array y = Array::zeros(DType::u8, {480, 640}), uv = Array::zeros(DType::u8, {240, 320, 2});
// const Array rgb = Array::zeros(DType::u8, {480, 640, 3});
// robocache::image({}, {.pixels = y.view(), .uv = uv.view()}, {}, rgb.view());
// ```
//
// The order is: YUV to RGB, box, fit and resize, crop, float. docs/semantics.md says what is computed, to the bit. Resized
// uint8 frames have the bytes of Pillow's Image.resize, one axis a call. Frames are integers, so there is no gradient.
//
// Errors. Shapes, dtypes, devices and options are checked first: robocache::Error is thrown before anything is written.
// `rows` and `crop_offsets` out of range can only be found by reading the data. The CPU backends read them before they write.
// On CUDA the kernel finds the mistake: the result of that frame is unspecified, no memory outside the arrays is touched,
// and the error is thrown by the same thread's next call on that device or by robocache::synchronize(). `check = false`
// turns these checks off; the data must then be valid.
//
// Determinism. Every backend and every run gives the same bits, whatever the number of threads.
// CUDA. Work goes to the caller's stream, in order. A call waits for nothing and can be captured in a CUDA graph.
// Threads. Any number of threads may call at the same time, with outputs that do not overlap.
// Limits. Frames, and what they are resized to, have 1 to 32,768 pixels along a side. 1, 3 or 4 channels.
// Memory. The bytes of an array are aligned for its dtype; more is not needed. Inputs and output may have any strides. The
// output must not overlap an input.
// Cost. The bytes of the source pixels that the output depends on, and of the output. A resized pixel takes about
// 2 * support * max(1, source / size) multiplications along each axis; support is 0.5 for box, 1 for bilinear, 2 for bicubic.
#pragma once

#include <robocache/context.h>
#include <robocache/error.h>
#include <robocache/tensor.h>

#include <cstdint>
#include <optional>
#include <vector>

#pragma GCC visibility push(default)  // the shared library exports what follows

namespace robocache {

// stretch: both sides become the size. cover: the frame keeps its proportions, covers the size, and what is left over is
// cut off. contain: the frame keeps its proportions, is wholly inside the size, and the rest is `pad`. The middle is kept.
enum class Fit : std::uint8_t { stretch, cover, contain };

// bilinear (a triangle), box and bicubic are widened where the frame shrinks, so they do not alias.
enum class Filter : std::uint8_t { bilinear, box, bicubic, nearest };

// nhwc: [..., H, W, C]. nchw: [..., C, H, W].
enum class ImageLayout : std::uint8_t { nhwc, nchw };

// How RGB was turned into YUV. Video that does not say is bt709 from 720 lines on, else bt601.
enum class YuvMatrix : std::uint8_t { bt601, bt709, bt2020 };
// limited: luma in 16..235, chroma in 16..240. full: 0..255.
enum class YuvRange : std::uint8_t { limited, full };
// Where chroma samples lie among the columns: on every second one (MPEG-2, and what H.264 and H.265 mean if they do not say),
// or between two (JPEG, MPEG-1, and what FFmpeg takes for video that does not say). Between rows they always lie in the middle.
enum class YuvSiting : std::uint8_t { left, center };

struct ImageSize {
  std::int64_t height = 0, width = 0;
};

// A rectangle: its first row and column, and its size.
struct ImageBox {
  std::int64_t top = 0, left = 0, height = 0, width = 0;
};

// Frames: one, or any leading dimensions of them.
struct Frames {
  // uint8 [..., H, W, C] with C = 1, 3 or 4 channels, resized independently (alpha is not premultiplied). Or depth:
  // uint16 [..., H, W], where 0 means no reading. Or, with the planes below, luma: uint8 [..., H, W].
  TensorView pixels{};
  // Chroma of planar YUV, 4:2:0 or 4:2:2: uint8 [..., h, w], w = ceil(W / 2), and h = ceil(H / 2) or H.
  TensorView u{}, v{};
  // Chroma of semi-planar YUV, 4:2:0 (NV12) or 4:2:2 (NV16): uint8 [..., h, w, 2], U first.
  TensorView uv{};
  std::optional<YuvMatrix> matrix{};  // default: by H, as above
  YuvRange range = YuvRange::limited;
  YuvSiting siting = YuvSiting::left;
  // [R] int32 or int64: output frame r is frame rows[r] of a stack [N, ...]. Default: every frame once.
  TensorView rows{};
};

struct ImageOptions {
  std::optional<ImageBox> box{};    // the part of the frames that is used. Default: all.
  std::optional<ImageSize> size{};  // default: no resize
  Fit fit = Fit::stretch;
  std::optional<Filter> filter{};  // default: bilinear for uint8, nearest for depth. Depth has nearest and box.
  std::vector<int> pad{0};         // one value, or one for each channel; of the input's dtype
  // The part that is kept of the frames at `size` (of the box, without a size). Default: all.
  std::optional<ImageSize> crop{};
  // Where it lies: a first row and column, the same for all. Default: the middle, at ((H - h) / 2, (W - w) / 2).
  struct Offset {
    std::int64_t top = 0, left = 0;
  };
  std::optional<Offset> crop_offset{};
  // Or one for each output frame: [R, 2] int32 or int64 (top, left); R is the product of the output's leading dimensions.
  TensorView crop_offsets{};
  // uint8 (depth: uint16), the default, or float16, bfloat16, float32. Floats are (x / 255 - mean) / std, of depth
  // (x - mean) / std, as one fused multiply and add in float32.
  std::optional<DType> dtype{};
  std::vector<double> mean{0.0}, std{1.0};  // one value, or one for each channel; only for floats
  ImageLayout layout = ImageLayout::nhwc;   // of the output. Depth has no channel axis in either.
  bool check = true;
};

// What the output must look like: a dense view of the right dtype and shape, without memory, on the frames' device. It has
// the frames' leading dimensions ([R] with rows), then [H, W, C], [C, H, W], or for depth [H, W].
TensorView image_output(const Frames& frames, const ImageOptions& options);

// Every option and shape is checked before anything is written.
void image(const Context& context, const Frames& frames, const ImageOptions& options, const TensorView& output);

}  // namespace robocache

#pragma GCC visibility pop
