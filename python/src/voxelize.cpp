// voxelize, voxelize_depth and voxel_downsample: arrays in, one call of the library, arrays out.
#include "voxelize.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <robocache/voxelize.h>

#include <algorithm>
#include <array>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "argument.h"
#include "call.h"
#include "core/limits.h"
#include "core/text.h"
#include "scene.h"

namespace nb = nanobind;

namespace robocache::python {

namespace {

nb::tuple fields_of(const Grid& grid) {
  const auto& [o, v, s] = grid;
  return nb::make_tuple(nb::make_tuple(o[0], o[1], o[2]), nb::make_tuple(v[0], v[1], v[2]),
                        nb::make_tuple(s[0], s[1], s[2]));
}

constexpr double large = 0x1p28;  // bytes; below, nobody asks whether they are free

[[noreturn]] void fail_size(const Where& where, const std::array<std::int64_t, 3>& shape, std::int64_t grids,
                            double bytes, const std::string& why) {
  const auto& [x, y, z] = shape;
  fail(ErrorKind::value, where, grids, " dense ", grids == 1 ? "grid" : "grids", " of [", x, ", ", y, ", ", z,
       "] would take ", gibibytes(bytes), ", and ", why,
       "; take larger voxels, or layout=\"sparse\", which holds only the voxels that have points");
}

// Before dense grids are made.
void check_size(const Where& where, const std::array<std::int64_t, 3>& shape, std::int64_t grids, double bytes,
                bool on_cpu) {
  if (bytes <= large) return;
  if (bytes >= static_cast<double>(size_limit)) fail_size(where, shape, grids, bytes, "no memory is as large");
  if (on_cpu && bytes > free_memory()) {
    fail_size(where, shape, grids, bytes, gibibytes(free_memory()) + " of memory are free");
  }
}

// What the calls share.
struct SceneCall : Call {
  using Call::Call;

  void parse(nb::handle given_grid, nb::handle reduce, nb::handle packed, nb::handle empty, nb::handle given_crop,
             nb::handle crop_frame, nb::handle accumulate, nb::handle check) {
    grid = parse_grid(where, given_grid.ptr());
    const bool bits = parse_flag(where, "packed", packed.ptr());
    several = PyUnicode_Check(reduce.ptr()) == 0;
    if (!several) {
      reductions.push_back(parse_reduction(where, reduce.ptr()));
    } else {
      const nb::object names =
          tuple_of(where, "reduce", reduce.ptr(), -1, "count, occupancy, sum, mean, max, min, or a tuple of them");
      for (Py_ssize_t k = 0; k < PyTuple_Size(names.ptr()); ++k) {
        reductions.push_back(parse_reduction(where, PyTuple_GetItem(names.ptr(), k)));
      }
      if (reductions.empty()) fail(ErrorKind::value, where, "reduce is empty; name at least one reduction");
    }
    bool used = false;
    for (Reduction& reduction : reductions) {
      if (bits && reduction == Reduction::occupancy) {
        reduction = Reduction::occupancy_bits;
        used = true;
      }
    }
    if (bits && !used) fail(ErrorKind::value, where, "packed is for reduce=\"occupancy\"");
    options.empty = parse_number(where, "empty", empty.ptr());
    options.accumulate = parse_flag(where, "accumulate", accumulate.ptr());
    options.check = parse_flag(where, "check", check.ptr());
    parse_crop(given_crop, crop_frame);
  }
  void parse_crop(nb::handle given_crop, nb::handle crop_frame) {
    const bool in_sensor_frame = parse_in_sensor_frame(where, crop_frame.ptr());
    if (!given_crop.is_none()) {
      const nb::object corners =
          tuple_of(where, "crop", given_crop.ptr(), 2, "(low, high), the corners of a box, three numbers each");
      crop = Box{parse_three(where, "crop", PyTuple_GetItem(corners.ptr(), 0)),
                 parse_three(where, "crop", PyTuple_GetItem(corners.ptr(), 1)), in_sensor_frame};
    }
  }

