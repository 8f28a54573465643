#pragma once

#include <nanobind/nanobind.h>
#include <robocache/voxelize.h>

#include <string>

#include "errors.h"

namespace robocache::python {

// robocache.Grid, whose attributes are three tuples.
Grid parse_grid(const Where& where, PyObject* object);

// The numbers of depth images, as keyword arguments name them; the arrays are still to come.
DepthImages parse_images(const Where& where, nanobind::handle depth_scale, nanobind::handle depth_min,
                         nanobind::handle depth_max, nanobind::handle invalid);

// Bytes that host memory can still hold, as far as the system says.
double free_memory();
std::string gibibytes(double bytes);

void bind_voxelize(nanobind::module_& m);

}  // namespace robocache::python
