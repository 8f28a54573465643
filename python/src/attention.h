#pragma once

#include <nanobind/nanobind.h>

namespace robocache::python {

void bind_attention(nanobind::module_& m);

}  // namespace robocache::python
