// Checks the shapes and options of a call, fills in the defaults, and makes the plan.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>

#include "core/limits.h"
#include "core/names.h"
#include "core/speaker.h"
#include "ops/image/plan.h"

namespace robocache::image_op {
namespace {

constexpr Speaker speaker{Operation::image};

std::size_t place(int dimension) { return static_cast<std::size_t>(dimension); }

class Planner {
 public:
  Planner(const Frames& frames, const ImageOptions& options) : frames_(frames), options_(options) {
    plan_.check = options.check;
    plan_source();
    plan_rows();
    plan_dtype();
    plan_numbers();
    plan_size();
    plan_crop();
  }

  // A dense view without memory.
  TensorView output() const {
    std::array<std::int64_t, max_rank> shape{};
    int rank = 0;
    for (; rank < lead_; ++rank) shape[place(rank)] = lead_size(rank);
    const std::array<std::int64_t, 3> sizes{plan_.height.count, plan_.width.count, plan_.channels};
    for (const int axis : axes()) shape[place(rank++)] = sizes[place(axis)];
    return TensorView::contiguous(nullptr, plan_.out_dtype, {shape.data(), place(rank)}, frames_.pixels.device);
  }

  const Plan& plan() const { return plan_; }

  const Plan& finish(const TensorView& out) {
    if (!out) speaker.fail(ErrorKind::value, "the output is missing");
    const TensorView expected = output();
    check_device(speaker, "out", out, frames_.pixels.device, "frames");
    if (out.dtype != expected.dtype) {
      speaker.fail(ErrorKind::type, "out is ", name_of(out.dtype), "; expected ", name_of(expected.dtype));
    }
    check_shape(speaker, "out", out, {expected.shape.data(), place(expected.rank)});
    plan_.out.data = out.data;
    std::int64_t* const strides[] = {&plan_.out.row, &plan_.out.column, &plan_.out.channel};
    int dimension = lead_;
    for (const int axis : axes()) *strides[axis] = out.strides[place(dimension++)];
    merge_leading(out);
    return plan_;
  }

 private:
  // ---- the source

  void plan_source() {
    const TensorView& pixels = frames_.pixels;
    if (!pixels) speaker.fail(ErrorKind::value, "frames are missing");
    const bool planes = frames_.u || frames_.v || frames_.uv;
    if (pixels.dtype != DType::u8 && (pixels.dtype != DType::u16 || planes)) {
      speaker.fail(ErrorKind::type, planes ? "luma is " : "frames are ", name_of(pixels.dtype),
                   planes ? "; it must be uint8" : "; they must be uint8 pixels, or uint16 depth");
    }
    plan_.source = planes ? Source::yuv420 : (pixels.dtype == DType::u16 ? Source::depth : Source::colour);
    const int tail = plan_.source == Source::colour ? 3 : 2;
    lead_ = pixels.rank - tail;
    if (lead_ < 0) {
      speaker.fail(ErrorKind::value, planes ? "luma has shape " : "frames have shape ", shape_text(pixels),
                   "; expected ", plan_.source == Source::colour ? "[..., H, W, C]" : "[..., H, W]");
    }
    if (lead_ > max_leading) {
      speaker.fail(ErrorKind::value, "frames have ", lead_, " leading dimensions; at most ", max_leading);
    }
    plan_.channels = plan_.source == Source::depth ? 1 : 3;
    if (plan_.source == Source::colour) plan_channels();
    plan_.pixels.data = pixels.data;
    plan_.pixels.row = pixels.strides[place(lead_)];
    plan_.pixels.column = pixels.strides[place(lead_ + 1)];
    plan_.height.frame = side("high", pixels.shape[place(lead_)]);
    plan_.width.frame = side("wide", pixels.shape[place(lead_ + 1)]);
    if (planes) plan_yuv();
  }

