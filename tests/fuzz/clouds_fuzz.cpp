// Any bytes, as a file of one format: read, or refused with a sentence. Anything else is a bug.
#include <robocache/clouds.h>
#include <zlib.h>

#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>

namespace {

using robocache::Array;
using robocache::Cloud;
using robocache::CloudFormat;

void require(bool holds) {
  if (!holds) std::abort();
}

// Every byte is there, and was written: the sum is taken so that the sanitizers see each of them.
void visit(const Array& array) {
  const robocache::TensorView view = array.view();
  unsigned sum = 0;
  for (std::int64_t k = 0; k < view.size() * size_of(view.dtype); ++k) sum += static_cast<unsigned>(array.data[k]);
  volatile unsigned sink = sum;
  static_cast<void>(sink);
}

[[maybe_unused]] void read(std::span<const std::byte> content, CloudFormat format) {
  const Cloud cloud = robocache::read_cloud(content, format, "fuzz");
  const std::int64_t rows = cloud.height * cloud.width;
  require(cloud.points.shape == std::vector<std::int64_t>{rows, 3});
  visit(cloud.points);
  for (const robocache::Field& field : cloud.fields) {
    require(field.values.shape[0] == rows);
    require(cloud.find(field.name) == &field.values);
    visit(field.values);
  }
}

// Checksums are put right first: a fuzzer does not guess them.
[[maybe_unused]] void read_image(std::span<const std::byte> content) {
  std::string bytes(reinterpret_cast<const char*>(content.data()), content.size());
  for (std::size_t at = 8; at + 12 <= bytes.size();) {
    auto* const chunk = reinterpret_cast<unsigned char*>(bytes.data() + at);
    const std::size_t length = std::size_t{chunk[0]} << 24 | chunk[1] << 16 | chunk[2] << 8 | chunk[3];
    if (length > bytes.size() - at - 12) break;
    const auto crc = crc32_z(0, chunk + 4, length + 4);
    for (std::size_t k = 0; k < 4; ++k) chunk[8 + length + k] = static_cast<unsigned char>(crc >> (24 - 8 * k));
    at += 12 + length;
  }
  visit(robocache::read_depth(std::as_bytes(std::span(bytes)), "fuzz"));
}

#define ROBOCACHE_TEXT(word) #word
#define ROBOCACHE_NAME(word) ROBOCACHE_TEXT(word)
constexpr std::string_view format = ROBOCACHE_NAME(ROBOCACHE_FUZZ_FORMAT);

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::span<const std::byte> content = std::as_bytes(std::span(data, size));
  try {
    if constexpr (format == "pcd") read(content, CloudFormat::pcd);
    if constexpr (format == "ply") read(content, CloudFormat::ply);
    if constexpr (format == "npy") read(content, CloudFormat::npy);
    if constexpr (format == "kitti") read(content, CloudFormat::kitti);
    if constexpr (format == "png") read_image(content);
  } catch (const robocache::Error& error) {
    const std::string_view text = error.what();
    require(error.kind() == robocache::ErrorKind::file && text.starts_with("fuzz: ") && text.size() < 1000);
    for (const char c : text) require(c >= ' ' && c <= '~');
  }
  return 0;
}
