// Bytes that are appended, read and overwritten anywhere: in memory up to a limit, then in a file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "cache/file.h"

namespace robocache::cache {

class Spool {
 public:
  // The file is created at `path` when the bytes no longer fit in `memory`; its first byte is at offset `base`. A scratch
  // file has no name, so it disappears with the process.
  enum class Kind : std::uint8_t { named, scratch };
  Spool(Path path, Kind kind, std::int64_t base, std::size_t memory);
  Spool(Spool&&) noexcept = default;
  Spool& operator=(Spool&&) noexcept = default;

  void append(std::span<const std::byte> from);
  void read(std::int64_t offset, std::span<std::byte> to) const;
  void write(std::int64_t offset, std::span<const std::byte> from);
  void truncate(std::int64_t size);  // drops the bytes from there on
  std::int64_t size() const noexcept { return size_; }

  // Puts all bytes into the file and returns the offset at which they begin: at least `base`. If the file exists and
  // they begin earlier, or `anew` is true, a new file at `other` replaces it.
  std::int64_t settle(std::int64_t base, const Path& other, bool anew);
  void rename(const Path& to);  // the file, if there is one; after an Error it keeps its name
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

}  // namespace robocache::cache
