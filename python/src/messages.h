// Internal: messages into streams.
#pragma once

#include <nanobind/nanobind.h>
#include <robocache/formats.h>

namespace robocache::python {

nanobind::dict dict_of(const Metadata& metadata);
void bind_messages(nanobind::module_& m);

}  // namespace robocache::python
