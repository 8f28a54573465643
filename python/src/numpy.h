// Arrays of the library as NumPy's, which then own the memory.
#pragma once

#include <nanobind/nanobind.h>
#include <robocache/array.h>

namespace robocache::python {

nanobind::object numpy_of(Array&& array);

}  // namespace robocache::python
