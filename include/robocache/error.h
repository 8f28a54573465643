// Errors. Every failure of the library is a robocache::Error whose message says what was wrong, where, and what was
// expected. Nothing is written when an error is thrown.
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
  unavailable,  // the backend that was asked for does not run on this machine: RuntimeError
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
