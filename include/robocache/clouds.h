// Clouds and depth images out of files: PCD, PLY, NPY, KITTI's and nuScenes' .bin, and 16-bit PNG.
//
// ```cpp no_run
// const robocache::Cloud cloud = robocache::read_cloud("scan.pcd");
// const robocache::TensorView points = cloud.points.view();  // [N, 3] float32 or float64, on the host
// const robocache::Array* const intensity = cloud.find("intensity");
// const robocache::Array depth = robocache::read_depth("frame.depth.png");  // [H, W] uint16
// ```
//
// The format is detected from the file's content. Only .bin has nothing to detect, and goes by its name: .bin is KITTI (float32
// x y z intensity), .pcd.bin nuScenes (and ring).
//
//   PCD  0.x, ascii, binary and binary_compressed. Every TYPE and SIZE, COUNT, organised clouds, VIEWPOINT. A packed
//        colour (`rgb` or `rgba` of 4 bytes) becomes the field `rgb`, uint8 [N, 3] in that order, and of `rgba` also
//        `alpha`, uint8 [N]. Fields named `_` are padding. Bytes after the last point (PCL pads files) are not read.
//   PLY  1.0, ascii and binary of both byte orders. The element `vertex` is the cloud; elements before it are skipped,
//        lists included, and what follows it is not read. A list among the properties of a vertex is refused.
//   NPY  1.0 to 3.0. [N, C] or [H, W, C] with C >= 3: x, y, z, and the other columns as the field `extra`. Structured
//        arrays [N] or [H, W] with fields x, y, z. Bool, integers, float16 to float64; both byte and memory orders
//        (Fortran's for arrays of up to two dimensions).
//   PNG  16 bits, grayscale, not interlaced: the values as they are stored, no gamma.
//
// Values are as in the file: points that are not finite stay. Points are float32 where that type holds x, y and z exactly
// (float16, float32, integers of 8 and 16 bits), else float64.
//
// Errors. Every call throws robocache::Error(file), with a sentence that begins with the file's name, where the file is
// missing, truncated, lies about its sizes or fields, or holds text where numbers belong.
// Limits. A file may be hostile: sizes are checked against the bytes that are there before memory is taken. Beyond the file's
// content that is at most 4 times its size (bytes that become float32 points), 8 times for text (numbers of one digit that
// become float64), and for compressed data what its compression can reach: 5 times 88 (LZF), 3 times 1,032 (PNG). A file has at
// most max_cloud_fields fields, each of at most max_cloud_count values a point.
// Determinism. Every run gives the same bits, whatever the number of threads.
// Threads. Any number of threads may call at the same time.
// Cost. One read, and one pass over the bytes on all host threads (compressed data: on one).
#pragma once

#include <robocache/array.h>
#include <robocache/error.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#pragma GCC visibility push(default)  // the shared library exports what follows

namespace robocache {

inline constexpr std::size_t max_cloud_fields = 1024;
inline constexpr std::int64_t max_cloud_count = 1 << 20;

struct Field {
  std::string name;
  Array values;  // [N], or [N, count]; the dtype of the file
};

struct Cloud {
  Array points{};               // [N, 3]
  std::vector<Field> fields{};  // all but x, y and z, in the order of the file; no name comes twice
  std::int64_t height = 1;      // over 1: an organised cloud, point (row, column) is points[row * width + column]
  std::int64_t width = 0;       // height * width is N
  std::optional<std::array<double, 7>> viewpoint{};  // PCD: where the sensor was, x y z and the quaternion w x y z

  // nullptr: there is no field of that name.
  const Array* find(std::string_view name) const;
};

Cloud read_cloud(const std::filesystem::path& path);
Array read_depth(const std::filesystem::path& path);

enum class CloudFormat : std::uint8_t { pcd, ply, npy, kitti, nuscenes };

// The same from memory: the content of a file, and a name for sentences.
Cloud read_cloud(std::span<const std::byte> content, CloudFormat format, std::string_view name);
Array read_depth(std::span<const std::byte> content, std::string_view name);

}  // namespace robocache

#pragma GCC visibility pop
