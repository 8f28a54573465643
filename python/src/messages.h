// Internal: messages into streams.
#pragma once

#include <nanobind/nanobind.h>

namespace robocache::python {

void bind_messages(nanobind::module_& m);

}  // namespace robocache::python