  // False where the torch layer must serve the call.
  bool view_input(const char* argument, nb::handle array, Role role, TensorView& view) {
    if (array.is_none()) return true;
    const bool served = arrays.view(where, argument, array.ptr(), role, view);
    if (served) inputs.push_back({argument, view});
    return served;
  }
  // Views the points or the depth, which every call needs.
  bool view_main(const char* argument, nb::handle array, TensorView& view) {
    if (array.is_none()) fail(ErrorKind::type, where, argument, " is None; expected an array");
    return view_input(argument, array, Role::integers, view);
  }
  bool view_scene(auto& scene, nb::handle features, nb::handle into, nb::handle pose) {
    scene.crop = crop;
    bool served = view_input("features", features, Role::values, scene.features);
    served &= view_input("into", into, Role::integers, scene.into);
    served &= view_input("pose", pose, Role::integers, scene.poses);
    return served;
  }

  // How many grids: as many as clouds, or as `grids` says where clouds go into grids of others.
  std::int64_t parse_grids(nb::handle grids, const auto& scene, std::int64_t clouds) const {
    if (!grids.is_none()) {
      const std::int64_t wanted = parse_integer(where, "grids", grids.ptr());
      if (wanted < 0) fail(ErrorKind::value, where, "grids is ", wanted, "; it must not be negative");
      if (!scene.into && wanted != clouds) {
        fail(ErrorKind::value, where, "grids is ", wanted, " for ", clouds, " clouds; say which goes where with into");
      }
      return wanted;
    }
    if (scene.into) {
      fail(ErrorKind::value, where,
           "into is on a GPU, where its largest number cannot be read without waiting; say grids=, how many there are");
    }
    return clouds;
  }

  void check_grids(std::int64_t grids, const TensorView& out, bool batched) const {
    if (!batched || out.rank == 0 || out.shape[0] == grids) return;
    fail(ErrorKind::value, where, "grids is ", grids, " and out has ", out.shape[0]);
  }

  struct OutputShape {
    DType dtype;
    std::vector<std::int64_t> shape;
  };
  OutputShape describe_output(Reduction reduction, const auto& scene, bool batched, std::int64_t grids) const {
    OutputShape described{DType::f32, {grid.shape.begin(), grid.shape.end()}};
    if (batched) described.shape.insert(described.shape.begin(), grids);
    switch (reduction) {
      case Reduction::count:
        described.dtype = DType::i32;
        return described;
      case Reduction::occupancy_bits:
        described.shape.back() = (described.shape.back() + 7) / 8;
        [[fallthrough]];
      case Reduction::occupancy:
        described.dtype = DType::u8;
        return described;
      case Reduction::max:
      case Reduction::min:
        described.dtype = scene.features.dtype;
        [[fallthrough]];
      default:
        described.shape.push_back(channels_of(scene));
        return described;
    }
  }

  template <class F>
  nb::object finish(const auto& scene, bool batched, std::int64_t clouds, nb::handle given_grids, nb::handle out,
                    std::int64_t points, const F& call) {
    const std::size_t count = reductions.size();
    std::vector<VoxelOutput> wanted(count);
    for (std::size_t k = 0; k < count; ++k) wanted[k].reduction = reductions[k];
    Outputs outputs(where, arrays, count + 1);
    std::vector<nb::object> given;
    if (out.is_none()) {
      if (options.accumulate) fail(ErrorKind::value, where, "accumulate adds to what out holds; give out");
      const std::int64_t grids = parse_grids(given_grids, scene, clouds);
      add_values(outputs, scene, batched, grids);
      add_dropped(outputs, batched, clouds);
      allocate(outputs, scene, batched, grids);
      for (std::size_t k = 0; k < count; ++k) wanted[k].values = outputs[k];
    } else {
      given = outs_of(out);
      for (std::size_t k = 0; k < count; ++k) {
        TensorView& values = wanted[k].values;
        view_out(given[k], describe_output(reductions[k], scene, batched, 0).dtype, values);
        for (const Input& input : inputs) check_apart(where, values, input.argument, input.view);
        for (std::size_t other = 0; other < k; ++other) check_apart(where, values, "out", wanted[other].values);
      }
      if (!given_grids.is_none()) check_grids(parse_grids(given_grids, scene, clouds), wanted[0].values, batched);
      add_dropped(outputs, batched, clouds);
      outputs.allocate();
    }
    TensorView dropped = outputs[out.is_none() ? count : 0];
    if (!batched) {
      const std::int64_t shape[] = {clouds, drop_reasons};
      dropped = TensorView::contiguous(dropped.data, DType::i64, shape, dropped.device);
    }
    std::int64_t work = points;
    for (const VoxelOutput& output : wanted) work += output.values.size();
    run(work, workspace(outputs), [&](const Context& context) { call(context, wanted, dropped); });
    nb::list values;
    for (std::size_t k = 0; k < count; ++k) {
      if (!out.is_none()) written(given[k]);
      values.append(out.is_none() ? outputs.take() : given[k]);
    }
    nb::object all = several ? nb::object(nb::tuple(values)) : nb::object(values[0]);
    return nb::make_tuple(std::move(all), outputs.take());
  }