  void plan_channels() {
    const TensorView& pixels = frames_.pixels;
    const std::int64_t channels = pixels.shape[place(lead_ + 2)];
    if (channels != 1 && channels != 3 && channels != 4) {
      const std::int64_t first = pixels.shape[place(lead_)];
      const bool turned = first == 1 || first == 3 || first == 4;
      speaker.fail(ErrorKind::value, "frames of shape ", shape_text(pixels), " have ", channels,
                   " channels; expected [..., H, W, C] with 1, 3 or 4 channels",
                   turned ? ". Frames of shape [..., C, H, W] must be permuted: the channels come last" : "");
    }
    plan_.channels = static_cast<std::int32_t>(channels);
    plan_.pixels.channel = pixels.strides[place(lead_ + 2)];
  }

  static std::int32_t side(const char* how, std::int64_t pixels) {
    if (pixels < 1 || pixels > most_pixels) {
      speaker.fail(ErrorKind::value, "frames are ", pixels, " pixels ", how, "; expected 1 to ", most_pixels);
    }
    return static_cast<std::int32_t>(pixels);
  }

  void plan_yuv() {
    if (frames_.uv ? frames_.u || frames_.v : !frames_.u || !frames_.v) {
      speaker.fail(ErrorKind::value, "chroma is u and v, or uv; give the two planes or the one");
    }
    if (frames_.uv) {
      set_chroma("uv", frames_.uv, 1, plan_.u);
      const std::int64_t step = frames_.uv.strides[place(lead_ + 2)];
      plan_.v = plan_.u;
      if (frames_.uv.size() > 0) plan_.v.data = static_cast<std::uint8_t*>(plan_.u.data) + step;
    } else {
      set_chroma("u", frames_.u, 0, plan_.u);
      set_chroma("v", frames_.v, 0, plan_.v);
      if (frames_.u.shape[place(lead_)] != frames_.v.shape[place(lead_)]) {
        speaker.fail(ErrorKind::value, "u has shape ", shape_text(frames_.u), " and v ", shape_text(frames_.v),
                     "; they must be equal");
      }
    }
    const YuvMatrix by_height = plan_.height.frame >= 720 ? YuvMatrix::bt709 : YuvMatrix::bt601;
    plan_.siting = frames_.siting;
    plan_.yuv = matrix_of(frames_.matrix.value_or(by_height), frames_.range);
  }

  // A plane of chroma. `pairs`: 1 where its last dimension is U and V.
  void set_chroma(const char* what, const TensorView& view, int pairs, Plane& plane) {
    const TensorView& luma = frames_.pixels;
    check_device(speaker, what, view, luma.device, "frames");
    if (view.dtype != DType::u8) {
      speaker.fail(ErrorKind::type, what, " is ", name_of(view.dtype), "; it must be uint8");
    }
    const std::int64_t height = plan_.height.frame;
    const std::int64_t half = (height + 1) / 2;
    std::array<std::int64_t, max_rank> expected = luma.shape;
    const int rank = luma.rank + pairs;
    expected[place(lead_)] = half;
    expected[place(lead_ + 1)] = (plan_.width.frame + 1) / 2;
    if (pairs != 0) expected[place(lead_ + 2)] = 2;
    const auto fits = [&](std::int64_t rows) {
      expected[place(lead_)] = rows;
      return view.rank == rank && std::equal(expected.begin(), expected.begin() + rank, view.shape.begin());
    };
    if (fits(half)) {
      plan_.source = Source::yuv420;
    } else if (fits(height)) {
      plan_.source = Source::yuv422;
    } else {
      expected[place(lead_)] = half;
      const std::string whole = shape_text({expected.data(), place(rank)});
      expected[place(lead_)] = height;
      speaker.fail(ErrorKind::value, what, " has shape ", shape_text(view), " beside luma of ", shape_text(luma),
                   "; expected ", whole, " (4:2:0) or ", shape_text({expected.data(), place(rank)}),
                   " (4:2:2). Other formats are not read; convert them first");
    }
    plane.data = view.data;
    plane.row = view.strides[place(lead_)];
    plane.column = view.strides[place(lead_ + 1)];
  }

