#include "scene.h"

#include <algorithm>
#include <fstream>
#include <iomanip>
#include <sstream>

#include "core/limits.h"
#include "once.h"
#include "options.h"

namespace nb = nanobind;

namespace robocache::python {

nb::object tuple_of(const Where& where, const char* argument, PyObject* object, Py_ssize_t count,
                    const char* expected) {
  nb::object items = nb::steal(PyUnicode_Check(object) != 0 ? nullptr : PySequence_Tuple(object));
  if (!items.is_valid()) PyErr_Clear();
  if (!items.is_valid() || (count >= 0 && PyTuple_Size(items.ptr()) != count)) {
    fail(ErrorKind::type, where, argument, " is ", describe(object), "; expected ", expected);
  }
  return items;
}

std::array<double, 3> parse_three(const Where& where, const char* argument, PyObject* object, const char* expected) {
  const nb::object items = tuple_of(where, argument, object, 3, expected);
  std::array<double, 3> three{};
  for (std::size_t k = 0; k < 3; ++k) {
    three[k] = parse_number(where, argument, PyTuple_GetItem(items.ptr(), static_cast<Py_ssize_t>(k)));
  }
  return three;
}

bool has_length(PyObject* object) {
  if (PyFloat_Check(object) != 0) return false;
  if (PyObject_Size(object) >= 0) return true;
  PyErr_Clear();
  return false;
}

std::array<double, 3> parse_voxel_size(const Where& where, PyObject* object) {
  if (has_length(object)) return parse_three(where, "voxel_size", object, "a number, or three numbers");
  const double size = parse_number(where, "voxel_size", object);
  return {size, size, size};
}

std::array<std::int64_t, 3> parse_shape(const Where& where, PyObject* object) {
  const nb::object items = tuple_of(where, "shape", object, 3, "three ints");
  std::array<std::int64_t, 3> shape{};
  for (std::size_t k = 0; k < 3; ++k) {
    shape[k] = parse_integer(where, "shape", PyTuple_GetItem(items.ptr(), static_cast<Py_ssize_t>(k)));
  }
  return shape;
}

namespace {

struct GridType {
  nb::object type = nb::module_::import_("robocache").attr("Grid");
};
Once<GridType> grid_type;

}  // namespace

Grid parse_grid(const Where& where, PyObject* object) {
  if (PyObject_IsInstance(object, grid_type().type.ptr()) != 1) {
    fail(ErrorKind::type, where, "grid is of type ", type_name(object), "; expected a robocache.Grid");
  }
  const nb::handle grid(object);
  return {parse_three(where, "origin", nb::object(grid.attr("origin")).ptr()),
          parse_three(where, "voxel_size", nb::object(grid.attr("voxel_size")).ptr()),
          parse_shape(where, nb::object(grid.attr("shape")).ptr())};
}

DepthImages parse_images(const Where& where, nb::handle depth_scale, nb::handle depth_min, nb::handle depth_max,
                         nb::handle invalid) {
  DepthImages images;
  if (!depth_scale.is_none()) {
    images.depth_scale = parse_number(where, "depth_scale", depth_scale.ptr());
    if (images.depth_scale == 0) fail(ErrorKind::value, where, "depth_scale is 0; it must be positive and finite");
  }
  images.depth_min = parse_number(where, "depth_min", depth_min.ptr());
  images.depth_max = parse_number(where, "depth_max", depth_max.ptr());
  images.invalid.clear();
  const nb::object readings = tuple_of(where, "invalid", invalid.ptr(), -1, "readings that mean none, such as (0,)");
  for (Py_ssize_t k = 0; k < PyTuple_Size(readings.ptr()); ++k) {
    images.invalid.push_back(parse_number(where, "invalid", PyTuple_GetItem(readings.ptr(), k)));
  }
  return images;
}

double free_memory() {
  auto free = static_cast<double>(size_limit);
  std::ifstream info("/proc/meminfo");
  for (std::string line; std::getline(info, line);) {
    if (line.starts_with("MemAvailable:")) free = 1024 * std::stod(line.substr(13));
  }
  double limit = 0;
  if (std::ifstream("/sys/fs/cgroup/memory.max") >> limit) free = std::min(free, limit);
  return free;
}

std::string gibibytes(double bytes) {
  std::ostringstream text;
  text << std::fixed << std::setprecision(1) << bytes / 0x1p30 << " GiB";
  return text.str();
}

}  // namespace robocache::python
