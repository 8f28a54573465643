// The input of readers: a file, memory, or anything that can be read at an offset (an object in S3, through fsspec). Nothing is
// mapped: a file that becomes shorter while it is read is an error, not a signal.
//
// ```cpp
// const std::string content = "\x89MCAP0\r\n";
// const robocache::Bytes bytes = robocache::bytes_of(std::as_bytes(std::span(content)), "memory");
// std::array<std::byte, 5> beginning{};
// bytes.read(0, beginning);
// ```
//
// The callback `read` runs in the thread that asks a reader for something. It may throw; the caller of the reader gets that very
// exception. Where threads share a reader, several threads call `read` at the same time; those of open_bytes() and bytes_of()
// allow that.
// Limits. Sizes and offsets are below 2^63.
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
  std::string name{};  // begins the sentences of errors
  std::int64_t size = 0;
  // Fills all of `to` with the bytes from `offset` on, which lie inside `size`, or throws, best an Error(file).
  std::function<void(std::int64_t offset, std::span<std::byte> to)> read{};
};

// Throws Error(file) where there is no such file, or it may not be read. The file stays open as long as a copy of the Bytes
// lives. The bytes may be read after a fork.
Bytes open_bytes(const std::filesystem::path& path);

// The memory must outlive the Bytes.
Bytes bytes_of(std::span<const std::byte> memory, std::string name);

}  // namespace robocache

#pragma GCC visibility pop