  static YuvMatrixPlan matrix_of(YuvMatrix matrix, YuvRange range) {
    const double red = matrix == YuvMatrix::bt601 ? 0.299 : (matrix == YuvMatrix::bt709 ? 0.2126 : 0.2627);
    const double blue = matrix == YuvMatrix::bt601 ? 0.114 : (matrix == YuvMatrix::bt709 ? 0.0722 : 0.0593);
    const double green = 1.0 - red - blue;
    const bool limited = range == YuvRange::limited;
    const double luma = limited ? 255.0 / 219.0 : 1.0;
    const double chroma = limited ? 255.0 / 224.0 : 1.0;
    const auto whole = [](double x) { return static_cast<std::int32_t>(std::rint(x * 65536.0)); };
    return {.luma = whole(luma),
            .luma_offset = limited ? 16 : 0,
            .v_red = whole(2.0 * (1.0 - red) * chroma),
            .u_green = whole(-2.0 * (1.0 - blue) * blue / green * chroma),
            .v_green = whole(-2.0 * (1.0 - red) * red / green * chroma),
            .u_blue = whole(2.0 * (1.0 - blue) * chroma)};
  }

  // ---- which frames

  void plan_rows() {
    check_device(speaker, "rows", frames_.rows, frames_.pixels.device, "frames");
    plan_.rows = integers_of(speaker, "rows", frames_.rows);
    if (frames_.rows) {
      if (lead_ != 1) {
        speaker.fail(ErrorKind::value, "rows choose frames of a stack [N, ...], and frames have shape ",
                     shape_text(frames_.pixels));
      }
      plan_.stack = frames_.pixels.shape[0];
      if (plan_.stack == 0 && frames_.rows.shape[0] > 0) {
        speaker.fail(ErrorKind::value, "rows choose ", frames_.rows.shape[0], " frames of a stack that is empty");
      }
    }
    plan_.frames = 1;
    for (int d = 0; d < lead_; ++d) plan_.frames *= lead_size(d);
  }

  std::int64_t lead_size(int d) const { return frames_.rows ? frames_.rows.shape[0] : frames_.pixels.shape[place(d)]; }

  // ---- values

  void plan_dtype() {
    const DType same = plan_.source == Source::depth ? DType::u16 : DType::u8;
    plan_.out_dtype = options_.dtype.value_or(same);
    const bool narrow = plan_.out_dtype == DType::f16 || plan_.out_dtype == DType::bf16;
    if (plan_.out_dtype != same && plan_.out_dtype != DType::f32 && !narrow) {
      speaker.fail(ErrorKind::type, "dtype is ", name_of(plan_.out_dtype), "; expected ", name_of(same),
                   ", float16, bfloat16 or float32");
    }
    const Filter usual = plan_.source == Source::depth ? Filter::nearest : Filter::bilinear;
    plan_.filter = options_.filter.value_or(usual);
    if (plan_.source == Source::depth && plan_.filter != Filter::nearest && plan_.filter != Filter::box) {
      speaker.fail(ErrorKind::value, "filter ", word_of(plan_.filter),
                   " would mix near and far in depth; use nearest or box, which averages the readings that there are");
    }
  }

  void check_per_channel(const char* what, std::size_t count) const {
    if (count == 1 || count == static_cast<std::size_t>(plan_.channels)) return;
    speaker.fail(ErrorKind::value, what, " has ", count, " values; expected one, or one for each of ", plan_.channels,
                 plan_.channels == 1 ? " channel" : " channels");
  }

