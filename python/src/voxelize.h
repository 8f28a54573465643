#pragma once

#include <nanobind/nanobind.h>

namespace robocache::python {

void bind_voxelize(nanobind::module_& m);

}  // namespace robocache::python