  void add_values(Outputs& outputs, const auto& scene, bool batched, std::int64_t grids) const {
    const double bytes = bytes_of(scene, batched, grids);
    check_size(where, grid.shape, grids, bytes, arrays.device().kind == DeviceKind::cpu);
    for (const Reduction reduction : reductions) {
      const OutputShape described = describe_output(reduction, scene, batched, grids);
      outputs.add(described.dtype, described.shape);
    }
  }
  static void add_dropped(Outputs& outputs, bool batched, std::int64_t clouds) {
    const std::int64_t shape[] = {clouds, drop_reasons};
    outputs.add(DType::i64, std::span(shape).subspan(batched ? 0 : 1));
  }
  // The error of an allocator without memory does not say what the memory was for. The sentence here does.
  void allocate(Outputs& outputs, const auto& scene, bool batched, std::int64_t grids) const {
    try {
      outputs.allocate();
    } catch (const nb::python_error& error) {
      const double bytes = bytes_of(scene, batched, grids);
      if (bytes <= large) throw;
      const std::string why = text_of(nb::borrow(error.value()));
      fail_size(where, grid.shape, grids, bytes, why.substr(0, why.find('\n')));
    }
  }
  double bytes_of(const auto& scene, bool batched, std::int64_t grids) const {
    double bytes = 0;
    for (const Reduction reduction : reductions) {
      const OutputShape described = describe_output(reduction, scene, batched, grids);
      double size = size_of(described.dtype);
      for (const std::int64_t n : described.shape) size *= static_cast<double>(n);
      bytes += size;
    }
    return bytes;
  }

  std::vector<nb::object> outs_of(nb::handle out) const {
    if (!several) return {nb::borrow(out)};
    const auto count = static_cast<Py_ssize_t>(reductions.size());
    std::vector<nb::object> outs;
    if ((PyTuple_Check(out.ptr()) == 0 && PyList_Check(out.ptr()) == 0) || PySequence_Size(out.ptr()) != count) {
      fail(ErrorKind::type, where, "out is of type ", type_name(out.ptr()), "; expected a tuple of ", count,
           " arrays, one for each of reduce");
    }
    for (Py_ssize_t k = 0; k < count; ++k) outs.push_back(nb::steal(PySequence_GetItem(out.ptr(), k)));
    return outs;
  }

  // ---- sparse

  // layout, first and max_voxels. True where the result is sparse.
  bool parse_layout(nb::handle layout, nb::handle first, nb::handle max_voxels, nb::handle out) {
    const bool is_sparse = layout.is_none() ? !first.is_none() : parse_sparse(where, layout.ptr());
    if (!is_sparse && (!first.is_none() || !max_voxels.is_none())) {
      fail(ErrorKind::value, where, first.is_none() ? "max_voxels" : "first", " is for layout=\"sparse\"");
    }
    if (is_sparse && (!out.is_none() || options.accumulate)) {
      fail(ErrorKind::value, where, "out and accumulate are for dense grids; a sparse result is new each time");
    }
    if (!first.is_none()) {
      sparse.first = parse_integer(where, "first", first.ptr());
      if (sparse.first < 1) fail(ErrorKind::value, where, "first is ", sparse.first, "; it must be positive");
    }
    if (!max_voxels.is_none()) {
      sparse.max_voxels = parse_integer(where, "max_voxels", max_voxels.ptr());
      if (sparse.max_voxels < 0) {
        fail(ErrorKind::value, where, "max_voxels is ", sparse.max_voxels, "; it must not be negative");
      }
    }
    sparse.empty = options.empty;
    sparse.check = options.check;
    return is_sparse;
  }

