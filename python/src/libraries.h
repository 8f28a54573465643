// Which library an array is from, and what the type says about how to reach its memory.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>

#include "dlpack.h"

namespace robocache::python {

enum class Library : std::uint8_t {
  none,  // not an array
  numpy,
  torch,
  cupy,
  jax,
  other,  // any other library with DLPack's exchange API
};

struct ArrayType {
  PyTypeObject* type = nullptr;
  Library library = Library::none;
  const dlpack::ExchangeApi* api = nullptr;  // nullptr: the library, or this version of it, has none
  bool opaque =
      false;  // torch: a subclass without memory of its own (FakeTensor); JAX: a tracer; NumPy: a masked array
};

// Looked up by type and remembered: an array of a type that was seen before costs a compare or two.
ArrayType array_type(PyObject* object);
// Whether it is an array of a type that is remembered.
bool is_cached_array(PyObject* object);

// "a torch tensor", "a NumPy array"
const char* name_of(Library library);

}  // namespace robocache::python
