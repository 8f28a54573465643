// Internal: the loader's order.
#pragma once

#include <nanobind/nanobind.h>

namespace robocache::python {

void bind_loader(nanobind::module_& m);

}  // namespace robocache::python