  void plan_numbers() {
    check_per_channel("pad", options_.pad.size());
    const int most = plan_.source == Source::depth ? 65535 : 255;
    for (const int value : options_.pad) {
      if (value < 0 || value > most) {
        speaker.fail(ErrorKind::value, "pad is ", value, "; expected 0 to ", most, ", a value of the frames");
      }
    }
    check_per_channel("mean", options_.mean.size());
    check_per_channel("std", options_.std.size());
    const bool plain = std::ranges::all_of(options_.mean, [](double x) { return x == 0.0; }) &&
                       std::ranges::all_of(options_.std, [](double x) { return x == 1.0; });
    if (!is_float(plan_.out_dtype) && !plain) {
      speaker.fail(ErrorKind::value, "mean and std need a dtype of floats; give float32, bfloat16 or float16");
    }
    const double largest = plan_.source == Source::depth ? 1.0 : 255.0;
    for (int c = 0; c < plan_.channels; ++c) {
      const auto of = [&](const auto& list) { return list[list.size() == 1 ? 0 : place(c)]; };
      plan_.pad[c] = static_cast<std::uint16_t>(of(options_.pad));
      const double mean = of(options_.mean);
      const double deviation = of(options_.std);
      if (!std::isfinite(mean)) speaker.fail(ErrorKind::value, "mean is ", mean, "; it must be finite");
      if (!(deviation > 0) || !std::isfinite(deviation)) {
        speaker.fail(ErrorKind::value, "std is ", deviation, "; it must be positive and finite");
      }
      plan_.scale[c] = static_cast<float>(1.0 / (largest * deviation));
      plan_.shift[c] = static_cast<float>(-mean / deviation);
      if (!(plan_.scale[c] > 0) || !std::isfinite(plan_.scale[c]) || !std::isfinite(plan_.shift[c])) {
        speaker.fail(ErrorKind::value, "mean ", mean, " and std ", deviation, " are beyond float32");
      }
    }
  }

  // ---- places

  void plan_size() {
    const ImageBox whole{0, 0, plan_.height.frame, plan_.width.frame};
    const ImageBox box = options_.box.value_or(whole);
    check_box("box", box.top, box.height, whole.height, "rows");
    check_box("box", box.left, box.width, whole.width, "columns");
    set_box(plan_.height, box.top, box.height);
    set_box(plan_.width, box.left, box.width);
    if (!options_.size) return;
    const auto [height, width] = *options_.size;
    if (height < 1 || width < 1 || height > most_pixels || width > most_pixels) {
      speaker.fail(ErrorKind::value, "size is (", height, ", ", width, "); expected 1 to ", most_pixels,
                   " pixels along each side");
    }
    set_size(plan_.height, height);
    set_size(plan_.width, width);
    if (options_.fit == Fit::stretch) return;
    // The free side gets the scale of the other one, rounded half up. cover fills both sides, contain stays within both.
    const bool wide = width * box.height > height * box.width;  // the size is wider than the box
    const bool width_rules = (options_.fit == Fit::cover) == wide;
    Axis& free = width_rules ? plan_.height : plan_.width;
    const Axis& ruled = width_rules ? plan_.width : plan_.height;
    const std::int64_t asked = width_rules ? width : height;
    const std::int64_t pixels = (2 * free.box * asked + ruled.box) / (2 * std::int64_t{ruled.box});
    if (pixels > most_pixels) {
      speaker.fail(ErrorKind::value, "to cover (", height, ", ", width, ") a frame of ", box.height, " x ", box.width,
                   " would become ", pixels, " pixels long; at most ", most_pixels);
    }
    free.resized = static_cast<std::int32_t>(std::max<std::int64_t>(pixels, 1));
    free.first = free.resized >= free.count ? (free.resized - free.count) / 2 : -((free.count - free.resized) / 2);
  }

  static void check_box(const char* what, std::int64_t begin, std::int64_t count, std::int64_t size, const char* unit) {
    if (count < 1) speaker.fail(ErrorKind::value, what, " has ", count, " ", unit, "; expected at least 1");
    if (count > size) speaker.fail(ErrorKind::value, what, " has ", count, " ", unit, ", and there are ", size);
    if (begin < 0 || begin > size - count) {
      speaker.fail(ErrorKind::value, what, " has ", count, " ", unit, " from ", begin, " on, and there are ", size);
    }
  }

  static void set_box(Axis& axis, std::int64_t begin, std::int64_t count) {
    axis.begin = static_cast<std::int32_t>(begin);
    axis.box = axis.resized = axis.count = static_cast<std::int32_t>(count);
  }
  static void set_size(Axis& axis, std::int64_t pixels) {
    axis.resized = axis.count = static_cast<std::int32_t>(pixels);
  }

