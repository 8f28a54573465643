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
[[nodiscard]] bool view_stream(const Where& where, PyObject* object, Arrays& arrays, Stream& stream,
                               Role values_role = Role::values);

// Throws where an argument of a Stream that was just made is wrong, or an option alone, or the rate, count or start of a
// Timeline.
void check_stream(nanobind::handle object);
void check_stream_options(nanobind::handle object);
void check_timeline(nanobind::handle object);

// stream.name; None for what is no Stream.
nanobind::object stream_name(PyObject* object);

int leading_rank(const Stream& stream);            // how many dimensions of the values stand before the channels
std::int64_t channel_count(const Stream& stream);  // of the trailing shape, flattened

// One name for all channels becomes a range over them; needs the views.
void set_methods(const Methods& methods, Stream& stream);

// The as_of of a call. False where the torch layer must serve the call. `anchor`: it is "anchor", which check_anchor() looks
// at, and `as_of` is left off.
[[nodiscard]] bool view_as_of(const Where& where, PyObject* object, Arrays& arrays, AsOf& as_of, bool& anchor);
bool takes_anchor(const Where& where, PyObject* stream);   // whether a Stream's own as_of is "anchor"
void check_anchor(const Where& where, PyObject* targets);  // throws where the targets have no anchor

// An array of targets, a Timeline, or, beside NumPy arrays, a list.
[[nodiscard]] bool view_targets(const Where& where, PyObject* object, Arrays& arrays, std::optional<Targets>& targets);

}  // namespace robocache::python
