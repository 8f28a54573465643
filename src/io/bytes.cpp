#include <fcntl.h>
#include <robocache/bytes.h>
#include <robocache/error.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>
#include <memory>
#include <utility>

#include "core/text.h"
#include "io/descriptor.h"

namespace robocache {

namespace {

[[noreturn]] void fail(const std::string& name, const char* what) {
  throw Error(ErrorKind::file, concat(name, ": ", what));
}

void read_all(const io::Descriptor& file, const std::string& name, std::int64_t offset, std::span<std::byte> to) {
  const auto [count, error] = file.read(offset, to);
  if (error != 0) fail(name, std::strerror(error));
  if (count < to.size()) fail(name, "the file became shorter while it was read");
}

}  // namespace

Bytes open_bytes(const std::filesystem::path& path) {
  const std::string name = path.string();
  const auto file =
      std::make_shared<const io::Descriptor>(path, O_RDONLY | O_NONBLOCK);  // opening a FIFO must not wait
  if (!*file) fail(name, std::strerror(errno));
  struct stat status {};
  if (fstat(file->number(), &status) != 0) fail(name, std::strerror(errno));
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
