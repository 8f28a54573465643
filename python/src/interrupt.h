// Ctrl-C, and every other signal that Python code handles, inside long calls of the library.
#pragma once

#include <nanobind/nanobind.h>

namespace robocache::python {

void bind_interrupt(nanobind::module_& m);

}  // namespace robocache::python
