// Every backend against the reference, byte for byte, on random volumes and images; then values that can be told by hand,
// the surface, and the sentences for bad input.
#include <gtest/gtest.h>
#include <robocache/robocache.h>

#include <cmath>
#include <limits>
#include <string>

#include "ops/arrays.h"
#include "ops/compare.h"
#include "ops/device.h"
#include "ops/golden.h"
#include "sentence.h"

namespace robocache::test {
namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();
constexpr double not_a_number = std::numeric_limits<double>::quiet_NaN();

class Case : private Random {
 public:
  explicit Case(unsigned seed) : Random(seed) {
    make_grid();
    make_images();
    make_volume();
  }

  // The volume after one call, or one for each image; then the offsets and the points of its surface.
  Bytes run(Backend backend, DeviceKind where, bool together = true) {
    Array values = values_.fresh(), weights = weights_.fresh();
    const TensorView v = values.view(where), w = weights.view(where);
    for (std::int64_t c = 0; c < (together ? 1 : cameras_); ++c) {
      DepthImages images = images_;
      images.depth = depth_.view(where);
      images.intrinsics = intrinsics_.view(where);
      images.poses = poses_.view(where);
      if (!together) {
        take(images.depth, 3, c);
        take(images.intrinsics, matrix_ ? 3 : 2, c);
        take(images.poses, 3, c);
      }
      tsdf_integrate({.backend = backend}, images, grid_, truncation_, v, w);
    }
    const std::int64_t lines = grid_.shape[0] * grid_.shape[1];
    Array offsets = poisoned(DType::i64, {lines + 1});
    tsdf_surface_count({.backend = backend}, grid_, v, w, offsets.view(where));
    synchronize();
    offsets.fetch();
    std::int64_t count = 0;
    std::memcpy(&count, offsets.bytes().data() + 8 * lines, 8);
    Array points = poisoned(DType::f32, {count, 3});
    tsdf_surface_points({.backend = backend}, grid_, v, w, offsets.view(where), points.view(where));
    synchronize();
    values.fetch();
    weights.fetch();
    points.fetch();
    found += count;
    return {values.bytes(), weights.bytes(), offsets.bytes(), points.bytes()};
  }

  bool several() const { return batched_; }
  std::int64_t found = 0;

 private:
  // Image c of an array that has one for each.
  static void take(TensorView& view, int rank, std::int64_t c) {
    if (view.rank != rank) return;
    view.data = static_cast<char*>(view.data) + c * view.strides[0] * size_of(view.dtype);
    std::copy(view.shape.begin() + 1, view.shape.end(), view.shape.begin());
    std::copy(view.strides.begin() + 1, view.strides.end(), view.strides.begin());
    --view.rank;
  }

  static Array poisoned(DType dtype, const std::vector<std::int64_t>& shape) {
    return {dtype, shape, std::vector<unsigned char>(static_cast<std::size_t>(product(shape) * size_of(dtype)), 0xa5)};
  }

  void make_grid() {
    for (std::size_t axis = 0; axis < 3; ++axis) {
      grid_.shape[axis] = axis == 2 ? pick({1, 3, 8, 17, 40, 130, chance(20) ? 300 : 64}) : pick({1, 3, 8, 17});
      grid_.voxel_size[axis] = 2.0 / static_cast<double>(grid_.shape[axis]) * real(0.8, 1.2);
      grid_.origin[axis] = axis == 2 ? pick_of({0.1, -0.7}) : -1.0;
      centre_[axis] = grid_.origin[axis] + grid_.voxel_size[axis] * static_cast<double>(grid_.shape[axis]) / 2;
    }
    truncation_ = pick_of({0.05, 0.2, 1.0, 1e-30, 1e30});
    if (chance(70)) truncation_ = 0.3;
  }

