// image: frames in, one call of the library, a tensor out.
#include "image.h"

#include <nanobind/stl/string.h>
#include <robocache/image.h>

#include <algorithm>
#include <string>
#include <vector>

#include "argument.h"
#include "call.h"
#include "core/names.h"
#include "ops/image/math.h"
#include "ops/image/planner.h"
#include "scene.h"

namespace nb = nanobind;

namespace robocache::python {

namespace {

// The whole numbers of a tuple; `expected` says what they are.
std::vector<std::int64_t> integers_of(const Where& where, const char* argument, nb::handle object, Py_ssize_t count,
                                      const char* expected) {
  const nb::object items = tuple_of(where, argument, object.ptr(), count, expected);
  std::vector<std::int64_t> numbers;
  for (Py_ssize_t k = 0; k < PyTuple_Size(items.ptr()); ++k) {
    numbers.push_back(parse_integer(where, argument, PyTuple_GetItem(items.ptr(), k)));
  }
  return numbers;
}

// A number, or one for each channel.
std::vector<double> numbers_of(const Where& where, const char* argument, nb::handle object) {
  if (!has_length(object.ptr())) return {parse_number(where, argument, object.ptr())};
  const nb::object items = tuple_of(where, argument, object.ptr(), -1, "a number, or one for each channel");
  std::vector<double> numbers;
  for (Py_ssize_t k = 0; k < PyTuple_Size(items.ptr()); ++k) {
    numbers.push_back(parse_number(where, argument, PyTuple_GetItem(items.ptr(), k)));
  }
  return numbers;
}

std::vector<int> parse_pad(const Where& where, nb::handle object) {
  const std::vector<std::int64_t> numbers =
      has_length(object.ptr()) ? integers_of(where, "pad", object, -1, "an int, or one for each channel")
                               : std::vector{parse_integer(where, "pad", object.ptr())};
  std::vector<int> pad;
  pad.reserve(numbers.size());
  for (const std::int64_t number : numbers) {
    pad.push_back(static_cast<int>(std::clamp<std::int64_t>(number, -1, 1 << 16)));  // both are refused
  }
  return pad;
}

void parse_places(const Where& where, nb::handle size, nb::handle box, nb::handle crop, ImageOptions& options) {
  if (!size.is_none()) {
    const auto n = integers_of(where, "size", size, 2, "(height, width)");
    options.size = ImageSize{n[0], n[1]};
  }
  if (!box.is_none()) {
    const auto n = integers_of(where, "box", box, 4, "(top, left, height, width)");
    options.box = ImageBox{n[0], n[1], n[2], n[3]};
  }
  if (crop.is_none()) return;
  constexpr const char* expected = "(height, width) of the middle, or (top, left, height, width)";
  const auto n =
      integers_of(where, "crop", crop, has_length(crop.ptr()) && PySequence_Size(crop.ptr()) == 4 ? 4 : 2, expected);
  if (n.size() == 4) options.crop_offset = ImageOptions::Offset{n[0], n[1]};
  options.crop = ImageSize{n[n.size() - 2], n[n.size() - 1]};
}

struct ImageCall : Call {
  explicit ImageCall(nb::handle backend) : Call("image", backend) {}

  // False where the torch layer must serve the call.
  bool view(const char* argument, nb::handle array, TensorView& view) {
    return array.is_none() || arrays.view(where, argument, array.ptr(), Role::integers, view);
  }

  // An array, or a tuple of planes.
  bool view_frames(nb::handle given) {
    if (PyTuple_Check(given.ptr()) == 0)
      return arrays.view(where, "frames", given.ptr(), Role::integers, frames.pixels);
    const Py_ssize_t count = PyTuple_Size(given.ptr());
    if (count != 2 && count != 3) {
      fail(ErrorKind::value, where, "frames are a tuple of ", count, " arrays; expected (y, u, v) or (y, uv)");
    }
    bool served = view("y", nb::handle(PyTuple_GetItem(given.ptr(), 0)), frames.pixels);
    served &=
        view(count == 2 ? "uv" : "u", nb::handle(PyTuple_GetItem(given.ptr(), 1)), count == 2 ? frames.uv : frames.u);
    if (count == 3) served &= view("v", nb::handle(PyTuple_GetItem(given.ptr(), 2)), frames.v);
    return served;
  }

