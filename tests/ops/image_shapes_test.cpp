// Frames of the shapes that each kernel of image has been written for: every backend against the reference, byte for byte.
// tests/ops/image_test.cpp draws small frames of any strides; these are dense, and larger.
#include <gtest/gtest.h>
#include <robocache/robocache.h>

#include <string>

#include "ops/arrays.h"
#include "ops/compare.h"
#include "ops/device.h"

namespace robocache::test {
namespace {

struct Shape {
  std::vector<std::int64_t> frames;  // [N, H, W, C]
  ImageSize size{};                  // no rows: keeps its size
  ImageSize crop{};                  // no rows: none
  Filter filter = Filter::bilinear;
  bool at_random = false;  // the crop lies elsewhere in each frame, so that rows begin at any byte
  Fit fit = Fit::stretch;
};

const Shape shapes[] = {
    // Copies: whole frames, rows that are a multiple of 16 bytes, rows that are not, crops.
    {.frames = {3, 24, 32, 3}},
    {.frames = {2, 9, 7, 3}},
    {.frames = {2, 40, 48, 4}, .crop = {32, 16}},
    {.frames = {5, 40, 50, 3}, .crop = {32, 48}, .at_random = true},
    {.frames = {3, 20, 40, 1}, .crop = {16, 32}, .at_random = true},
    // Tiles: up to 8, 16 and 32 taps, both ways; several tiles in a row and one below the other; padding.
    {.frames = {2, 120, 160, 3}, .size = {56, 56}},
    {.frames = {1, 60, 90, 3}, .size = {130, 700}},
    {.frames = {1, 100, 101, 4}, .size = {150, 77}, .filter = Filter::bicubic},
    {.frames = {2, 240, 321, 3}, .size = {40, 60}},
    {.frames = {1, 300, 402, 1}, .size = {30, 31}},
    {.frames = {1, 480, 640, 3}, .size = {224, 224}, .fit = Fit::contain},
    {.frames = {2, 90, 641, 3}, .size = {70, 300}, .crop = {64, 270}, .at_random = true},
    {.frames = {1, 64, 3000, 1}, .size = {16, 290}, .filter = Filter::box},
    // Too many taps for a tile.
    {.frames = {2, 500, 40, 3}, .size = {7, 33}},
    {.frames = {1, 30, 1200, 4}, .size = {40, 5}, .filter = Filter::bicubic},
    {.frames = {1, 999, 1, 3}, .size = {1, 1}, .filter = Filter::box},
};

struct Values {
  DType dtype;
  ImageLayout layout;
};
constexpr Values all_values[] = {
    {DType::u8, ImageLayout::nhwc},  {DType::u8, ImageLayout::nchw},   {DType::f16, ImageLayout::nhwc},
    {DType::f16, ImageLayout::nchw}, {DType::bf16, ImageLayout::nhwc}, {DType::bf16, ImageLayout::nchw},
    {DType::f32, ImageLayout::nhwc}, {DType::f32, ImageLayout::nchw},
};

class Case : private Random {
 public:
  Case(unsigned seed, const Shape& shape, const Values& values) : Random(seed) {
    frames_ = numbers(DType::u8, shape.frames, [&] {
      return static_cast<double>(chance(20) ? pick({0, 255}) : uniform(0, 255));
    });
    options_ = {.fit = shape.fit, .filter = shape.filter, .pad = {9}, .dtype = values.dtype, .layout = values.layout};
    if (shape.size.height > 0) options_.size = shape.size;
    if (shape.crop.height > 0) options_.crop = shape.crop;
    const std::int64_t count = shape.frames[0];
    if (shape.at_random) {
      const std::int64_t height = options_.size ? shape.size.height : shape.frames[1];
      const std::int64_t width = options_.size ? shape.size.width : shape.frames[2];
      bool is_left = true;
      offsets_ = numbers(DType::i64, {count + 1, 2}, [&] {
        is_left = !is_left;
        return static_cast<double>(uniform(0, is_left ? width - shape.crop.width : height - shape.crop.height));
      });
    }
    rows_ = numbers(DType::i32, {count + 1}, [&] { return static_cast<double>(uniform(0, count - 1)); });
    if (values.dtype != DType::u8) {
      options_.mean = {0.4};
      options_.std = {0.3};
      if (shape.frames[3] == 3) options_.mean = {0.485, 0.456, 0.406};
    }
  }

  Bytes run(Backend backend, DeviceKind where) {
    const Frames frames{.pixels = frames_.view(where), .rows = rows_.view(where)};
    ImageOptions options = options_;
    options.crop_offsets = offsets_.view(where);
    const TensorView wanted = image_output(frames, options);
    const std::vector<std::int64_t> shape(wanted.shape.begin(), wanted.shape.begin() + wanted.rank);
    const auto bytes = static_cast<std::size_t>(product(shape) * size_of(wanted.dtype));
    Array out(wanted.dtype, shape, std::vector<unsigned char>(bytes, 0xa5));
    image({.backend = backend}, frames, options, out.view(where));
    synchronize();
    out.fetch();
    return {out.bytes()};
  }

 private:
  Array frames_, rows_, offsets_ = absent();
  ImageOptions options_;
};

// Calls f(case, its name) for all of them.
template <class F>
void for_all(const F& f) {
  for (std::size_t s = 0; s < std::size(shapes); ++s) {
    for (std::size_t v = 0; v < std::size(all_values); ++v) {
      Case one(static_cast<unsigned>(s), shapes[s], all_values[v]);
      f(one, "shape " + std::to_string(s) + ", values " + std::to_string(v));
    }
  }
}

TEST(ImageShapes, CpuEqualsReferenceAtEverySimdTarget) {
  for_all([&](Case& one, const std::string& name) {
    expect_cpu_equals_reference(name, [&](Backend backend) { return one.run(backend, DeviceKind::cpu); });
  });
}

TEST(ImageShapes, CudaEqualsReference) {
  if (!has_cuda()) GTEST_SKIP() << no_cuda();
  for_all([](Case& one, const std::string& name) {
    expect_cuda_equals_reference(name, [&](Backend backend, DeviceKind where) { return one.run(backend, where); });
  });
}

}  // namespace
}  // namespace robocache::test
