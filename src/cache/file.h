// Files as a cache opens and writes them: every failure is a sentence with the name of the file.
#pragma once

#include <robocache/error.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

#include "io/descriptor.h"

namespace robocache::cache {

using Path = std::filesystem::path;

// A system call failed. This does not mean that a file is damaged: a repair must not act on it.
class SystemError : public Error {
 public:
  SystemError(const std::string& sentence, int code) : Error(ErrorKind::file, sentence), code_(code) {}
  int code() const noexcept { return code_; }  // errno

 private:
  int code_;
};

// Throws SystemError with the sentence `PATH: WHAT: <errno in words>`. If the disk is full, the sentence adds that what was
// committed is kept.
[[noreturn]] void fail_errno(const Path& path, std::string_view what, int error);

class File {
 public:
  File() = default;
  // A file that is opened for writing must not be a symbolic link. Only regular files are opened, because a FIFO would
  // block; directories if `flags` have O_DIRECTORY.
  File(const Path& path, int flags);

  explicit operator bool() const noexcept { return static_cast<bool>(descriptor_); }
  const io::Descriptor& descriptor() const noexcept { return descriptor_; }
  const Path& path() const noexcept { return path_; }

  void write(std::int64_t offset, std::span<const std::byte> from) const;
  void read(std::int64_t offset, std::span<std::byte> to) const;  // fills all of `to`, or throws
  std::int64_t size() const;
  void resize(std::int64_t size) const;
  void sync() const;
  void write_back(std::int64_t offset, std::int64_t count) const;  // starts it early, so that sync() has little to do
  void rename(const Path& to);

 private:
  io::Descriptor descriptor_;
  Path path_;
};

// Creates a directory, unless it exists. With `is_synced` its name is on the disk afterwards; otherwise the caller syncs the
// parent directory.
void make_directory(const Path& path, bool is_synced = true);
void sync_directory(const Path& path);        // puts the names in it on the disk
void remove_file(const Path& path) noexcept;  // ignores failures: the next writer tries again
bool is_link(const Path& path);               // a symbolic link, even if its target does not exist

// Replaces the content atomically, through PATH.tmp. If this throws, *is_uncertain says whether the new content may be
// there nevertheless.
void replace_file(const Path& path, std::string_view content, bool* is_uncertain = nullptr);

// The content of a small file. Throws Error(file) if it cannot be read or has over `most` bytes.
std::string read_text(const Path& path, std::int64_t most);

}  // namespace robocache::cache