  void check_out_apart(const TensorView& out) const {
    check_apart(where, out, "frames", frames.pixels);
    check_apart(where, out, "u", frames.u);
    check_apart(where, out, "v", frames.v);
    check_apart(where, out, "uv", frames.uv);
    check_apart(where, out, "rows", frames.rows);
    check_apart(where, out, "crop_offsets", options.crop_offsets);
  }

  Frames frames;
  ImageOptions options;
};

// Everything but out=. False where the torch layer must serve the call.
bool parse_call(ImageCall& call, Argument given, Argument size, Argument fit, Argument filter, Argument pad,
                Argument crop, Argument dtype, Argument mean, Argument std, Argument layout, Argument rows,
                Argument box, Argument crop_offsets, Argument yuv_matrix, Argument yuv_range, Argument yuv_siting,
                Argument check) {
  const Where& where = call.where;
  Frames& frames = call.frames;
  ImageOptions& options = call.options;
  parse_places(where, size, box, crop, options);
  options.fit = parse_fit(where, fit.ptr());
  if (!filter.is_none()) options.filter = parse_filter(where, filter.ptr());
  options.pad = parse_pad(where, pad);
  options.dtype = parse_dtype(where, dtype.ptr());
  if (!mean.is_none()) options.mean = numbers_of(where, "mean", mean);
  if (!std.is_none()) options.std = numbers_of(where, "std", std);
  options.layout = parse_image_layout(where, layout.ptr());
  if (!yuv_matrix.is_none()) frames.matrix = parse_yuv_matrix(where, yuv_matrix.ptr());
  frames.range = parse_yuv_range(where, yuv_range.ptr());
  frames.siting = parse_yuv_siting(where, yuv_siting.ptr());
  options.check = parse_flag(where, "check", check.ptr());
  bool served = call.view_frames(given);
  served &= call.view("rows", rows, frames.rows);
  served &= call.view("crop_offsets", crop_offsets, options.crop_offsets);
  return served;
}

nb::object run_image(Argument given, Argument size, Argument fit, Argument filter, Argument pad, Argument crop,
                     Argument dtype, Argument mean, Argument std, Argument layout, Argument rows, Argument box,
                     Argument crop_offsets, Argument yuv_matrix, Argument yuv_range, Argument yuv_siting, Argument out,
                     Argument check, Argument backend) {
  ImageCall call(backend);
  if (!parse_call(call, given, size, fit, filter, pad, crop, dtype, mean, std, layout, rows, box, crop_offsets,
                  yuv_matrix, yuv_range, yuv_siting, check)) {
    return not_implemented();
  }
  const Frames& frames = call.frames;
  const ImageOptions& options = call.options;
  const TensorView expected = image_output(frames, options);
  TensorView output;
  Outputs outputs(call.where, call.arrays, 1);
  if (out.is_none()) {
    outputs.add(expected.dtype, {expected.shape.data(), static_cast<std::size_t>(expected.rank)});
    outputs.allocate();
    output = outputs[0];
  } else {
    call.view_out(out, expected.dtype, output);
    call.check_out_apart(output);
  }
  call.run(frames.pixels.size() + output.size(), {},
           [&](const Context& context) { robocache::image(context, frames, options, output); });
  if (out.is_none()) return outputs.take();
  call.written(out);
  return nb::borrow(out);
}

nb::tuple axis_numbers(const image_op::Axis& axis) {
  return nb::make_tuple(axis.begin, axis.box, axis.resized, axis.first, axis.count);
}

// The parts of the checked plan that the portable backend needs. `given`: arrays in host memory with the call's shapes and
// dtypes. The values of rows and crop_offsets matter only if `check` is set.
nb::dict plan_image(Argument given, Argument size, Argument fit, Argument filter, Argument pad, Argument crop,
                    Argument dtype, Argument mean, Argument std, Argument layout, Argument rows, Argument box,
                    Argument crop_offsets, Argument yuv_matrix, Argument yuv_range, Argument yuv_siting,
                    Argument check) {
  ImageCall call{nb::none()};
  parse_call(call, given, size, fit, filter, pad, crop, dtype, mean, std, layout, rows, box, crop_offsets, yuv_matrix,
             yuv_range, yuv_siting, check);
  const image_op::Planner planner(call.frames, call.options);
  const image_op::Plan& plan = planner.plan();
  image_op::check_data(plan);
  nb::dict made;
  made["filter"] = word_of(plan.filter);
  made["dtype"] = name_of(plan.out_dtype);
  made["height"] = axis_numbers(plan.height);
  made["width"] = axis_numbers(plan.width);
  made["is_420"] = plan.source == image_op::Source::yuv420;
  made["is_centered"] = plan.siting == YuvSiting::center;
  const image_op::YuvMatrixPlan& yuv = plan.yuv;
  made["yuv"] = nb::make_tuple(yuv.luma, yuv.luma_offset, yuv.v_red, yuv.u_green, yuv.v_green, yuv.u_blue);
  nb::list pads;
  for (int c = 0; c < plan.channels; ++c) pads.append(plan.pad[c]);
  made["pad"] = pads;
  return made;
}

// For each resized pixel of an axis: its first source pixel, and the weights from there on.
nb::tuple taps_of_axis(const std::string& filter, std::int32_t box, std::int32_t resized) {
  const Filter wanted = *value_of<Filter>(filter);
  nb::list first, weights;
  for (std::int32_t at = 0; at < resized; ++at) {
    nb::list here;
    if (wanted == Filter::nearest) {
      first.append(image_op::nearest_of(box, resized, at));
      here.append(1 << image_op::weight_bits);
    } else {
      const image_op::Taps taps = image_op::with_weight(image_op::taps_of(wanted, box, resized, at));
      first.append(taps.first);
      for (std::int32_t k = 0; k < taps.count; ++k) here.append(image_op::weight_of(taps, k));
    }
    weights.append(here);
  }
  return nb::make_tuple(first, weights);
}

}  // namespace

void bind_image(nb::module_& m) {
  m.def("image", &run_image,
        nb::sig("def image(frames: typing.Any, size: typing.Any, fit: str, filter: str | None, pad: typing.Any, crop: "
                "typing.Any, dtype: typing.Any, mean: typing.Any, std: typing.Any, layout: str, rows: typing.Any, box: "
                "typing.Any, crop_offsets: typing.Any, yuv_matrix: str | None, yuv_range: str, yuv_siting: str, out: "
                "typing.Any, check: "
                "bool, backend: str | None, /) -> typing.Any"),
        "robocache.image; NotImplemented where it is no call for the engine.");
  m.def(
      "image_plan", &plan_image,
      nb::sig("def image_plan(frames: typing.Any, size: typing.Any, fit: str, filter: str | None, pad: typing.Any, "
              "crop: typing.Any, dtype: typing.Any, mean: typing.Any, std: typing.Any, layout: str, rows: typing.Any, "
              "box: typing.Any, crop_offsets: typing.Any, yuv_matrix: str | None, yuv_range: str, yuv_siting: str, "
              "check: bool, /) -> "
              "dict[str, typing.Any]"),
      "What image would do, for arrays in host memory: the numbers that the portable backend needs.");
  m.def("image_taps", &taps_of_axis, nb::arg("filter"), nb::arg("box"), nb::arg("resized"),
        "For each resized pixel its first source pixel, and the weights from there on, in units of 2^-22.",
        nb::sig("def image_taps(filter: str, box: int, resized: int) -> tuple[list[int], list[list[int]]]"));
}

}  // namespace robocache::python