  void plan_crop() {
    const TensorView& offsets = options_.crop_offsets;
    if (!options_.crop) {
      if (options_.crop_offset || offsets) {
        speaker.fail(ErrorKind::value, "a crop's place without its size; give crop = (height, width), too");
      }
      return;
    }
    const std::int64_t height = plan_.height.count;
    const std::int64_t width = plan_.width.count;
    const auto [rows, columns] = *options_.crop;
    ImageOptions::Offset at{(height - rows) / 2, (width - columns) / 2};
    if (offsets) {
      if (options_.crop_offset)
        speaker.fail(ErrorKind::value, "crop has a place of its own and crop_offsets; give one");
      at = {0, 0};
    }
    if (options_.crop_offset) at = *options_.crop_offset;
    check_box("crop", at.top, rows, height, "rows");
    check_box("crop", at.left, columns, width, "columns");
    set_crop(plan_.height, at.top, rows);
    set_crop(plan_.width, at.left, columns);
    if (!offsets) return;
    check_device(speaker, "crop_offsets", offsets, frames_.pixels.device, "frames");
    const std::int64_t expected[] = {plan_.frames, 2};
    check_shape(speaker, "crop_offsets", offsets, expected);
    plan_.tops = column_of(offsets, 0);
    plan_.lefts = column_of(offsets, 1);
  }

  static void set_crop(Axis& axis, std::int64_t begin, std::int64_t count) {
    axis.most_offset = axis.count - static_cast<std::int32_t>(count);
    axis.first += static_cast<std::int32_t>(begin);
    axis.count = static_cast<std::int32_t>(count);
  }

  static Integers column_of(const TensorView& pairs, std::int64_t column) {
    TensorView one = pairs;
    one.rank = 1;
    one.data = element(pairs, column * pairs.strides[1]);
    return integers_of(speaker, "crop_offsets", one);
  }

  static void* element(const TensorView& view, std::int64_t offset) {
    return view.size() == 0 ? view.data : static_cast<std::byte*>(view.data) + offset * size_of(view.dtype);
  }

  // ---- strides

  // The order of the output's last three dimensions: 0 is rows, 1 columns, 2 channels.
  std::span<const int> axes() const {
    static constexpr int nhwc[] = {0, 1, 2};
    static constexpr int nchw[] = {2, 0, 1};
    if (plan_.source == Source::depth) return {nhwc, 2};
    return options_.layout == ImageLayout::nhwc ? std::span<const int>(nhwc) : std::span<const int>(nchw);
  }

  // Joins leading dimensions that every array steps through evenly.
  void merge_leading(const TensorView& out) {
    struct Pair {
      Plane* plane;
      const TensorView* view;
    };
    const TensorView& second = frames_.uv ? frames_.uv : frames_.v;
    const Pair pairs[] = {{&plan_.out, &out},
                          {&plan_.pixels, &frames_.pixels},
                          {&plan_.u, frames_.uv ? &frames_.uv : &frames_.u},
                          {&plan_.v, &second}};
    plan_.leading = 0;
    for (int d = 0; d < lead_; ++d) {
      const std::int64_t size = lead_size(d);
      if (size == 1) continue;
      const bool joins =
          plan_.leading > 0 && std::ranges::all_of(pairs, [&](const Pair& pair) {
            return !*pair.view || pair.plane->frame[plan_.leading - 1] == pair.view->strides[place(d)] * size;
          });
      if (!joins) plan_.leading_size[plan_.leading++] = 1;
      plan_.leading_size[plan_.leading - 1] *= size;
      for (const Pair& pair : pairs) {
        if (*pair.view) pair.plane->frame[plan_.leading - 1] = pair.view->strides[place(d)];
      }
    }
    if (frames_.rows) {  // of one row, too: it may be any frame
      for (const Pair& pair : pairs) {
        if (*pair.view) pair.plane->frame[0] = pair.view->strides[0];
      }
    }
  }

  const Frames& frames_;
  const ImageOptions& options_;
  int lead_ = 0;
  Plan plan_;
};

}  // namespace
}  // namespace robocache::image_op
