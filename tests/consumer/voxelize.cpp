// RoboCache from somebody else's project: a scan out of a PCD file, as a grid of counts and of mean intensities.
#include <robocache/robocache.h>

#include "expect.h"

#include <array>
#include <cstdint>
#include <cstdio>
#include <fstream>

namespace rc = robocache;

int main() {
  std::ofstream("scan.pcd") << "VERSION 0.7\nFIELDS x y z intensity\nSIZE 4 4 4 4\nTYPE F F F F\nCOUNT 1 1 1 1\n"
                               "WIDTH 5\nHEIGHT 1\nPOINTS 5\nDATA ascii\n"
                               "0.1 0.1 0.2 10\n"
                               "0.4 0.3 0.2 20\n"
                               "0.7 0.1 0.2 30\n"
                               "nan nan nan 0\n"  // nothing came back
                               "9.0 0.1 0.2 40\n";

  std::array<std::int32_t, 2> counts{};
  std::array<float, 2> means{};
  std::array<std::int64_t, rc::drop_reasons> dropped{};
  try {
    const rc::Cloud cloud = rc::read_cloud("scan.pcd");
    const rc::Array* intensity = cloud.find("intensity");
    expect(intensity != nullptr, "the file has a field of that name");
    if (intensity == nullptr) return 1;

    const rc::TensorView features =
        rc::TensorView::contiguous(intensity->data.get(), intensity->dtype, {cloud.width, 1});
    const rc::Grid grid{.origin = {0, 0, 0}, .voxel_size = {0.5, 0.5, 0.5}, .shape = {2, 1, 1}};
    const std::array<rc::VoxelOutput, 2> outputs = {{
        {rc::Reduction::count, rc::TensorView::contiguous(counts.data(), rc::DType::i32, {2, 1, 1})},
        {rc::Reduction::mean, rc::TensorView::contiguous(means.data(), rc::DType::f32, {2, 1, 1, 1})},
    }};
    rc::voxelize({}, {.points = cloud.points.view(), .features = features}, grid, {}, outputs,
                 rc::TensorView::contiguous(dropped.data(), rc::DType::i64, {1, rc::drop_reasons}));
  } catch (const rc::Error& error) {
    std::fprintf(stderr, "consumer: %s\n", error.what());
    return 1;
  }

  std::printf("cell  points  mean intensity\n");
  for (std::size_t k = 0; k < 2; ++k) std::printf("%4zu  %6d  %14.1f\n", k, counts[k], means[k]);
  std::printf("not finite: %lld, outside: %lld\n", static_cast<long long>(dropped[1]),
              static_cast<long long>(dropped[3]));
  expect(counts == std::array<std::int32_t, 2>{2, 1}, "two points in the first cell, one in the second");
  expect(means == std::array<float, 2>{15, 30}, "the mean of a cell's points");
  expect(dropped == std::array<std::int64_t, 4>{0, 1, 0, 1}, "what reached no cell is counted, with its reason");

  // A file that is not there gets a sentence, and the library works on.
  try {
    rc::read_cloud("no such scan.pcd");
    expect(false, "a file that is not there must be refused");
  } catch (const rc::Error& error) {
    std::printf("refused as it must: %s\n", error.what());
    expect(error.kind() == rc::ErrorKind::file, "a file that is not there is an Error of the kind file");
  }
  return mismatches == 0 ? 0 : 1;
}
