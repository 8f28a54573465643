#pragma once

#include <nanobind/nanobind.h>

namespace robocache::python {

void bind_mcap(nanobind::module_& m);

}  // namespace robocache::python
