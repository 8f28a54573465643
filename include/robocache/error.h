// Errors: what was wrong, where, and what was expected.
//
// ```cpp
// try {
//   robocache::open_bytes("no such file.mcap");
// } catch (const robocache::Error& error) {
//   if (error.kind() == robocache::ErrorKind::file) std::fprintf(stderr, "%s\n", error.what());
// }
// ```
//
// A failure of the library is a robocache::Error. Two kinds of exception pass through it: std::bad_alloc where there is no
// memory, and what a callback of the caller's throws. Every header says what an error leaves behind.
#pragma once

#include <stdexcept>
#include <string>

#pragma GCC visibility push(default)  // the shared library exports what follows

namespace robocache {

enum class ErrorKind {
  value,        // the shapes, ranges or numbers do not fit: Python's ValueError
  type,         // a dtype, device or kind of array that the call does not take: TypeError
  file,         // a file is missing, damaged or of another format: robocache.FileError
  cuda,         // the CUDA runtime or driver failed; a fatal one says so: robocache.CudaError
  unavailable,  // the backend that is needed does not run on this machine: RuntimeError
};

class Error : public std::runtime_error {
 public:
  Error(ErrorKind kind, const std::string& message) : std::runtime_error(message), kind_(kind) {}
  ErrorKind kind() const noexcept { return kind_; }

 private:
  ErrorKind kind_;
};

}  // namespace robocache

#pragma GCC visibility pop