  // A sparse call on a GPU waits to learn how many voxels there are, unless max_voxels is given.
  bool waits(std::int64_t max_voxels) const { return max_voxels < 0 && arrays.device().kind == DeviceKind::cuda; }

  // Room for rows, or a sentence.
  void allocate_rows(Outputs& outputs, std::int64_t rows) const {
    try {
      outputs.allocate();
    } catch (const nb::python_error& error) {
      const std::string why = text_of(nb::borrow(error.value()));
      fail(ErrorKind::value, where, "there is no room for ", rows, " voxels: ", why.substr(0, why.find('\n')),
           sparse.max_voxels < 0 ? "; take larger voxels" : "; give a smaller max_voxels",
           sparse.first > 0 ? ", or a smaller first" : "");
    }
  }

  static void add(Outputs& outputs, DType dtype, std::initializer_list<std::int64_t> shape) {
    outputs.add(dtype, {shape.begin(), shape.size()});
  }
  // 0 if features and points differ in their dimensions: the library raises the error.
  std::int64_t channels_of(const auto& scene) const {
    const TensorView& features = scene.features;
    return features.rank == lead + 1 ? features.shape[static_cast<std::size_t>(lead)] : 0;
  }

  // finish_sparse() takes them in the order in which they are added here.
  SparseOutput add_rows(Outputs& outputs, const auto& scene, const TensorView& main, std::int64_t rows) const {
    add(outputs, DType::i64, {rows, 4});
    add(outputs, DType::i32, {rows});
    outputs.add(DType::i64, {main.shape.data(), static_cast<std::size_t>(lead)});
    add(outputs, DType::i64, {2});
    for (const Reduction reduction : reductions) {
      OutputShape described = describe_output(reduction, scene, false, 0);
      described.shape.erase(described.shape.begin(), described.shape.begin() + 3);
      described.shape.insert(described.shape.begin(), rows);
      outputs.add(described.dtype, described.shape);
    }
    if (sparse.first > 0) {
      add(outputs, computed_type(main.dtype), {rows, sparse.first, 3 + channels_of(scene)});
      add(outputs, DType::i32, {rows});
    }
    allocate_rows(outputs, rows);
    SparseOutput views;
    std::size_t next = 0;
    for (TensorView* const view : {&views.coordinates, &views.counts, &views.point_to_voxel, &views.found}) {
      *view = outputs[next++];
    }
    for (const Reduction reduction : reductions) views.values.push_back({reduction, outputs[next++]});
    if (sparse.first > 0) {
      views.first = outputs[next++];
      views.first_counts = outputs[next++];
    }
    return views;
  }

  // (coordinates, values, counts, point_to_voxel, found, first, number, dropped)
  template <class F>
  nb::object finish_sparse(const auto& scene, const TensorView& main, bool batched, std::int64_t clouds,
                           nb::handle given_grids, const F& call) {
    check_wide_integers("coordinates");
    sparse.grids = parse_grids(given_grids, scene, clouds);
    DroppedCounts dropped(*this, batched, clouds);
    Outputs outputs(where, arrays, reductions.size() + 6);
    const SparseRows rows = [&](std::int64_t count) {
      const nb::gil_scoped_acquire held;
      return add_rows(outputs, scene, main, count);
    };
    run(
        main.size(), workspace(dropped.outputs),
        [&](const Context& context) { call(context, rows, dropped.view(clouds)); }, waits(sparse.max_voxels));
    const nb::object coordinates = outputs.take();
    const nb::object counts = outputs.take();
    const nb::object point_to_voxel = outputs.take();
    const nb::object found = outputs.take();
    nb::list values;
    for (std::size_t k = 0; k < reductions.size(); ++k) values.append(outputs.take());
    const nb::object first = sparse.first > 0 ? outputs.take() : nb::object(nb::none());
    const nb::object number = sparse.first > 0 ? outputs.take() : nb::object(nb::none());
    return nb::make_tuple(coordinates, several ? nb::object(nb::tuple(values)) : nb::object(values[0]), counts,
                          point_to_voxel, found, first, number, dropped.outputs.take());
  }

