#pragma once

#include <nanobind/nanobind.h>

namespace robocache::python {

void bind_cache(nanobind::module_& m);

}  // namespace robocache::python
