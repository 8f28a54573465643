// Sentences: which call, which stream, what was wrong.
#pragma once

#include <nanobind/nanobind.h>
#include <robocache/error.h>

#include <concepts>
#include <string>
#include <string_view>

namespace robocache::python {

// The place that a sentence names first: `fuse: stream "imu": `. A stream without a name is named by its position, and
// a call's only stream not at all.
struct Where {
  const char* operation = "";
  std::string_view stream;
  Py_ssize_t position = -1;

  std::string text() const;
  std::string stream_text() const;  // `stream "imu"`
};

inline void append(std::string& text, std::string_view part) { text += part; }
inline void append(std::string& text, std::integral auto number) { text += std::to_string(number); }

template <class... Parts>
[[noreturn]] void fail(ErrorKind kind, const Where& where, const Parts&... parts) {
  std::string text = where.text();
  (append(text, parts), ...);
  throw Error(kind, text);
}

// An exception that Python code raised inside the call becomes a sentence of ours, with its own text at the end.
[[noreturn]] void fail_with_python_error(ErrorKind kind, const Where& where, std::string_view what);

// Text that may have come from a file or a path: bytes that are not UTF-8 are shown, not refused.
nanobind::object text_from(std::string_view bytes);

std::string text_of(const nanobind::object& object);  // str()
std::string describe(PyObject* object);               // repr(), where it is short
std::string type_name(PyObject* object);              // "list", "torch.Tensor"

// FileError, CudaError, and the translation of robocache::Error.
void bind_errors(nanobind::module_& m);

}  // namespace robocache::python
