#include "cache/source_files.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>

#include "core/interrupt.h"
#include "io/hash.h"

namespace robocache::cache {

namespace {

constexpr std::int64_t block = 1 << 20;

FileStamp stamp_from(const struct stat& status) {
  return {static_cast<std::int64_t>(status.st_dev), static_cast<std::int64_t>(status.st_ino), status.st_size,
          status.st_mtim.tv_sec * 1'000'000'000LL + status.st_mtim.tv_nsec};
}

}  // namespace

std::vector<FileStamp> stamps_of(std::span<const Path> files) {
  std::vector<FileStamp> stamps;
  for (const Path& path : files) {
    struct stat status {};
    if (stat(path.c_str(), &status) != 0) fail_errno(path, "cannot be read", errno);
    stamps.push_back(stamp_from(status));
  }
  return stamps;
}

std::string hash_of(std::span<const Path> files) {
  if (files.empty()) return {};
  io::Hash hash;
  std::vector<std::byte> bytes(static_cast<std::size_t>(block));
  for (const Path& path : files) {
    const File file(path, O_RDONLY);
    static_cast<void>(posix_fadvise(file.descriptor().number(), 0, 0, POSIX_FADV_SEQUENTIAL));
    const std::int64_t size = file.size();
    hash.add(std::as_bytes(std::span(&size, 1)));
    for (std::int64_t at = 0; at < size; at += block) {
      check_interrupt();
      const auto part = std::span(bytes).first(static_cast<std::size_t>(std::min(block, size - at)));
      file.read(at, part);
      hash.add(part);
    }
  }
  return hash.text();
}

}  // namespace robocache::cache
