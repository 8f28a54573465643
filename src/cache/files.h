// Files as the cache writes them: every failure is a sentence with the file's name; nothing is half replaced.
#pragma once

#include <robocache/cache.h>
#include <robocache/error.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace robocache::cache {

using Path = std::filesystem::path;

// A call of the system failed. Of damage to a file, this says nothing: a repair must not act on it.
class SystemError : public Error {
 public:
  SystemError(const std::string& sentence, int code) : Error(ErrorKind::file, sentence), code_(code) {}
  int code() const noexcept { return code_; }  // errno

 private:
  int code_;
};

// Throws SystemError: `PATH: WHAT: <errno in words>`, and for a full disk that nothing committed is lost.
[[noreturn]] void fail_errno(const Path& path, std::string_view what, int error);

class File {
 public:
  File() = default;
  // Symbolic links are not followed where the file may be written. Only regular files are opened, and directories where
  // `flags` say so: a FIFO would block.
  File(const Path& path, int flags);
  File(File&& other) noexcept { *this = std::move(other); }
  File& operator=(File&& other) noexcept;
  ~File();

  explicit operator bool() const noexcept { return descriptor_ >= 0; }
  int descriptor() const noexcept { return descriptor_; }
  const Path& path() const noexcept { return path_; }

  void write(std::int64_t offset, std::span<const std::byte> from) const;
  void read(std::int64_t offset, std::span<std::byte> to) const;  // all of it, or an Error
  std::int64_t size() const;
  void resize(std::int64_t size) const;
  void sync() const;
  void write_back(std::int64_t offset, std::int64_t count) const;  // begins to; so that sync() finds little to do
  void rename(const Path& to);

 private:
  int descriptor_ = -1;
  Path path_;
};

// Bytes that are appended, read and overwritten anywhere. They stay in memory up to a limit, then they go into a file.
class Spool {
 public:
  // The file is made at `path` when it is needed, its bytes begin at `base`. A scratch file has no name: it is gone with
  // the process.
  enum class Kind : std::uint8_t { named, scratch };
  Spool(Path path, Kind kind, std::int64_t base, std::size_t memory);
  Spool(Spool&&) noexcept = default;
  Spool& operator=(Spool&&) noexcept = default;

  void append(std::span<const std::byte> from);
  void read(std::int64_t offset, std::span<std::byte> to) const;
  void write(std::int64_t offset, std::span<const std::byte> from);
  void truncate(std::int64_t size);  // forgets what lies behind
  std::int64_t size() const noexcept { return size_; }

  // All of it in the file, whose bytes begin at `base` or later, and where they begin. A file that exists and begins
  // earlier is written anew, as `other`; so is any, if told to.
  std::int64_t settle(std::int64_t base, const Path& other, bool anew);
  void rename(const Path& to);  // its file, if there is one; an Error leaves it where it is
  File& file() noexcept { return file_; }
  const Path& path() const noexcept { return path_; }

 private:
  void create();
  void flush();

  Path path_;
  Kind kind_ = Kind::scratch;
  std::int64_t base_ = 0;
  std::size_t memory_ = 0;
  File file_;
  std::int64_t flushed_ = 0;  // bytes in the file; the others are in tail_
  std::int64_t size_ = 0;
  std::int64_t written_back_ = 0;
  std::vector<std::byte> tail_;
};

// Fine where it is there. Its name is on the disk then; else (not is_synced) once something syncs the directory above.
void make_directory(const Path& path, bool is_synced = true);
void sync_directory(const Path& path);        // names that were made in it
void remove_file(const Path& path) noexcept;  // of no use any more: whoever comes next tries again
bool is_link(const Path& path);               // a symbolic link, whether it leads anywhere or not

// By way of PATH.tmp. After a failure *is_uncertain says whether the new content may be there all the same.
void replace_file(const Path& path, std::string_view content, bool* is_uncertain = nullptr);

// The content of a small file; Error(file) where it cannot be read or is over `most` bytes.
std::string read_text(const Path& path, std::int64_t most);

// The one writer of a cache. A process that was forked while a lock was held does not have it: there it is let go of
// without a word, so that it never keeps the next writer out.
class Lock {
 public:
  explicit Lock(const Path& directory);  // throws Error(file) where another process, or another object, has it
  ~Lock();
  Lock(const Lock&) = delete;
  Lock& operator=(const Lock&) = delete;

  bool is_here() const noexcept { return static_cast<bool>(file_); }  // false: this process was forked
  // Where somebody has removed or replaced the file, another writer may have come. Takes the lock anew then, or throws as
  // the constructor does. Returns whether it had to.
  bool renew();
  static bool is_held(const Path& directory);  // by someone else

 private:
  void take();
  void let_go() noexcept;
  static void forget_after_fork() noexcept;

  Path directory_;
  File file_;
};

std::vector<FileStamp> stamps_of(std::span<const Path> files);

// The content of files, as a source is known by it.
std::string hash_of(std::span<const Path> files);

}  // namespace robocache::cache
