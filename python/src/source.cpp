#include "source.h"

#include <robocache/error.h>

#include <cstring>
#include <memory>
#include <utility>

#include "errors.h"

namespace nb = nanobind;

namespace robocache::python {

namespace {

// A buffer of Python's, given back with the GIL.
class Buffer {
 public:
  explicit Buffer(nb::handle object) {
    if (PyObject_GetBuffer(object.ptr(), &view_, PyBUF_SIMPLE) != 0) throw nb::python_error();
  }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  ~Buffer() {
    const nb::gil_scoped_acquire held;
    PyBuffer_Release(&view_);
  }
  std::span<const std::byte> bytes() const {
    return {static_cast<const std::byte*>(view_.buf), static_cast<std::size_t>(view_.len)};
  }

 private:
  Py_buffer view_{};
};

// A Python object. Its last owner takes the GIL to release it.
std::shared_ptr<nb::object> shared(nb::handle object) {
  return {new nb::object(nb::borrow(object)), [](nb::object* owned) {
            const nb::gil_scoped_acquire held;
            delete owned;
          }};
}

}  // namespace

Bytes bytes_from(nb::handle source, std::string name) {
  if (PyBytes_Check(source.ptr()) != 0) {
    const nb::bytes path = nb::borrow<nb::bytes>(source);
    return open_bytes(std::filesystem::path(std::string(path.c_str(), path.size())));
  }
  if (PyMemoryView_Check(source.ptr()) != 0) {
    const auto buffer = std::make_shared<const Buffer>(source);
    const std::span<const std::byte> memory = buffer->bytes();
    return {std::move(name), static_cast<std::int64_t>(memory.size()),
            [buffer, memory](std::int64_t offset, std::span<std::byte> to) {
              if (!to.empty()) std::memcpy(to.data(), memory.data() + offset, to.size());
            }};
  }
  const auto size = nb::cast<std::int64_t>(source.attr("size"));
  if (size < 0) throw Error(ErrorKind::file, name + ": its size is " + std::to_string(size));
  const std::shared_ptr<nb::object> read = shared(nb::object(source.attr("read")));
  return {name, size, [read, name](std::int64_t offset, std::span<std::byte> to) {
            if (to.empty()) return;
            const nb::gil_scoped_acquire held;
            const nb::object answer = (*read)(offset, to.size());
            const Buffer got(answer);
            if (got.bytes().size() != to.size()) {
              throw Error(ErrorKind::file, name + ": became shorter while it was read");
            }
            std::memcpy(to.data(), got.bytes().data(), to.size());
          }};
}

}  // namespace robocache::python