  // The counts of what was dropped, [C, 4] or [4], where they are an array of their own.
  struct DroppedCounts {
    DroppedCounts(const SceneCall& call, bool batched, std::int64_t clouds) : outputs(call.where, call.arrays, 1) {
      add_dropped(outputs, batched, clouds);
      outputs.allocate();
    }
    TensorView view(std::int64_t clouds) const {
      const std::int64_t shape[] = {clouds, drop_reasons};
      return TensorView::contiguous(outputs[0].data, DType::i64, shape, outputs[0].device);
    }
    Outputs outputs;
  };

  Grid grid;
  int lead = 0;  // dimensions of points or pixels
  SparseOptions sparse;
  std::vector<Reduction> reductions;
  bool several = false;  // reduce is a tuple, and so are the values
  VoxelizeOptions options;
  std::optional<Box> crop;
  struct Input {
    const char* argument;
    TensorView view;
  };
  std::vector<Input> inputs;
};

// How many clouds there are, and whether there is a batch dimension for them.
struct Batch {
  bool batched;
  std::int64_t clouds;
};
Batch batch_of(const Clouds& clouds) {
  if (clouds.offsets.rank == 1) return {true, std::max<std::int64_t>(clouds.offsets.shape[0] - 1, 0)};
  if (clouds.points.rank == 3) return {true, clouds.points.shape[0]};
  return {false, 1};
}

nb::object voxelize(Argument points, Argument grid, Argument features, Argument reduce, Argument packed, Argument empty,
                    Argument lengths, Argument offsets, Argument into, Argument grids, Argument pose, Argument crop,
                    Argument crop_frame, Argument layout, Argument first, Argument max_voxels, Argument out,
                    Argument accumulate, Argument check, Argument backend) {
  SceneCall call("voxelize", backend);
  call.parse(grid, reduce, packed, empty, crop, crop_frame, accumulate, check);
  const bool sparse = call.parse_layout(layout, first, max_voxels, out);
  Clouds clouds;
  bool served = call.view_main("points", points, clouds.points);
  served &= call.view_input("lengths", lengths, Role::integers, clouds.lengths);
  served &= call.view_input("offsets", offsets, Role::integers, clouds.offsets);
  served &= call.view_scene(clouds, features, into, pose);
  if (!served) return not_implemented();
  call.lead = std::max(clouds.points.rank - 1, 0);
  const auto [batched, number] = batch_of(clouds);
  if (sparse) {
    return call.finish_sparse(clouds, clouds.points, batched, number, grids,
                              [&](const Context& context, const SparseRows& rows, const TensorView& dropped) {
                                voxelize_sparse(context, clouds, call.grid, call.sparse, rows, dropped);
                              });
  }
  return call.finish(clouds, batched, number, grids, out, clouds.points.size(),
                     [&](const Context& context, const std::vector<VoxelOutput>& outputs, const TensorView& dropped) {
                       robocache::voxelize(context, clouds, call.grid, call.options, outputs, dropped);
                     });
}

nb::object voxelize_depth(Argument depth, Argument intrinsics, Argument rays, Argument grid, Argument features,
                          Argument reduce, Argument packed, Argument empty, Argument depth_scale, Argument depth_min,
                          Argument depth_max, Argument invalid, Argument into, Argument grids, Argument pose,
                          Argument crop, Argument crop_frame, Argument layout, Argument first, Argument max_voxels,
                          Argument out, Argument accumulate, Argument check, Argument backend) {
  SceneCall call("voxelize_depth", backend);
  call.parse(grid, reduce, packed, empty, crop, crop_frame, accumulate, check);
  const bool sparse = call.parse_layout(layout, first, max_voxels, out);
  DepthImages images = parse_images(call.where, depth_scale, depth_min, depth_max, invalid);
  bool served = call.view_main("depth", depth, images.depth);
  served &= call.view_input("intrinsics", intrinsics, Role::integers, images.intrinsics);
  served &= call.view_input("rays", rays, Role::integers, images.rays);
  served &= call.view_scene(images, features, into, pose);
  if (!served) return not_implemented();
  call.lead = std::max(images.depth.rank, 0);
  const bool batched = images.depth.rank == 3;
  const std::int64_t cameras = batched ? images.depth.shape[0] : 1;
  if (sparse) {
    return call.finish_sparse(images, images.depth, batched, cameras, grids,
                              [&](const Context& context, const SparseRows& rows, const TensorView& dropped) {
                                voxelize_depth_sparse(context, images, call.grid, call.sparse, rows, dropped);
                              });
  }
  return call.finish(images, batched, cameras, grids, out, images.depth.size(),
                     [&](const Context& context, const std::vector<VoxelOutput>& outputs, const TensorView& dropped) {
                       robocache::voxelize_depth(context, images, call.grid, call.options, outputs, dropped);
                     });
}

// (points, features, counts, coordinates, dropped)
nb::object voxel_downsample(Argument points, Argument voxel_size, Argument origin, Argument features, Argument lengths,
                            Argument offsets, Argument pose, Argument crop, Argument crop_frame, Argument check,
                            Argument backend) {
  SceneCall call("voxel_downsample", backend);
  const Lattice lattice{parse_voxel_size(call.where, voxel_size.ptr()),
                        parse_three(call.where, "origin", origin.ptr())};
  call.parse_crop(crop, crop_frame);
  const SparseOptions options{.check = parse_flag(call.where, "check", check.ptr())};
  Clouds clouds;
  bool served = call.view_main("points", points, clouds.points);
  served &= call.view_input("lengths", lengths, Role::integers, clouds.lengths);
  served &= call.view_input("offsets", offsets, Role::integers, clouds.offsets);
  served &= call.view_scene(clouds, features, nb::none(), pose);
  if (!served) return not_implemented();
  call.lead = std::max(clouds.points.rank - 1, 0);
  call.check_wide_integers("coordinates");
  const auto [batched, number] = batch_of(clouds);
  const std::int64_t clouds_number = number;
  SceneCall::DroppedCounts dropped(call, batched, number);
  Outputs outputs(call.where, call.arrays, 4);
  const bool has_features = static_cast<bool>(clouds.features);
  const DownsampleRows rows = [&](std::int64_t count) {
    const nb::gil_scoped_acquire held;
    SceneCall::add(outputs, computed_type(clouds.points.dtype), {count, 3});
    SceneCall::add(outputs, DType::i32, {count});
    SceneCall::add(outputs, DType::i64, {count, 4});
    if (has_features) SceneCall::add(outputs, DType::f32, {count, call.channels_of(clouds)});
    call.allocate_rows(outputs, count);
    return DownsampleOutput{.points = outputs[0],
                            .features = has_features ? outputs[3] : TensorView{},
                            .counts = outputs[1],
                            .coordinates = outputs[2]};
  };
  call.run(
      clouds.points.size(), call.workspace(dropped.outputs),
      [&](const Context& context) {
        robocache::voxel_downsample(context, clouds, lattice, options, rows, dropped.view(clouds_number));
      },
      call.waits(-1));
  const nb::object means = outputs.take();
  const nb::object counts = outputs.take();
  const nb::object coordinates = outputs.take();
  return nb::make_tuple(means, has_features ? outputs.take() : nb::object(nb::none()), counts, coordinates,
                        dropped.outputs.take());
}

}  // namespace

void bind_voxelize(nb::module_& m) {
  m.def(
      "make_grid",
      [](nb::handle origin, nb::handle voxel_size, nb::handle shape) {
        const Where where{"Grid", {}, -1};
        const Grid grid{parse_three(where, "origin", origin.ptr()), parse_voxel_size(where, voxel_size.ptr()),
                        parse_shape(where, shape.ptr())};
        cells_of(grid);
        return fields_of(grid);
      },
      nb::arg("origin").none(), nb::arg("voxel_size").none(), nb::arg("shape").none(),
      "(origin, voxel_size, shape) of a grid as tuples; an error where they make none.",
      nb::sig(
          "def make_grid(origin: typing.Any, voxel_size: typing.Any, shape: typing.Any) -> tuple[tuple[float, float, "
          "float], tuple[float, float, float], tuple[int, int, int]]"));
  m.def(
      "grid_from_bounds",
      [](nb::handle low, nb::handle high, nb::handle voxel_size) {
        const Where where{"Grid", {}, -1};
        return fields_of(grid_from_bounds(parse_three(where, "low", low.ptr()), parse_three(where, "high", high.ptr()),
                                          parse_voxel_size(where, voxel_size.ptr())));
      },
      nb::arg("low").none(), nb::arg("high").none(), nb::arg("voxel_size").none(),
      "make_grid of the smallest grid that begins at `low` and reaches `high`.",
      nb::sig("def grid_from_bounds(low: typing.Any, high: typing.Any, voxel_size: typing.Any) -> tuple[tuple[float, "
              "float, float], tuple[float, float, float], tuple[int, int, int]]"));
  m.def(
      "check_dense_size",
      [](const std::string& operation, nb::handle shape, std::int64_t grids, double bytes, bool on_cpu,
         const std::optional<std::string>& why) {
        const Where where{operation.c_str(), {}, -1};
        const auto cells = parse_shape(where, shape.ptr());
        if (why) fail_size(where, cells, grids, bytes, *why);
        check_size(where, cells, grids, bytes, on_cpu);
      },
      nb::arg("operation"), nb::arg("shape"), nb::arg("grids"), nb::arg("bytes"), nb::arg("on_cpu"),
      nb::arg("why").none(), "Raises where dense grids of that many bytes do not fit, or always, where `why` says so.");
  m.def(
      "voxelize", &voxelize,
      nb::sig("def voxelize(points: typing.Any, grid: typing.Any, features: typing.Any, reduce: typing.Any, packed: "
              "bool, empty: float, lengths: typing.Any, offsets: typing.Any, into: typing.Any, grids: int | None, "
              "pose: typing.Any, crop: typing.Any, crop_frame: str, layout: str | None, first: int | None, max_voxels: "
              "int | None, out: typing.Any, accumulate: bool, check: bool, backend: str | None, /) -> typing.Any"),
      "(values, dropped [C, 4]) of robocache.voxelize, or (coordinates, values, counts, point_to_voxel, found, first, "
      "number, dropped) where sparse, or NotImplemented where it is no call for the engine.");
  m.def(
      "voxelize_depth", &voxelize_depth,
      nb::sig("def voxelize_depth(depth: typing.Any, intrinsics: typing.Any, rays: typing.Any, grid: typing.Any, "
              "features: typing.Any, reduce: typing.Any, packed: bool, empty: float, depth_scale: float | None, "
              "depth_min: float, depth_max: float, invalid: typing.Any, into: typing.Any, grids: int | None, pose: "
              "typing.Any, crop: typing.Any, crop_frame: str, layout: str | None, first: int | None, max_voxels: int | "
              "None, out: typing.Any, accumulate: bool, check: bool, backend: str | None, /) -> typing.Any"),
      "As voxelize, of robocache.voxelize_depth.");
  m.def("voxel_downsample", &voxel_downsample,
        nb::sig("def voxel_downsample(points: typing.Any, voxel_size: typing.Any, origin: typing.Any, features: "
                "typing.Any, lengths: typing.Any, offsets: typing.Any, pose: typing.Any, crop: typing.Any, crop_frame: "
                "str, check: bool, backend: str | None, /) -> typing.Any"),
        "(points, features, counts, coordinates, dropped [C, 4]), or NotImplemented as voxelize.");
}

}  // namespace robocache::python
