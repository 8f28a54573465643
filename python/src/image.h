// robocache.image.
#pragma once

#include <nanobind/nanobind.h>

namespace robocache::python {

void bind_image(nanobind::module_& m);

}  // namespace robocache::python
