// robocache.Stream and robocache.Timeline, as C++ sees them.
#pragma once

#include <nanobind/nanobind.h>
#include <robocache/align.h>

#include <optional>

#include "errors.h"
#include "options.h"
#include "tensor.h"

namespace robocache::python {

// Views of the stream's arrays and its options. False where the torch layer must serve the call. A Stream cannot change,
// so what its options say is worked out once and kept in the object.
[[nodiscard]] bool view_stream(const Where& where, PyObject* object, Arrays& arrays, Stream& stream);

// Throws where an option of a Stream that was just made is wrong, or the rate, count or start of a Timeline.
void check_stream(nanobind::handle object);
void check_timeline(nanobind::handle object);

// stream.name; None for what is no Stream.
nanobind::object stream_name(PyObject* object);

int leading_rank(const Stream& stream);            // how many dimensions of the values stand before the channels
std::int64_t channel_count(const Stream& stream);  // of the trailing shape, flattened

// One name for all channels becomes a range over them; needs the views.
void set_methods(const Methods& methods, Stream& stream);

// An array of targets, a Timeline, or, beside NumPy arrays, a list.
[[nodiscard]] bool view_targets(const Where& where, PyObject* object, Arrays& arrays, std::optional<Targets>& targets);

}  // namespace robocache::python
