// robocache.Stream and robocache.Timeline, as C++ sees them.
#pragma once

#include <nanobind/nanobind.h>
#include <robocache/align.h>

#include "errors.h"
#include "tensor.h"

namespace robocache::python {

// Views of the stream's arrays and its options. False where the torch layer must serve the call. A Stream cannot change,
// so what its options say is worked out once and kept in the object.
[[nodiscard]] bool view_stream(const Where& where, PyObject* object, Arrays& arrays, Stream& stream);

// One name for all channels becomes a range over them; needs the views.
void set_methods(const Where& where, const struct Methods& methods, Stream& stream);

// An array of targets, a Timeline, or, beside NumPy arrays, a list.
[[nodiscard]] bool view_targets(const Where& where, PyObject* object, Arrays& arrays, std::optional<Targets>& targets);

}  // namespace robocache::python
