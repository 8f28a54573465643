// Bytes that Python names: what robocache._bytes.source_of makes of a path, memory, a file object or an address.
#pragma once

#include <nanobind/nanobind.h>
#include <robocache/bytes.h>

#include <string>

namespace robocache::python {

// bytes: the path of a file. A memoryview: its content, held as long as the Bytes are. Anything else has `size` and
// `read(offset, count)` and is called with the GIL, which need not be held by whoever reads; what it raises goes through.
Bytes bytes_from(nanobind::handle source, std::string name);

}  // namespace robocache::python
