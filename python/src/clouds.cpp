// read_cloud and read_depth: a path in, NumPy arrays out that own the memory the library read into.
#include "clouds.h"

#include <robocache/clouds.h>

#include <string>
#include <utility>

#include "errors.h"
#include "numpy.h"

namespace nb = nanobind;

namespace robocache::python {

namespace {

template <class Read>
auto read_without_gil(const nb::bytes& path, const Read& read) {
  const std::string name(path.c_str(), path.size());
  const nb::gil_scoped_release released;
  return read(std::filesystem::path(name));
}

nb::tuple read_cloud_file(const nb::bytes& path) {
  Cloud cloud = read_without_gil(path, [](const auto& file) { return read_cloud(file); });
  nb::dict fields;
  for (Field& field : cloud.fields) fields[text_from(field.name)] = numpy_of(std::move(field.values));
  nb::object viewpoint = nb::none();
  if (cloud.viewpoint) {
    const auto& v = *cloud.viewpoint;
    viewpoint = nb::make_tuple(v[0], v[1], v[2], v[3], v[4], v[5], v[6]);
  }
  return nb::make_tuple(numpy_of(std::move(cloud.points)), fields, cloud.height, cloud.width, viewpoint);
}

nb::object read_depth_file(const nb::bytes& path) {
  return numpy_of(read_without_gil(path, [](const auto& file) { return read_depth(file); }));
}

}  // namespace

void bind_clouds(nb::module_& m) {
  m.def("read_cloud", &read_cloud_file, nb::arg("path"), "(points, fields, height, width, viewpoint) of a file.",
        nb::sig("def read_cloud(path: bytes) -> tuple[typing.Any, dict[str, typing.Any], int, int, "
                "tuple[float, ...] | None]"));
  m.def("read_depth", &read_depth_file, nb::arg("path"), "uint16 [H, W] of a PNG.",
        nb::sig("def read_depth(path: bytes) -> typing.Any"));
}

}  // namespace robocache::python