  void make_images() {
    const auto dtype = pick_of({DType::u16, DType::f16, DType::f32, DType::f64});
    batched_ = chance(60);
    if (batched_) cameras_ = pick({0, 1, 2, 5, chance(20) ? 70 : 3});
    const std::int64_t height = chance(5) ? 0 : pick({1, 7, 48});
    const std::int64_t width = pick({1, 9, 64, 30});
    std::vector<std::int64_t> shape{height, width};
    if (batched_) shape.insert(shape.begin(), cameras_);
    depth_.shape = shape;
    depth_.steps.assign(shape.size(), 1);
    if (chance(40)) {
      for (std::size_t k = shape.size() - 2; k < shape.size(); ++k) {
        depth_.steps[k] = pick({1, 2, 3});
        shape[k] *= depth_.steps[k];
      }
      depth_.backwards = chance(50);
    }
    const bool metres = dtype != DType::u16;
    const double wall = real(0.5, 2);
    depth_.base = numbers(dtype, shape, [&]() -> double {
      if (chance(5)) return metres ? pick_of({0.0, -0.0, -1.0, infinity, not_a_number, 0.5, 1e-40}) : pick({0, 65535});
      const double z = chance(60) ? wall + real(-0.05, 0.05) : real(0, 2.5);
      return metres ? z : std::round(1000 * z);
    });
    if (chance(20)) images_.depth_scale = metres ? 1.5 : 0.0005;
    if (chance(20)) images_.depth_min = 0.4;
    if (chance(20)) images_.depth_max = 1.7;
    if (chance(40)) images_.invalid = {0, 65535, 0.5};
    if (chance(10)) images_.invalid.clear();

    const auto each = [&] { return batched_ && chance(60); };
    const auto wide = [&] { return pick_of({DType::f32, DType::f64}); };
    matrix_ = chance(50);
    const bool own = each();
    std::vector<double> list;
    for (std::int64_t c = 0; c < (own ? cameras_ : 1); ++c) {
      const double fx = static_cast<double>(width) * real(0.3, 0.8), fy = static_cast<double>(width) * real(0.3, 0.8);
      const double cx = static_cast<double>(width) / 2 - 0.5, cy = static_cast<double>(height) / 2 - 0.5;
      const std::vector<double> one =
          matrix_ ? std::vector{fx, 0.0, cx, 0.0, fy, cy, 0.0, 0.0, 1.0} : std::vector{fx, fy, cx, cy};
      list.insert(list.end(), one.begin(), one.end());
    }
    std::vector<std::int64_t> lens = own ? std::vector{cameras_} : std::vector<std::int64_t>{};
    matrix_ ? lens.insert(lens.end(), {3, 3}) : lens.insert(lens.end(), 4);
    intrinsics_ = listed(wide(), list, lens);

    if (chance(20)) return;  // a camera at the grid's own origin
    const bool posed = each();
    list.clear();
    for (std::int64_t c = 0; c < (posed ? cameras_ : 1); ++c) {
      const auto pose = rigid(*this, centre_);
      list.insert(list.end(), pose.begin(), pose.end());
    }
    poses_ = listed(wide(), list, posed ? std::vector<std::int64_t>{cameras_, 4, 4} : std::vector<std::int64_t>{4, 4});
  }

  // As every volume begins, or in the middle of its life, or with what nobody should have written there.
  void make_volume() {
    const std::vector<std::int64_t> shape(grid_.shape.begin(), grid_.shape.end());
    const bool fresh = chance(50), odd = chance(30);
    const auto draw = [&](double start, auto next) {
      return numbers(DType::f32, shape, [&] {
        if (fresh) return start;
        return odd && chance(3) ? pick_of({not_a_number, infinity, -0.0, 0.0, 1e-42, 3e38, 16777216.0, -2.0}) : next();
      });
    };
    values_ = draw(1, [&] { return chance(20) ? 0.0 : real(-1, 1); });
    weights_ = draw(0, [&] { return static_cast<double>(uniform(0, 3)); });
  }

  Grid grid_;
  std::array<double, 3> centre_{};
  double truncation_ = 0;
  bool batched_ = false, matrix_ = false;
  std::int64_t cameras_ = 1;
  DepthImages images_;  // its numbers
  Seen depth_;
  Array intrinsics_ = absent(), poses_ = absent(), values_, weights_;
};

constexpr unsigned cases = 1500;

TEST(Tsdf, CpuEqualsReferenceAtEverySimdTarget) {
  std::int64_t found = 0;
  for (unsigned seed = 0; seed < cases; ++seed) {
    Case one(seed);
    expect_cpu_equals_reference(seed_name(seed), [&](Backend backend) { return one.run(backend, DeviceKind::cpu); });
    found += one.found;
  }
  EXPECT_GT(found, 1000 * static_cast<std::int64_t>(cases));  // the cases do have surfaces
}

TEST(Tsdf, GivesTheGoldenHashes) {
  static constexpr std::string_view hashes[] = {
#include "golden/drawn_tsdf.txt"
  };
  expect_golden("drawn_tsdf.txt", hashes,
                [](unsigned seed, Backend backend, DeviceKind where) { return Case(seed).run(backend, where); });
}

TEST(Tsdf, ImagesTogetherAndOneByOneAreTheSame) {
  for (unsigned seed = 0; seed < cases / 5; ++seed) {
    Case one(seed);
    if (!one.several()) continue;
    EXPECT_EQ(difference(one.run(Backend::cpu, DeviceKind::cpu, false), one.run(Backend::cpu, DeviceKind::cpu)), "")
        << "seed " << seed;
  }
}

TEST(Tsdf, CudaEqualsReference) {
  if (!has_cuda()) GTEST_SKIP() << no_cuda();
  for (unsigned seed = 0; seed < 2 * cuda_cases(); ++seed) {
    Case one(seed);
    expect_cuda_equals_reference(seed_name(seed),
                                 [&](Backend backend, DeviceKind where) { return one.run(backend, where); });
  }
}

// ---- by hand -------------------------------------------------------------------------------------------------------

// One voxel after another before a camera at the origin that looks along z, its pixel (0, 0) in the middle.
struct Column {
  explicit Column(std::int64_t length, double size = 0.5)
      : grid{{-size / 2, -size / 2, 0}, {size, size, size}, {1, 1, length}},
        values(static_cast<std::size_t>(length), 1.0F),
        weights(static_cast<std::size_t>(length), 0.0F) {}

