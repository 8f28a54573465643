// Bytes that Python names: what robocache._recordings.bytes.source_of makes of a path, memory, a file object or an address.
#pragma once

#include <nanobind/nanobind.h>
#include <robocache/bytes.h>

#include <string>

namespace robocache::python {

// source: bytes are the path of a file. A memoryview is content, kept as long as the Bytes are. Anything else has `size` and
// `read(offset, count)`. These are called with the GIL, which the reading thread need not hold; their exceptions pass on.
Bytes bytes_from(nanobind::handle source, std::string name);

}  // namespace robocache::python
