#pragma once

#include <nanobind/nanobind.h>

namespace robocache::python {

void bind_tsdf(nanobind::module_& m);

}  // namespace robocache::python
