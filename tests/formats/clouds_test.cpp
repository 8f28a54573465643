// The readers from C++, under the sanitizers too. Every type and every sentence is in tests/python/test_clouds.py.
#include <gtest/gtest.h>
#include <robocache/clouds.h>
#include <zlib.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <fstream>
#include <limits>
#include <string>

#include "sentence.h"

namespace robocache {
namespace {

std::string bytes_of(const void* data, std::size_t size) { return {static_cast<const char*>(data), size}; }
template <class T>
std::string bytes_of(const std::vector<T>& values) {
  return bytes_of(values.data(), values.size() * sizeof(T));
}
std::string swapped(std::string bytes, std::size_t size) {
  for (std::size_t k = 0; k + size <= bytes.size(); k += size)
    std::reverse(bytes.begin() + k, bytes.begin() + k + size);
  return bytes;
}

std::span<const std::byte> content(const std::string& bytes) { return std::as_bytes(std::span(bytes)); }
Cloud read(const std::string& bytes, CloudFormat format) { return read_cloud(content(bytes), format, "test"); }

template <class T>
std::vector<T> values_of(const Array& array) {
  std::vector<T> values(static_cast<std::size_t>(array.view().size()));
  std::memcpy(values.data(), array.data.get(), values.size() * sizeof(T));
  return values;
}

template <class F>
std::string sentence(const F& f) {
  std::string text = test::sentence(f, ErrorKind::file);
  EXPECT_EQ(text.find('\n'), std::string::npos);
  return text;
}

const std::vector<float> points{1, 2, 3, -4.5f, 5, std::numeric_limits<float>::infinity()};

std::string pcd(const std::string& data, const std::string& body) {
  return "# .PCD v0.7\nVERSION 0.7\nFIELDS x y z\nSIZE 4 4 4\nTYPE F F F\nCOUNT 1 1 1\nWIDTH 1\nHEIGHT 2\n"
         "VIEWPOINT 1 2 3 1 0 0 0\nPOINTS 2\nDATA " +
         data + "\n" + body;
}
std::string compressed_pcd() {
  // Columns of 24 bytes as literals.
  const std::string columns = bytes_of(std::vector<float>{1, -4.5f, 2, 5, 3, std::numeric_limits<float>::infinity()});
  const std::uint32_t sizes[] = {25, 24};
  return pcd("binary_compressed", bytes_of(sizes, 8) + std::string(1, 23) + columns);
}
std::string ply(const std::string& format, const std::string& body) {
  return "ply\nformat " + format +
         " 1.0\nelement face 1\nproperty list uchar short vertices\nelement vertex 2\nproperty float x\n"
         "property float y\nproperty float z\nend_header\n" +
         body;
}
std::string npy() {
  const std::string header = "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }\n";
  return std::string("\x93NUMPY\x01\x00", 8) + static_cast<char>(header.size()) + '\0' + header + bytes_of(points);
}

struct Sample {
  CloudFormat format;
  std::string bytes;
};
std::vector<Sample> samples() {
  const std::string raw = bytes_of(points), face("\x02\x01\x00\x02\x00", 5), big_face("\x02\x00\x01\x00\x02", 5);
  return {{CloudFormat::pcd, pcd("ascii", "1 2 3\n-4.5 5 inf")},
          {CloudFormat::pcd, pcd("binary", raw)},
          {CloudFormat::pcd, compressed_pcd()},
          {CloudFormat::ply, ply("ascii", "2 1 2\n1 2 3\n-4.5 5 inf")},
          {CloudFormat::ply, ply("binary_little_endian", face + raw)},
          {CloudFormat::ply, ply("binary_big_endian", big_face + swapped(raw, 4))},
          {CloudFormat::npy, npy()}};
}

TEST(Clouds, EveryFormatGivesThePoints) {
  for (const auto& [format, bytes] : samples()) {
    const Cloud cloud = read(bytes, format);
    EXPECT_EQ(cloud.points.dtype, DType::f32);
    EXPECT_EQ(cloud.points.shape, (std::vector<std::int64_t>{2, 3}));
    EXPECT_EQ(values_of<float>(cloud.points), points) << bytes;
    EXPECT_TRUE(cloud.fields.empty());
    EXPECT_EQ(cloud.height * cloud.width, 2);
    EXPECT_EQ(cloud.viewpoint.has_value(), format == CloudFormat::pcd);
  }
}

TEST(Clouds, EveryTruncationIsRefused) {
  for (const Sample& sample : samples()) {
    for (std::size_t size = 0; size + 3 < sample.bytes.size(); ++size) {  // "inf" may end the text
      const std::string cut(sample.bytes, 0, size);
      EXPECT_TRUE(sentence([&] { read(cut, sample.format); }).starts_with("test: ")) << size << " of " << sample.bytes;
    }
  }
}

TEST(Clouds, EveryChangedByteIsReadOrRefused) {
  for (const Sample& sample : samples()) {
    for (std::size_t k = 0; k < sample.bytes.size(); ++k) {
      for (const char change : {'\x01', '\x10', '\x80', '\xff'}) {
        std::string changed = sample.bytes;
        changed[k] = static_cast<char>(changed[k] ^ change);
        const std::string text = sentence([&] { read(changed, sample.format); });
        EXPECT_TRUE(text == "no error" || text.starts_with("test: ")) << text;
      }
    }
  }
}

TEST(Clouds, CompressedCopiesMayOverlap) {
  // One literal, then copies of what is one byte back: a short one, and a long one of 264 bytes.
  const std::string data("\x00\x07\xe0\xff\x00\x20\x00", 7);
  const std::uint32_t sizes[] = {7, 1 + 264 + 3};
  const std::string head =
      "VERSION 0.7\nFIELDS x y z a\nSIZE 1 1 1 1\nTYPE U U U U\nWIDTH 67\nHEIGHT 1\nPOINTS 67\nDATA "
      "binary_compressed\n";
  const Cloud cloud = read(head + bytes_of(sizes, 8) + data, CloudFormat::pcd);
  ASSERT_NE(cloud.find("a"), nullptr);
  EXPECT_EQ(values_of<std::uint8_t>(*cloud.find("a")), std::vector<std::uint8_t>(67, 7));
  EXPECT_EQ(values_of<float>(cloud.points), std::vector<float>(67 * 3, 7));
  EXPECT_EQ(cloud.find("b"), nullptr);
}

TEST(Clouds, BinHasColumnsByFormat) {
  std::vector<float> scan(20);
  for (std::size_t k = 0; k < scan.size(); ++k) scan[k] = static_cast<float>(k);
  const Cloud kitti = read(bytes_of(scan), CloudFormat::kitti);
  EXPECT_EQ(kitti.points.shape[0], 5);
  EXPECT_EQ(values_of<float>(*kitti.find("intensity")), (std::vector<float>{3, 7, 11, 15, 19}));
  const Cloud nuscenes = read(bytes_of(scan), CloudFormat::nuscenes);
  EXPECT_EQ(nuscenes.points.shape[0], 4);
  EXPECT_EQ(values_of<float>(*nuscenes.find("ring")), (std::vector<float>{4, 9, 14, 19}));
  EXPECT_EQ(sentence([] { read(std::string(17, 'a'), CloudFormat::kitti); }),
            "test: has 17 bytes; expected points of 4 float32, 16 bytes each");
}

// ---- PNG -----------------------------------------------------------------------------------------------------------

std::string big_endian(std::uint32_t value) { return swapped(bytes_of(&value, 4), 4); }
std::string chunk(const std::string& type, const std::string& data) {
  const std::string checked = type + data;
  const auto crc = crc32_z(0, reinterpret_cast<const Bytef*>(checked.data()), checked.size());
  return big_endian(static_cast<std::uint32_t>(data.size())) + checked + big_endian(static_cast<std::uint32_t>(crc));
}
std::string png(std::uint32_t height, std::uint32_t width, const std::string& rows) {
  std::string packed(compressBound(rows.size()), '\0');
  uLongf size = packed.size();
  compress(reinterpret_cast<Bytef*>(packed.data()), &size, reinterpret_cast<const Bytef*>(rows.data()), rows.size());
  packed.resize(size);
  return std::string("\x89PNG\r\n\x1a\n") +
         chunk("IHDR", big_endian(width) + big_endian(height) + std::string("\x10\x00\x00\x00\x00", 5)) +
         chunk("IDAT", packed.substr(0, 5)) + chunk("IDAT", packed.substr(5)) + chunk("IEND", "");
}

TEST(Depth, RowsAreUnfiltered) {
  // Every row is 258, 772: each filter against the one before it.
  const std::string rows(
      "\x00\x01\x02\x03\x04"
      "\x02\x00\x00\x00\x00"
      "\x01\x01\x02\x02\x02"
      "\x03\x01\x01\x01\x01"
      "\x04\x00\x00\x00\x00",
      25);
  const Array depth = read_depth(content(png(5, 2, rows)), "test");
  EXPECT_EQ(depth.dtype, DType::u16);
  EXPECT_EQ(depth.shape, (std::vector<std::int64_t>{5, 2}));
  const std::vector<std::uint16_t> values = values_of<std::uint16_t>(depth);
  for (std::size_t k = 0; k < values.size(); ++k) EXPECT_EQ(values[k], k % 2 == 0 ? 258 : 772) << k;
}

TEST(Depth, EveryTruncationIsRefused) {
  const std::string bytes = png(2, 2, std::string(10, '\0'));
  for (std::size_t size = 0; size < bytes.size(); ++size) {
    const std::string cut(bytes, 0, size);
    EXPECT_TRUE(sentence([&] { read_depth(content(cut), "test"); }).starts_with("test: ")) << size;
  }
}

TEST(Depth, SizesAreCheckedBeforeMemoryIsTaken) {
  const std::string text =
      sentence([] { read_depth(content(png(0x7fffffffu, 0x7fffffffu, std::string(10, '\0'))), "test"); });
  EXPECT_NE(text.find("cannot hold 2147483647 by 2147483647 pixels"), std::string::npos) << text;
}

// ---- files ---------------------------------------------------------------------------------------------------------

TEST(Clouds, FilesAreRecognizedByTheirContent) {
  const std::filesystem::path path = std::filesystem::path(testing::TempDir()) / "robocache_clouds_test";
  for (const auto& [format, bytes] : samples()) {
    std::ofstream(path, std::ios::binary) << bytes;
    EXPECT_EQ(values_of<float>(read_cloud(path).points), points);
  }
  std::filesystem::remove(path);
  EXPECT_TRUE(sentence([&] { read_cloud(path); }).starts_with(path.string() + ": cannot be opened: "));
}

}  // namespace
}  // namespace robocache
