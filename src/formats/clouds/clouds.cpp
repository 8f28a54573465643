// The public calls: read the file, detect its format, and call the format's reader.
#include <fcntl.h>
#include <robocache/clouds.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <system_error>

#include "formats/clouds/formats.h"
#include "io/descriptor.h"

namespace robocache {

using namespace clouds;

namespace {

// The bytes of a file. They are read, not mapped: a mapped file that shrinks kills the process.
class FileContent {
 public:
  explicit FileContent(const std::filesystem::path& path) : name_(path.string()) {
    if (name_.find('\0') != std::string::npos) FileView{name_.c_str(), {}}.fail("a zero byte follows in the path");
    const io::Descriptor file(path, O_RDONLY | O_NONBLOCK);  // opening a pipe must not wait
    struct stat status {};
    if (!file) fail("cannot be opened", errno);
    if (fstat(file.number(), &status) != 0) fail("cannot be read", errno);
    if (!S_ISREG(status.st_mode)) source().fail("is no regular file");
    bytes_ = allocate<char>(status.st_size);
    const std::span<char> memory(bytes_.get(), static_cast<std::size_t>(status.st_size));
    const auto [count, error] = file.read(0, std::as_writable_bytes(memory));
    if (error != 0) fail("cannot be read", error);
    size_ = count;
  }

  FileView source() const { return {name_, {bytes_.get(), size_}}; }

 private:
  [[noreturn]] void fail(const char* what, int error) const {
    source().fail(what, ": ", std::generic_category().message(error));
  }

  std::string name_;
  std::unique_ptr<char[]> bytes_;
  std::size_t size_ = 0;
};

// PCD has no magic bytes. It may begin with comments, of which "# .PCD" is one.
bool is_pcd(std::string_view text) {
  while (text.starts_with('#')) {
    if (text.starts_with("# .PCD")) return true;
    const std::size_t end = text.find('\n');
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
  }
  return text.starts_with("VERSION") || text.starts_with("FIELDS") || text.starts_with("COLUMNS");
}

CloudFormat format_of(const FileView& source) {
  const std::string_view bytes = source.bytes;
  if (bytes.starts_with("\x93NUMPY")) return CloudFormat::npy;
  if (bytes.starts_with("ply\n") || bytes.starts_with("ply\r\n")) return CloudFormat::ply;
  if (is_pcd(bytes)) return CloudFormat::pcd;
  if (bytes.starts_with("\x89PNG")) source.fail("is a PNG image; read_depth reads it");
  if (source.name.ends_with(".pcd.bin")) return CloudFormat::nuscenes;
  if (source.name.ends_with(".bin")) return CloudFormat::kitti;
  source.fail(bytes.empty() ? "is empty" : "is not a known cloud format: it begins with " + quote(bytes.substr(0, 8)),
              "; expected PCD, PLY, NPY, or KITTI's .bin");
}

Cloud read(const FileView& source, CloudFormat format) {
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

FileView source_of(std::span<const std::byte> content, std::string_view name) {
  return {name, {reinterpret_cast<const char*>(content.data()), content.size()}};
}

}  // namespace

const Array* Cloud::find(std::string_view name) const {
  const auto found = std::ranges::find(fields, name, &Field::name);
  return found == fields.end() ? nullptr : &found->values;
}

Cloud read_cloud(const std::filesystem::path& path) {
  const FileContent content(path);
  const FileView source = content.source();
  return read(source, format_of(source));
}

Array read_depth(const std::filesystem::path& path) { return read_png(FileContent(path).source()); }

Cloud read_cloud(std::span<const std::byte> content, CloudFormat format, std::string_view name) {
  return read(source_of(content, name), format);
}

Array read_depth(std::span<const std::byte> content, std::string_view name) {
  return read_png(source_of(content, name));
}

}  // namespace robocache
