// The public calls: get the bytes, find out what they are, hand them to a format's reader.
#include <fcntl.h>
#include <robocache/clouds.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>

#include "formats/clouds/formats.h"

namespace robocache {

using namespace clouds;

namespace {

struct Descriptor {
  int number;
  ~Descriptor() {
    if (number >= 0) close(number);
  }
};

// A file's bytes. Read, not mapped: a file that shrinks while it is mapped kills the process.
class Content {
 public:
  explicit Content(const std::filesystem::path& path) : name_(path.string()) {
    if (name_.find('\0') != std::string::npos) Source{name_.c_str(), {}}.fail("a zero byte follows in the path");
    const Descriptor file{open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)};  // a pipe must not block
    struct stat status {};
    if (file.number < 0) fail("cannot be opened");
    if (fstat(file.number, &status) != 0) fail("cannot be read");
    if (!S_ISREG(status.st_mode)) source().fail("is no regular file");
    const auto size = static_cast<std::size_t>(status.st_size);
    bytes_ = allocate<char>(status.st_size);
    while (size_ < size) {
      const ssize_t count = read(file.number, bytes_.get() + size_, size - size_);
      if (count == 0) break;
      if (count < 0 && errno != EINTR) fail("cannot be read");
      size_ += static_cast<std::size_t>(std::max<ssize_t>(count, 0));
    }
  }

  Source source() const { return {name_, {bytes_.get(), size_}}; }

 private:
  [[noreturn]] void fail(const char* what) const { source().fail(what, ": ", std::generic_category().message(errno)); }

  std::string name_;
  std::unique_ptr<char[]> bytes_;
  std::size_t size_ = 0;
};

// PCD has no magic: comments may come first, and "# .PCD" is one.
bool is_pcd(std::string_view text) {
  while (text.starts_with('#')) {
    if (text.starts_with("# .PCD")) return true;
    const std::size_t end = text.find('\n');
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
  }
  return text.starts_with("VERSION") || text.starts_with("FIELDS") || text.starts_with("COLUMNS");
}

CloudFormat format_of(const Source& source) {
  const std::string_view bytes = source.bytes;
  if (bytes.starts_with("\x93NUMPY")) return CloudFormat::npy;
  if (bytes.starts_with("ply\n") || bytes.starts_with("ply\r\n")) return CloudFormat::ply;
  if (is_pcd(bytes)) return CloudFormat::pcd;
  if (bytes.starts_with("\x89PNG")) source.fail("is a PNG image; read_depth reads it");
  if (source.name.ends_with(".pcd.bin")) return CloudFormat::nuscenes;
  if (source.name.ends_with(".bin")) return CloudFormat::kitti;
  source.fail(bytes.empty() ? "is empty" : "begins as no cloud that is known: " + quote(bytes.substr(0, 8)),
              "; expected PCD, PLY, NPY, or KITTI's .bin");
}

Cloud read(const Source& source, CloudFormat format) {
  static constexpr const char* columns[] = {"x", "y", "z", "intensity", "ring"};
  switch (format) {
    case CloudFormat::pcd:
      return read_pcd(source);
    case CloudFormat::ply:
      return read_ply(source);
    case CloudFormat::npy:
      return read_npy(source);
    case CloudFormat::kitti:
      return read_kitti(source, std::span(columns).first(4));
    default:
      return read_kitti(source, columns);
  }
}

Source source_of(std::span<const std::byte> content, std::string_view name) {
  return {name, {reinterpret_cast<const char*>(content.data()), content.size()}};
}

}  // namespace

const Array* Cloud::find(std::string_view name) const {
  const auto found = std::ranges::find(fields, name, &Field::name);
  return found == fields.end() ? nullptr : &found->values;
}

Cloud read_cloud(const std::filesystem::path& path) {
  const Content content(path);
  const Source source = content.source();
  return read(source, format_of(source));
}

Array read_depth(const std::filesystem::path& path) { return read_png(Content(path).source()); }

Cloud read_cloud(std::span<const std::byte> content, CloudFormat format, std::string_view name) {
  return read(source_of(content, name), format);
}

Array read_depth(std::span<const std::byte> content, std::string_view name) {
  return read_png(source_of(content, name));
}

}  // namespace robocache
