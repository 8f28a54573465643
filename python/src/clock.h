// Internal: the clock of a recording.
#pragma once

#include <nanobind/nanobind.h>

namespace robocache::python {

void bind_clock(nanobind::module_& m);

}  // namespace robocache::python
