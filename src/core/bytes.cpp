#include <fcntl.h>
#include <robocache/bytes.h>
#include <robocache/error.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <memory>
#include <utility>

#include "core/text.h"

namespace robocache {

namespace {

struct File {
  int descriptor = -1;

  explicit File(int opened) : descriptor(opened) {}
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  ~File() {
    if (descriptor >= 0) close(descriptor);
  }
};

[[noreturn]] void fail(const std::string& name, const char* what) {
  throw Error(ErrorKind::file, concat(name, ": ", what));
}

void read_all(const File& file, const std::string& name, std::int64_t offset, std::span<std::byte> to) {
  while (!to.empty()) {
    const ssize_t count = pread(file.descriptor, to.data(), to.size(), offset);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) fail(name, std::strerror(errno));
    if (count == 0) fail(name, "the file became shorter while it was read");
    to = to.subspan(static_cast<std::size_t>(count));
    offset += count;
  }
}

}  // namespace

Bytes open_bytes(const std::filesystem::path& path) {
  const std::string name = path.string();
  const auto opened = [&] { return open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK); };  // waits for no FIFO
  int descriptor = opened();
  while (descriptor < 0 && errno == EINTR) descriptor = opened();
  const auto file = std::make_shared<const File>(descriptor);
  if (file->descriptor < 0) fail(name, std::strerror(errno));
  struct stat status {};
  if (fstat(file->descriptor, &status) != 0) fail(name, std::strerror(errno));
  if (!S_ISREG(status.st_mode)) fail(name, "this is not a file");
  return {name, status.st_size,
          [file, name](std::int64_t offset, std::span<std::byte> to) { read_all(*file, name, offset, to); }};
}

Bytes bytes_of(std::span<const std::byte> memory, std::string name) {
  return {std::move(name), static_cast<std::int64_t>(memory.size()),
          [memory](std::int64_t offset, std::span<std::byte> to) {
            if (!to.empty()) std::memcpy(to.data(), memory.data() + offset, to.size());
          }};
}

}  // namespace robocache
