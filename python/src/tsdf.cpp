// The calls behind robocache.TsdfVolume: its arrays in, written in place, and the points of its surface out.
#include "tsdf.h"

#include <robocache/tsdf.h>

#include <algorithm>

#include "argument.h"
#include "call.h"
#include "scene.h"

namespace nb = nanobind;

namespace robocache::python {

namespace {

// Whether a volume can be, before its memory is asked for.
void check_volume(Argument given_grid, Argument given_truncation, bool in_host_memory) {
  const Where where{"tsdf", {}, -1};
  const Grid grid = parse_grid(where, given_grid.ptr());
  check_tsdf(grid, parse_number(where, "truncation", given_truncation.ptr()));
  constexpr double large = 0x1p28;  // bytes; below, nobody asks whether they are free
  const double bytes = 8 * static_cast<double>(cells_of(grid));
  if (!in_host_memory || bytes <= large || bytes <= free_memory()) return;
  const auto& [x, y, z] = grid.shape;
  fail(ErrorKind::value, where, "a volume of [", x, ", ", y, ", ", z, "] would take ", gibibytes(bytes), ", and ",
       gibibytes(free_memory()), " of memory are free; take a smaller grid or larger voxels");
}

// What the calls share.
struct VolumeCall : Call {
  VolumeCall(nb::handle given_grid, nb::handle backend)
      : Call("tsdf", backend), grid(parse_grid(where, given_grid.ptr())) {}

  // False where the torch layer must serve the call.
  bool view(const char* argument, nb::handle array, Role role, TensorView& view) {
    return array.is_none() || arrays.view(where, argument, array.ptr(), role, view);
  }

  Grid grid;
};

nb::object integrate(Argument given_values, Argument given_weights, Argument grid, Argument truncation, Argument depth,
                     Argument intrinsics, Argument pose, Argument depth_scale, Argument depth_min, Argument depth_max,
                     Argument invalid, Argument check, Argument backend) {
  VolumeCall call(grid, backend);
  const double metres = parse_number(call.where, "truncation", truncation.ptr());
  const bool checks = parse_flag(call.where, "check", check.ptr());
  DepthImages images = parse_images(call.where, depth_scale, depth_min, depth_max, invalid);
  TensorView values, weights;
  bool served = call.view("values", given_values, Role::output, values);
  served &= call.view("weights", given_weights, Role::output, weights);
  served &= call.view("depth", depth, Role::integers, images.depth);
  served &= call.view("intrinsics", intrinsics, Role::integers, images.intrinsics);
  served &= call.view("pose", pose, Role::integers, images.poses);
  if (!served) return not_implemented();
  const std::int64_t cameras = images.depth.rank == 3 ? images.depth.shape[0] : 1;
  call.run(values.size() * cameras, {}, [&](const Context& context) {
    tsdf_integrate(context, images, call.grid, metres, values, weights, checks);
  });
  call.written(given_values);
  call.written(given_weights);
  return nb::none();
}

nb::object surface_count(Argument given_values, Argument given_weights, Argument grid, Argument backend) {
  VolumeCall call(grid, backend);
  TensorView values, weights;
  bool served = call.view("values", given_values, Role::integers, values);
  served &= call.view("weights", given_weights, Role::integers, weights);
  if (!served) return not_implemented();
  Outputs outputs(call.where, call.arrays, 1);
  const std::int64_t shape[] = {call.grid.shape[0] * call.grid.shape[1] + 1};
  outputs.add(DType::i64, shape);
  outputs.allocate();
  call.run(values.size(), call.workspace(outputs),
           [&](const Context& context) { tsdf_surface_count(context, call.grid, values, weights, outputs[0]); });
  return outputs.take();
}

nb::object surface_points(Argument given_values, Argument given_weights, Argument given_offsets, Argument number,
                          Argument grid, Argument backend) {
  VolumeCall call(grid, backend);
  TensorView values, weights, offsets;
  bool served = call.view("values", given_values, Role::integers, values);
  served &= call.view("weights", given_weights, Role::integers, weights);
  served &= call.view("offsets", given_offsets, Role::integers, offsets);
  if (!served) return not_implemented();
  Outputs outputs(call.where, call.arrays, 1);
  const std::int64_t shape[] = {std::max<std::int64_t>(parse_integer(call.where, "number", number.ptr()), 0), 3};
  outputs.add(DType::f32, shape);
  outputs.allocate();
  call.run(values.size(), {}, [&](const Context& context) {
    tsdf_surface_points(context, call.grid, values, weights, offsets, outputs[0]);
  });
  return outputs.take();
}

}  // namespace

void bind_tsdf(nb::module_& m) {
  m.def("tsdf_check", &check_volume,
        nb::sig("def tsdf_check(grid: typing.Any, truncation: float, in_host_memory: bool, /) -> None"),
        "An error where there is no such volume, or no memory for it.");
  m.def("tsdf_integrate", &integrate,
        nb::sig("def tsdf_integrate(values: typing.Any, weights: typing.Any, grid: typing.Any, truncation: float, "
                "depth: typing.Any, intrinsics: typing.Any, pose: typing.Any, depth_scale: float | None, depth_min: "
                "float, depth_max: float, invalid: typing.Any, check: bool, backend: str | None, /) -> typing.Any"),
        "robocache.TsdfVolume.integrate; NotImplemented where it is no call for the engine.");
  m.def("tsdf_surface_count", &surface_count,
        nb::sig("def tsdf_surface_count(values: typing.Any, weights: typing.Any, grid: typing.Any, backend: str | "
                "None, /) -> typing.Any"),
        "int64 [X * Y + 1]: how many points lie before each line of voxels, and in all; or NotImplemented.");
  m.def("tsdf_surface_points", &surface_points,
        nb::sig("def tsdf_surface_points(values: typing.Any, weights: typing.Any, offsets: typing.Any, number: int, "
                "grid: typing.Any, backend: str | None, /) -> typing.Any"),
        "float32 [number, 3], by the offsets of tsdf_surface_count; or NotImplemented.");
}

}  // namespace robocache::python