  TensorView view(std::vector<float>& data) const {
    return TensorView::contiguous(data.data(), DType::f32, grid.shape);
  }
  void integrate(float depth, double truncation, Backend backend = Backend::automatic) {
    DepthImages images;
    images.depth = TensorView::contiguous(&depth, DType::f32, {1, 1});
    images.intrinsics = TensorView::contiguous(intrinsics, DType::f64, {4});
    tsdf_integrate({.backend = backend}, images, grid, truncation, view(values), view(weights));
  }
  std::vector<float> surface() {
    std::vector<std::int64_t> offsets(static_cast<std::size_t>(grid.shape[0] * grid.shape[1]) + 1);
    const auto lines = TensorView::contiguous(offsets.data(), DType::i64, {static_cast<std::int64_t>(offsets.size())});
    tsdf_surface_count({}, grid, view(values), view(weights), lines);
    std::vector<float> points(static_cast<std::size_t>(3 * offsets.back()));
    tsdf_surface_points({}, grid, view(values), view(weights), lines,
                        TensorView::contiguous(points.data(), DType::f32, {offsets.back(), 3}));
    return points;
  }

  Grid grid;
  std::vector<float> values, weights;
  double intrinsics[4] = {1, 1, 0, 0};
};

TEST(Tsdf, DistancesAreOfTheTruncationAndEndBehindIt) {
  Column column(8);  // centres at 0.25, 0.75, ...
  column.integrate(2.0F, 0.5);
  EXPECT_EQ(column.values, (std::vector<float>{1, 1, 1, 0.5F, -0.5F, 1, 1, 1}));
  EXPECT_EQ(column.weights, (std::vector<float>{1, 1, 1, 1, 1, 0, 0, 0}));
  column.integrate(2.5F, 0.5);
  EXPECT_EQ(column.values, (std::vector<float>{1, 1, 1, 0.75F, 0, -0.5F, 1, 1}));
  EXPECT_EQ(column.weights, (std::vector<float>{2, 2, 2, 2, 2, 1, 0, 0}));
}

TEST(Tsdf, AVoxelAtMinusTheTruncationIsSeen) {
  Column column(4);
  column.integrate(0.75F, 0.5);  // the third centre, at 1.25, is 0.5 behind
  EXPECT_EQ(column.weights, (std::vector<float>{1, 1, 1, 0}));
  EXPECT_EQ(column.values[2], -1.0F);
}

TEST(Tsdf, WeightsStopAtTwoToThe24) {
  for (const Backend backend : {Backend::reference, Backend::cpu}) {
    Column column(1);
    column.weights[0] = 0x1p24F;
    column.integrate(9.0F, 0.5, backend);
    EXPECT_EQ(column.weights[0], 0x1p24F);
    EXPECT_EQ(column.values[0], 1.0F);
  }
}

TEST(Tsdf, WhatIsBehindTheCameraIsNotSeen) {
  Column column(4);
  column.grid.origin[2] = -1;  // centres at -0.75, -0.25, 0.25, 0.75
  column.integrate(5.0F, 0.5);
  EXPECT_EQ(column.weights, (std::vector<float>{0, 0, 1, 1}));
}

TEST(Tsdf, TheSurfaceIsWhereTheLineBetweenTwoValuesIsZero) {
  Column column(8);
  column.integrate(2.0F, 0.5);
  EXPECT_EQ(column.surface(), (std::vector<float>{0, 0, 2}));
  column.weights[4] = 0;  // the voxel behind it was never seen
  EXPECT_TRUE(column.surface().empty());
}

TEST(Tsdf, AZeroIsOneSurface) {
  Column column(5);
  column.weights.assign(5, 1);
  column.values = {1, 0, -1, -0.0F, 1};
  // Between the first zero and what is below it, and between that and the second: each at the zero itself.
  EXPECT_EQ(column.surface(), (std::vector<float>{0, 0, 0.75F, 0, 0, 1.75F}));
  column.values = {1, 0, 0, 0.5F, static_cast<float>(not_a_number)};
  EXPECT_TRUE(column.surface().empty());
}

TEST(Tsdf, PointsComeByVoxelThenAxis) {
  Column column(8);
  column.grid = {{0, 0, 0}, {1, 1, 1}, {2, 2, 2}};
  column.weights.assign(8, 1);
  column.values = {-1, 1, 1, 1, 1, 1, 1, -3};
  EXPECT_EQ(column.surface(),
            (std::vector<float>{1, 0.5F, 0.5F, 0.5F, 1, 0.5F, 0.5F, 0.5F, 1,  // about (0, 0, 0)
                                0.75F, 1.5F, 1.5F,                            // (0, 1, 1) along x
                                1.5F, 0.75F, 1.5F, 1.5F, 1.5F, 0.75F}));      // (1, 0, 1) along y, (1, 1, 0) along z
}

TEST(Tsdf, OffsetsOfAnotherVolumeWriteNothingOutside) {
  Column column(8);
  column.integrate(2.0F, 0.5);
  for (const std::int64_t start : {std::int64_t{-5}, std::int64_t{1}, std::numeric_limits<std::int64_t>::max() - 9}) {
    const std::int64_t offsets[] = {start, start + 1};
    float points[6] = {7, 7, 7, 7, 7, 7};
    tsdf_surface_points({}, column.grid, column.view(column.values), column.view(column.weights),
                        TensorView::contiguous(offsets, DType::i64, {2}),
                        TensorView::contiguous(points, DType::f32, {1, 3}));
    for (const float x : points) EXPECT_EQ(x, 7.0F);
  }
}

// ---- sentences -----------------------------------------------------------------------------------------------------

class TsdfSentences : public testing::Test {
 protected:
  TsdfSentences() {
    images.depth = TensorView::contiguous(depth, DType::u16, {2, 2, 3});
    images.intrinsics = TensorView::contiguous(intrinsics, DType::f64, {4});
    values = TensorView::contiguous(volume, DType::f32, {1, 1, 2});
    weights = TensorView::contiguous(volume + 2, DType::f32, {1, 1, 2});
    offsets = TensorView::contiguous(lines, DType::i64, {2});
  }
  std::string said() {
    const std::string text = sentence([&] { tsdf_integrate(context, images, grid, truncation, values, weights); });
    for (const float x : volume) EXPECT_EQ(x, 42.0F) << text;  // nothing was written
    return text;
  }
  std::string surface_said() {
    return sentence([&] { tsdf_surface_points(context, grid, values, weights, offsets, points); });
  }

