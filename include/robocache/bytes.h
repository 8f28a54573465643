// Bytes that readers stand on: a file, memory, or anything that can be read at an offset (an object in S3, through
// fsspec). Nothing is mapped: a file that shrinks while it is read is an error, not a signal.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string>

#pragma GCC visibility push(default)  // the shared library exports what follows

namespace robocache {

struct Bytes {
  std::string name{};  // for sentences
  std::int64_t size = 0;
  // Fills all of `to` with the bytes from `offset` on, which lie inside `size`. Throws Error(file) where it cannot.
  // Where threads share a reader it is called by several at once.
  std::function<void(std::int64_t offset, std::span<std::byte> to)> read{};
};

// Throws Error(file) where there is no such file, or it may not be read. The file stays open as long as the Bytes do.
Bytes open_bytes(const std::filesystem::path& path);

// The memory must outlive the Bytes.
Bytes bytes_of(std::span<const std::byte> memory, std::string name);

}  // namespace robocache

#pragma GCC visibility pop
