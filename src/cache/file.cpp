#include "cache/file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>

#include "core/text.h"

namespace robocache::cache {

using io::retried;

void fail_errno(const Path& path, std::string_view what, int error) {
  const char* const more = error == ENOSPC || error == EDQUOT ? "; what was committed before is kept" : "";
  throw SystemError(concat(path.string(), ": ", what, ": ", std::strerror(error), more), error);
}

File::File(const Path& path, int flags) : path_(path) {
  const bool writes = (flags & O_ACCMODE) != O_RDONLY;
  descriptor_ = io::Descriptor(path, flags | O_NOCTTY | O_NONBLOCK | (writes ? O_NOFOLLOW : 0));
  if (!descriptor_) {
    const int error = errno;
    if (writes && (error == ELOOP || error == EEXIST) && is_link(path)) {
      throw Error(ErrorKind::file,
                  concat(path.string(), ": is a symbolic link, which a cache never writes to; remove it"));
    }
    fail_errno(path, (flags & O_CREAT) != 0 ? "cannot be made" : "cannot be opened", error);
  }
  struct stat status {};
  const bool is_known = fstat(descriptor_.number(), &status) == 0;
  if (is_known && (S_ISREG(status.st_mode) || (flags & O_DIRECTORY) != 0)) return;
  if (!is_known) fail_errno(path, "cannot be read", errno);
  throw Error(ErrorKind::file, concat(path.string(), ": is not a regular file"));
}

void File::write(std::int64_t offset, std::span<const std::byte> from) const {
  const auto [count, error] = descriptor_.write(offset, from);
  if (error != 0) fail_errno(path_, "cannot be written", error);
}

void File::read(std::int64_t offset, std::span<std::byte> to) const {
  const auto [count, error] = descriptor_.read(offset, to);
  if (error != 0) fail_errno(path_, "cannot be read", error);
  if (count < to.size()) {  // another process is shortening the file; a repair must not treat that as damage
    throw SystemError(concat(path_.string(), ": the file became shorter while it was read"), EIO);
  }
}

std::int64_t File::size() const {
  struct stat status {};
  if (fstat(descriptor_.number(), &status) != 0) fail_errno(path_, "cannot be read", errno);
  return status.st_size;
}

void File::resize(std::int64_t size) const {
  if (retried([&] { return ftruncate(descriptor_.number(), size); }) != 0)
    fail_errno(path_, "cannot be written", errno);
}

void File::sync() const {
  if (retried([&] { return fsync(descriptor_.number()); }) != 0)
    fail_errno(path_, "cannot be written to the disk", errno);
}

void File::write_back(std::int64_t offset, std::int64_t count) const {
  // A failure shows up in sync().
  static_cast<void>(sync_file_range(descriptor_.number(), offset, count, SYNC_FILE_RANGE_WRITE));
}

void File::rename(const Path& to) {
  if (::rename(path_.c_str(), to.c_str()) != 0) {
    fail_errno(path_, concat("cannot be renamed to ", to.filename().string()), errno);
  }
  path_ = to;
}

void make_directory(const Path& path, bool is_synced) {
  if (mkdir(path.c_str(), 0777) == 0) {
    if (!is_synced) return;
    const Path parent = path.parent_path();
    sync_directory(parent.empty() ? "." : parent);
    return;
  }
  const int error = errno;
  if (error == EEXIST && std::filesystem::is_directory(path)) return;
  fail_errno(path, "the directory cannot be made", error == EEXIST ? ENOTDIR : error);
}

void sync_directory(const Path& path) { File(path, O_RDONLY | O_DIRECTORY).sync(); }

bool is_link(const Path& path) {
  struct stat status {};
  return lstat(path.c_str(), &status) == 0 && S_ISLNK(status.st_mode);
}

void replace_file(const Path& path, std::string_view content, bool* is_uncertain) {
  if (is_uncertain != nullptr) *is_uncertain = false;
  const Path temporary = path.string() + ".tmp";
  if (!is_link(temporary)) remove_file(temporary);  // left by a crash
  File file(temporary, O_WRONLY | O_CREAT | O_EXCL);
  try {
    file.write(0, std::as_bytes(std::span(content)));
    file.sync();
    file.rename(path);
  } catch (const Error&) {
    remove_file(temporary);
    throw;
  }
  if (is_uncertain != nullptr) *is_uncertain = true;
  sync_directory(path.parent_path());
  if (is_uncertain != nullptr) *is_uncertain = false;
}

void remove_file(const Path& path) noexcept { static_cast<void>(unlink(path.c_str())); }

std::string read_text(const Path& path, std::int64_t most) {
  const File file(path, O_RDONLY);
  const std::int64_t size = file.size();
  if (size > most) throw Error(ErrorKind::file, concat(path.string(), ": has ", size, " bytes; at most ", most));
  std::string text(static_cast<std::size_t>(size), '\0');
  file.read(0, std::as_writable_bytes(std::span(text)));
  return text;
}

}  // namespace robocache::cache