  std::uint16_t depth[12] = {};
  double intrinsics[4] = {2, 2, 1, 1};
  float volume[4] = {42, 42, 42, 42};
  std::int64_t lines[2] = {};
  Context context;
  DepthImages images;
  Grid grid{{0, 0, 0}, {1, 1, 1}, {1, 1, 2}};
  double truncation = 0.5;
  TensorView values, weights, offsets, points;
};

TEST_F(TsdfSentences, Volumes) {
  for (const double wrong : {0.0, -1.0, infinity, not_a_number}) {
    truncation = wrong;
    EXPECT_NE(said().find("; it must be positive and finite"), std::string::npos);
  }
  truncation = 0;
  EXPECT_EQ(said(), "tsdf: truncation is 0; it must be positive and finite");
  truncation = 1e-60;
  EXPECT_EQ(said(), "tsdf: truncation 1e-60 is beyond float32, in which uint16 is computed; give float64");
  truncation = 0.5;
  grid.shape = {1, 0, 2};
  EXPECT_EQ(said(), "Grid: the shape is [1, 0, 2]; every size must be positive");
  grid.shape = {1, 2, 2};
  EXPECT_EQ(said(), "tsdf: values has shape [1, 1, 2]; expected [1, 2, 2]");
  grid.shape = {1, 1, 2};
  weights.dtype = DType::i32;
  EXPECT_EQ(said(), "tsdf: weights is int32; it must be float32");
  weights = {};
  EXPECT_EQ(said(), "tsdf: weights are missing");
  values.strides[2] = 2;
  EXPECT_EQ(said(), "tsdf: values must be contiguous");
}

TEST_F(TsdfSentences, Images) {
  const DepthImages whole = images;
  const TensorView depths = images.depth;
  images.depth = {};
  EXPECT_EQ(said(), "tsdf: depth is missing");
  images.depth = TensorView::contiguous(depth, DType::i16, {2, 2, 3});
  EXPECT_EQ(said(), "tsdf: depth is int16; it must be uint16, float16, float32 or float64");
  images.depth = TensorView::contiguous(depth, DType::u16, {12});
  EXPECT_EQ(said(), "tsdf: depth has shape [12]; expected [H, W] or [cameras, H, W]");
  images.depth = TensorView::contiguous(depth, DType::u16, {1, (1 << 24) + 1});
  EXPECT_EQ(said(), "tsdf: depth has shape [1, 16777217]; at most 2^24 pixels along a side");
  images.depth = depths;
  images.intrinsics = {};
  EXPECT_EQ(said(), "tsdf: intrinsics are missing");
  images.rays = depths;
  EXPECT_EQ(said(), "tsdf: rays say where a pixel looks, and here voxels look for their pixel; give intrinsics");
  images = whole;
  images.into = depths;
  EXPECT_EQ(said(), "tsdf: into is for several grids; there is one volume");
  images = whole;
  images.features = depths;
  EXPECT_EQ(said(), "tsdf: features cannot be integrated; leave them out");
  images = whole;
  images.crop = Box{};
  EXPECT_EQ(said(), "tsdf: crop is for points; take a smaller grid");
  images = whole;
  double poses[32] = {1, 0, 0, 5, 0, 1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1};
  std::copy_n(poses, 16, poses + 16);
  images.poses = TensorView::contiguous(poses, DType::f64, {2, 4, 4});
  poses[16 + 5] = -1;  // a mirror
  EXPECT_EQ(said(),
            "tsdf: pose[1] is not rigid: its 3x3 part must be a rotation and its last row (0, 0, 0, 1), both to 0.001");
  images.poses = TensorView::contiguous(poses, DType::f64, {4, 4, 2});
  EXPECT_EQ(said(), "tsdf: pose has shape [4, 4, 2]; expected [4, 4] or [clouds, 4, 4]");
  images.poses = TensorView::contiguous(poses, DType::f64, {1, 4, 4});
  EXPECT_EQ(said(), "tsdf: pose has shape [1, 4, 4] for 2 cameras; expected one for all, or one for each");
  images.poses = {};
  context.backend = Backend::cuda;
  EXPECT_EQ(said(), "tsdf: backend cuda needs arrays on a GPU, and these are on the CPU");
}

TEST_F(TsdfSentences, Surfaces) {
  EXPECT_EQ(surface_said(), "tsdf: points are missing");
  points = TensorView::contiguous(volume, DType::f32, {1, 2});
  EXPECT_EQ(surface_said(), "tsdf: points has shape [1, 2]; expected [1, 3]");
  offsets = TensorView::contiguous(lines, DType::i64, {1});
  EXPECT_EQ(surface_said(), "tsdf: offsets has shape [1]; expected [2]");
  offsets = {};
  EXPECT_EQ(surface_said(), "tsdf: offsets are missing");
  values = {};
  EXPECT_EQ(surface_said(), "tsdf: values are missing");
}

TEST(Tsdf, CudaRaisesWhatTheDataHidInTheNextCall) {
  if (!has_cuda()) GTEST_SKIP() << no_cuda();
  Array depth(DType::u16, {1, 1}, std::vector<unsigned char>(2));
  Array lens = listed<double>(DType::f64, {1, 1, 0, 0}, {4});
  Array pose = listed<double>(DType::f64, std::vector<double>(16, 2.0), {4, 4});
  Array values(DType::f32, {1, 1, 1}, std::vector<unsigned char>(4));
  Array weights(DType::f32, {1, 1, 1}, std::vector<unsigned char>(4));
  DepthImages images;
  images.depth = depth.view(DeviceKind::cuda);
  images.intrinsics = lens.view(DeviceKind::cuda);
  images.poses = pose.view(DeviceKind::cuda);
  tsdf_integrate({}, images, {{0, 0, 0}, {1, 1, 1}, {1, 1, 1}}, 0.5, values.view(DeviceKind::cuda),
                 weights.view(DeviceKind::cuda));
  EXPECT_NE(sentence([] { synchronize(); }).find("tsdf: pose[0] is not rigid"), std::string::npos);
  EXPECT_EQ(sentence([] { synchronize(); }), "no error");
}

}  // namespace
}  // namespace robocache::test
