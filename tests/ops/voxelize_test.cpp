// Every backend against the reference, byte for byte, on random calls that cover the whole surface of voxelize and
// voxelize_depth; then the points that lie where two answers seem possible, and the sentences for bad input.
#include <gtest/gtest.h>
#include <robocache/robocache.h>

#include <cmath>
#include <functional>
#include <limits>
#include <numeric>
#include <optional>
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

struct WantedOutput {
  Reduction reduction;
  Array values;
};

class Case : private Random {
 public:
  explicit Case(unsigned seed) : Random(seed), depth_(chance(45)) {
    make_grid();
    depth_ ? make_images() : make_clouds();
    make_scene();
    make_outputs();
  }

  Bytes run(Backend backend, DeviceKind where) {
    std::vector<Array> arrays;
    for (const WantedOutput& output : outputs_) arrays.push_back(output.values.fresh());
    arrays.push_back(dropped_.fresh());
    std::vector<VoxelOutput> outputs;
    for (std::size_t k = 0; k < outputs_.size(); ++k) {
      outputs.push_back({outputs_[k].reduction, arrays[k].view(where)});
    }
    const TensorView dropped = arrays.back().view(where);
    if (depth_) {
      voxelize_depth({.backend = backend}, images(where), grid_, options_, outputs, dropped);
    } else {
      voxelize({.backend = backend}, clouds(where), grid_, options_, outputs, dropped);
    }
    return fetched(arrays);
  }

  Bytes run_sparse(Backend backend, DeviceKind where, std::int64_t max_voxels) {
    const SparseOptions options{.empty = options_.empty, .max_voxels = max_voxels, .grids = grids_, .first = first_};
    std::vector<Array> arrays{dropped_.fresh()};
    const TensorView dropped = arrays[0].view(where);
    const SparseRows rows = [&](std::int64_t count) {
      SparseOutput output;
      const auto add = [&](DType dtype, std::vector<std::int64_t> shape) {
        arrays.push_back(poisoned(dtype, shape));
        return arrays.back().view(where);
      };
      output.coordinates = add(DType::i64, {count, 4});
      output.counts = add(DType::i32, {count});
      output.point_to_voxel = add(DType::i64, lead_);
      output.found = add(DType::i64, {2});
      if (first_ > 0) {
        output.first = add(computed(), {count, first_, 3 + channels_.value_or(0)});
        output.first_counts = add(DType::i32, {count});
      }
      for (const WantedOutput& wanted : outputs_) {
        if (wanted.reduction == Reduction::occupancy_bits) continue;
        const bool has_channels = wanted.reduction >= Reduction::sum;
        const auto shape = has_channels ? std::vector{count, *channels_} : std::vector{count};
        output.values.push_back({wanted.reduction, add(type_of(wanted.reduction), shape)});
      }
      return output;
    };
    if (depth_) {
      voxelize_depth_sparse({.backend = backend}, images(where), grid_, options, rows, dropped);
    } else {
      voxelize_sparse({.backend = backend}, clouds(where), grid_, options, rows, dropped);
    }
    return fetched(arrays);
  }

  // The cloud's points; nothing where the case is one of depth, or where the points span too many voxels.
  Bytes run_downsample(Backend backend, DeviceKind where) {
    if (depth_) return {};
    std::vector<Array> arrays{dropped_.fresh()};
    const TensorView dropped = arrays[0].view(where);
    const DownsampleRows rows = [&](std::int64_t count) {
      const auto add = [&](DType dtype, std::vector<std::int64_t> shape) {
        arrays.push_back(poisoned(dtype, shape));
        return arrays.back().view(where);
      };
      return DownsampleOutput{.points = add(computed(), {count, 3}),
                              .features = channels_ ? add(DType::f32, {count, *channels_}) : TensorView{},
                              .counts = add(DType::i32, {count}),
                              .coordinates = add(DType::i64, {count, 4})};
    };
    Clouds thinned = clouds(where);
    thinned.into = {};
    try {
      voxel_downsample({.backend = backend}, thinned, {grid_.voxel_size, grid_.origin}, {}, rows, dropped);
    } catch (const Error& error) {
      const std::string text = error.what();
      EXPECT_NE(text.find("more than 2^62 in all"), std::string::npos) << text;
      return {{text.begin(), text.end()}};
    }
    return fetched(arrays);
  }

 private:
  DepthImages images(DeviceKind where) {
    DepthImages images = images_;
    fill(images, where);
    images.depth = points_.view(where);
    images.intrinsics = intrinsics_.view(where);
    images.rays = rays_.view(where);
    return images;
  }
  Clouds clouds(DeviceKind where) {
    Clouds clouds;
    fill(clouds, where);
    clouds.points = points_.view(where);
    clouds.lengths = lengths_.view(where);
    clouds.offsets = offsets_.view(where);
    return clouds;
  }
  DType computed() { return points_.base.view(DeviceKind::cpu).dtype == DType::f64 ? DType::f64 : DType::f32; }
  DType type_of(Reduction reduction) {
    if (reduction == Reduction::count) return DType::i32;
    if (reduction < Reduction::sum) return DType::u8;
    if (reduction == Reduction::sum || reduction == Reduction::mean) return DType::f32;
    return features_.base.view(DeviceKind::cpu).dtype;
  }

  void make_grid() {
    for (std::size_t axis = 0; axis < 3; ++axis) {
      grid_.shape[axis] = pick({1, 3, 8, 17, 40});
      grid_.voxel_size[axis] = depth_ ? 2.0 / static_cast<double>(grid_.shape[axis]) : pick_of({0.25, 0.1, 1.0, 0.05});
      grid_.origin[axis] = depth_ ? (axis == 2 ? 0.1 : -1.0) : pick_of({0.0, -1.0, 0.3, -1000.125});
      centre_[axis] = grid_.origin[axis] + grid_.voxel_size[axis] * static_cast<double>(grid_.shape[axis]) / 2;
    }
  }

  double coordinate(std::size_t axis, bool odd) {
    if (odd && chance(6)) {
      return pick_of({not_a_number, infinity, -infinity, -0.0, 0.0, 1e-42, -1e-42, 3e38, -3e38, 1e300, 6e4});
    }
    const auto size = static_cast<double>(grid_.shape[axis]);
    const double at = chance(30) ? static_cast<double>(uniform(-1, grid_.shape[axis] + 1)) : real(-0.1, 1.1) * size;
    return grid_.origin[axis] + grid_.voxel_size[axis] * at;
  }

  // A number of magnitude at most 4, scaled down by up to 2^binades. Every step is exact: the result does not depend on libm.
  double spread(std::int64_t binades) {
    const double x = real(-4, 4);
    return std::ldexp(x, -static_cast<int>(uniform(0, binades)));
  }

  // [lead..., columns], seen with or without gaps.
  Seen seen(DType dtype, std::vector<std::int64_t> shape, const std::function<double()>& next) {
    Seen made;
    made.shape = shape;
    made.steps.assign(shape.size(), 1);
    if (chance(40)) {
      for (std::size_t k = shape.size() >= 2 ? shape.size() - 2 : 0; k < shape.size(); ++k) {
        made.steps[k] = pick({1, 2, 3});
        shape[k] *= made.steps[k];
      }
      made.backwards = chance(50);
    }
    made.base = numbers(dtype, shape, next);
    return made;
  }

  Array integers(const std::vector<std::int64_t>& list) {
    return listed(pick_of({DType::i32, DType::i64}), list, {static_cast<std::int64_t>(list.size())});
  }

  void make_clouds() {
    const auto dtype = pick_of({DType::f32, DType::f32, DType::f16, DType::f64});
    const bool odd = chance(60);
    const std::int64_t columns = pick({3, 3, 4, 6});
    std::int64_t column = 0;
    const auto next = [&] {
      const std::int64_t axis = column++ % columns;
      return axis < 3 ? coordinate(static_cast<std::size_t>(axis), odd) : not_a_number;
    };
    const std::int64_t points = pick({0, 1, 5, 100, 3000, chance(10) ? 70000 : 700});
    switch (uniform(0, 2)) {
      case 0:
        lead_ = {points};
        break;
      case 1: {
        batched_ = true;
        clouds_ = pick({0, 1, 2, 7});
        lead_ = {clouds_, points};
        std::vector<std::int64_t> lengths;
        for (std::int64_t c = 0; c < clouds_; ++c) lengths.push_back(uniform(0, points));
        if (chance(60)) lengths_ = integers(lengths);
        break;
      }
      default: {
        batched_ = true;
        clouds_ = pick({0, 1, 3, 11});
        std::vector<std::int64_t> offsets{uniform(0, 3)};
        for (std::int64_t c = 0; c < clouds_; ++c) {
          offsets.push_back(offsets.back() + (chance(15) ? 0 : uniform(0, points)));
        }
        lead_ = {offsets.back() + uniform(0, 2)};
        offsets_ = integers(offsets);
      }
    }
    std::vector<std::int64_t> shape = lead_;
    shape.push_back(columns);
    points_ = seen(dtype, shape, next);
  }

  void make_images() {
    const auto dtype = pick_of({DType::u16, DType::u16, DType::f32, DType::f16, DType::f64});
    batched_ = chance(60);
    if (batched_) clouds_ = pick({0, 1, 2, 5});
    const std::int64_t height = pick({0, 1, 7, 48});
    const std::int64_t width = pick({1, 9, 64, chance(20) ? 900 : 30});
    lead_ = {height, width};
    if (batched_) lead_.insert(lead_.begin(), clouds_);
    const bool metres = dtype != DType::u16;
    points_ = seen(dtype, lead_, [&]() -> double {
      if (chance(5)) return metres ? pick_of({0.0, -0.0, -1.0, infinity, not_a_number, 0.5, 1e-40}) : pick({0, 65535});
      return metres ? real(0, 2.5) : static_cast<double>(uniform(0, 2500));
    });
    if (chance(30)) images_.depth_scale = metres ? 1.5 : 0.0005;
    if (chance(30)) images_.depth_min = 0.4;
    if (chance(30)) images_.depth_max = 1.7;
    if (chance(40)) images_.invalid = {0, 65535, 0.5};
    if (chance(10)) images_.invalid.clear();
    const bool each = batched_ && chance(60);
    const std::vector<std::int64_t> cameras = each ? std::vector{clouds_} : std::vector<std::int64_t>{};
    const auto wide = pick_of({DType::f32, DType::f64});
    if (chance(30)) {
      std::vector<std::int64_t> shape = cameras;
      shape.insert(shape.end(), {height, width, 2});
      rays_ = seen(wide, shape, [&] { return chance(1) ? not_a_number : real(-1.1, 1.1); });
      return;
    }
    const double focal = static_cast<double>(width) * 0.6;
    const bool matrix = chance(50);
    std::vector<double> list;
    for (std::int64_t c = 0; c < product(cameras); ++c) {
      const double fx = focal * real(0.8, 1.2), fy = focal * real(0.8, 1.2);
      const double cx = static_cast<double>(width) / 2 - 0.5, cy = static_cast<double>(height) / 2 - 0.5;
      const std::vector<double> one =
          matrix ? std::vector{fx, 0.0, cx, 0.0, fy, cy, 0.0, 0.0, 1.0} : std::vector{fx, fy, cx, cy};
      list.insert(list.end(), one.begin(), one.end());
    }
    std::vector<std::int64_t> shape = cameras;
    matrix ? shape.insert(shape.end(), {3, 3}) : shape.insert(shape.end(), 4);
    intrinsics_ = listed(wide, list, shape);
  }

  void make_scene() {
    grids_ = clouds_;
    if (batched_ && clouds_ > 0 && chance(40)) {
      grids_ = pick({1, 2, 4});
      std::vector<std::int64_t> into;
      for (std::int64_t c = 0; c < clouds_; ++c) into.push_back(uniform(0, grids_ - 1));
      into_ = integers(into);
    }
    if (chance(50)) {
      const bool each = batched_ && chance(60);
      std::vector<double> list;
      for (std::int64_t c = 0; c < (each ? clouds_ : 1); ++c) {
        const auto pose = rigid(*this, centre_);
        list.insert(list.end(), pose.begin(), pose.end());
      }
      poses_ = listed(pick_of({DType::f32, DType::f64}), list,
                      each ? std::vector<std::int64_t>{clouds_, 4, 4} : std::vector<std::int64_t>{4, 4});
    }
    if (chance(30)) {
      crop_ = Box{};
      crop_->in_sensor_frame = chance(50);
      for (std::size_t axis = 0; axis < 3; ++axis) {
        crop_->low[axis] = chance(20) ? -infinity : coordinate(axis, false);
        crop_->high[axis] = crop_->low[axis] + (chance(20) ? infinity : grid_.voxel_size[axis] * 12);
        if (std::isnan(crop_->high[axis])) crop_->high[axis] = infinity;
      }
    }
    if (!chance(65)) return;
    const auto dtype = pick_of({DType::f32, DType::f32, DType::f16, DType::bf16, DType::u8});
    const bool odd = dtype != DType::u8 && chance(40);
    channels_ = pick({0, 1, 3, 16, 21, 40, 100});
    std::vector<std::int64_t> shape = lead_;
    shape.push_back(*channels_);
    const double scale = dtype == DType::f32 ? pick_of({1.0, 1e30, 1e-44}) : 1.0;
    features_ = seen(dtype, shape, [&]() -> double {
      if (dtype == DType::u8) return static_cast<double>(uniform(0, 255));
      if (odd && chance(2)) return pick_of({not_a_number, infinity, -infinity, -0.0, 0.0, 1e-42, -3e38, 3e38});
      return chance(20) ? static_cast<double>(uniform(-2, 2)) : scale * spread(20);
    });
  }

  void make_outputs() {
    options_.accumulate = chance(25);
    const bool fractional = chance(20);
    std::vector<Reduction> wanted;
    const auto consider = [&](Reduction reduction, bool possible) {
      if (possible && chance(50)) wanted.push_back(reduction);
    };
    consider(Reduction::count, !fractional);
    consider(Reduction::occupancy, !fractional);
    const bool features = channels_.has_value();
    const bool whole = features && features_.base.view(DeviceKind::cpu).dtype == DType::u8;
    consider(Reduction::sum, features && !options_.accumulate);
    consider(Reduction::mean, features && !options_.accumulate);
    consider(Reduction::max, features && !(fractional && whole));
    consider(Reduction::min, features && !(fractional && whole));
    const bool zero = chance(50);
    consider(Reduction::occupancy_bits, zero && !fractional);
    if (!zero) options_.empty = fractional ? pick_of({-1.5, not_a_number, infinity}) : 7.0;
    if (wanted.empty()) {
      options_.empty = 0;
      wanted.push_back(Reduction::count);
    }
    for (const Reduction reduction : wanted) outputs_.push_back({reduction, output(reduction)});
    dropped_ = poisoned(DType::i64, {clouds_, drop_reasons});
    first_ = pick({0, 0, 1, 5});
  }

  Array output(Reduction reduction) {
    std::vector<std::int64_t> shape;
    if (batched_) shape.push_back(grids_);
    shape.insert(shape.end(), grid_.shape.begin(), grid_.shape.end());
    if (reduction == Reduction::occupancy_bits) shape.back() = (shape.back() + 7) / 8;
    const DType dtype = type_of(reduction);
    if (reduction >= Reduction::sum) shape.push_back(*channels_);
    if (!options_.accumulate) return poisoned(dtype, shape);
    return numbers(dtype, shape, [&]() -> double {
      if (reduction == Reduction::max || reduction == Reduction::min) {
        return dtype == DType::u8 ? static_cast<double>(uniform(0, 255)) : chance(3) ? not_a_number : real(-2, 2);
      }
      return static_cast<double>(uniform(0, reduction == Reduction::occupancy ? 1 : 200));
    });
  }
  // So that an element nobody writes shows.
  static Array poisoned(DType dtype, const std::vector<std::int64_t>& shape) {
    return {dtype, shape, std::vector<unsigned char>(static_cast<std::size_t>(product(shape) * size_of(dtype)), 0xa5)};
  }

  void fill(auto& scene, DeviceKind where) {
    scene.features = features_.view(where);
    scene.into = into_.view(where);
    scene.poses = poses_.view(where);
    scene.crop = crop_;
  }

  bool depth_;
  bool batched_ = false;
  std::int64_t clouds_ = 1, grids_ = 1;
  std::vector<std::int64_t> lead_;  // dimensions of points or pixels
  Grid grid_;
  std::array<double, 3> centre_{};
  DepthImages images_;  // its numbers
  Seen points_, features_, rays_;
  Array lengths_ = absent(), offsets_ = absent(), into_ = absent(), poses_ = absent(), intrinsics_ = absent();
  std::optional<Box> crop_;
  std::optional<std::int64_t> channels_;
  VoxelizeOptions options_;
  std::int64_t first_ = 0;
  std::vector<WantedOutput> outputs_;
  Array dropped_;
};

constexpr unsigned cases = 1500;

TEST(Voxelize, CpuEqualsReferenceAtEverySimdTarget) {
  for (unsigned seed = 0; seed < cases; ++seed) {
    Case one(seed);
    expect_cpu_equals_reference(seed_name(seed), [&](Backend backend) { return one.run(backend, DeviceKind::cpu); });
  }
}

// Everything that a sparse case is run for.
Bytes sparse(Case& one, Backend backend, DeviceKind where) {
  Bytes all;
  for (const Bytes& part :
       {one.run_sparse(backend, where, -1), one.run_sparse(backend, where, 40), one.run_downsample(backend, where)}) {
    all.insert(all.end(), part.begin(), part.end());
  }
  return all;
}

TEST(Voxelize, SparseOnTheCpuEqualsReferenceAtEverySimdTarget) {
  for (unsigned seed = 0; seed < cases / 3; ++seed) {
    Case one(seed);
    expect_cpu_equals_reference(seed_name(seed),
                                [&](Backend backend) { return sparse(one, backend, DeviceKind::cpu); });
  }
}

TEST(Voxelize, GivesTheGoldenHashes) {
  static constexpr std::string_view hashes[] = {
#include "golden/drawn_voxelize.txt"
  };
  expect_golden("drawn_voxelize.txt", hashes, [](unsigned seed, Backend backend, DeviceKind where) {
    Case one(seed);
    Bytes all = one.run(backend, where);
    for (std::vector<unsigned char>& array : sparse(one, backend, where)) all.push_back(std::move(array));
    return all;
  });
}

TEST(Voxelize, SparseOnCudaEqualsReference) {
  if (!has_cuda()) GTEST_SKIP() << no_cuda();
  for (unsigned seed = 0; seed < 2 * cuda_cases(); ++seed) {
    Case one(seed);
    expect_cuda_equals_reference(seed_name(seed),
                                 [&](Backend backend, DeviceKind where) { return sparse(one, backend, where); });
  }
}

TEST(Voxelize, CudaEqualsReference) {
  if (!has_cuda()) GTEST_SKIP() << no_cuda();
  for (unsigned seed = 0; seed < 2 * cuda_cases(); ++seed) {
    Case one(seed);
    expect_cuda_equals_reference(seed_name(seed),
                                 [&](Backend backend, DeviceKind where) { return one.run(backend, where); });
  }
}

// A call whose points are laid out on purpose: how many share a cell and in which order they come is what the kernels
// differ by.
struct Layout {
  Grid grid{{0, 0, 0}, {1, 1, 1}, {64, 1, 1}};
  VoxelizeOptions options;
  Array points = absent(), features = absent(), offsets = absent(), into = absent();
  std::vector<WantedOutput> outputs;

  // Cells along x, one a point.
  void set_points(const std::vector<std::int64_t>& cells) {
    std::size_t k = 0;
    points = numbers(DType::f32, {static_cast<std::int64_t>(cells.size()), 3}, [&] {
      const std::size_t at = k++;
      return at % 3 == 0 ? static_cast<double>(cells[at / 3]) + 0.5 : 0.5;
    });
  }
  void want(Random& random, Reduction reduction, DType dtype, std::vector<std::int64_t> shape) {
    outputs.push_back({reduction, numbers(dtype, shape, [&] { return static_cast<double>(random.uniform(0, 3)); })});
  }

  Bytes run(Backend backend, DeviceKind where) {
    std::vector<Array> arrays;
    std::vector<VoxelOutput> wanted;
    for (const WantedOutput& output : outputs) arrays.push_back(output.values.fresh());
    for (std::size_t k = 0; k < outputs.size(); ++k) wanted.push_back({outputs[k].reduction, arrays[k].view(where)});
    arrays.push_back(
        numbers(DType::i64, {offsets.present() ? product(offsets_shape()) - 1 : 1, drop_reasons}, [] { return 5.0; }));
    Clouds clouds;
    clouds.points = points.view(where);
    clouds.features = features.view(where);
    clouds.offsets = offsets.view(where);
    clouds.into = into.view(where);
    voxelize({.backend = backend}, clouds, grid, options, wanted, arrays.back().view(where));
    return fetched(arrays);
  }
  std::string difference_of_cuda() {
    return difference(run(Backend::cuda, DeviceKind::cuda), run(Backend::cpu, DeviceKind::cpu));
  }

 private:
  std::vector<std::int64_t> offsets_shape() { return {offsets.view(DeviceKind::cpu).shape[0]}; }
};

TEST(Voxelize, CudaReducesAnyNumberOfPointsInACell) {
  if (!has_cuda()) GTEST_SKIP() << no_cuda();
  Random random(11);
  for (const std::int64_t channels : {1, 3, 8, 70}) {
    for (const bool shuffled : {false, true}) {
      for (const DType dtype : {DType::f32, DType::bf16, DType::u8}) {
        for (const bool accumulate : {false, true}) {
          // Cell 2k + 1 has as many points as this says, the others none.
          const std::vector<std::int64_t> sizes{1, 2, 5, 32, 33, 63, 64, 65, 66, 256, 257, 300, 1000, 20000};
          std::vector<std::int64_t> cells;
          for (std::size_t k = 0; k < sizes.size(); ++k) {
            cells.insert(cells.end(), static_cast<std::size_t>(sizes[k]), static_cast<std::int64_t>(2 * k + 1));
          }
          if (shuffled) std::shuffle(cells.begin(), cells.end(), std::mt19937(4));
          const auto n = static_cast<std::int64_t>(cells.size());
          Layout layout;
          layout.set_points(cells);
          layout.features = numbers(dtype, {n, channels}, [&]() -> double {
            if (dtype == DType::u8) return static_cast<double>(random.uniform(0, 255));
            return random.chance(1) ? random.pick_of({-0.0, 0.0, infinity, not_a_number, 1e-40}) : random.real(-3, 5);
          });
          layout.options.accumulate = accumulate;
          layout.options.empty = 7;
          layout.want(random, Reduction::count, DType::i32, {64, 1, 1});
          layout.want(random, Reduction::occupancy, DType::u8, {64, 1, 1});
          layout.want(random, Reduction::max, dtype, {64, 1, 1, channels});
          layout.want(random, Reduction::min, dtype, {64, 1, 1, channels});
          if (!accumulate) {
            layout.want(random, Reduction::sum, DType::f32, {64, 1, 1, channels});
            layout.want(random, Reduction::mean, DType::f32, {64, 1, 1, channels});
          }
          EXPECT_EQ(layout.difference_of_cuda(), "")
              << channels << " channels of " << name_of(dtype) << (shuffled ? ", shuffled" : "")
              << (accumulate ? ", accumulated" : "");
        }
      }
    }
  }
}

TEST(Voxelize, CudaScalesTheSumsOfEveryGrid) {
  if (!has_cuda()) GTEST_SKIP() << no_cuda();
  // Packed clouds from one point to more than a block takes, into few grids and into many; some grids have long chains.
  for (const std::int64_t grids : {1, 3, 40}) {
    for (const std::int64_t channels : {3, 8, 70}) {
      Random random(static_cast<unsigned>(grids * 100 + channels));
      std::vector<std::int64_t> offsets{0}, into;
      for (int c = 0; c < 60; ++c) {
        offsets.push_back(offsets.back() + random.pick({0, 1, 2, 7, 40, 700}));
        into.push_back(random.uniform(0, grids - 1));
      }
      const std::int64_t n = offsets.back();
      std::vector<std::int64_t> cells;
      while (static_cast<std::int64_t>(cells.size()) < n) {
        const std::int64_t cell = random.uniform(-1, 64);
        cells.insert(cells.end(), static_cast<std::size_t>(random.pick({1, 1, 3, 50})), cell);
      }
      cells.resize(static_cast<std::size_t>(n));
      Layout layout;
      layout.set_points(cells);
      layout.offsets = listed(DType::i64, offsets, {61});
      layout.into = listed(DType::i32, into, {60});
      layout.features =
          numbers(DType::f32, {n, channels}, [&] { return random.real(-1, 1) * std::exp2(random.real(-40, 40)); });
      layout.want(random, Reduction::mean, DType::f32, {grids, 64, 1, 1, channels});
      layout.want(random, Reduction::count, DType::i32, {grids, 64, 1, 1});
      EXPECT_EQ(layout.difference_of_cuda(), "") << grids << " grids, " << channels << " channels";
    }
  }
}

// Scattered points, so many that they are sorted by bins of cells (count_bins.h).
TEST(Voxelize, CudaCountsManyPoints) {
  if (!has_cuda()) GTEST_SKIP() << no_cuda();
  constexpr std::int64_t n = 3'000'001;
  const std::vector<std::int64_t> shape{61, 67, 71};  // no multiple of anything
  for (const std::string order : {"none", "along a curve", "few cells", "a crowd"}) {
    Random random(8);
    Layout layout;
    layout.grid = {{0, 0, 0}, {1, 1, 1}, {shape[0], shape[1], shape[2]}};
    std::int64_t k = 0;
    layout.points = numbers(DType::f32, {n, 3}, [&]() -> double {
      const std::int64_t axis = k % 3;
      const std::int64_t point = k++ / 3;
      const auto size = static_cast<double>(shape[static_cast<std::size_t>(axis)]);
      if (random.chance(1) && random.chance(10)) return random.pick_of({not_a_number, infinity, -0.0, 1e30, size});
      if (order == "a crowd" && point % 5 == 0) return 3.5;
      if (order == "few cells") return random.real(3, 6);
      if (order != "along a curve") return random.real(-1, size + 1);
      return size * (0.5 + 0.5 * std::sin(static_cast<double>(point) * 1e-4 * static_cast<double>(axis + 1)));
    });
    for (const bool accumulate : {false, true}) {
      for (const double empty : {0.0, 7.0}) {
        layout.options.accumulate = accumulate;
        layout.options.empty = empty;
        for (const std::string wanted : {"counts", "occupancy", "counts and occupancy", "all"}) {
          layout.outputs.clear();
          if (wanted != "occupancy") layout.want(random, Reduction::count, DType::i32, shape);
          if (wanted == "all" && empty == 0) {
            layout.want(random, Reduction::occupancy_bits, DType::u8, {shape[0], shape[1], 9});
          }
          if (wanted != "counts") layout.want(random, Reduction::occupancy, DType::u8, shape);
          EXPECT_EQ(layout.difference_of_cuda(), "")
              << "order: " << order << ", empty " << empty << (accumulate ? ", accumulated, " : ", ") << wanted;
        }
      }
    }
  }
}

// Features of so many points of four, eight or sixteen float channels that the kernels of bins take them: lines of 32 cells
// are dealt out to those.
TEST(Voxelize, CudaReducesManyPoints) {
  if (!has_cuda()) GTEST_SKIP() << no_cuda();
  constexpr std::int64_t n = 100'001;
  constexpr std::int64_t bins = 1024;
  struct Cloud {
    const char* name;
    std::vector<std::int64_t> shape;
    std::function<std::int64_t(Random&, std::int64_t)> cell;  // of a point; -1: outside
  };
  const auto any = [](Random& random, std::int64_t cells) { return random.uniform(0, cells - 1); };
  const auto in_one_bin = [&](int percent) {
    return [=](Random& random, std::int64_t cells) {
      if (!random.chance(percent)) return any(random, cells);
      const std::int64_t row = random.uniform(0, cells / (bins * 32) - 1);
      return (row * bins + (bins - row) * 397 % bins) * 32 + random.uniform(0, 31);
    };
  };
  const auto at_one_place = [&](int percent) {
    return [=](Random& random, std::int64_t cells) { return random.chance(percent) ? cells / 3 : any(random, cells); };
  };
  const std::vector<Cloud> clouds{
      {"anywhere", {128, 128, 128}, any},
      {"anywhere, outside too",
       {61, 67, 71},  // no multiple of anything
       [](Random& random, std::int64_t cells) { return random.chance(10) ? -1 : random.uniform(0, cells - 1); }},
      {"at the ends of lines",
       {64, 64, 32},
       [](Random& random, std::int64_t cells) {
         return random.uniform(0, cells / 32 - 1) * 32 + (random.chance(50) ? 0 : 31);
       }},
      {"as many cells as bins can have", {256, 128, 128}, any},
      {"dense", {33, 32, 32}, any},
      {"all outside", {64, 64, 64}, [](Random&, std::int64_t) { return std::int64_t{-1}; }},
      {"in a row",
       {64, 64, 64},
       [k = std::int64_t{0}](Random&, std::int64_t cells) mutable { return k++ / 3 % cells; }},
      {"some more in one bin", {64, 64, 64}, in_one_bin(1)},
      {"more in one bin", {64, 64, 64}, in_one_bin(4)},
      {"many more in one bin", {64, 64, 64}, in_one_bin(8)},
      {"a hundredth at one place", {64, 64, 64}, at_one_place(1)},
      {"a tenth at one place", {64, 64, 64}, at_one_place(9)},
      {"a fifth at one place", {64, 64, 64}, at_one_place(20)},
      {"half in one bin", {64, 64, 64}, in_one_bin(50)},
  };
  for (const Cloud& cloud : clouds) {
    Random random(21);
    const auto& shape = cloud.shape;
    const std::int64_t cells = product(shape);
    Layout layout;
    layout.grid = {{0, 0, 0}, {1, 1, 1}, {shape[0], shape[1], shape[2]}};
    std::int64_t k = 0;
    std::int64_t cell = 0;
    layout.points = numbers(DType::f32, {n, 3}, [&]() -> double {
      const std::int64_t axis = k++ % 3;
      if (axis == 0) cell = cloud.cell(random, cells);
      if (cell < 0) return random.pick_of({not_a_number, infinity, -0.5, 1e30});
      const std::int64_t index = axis == 0   ? cell / (shape[1] * shape[2])
                                 : axis == 1 ? cell / shape[2] % shape[1]
                                             : cell % shape[2];
      return static_cast<double>(index) + random.pick_of({0.0, 0.5});
    });
    for (const std::int64_t channels : {4, 8, 16}) {
      if (channels != 8 && cells > 1 << 20) continue;  // the arrays are large
      layout.features = numbers(DType::f32, {n, channels}, [&]() -> double {
        if (random.chance(1)) return random.pick_of({-0.0, 0.0, 1e-40, 1.0, 1.0, infinity, -infinity, not_a_number});
        return random.real(-3, 5) * std::exp2(random.real(-30, 0));
      });
      std::vector<std::int64_t> wide = shape;
      wide.push_back(channels);
      for (const std::string wanted : {"mean", "max", "all"}) {
        layout.options.empty = wanted == "all" ? 7 : 0;
        layout.outputs.clear();
        if (wanted == "all") {
          layout.want(random, Reduction::count, DType::i32, shape);
          layout.want(random, Reduction::sum, DType::f32, wide);
          layout.want(random, Reduction::min, DType::f32, wide);
        }
        if (wanted != "max") layout.want(random, Reduction::mean, DType::f32, wide);
        if (wanted != "mean") layout.want(random, Reduction::max, DType::f32, wide);
        EXPECT_EQ(layout.difference_of_cuda(), "") << cloud.name << ", " << channels << " channels, " << wanted;
      }
    }
  }
}

// ---- where points fall ---------------------------------------------------------------------------------------------

// A call for one cloud on the host, by every backend there is, compared; its answers.
struct Answer {
  std::vector<std::int32_t> count;
  std::vector<std::int64_t> dropped;
};
template <class T>
Answer count(DType dtype, std::vector<T> points, const Grid& grid) {
  const std::int64_t n = static_cast<std::int64_t>(points.size()) / 3;
  std::optional<Answer> expected;
  for (const BackendInfo& backend : backends()) {
    if (!backend.available) continue;
    const DeviceKind where = backend.name == "cuda" ? DeviceKind::cuda : DeviceKind::cpu;
    std::vector<unsigned char> bytes(points.size() * sizeof(T));
    std::memcpy(bytes.data(), points.data(), bytes.size());
    Array given(dtype, {n, 3}, bytes);
    Array counts(DType::i32, {grid.shape[0], grid.shape[1], grid.shape[2]},
                 std::vector<unsigned char>(static_cast<std::size_t>(cells_of(grid) * 4)));
    Array dropped(DType::i64, {1, 4}, std::vector<unsigned char>(32));
    Clouds clouds;
    clouds.points = given.view(where);
    const VoxelOutput output{Reduction::count, counts.view(where)};
    const Backend kind = backend.name == "cuda"        ? Backend::cuda
                         : backend.name == "reference" ? Backend::reference
                                                       : Backend::cpu;
    voxelize({.backend = kind}, clouds, grid, {}, {&output, 1}, dropped.view(where));
    synchronize();
    counts.fetch();
    dropped.fetch();
    Answer answer{std::vector<std::int32_t>(static_cast<std::size_t>(cells_of(grid))), std::vector<std::int64_t>(4)};
    std::memcpy(answer.count.data(), counts.bytes().data(), counts.bytes().size());
    std::memcpy(answer.dropped.data(), dropped.bytes().data(), dropped.bytes().size());
    if (!expected) expected = answer;
    EXPECT_EQ(answer.count, expected->count) << backend.name;
    EXPECT_EQ(answer.dropped, expected->dropped) << backend.name;
  }
  return *expected;
}

TEST(Voxelize, AFaceBelongsToTheCellAboveIt) {
  const Grid grid{{0, 0, 0}, {0.5, 0.5, 0.5}, {2, 2, 2}};
  // Corners of the cells: the one at (1, 1, 1) is the box's end and lies outside.
  std::vector<float> points;
  for (const float x : {0.0F, 0.5F, 1.0F}) {
    for (const float y : {0.0F, 0.5F, 1.0F}) {
      for (const float z : {0.0F, 0.5F, 1.0F}) points.insert(points.end(), {x, y, z});
    }
  }
  const Answer answer = count(DType::f32, points, grid);
  EXPECT_EQ(answer.count, std::vector<std::int32_t>(8, 1));
  EXPECT_EQ(answer.dropped, (std::vector<std::int64_t>{0, 0, 0, 27 - 8}));
}

TEST(Voxelize, CellsAtTheirFacesAreTheSameEverywhere) {
  // Sizes that have no exact inverse, each with points a few roundings to either side of its faces and of 0.
  for (const float size : {0.1F, 0.3F, 1 / 3.0F, 0.7F, 1.0F, 2.5F, 3.0F, 7e-4F, 123.456F, 99999.0F, 3e-17F}) {
    const Grid grid{{0, 0, 0}, {size, size, size}, {300, 2, 1}};
    std::vector<float> points;
    const auto add = [&](float x) { points.insert(points.end(), {x, size, 0.5F * size}); };
    for (int face = 0; face <= 301; ++face) {
      float x = static_cast<float>(face) * size;
      for (int k = 0; k < 3; ++k) x = std::nextafter(x, -1e30F);
      for (int k = 0; k < 7; ++k, x = std::nextafter(x, 1e30F)) add(x);
    }
    // Below 0 what is at most 2^-150 of a cell away rounds to it.
    const float tiny = std::numeric_limits<float>::denorm_min();
    for (int k = -3; k <= 3; ++k) add(-tiny * (std::floor(size / 2) + static_cast<float>(k)));
    count(DType::f32, points, grid);
  }
}

TEST(Voxelize, PixelsAtFacesAreTheSameEverywhere) {
  constexpr std::int64_t height = 52, width = 72;
  const float cameras[][4] = {{60, 60, 32, 24},          {61.7F, 59.3F, 31.4F, 24}, {-60, 60, 32, 23.5F},
                              {1e-7F, 60, 32, 24},       {60, 1e30F, 32, 24},       {60, 60, 1e-30F, 24},
                              {1e-38F, 1e-38F, 0, 1e38F}};
  const std::array<std::int64_t, 3> shapes[] = {{64, 64, 64}, {61, 67, 5}, {3000, 3, 50}, {1, 1, 1}};
  Random random(3);
  for (const auto& camera : cameras) {
    for (const auto& shape : shapes) {
      for (const double size : {0.125, 0.1, 0.03}) {
        for (const bool centred : {true, false}) {
          const Grid grid{
              {centred ? -size * static_cast<double>(shape[0] / 2) : 0.07, centred ? -32 * size : -0.5, 0.5},
              {size, size, size},
              shape};
          // Millimetres, so that faces along z and at x = 0 or y = 0 are met exactly.
          Array depth = numbers(DType::u16, {height, width}, [&]() -> double {
            if (random.chance(10)) return random.pick_of({0.0, 65535.0});
            return static_cast<double>(random.uniform(1, 4000));
          });
          std::size_t k = 0;
          Array intrinsics = numbers(DType::f32, {4}, [&] { return static_cast<double>(camera[k++]); });
          const auto run = [&](Backend backend, DeviceKind where, int wanted) {
            DepthImages images;
            images.depth = depth.view(where);
            images.intrinsics = intrinsics.view(where);
            std::vector<Array> arrays;
            const auto add = [&](DType dtype, std::vector<std::int64_t> of) -> Array& {
              return arrays.emplace_back(numbers(dtype, std::move(of), [] { return 3.0; }));
            };
            arrays.reserve(3);
            const std::vector<std::int64_t> cells{shape[0], shape[1], shape[2]};
            std::vector<VoxelOutput> outputs;  // without any, what was dropped alone
            if (wanted > 0) outputs.push_back({Reduction::occupancy, add(DType::u8, cells).view(where)});
            if (wanted > 1) outputs.push_back({Reduction::count, add(DType::i32, cells).view(where)});
            const TensorView dropped = add(DType::i64, {1, drop_reasons}).view(where);
            voxelize_depth({.backend = backend}, images, grid, {}, outputs, dropped);
            return fetched(arrays);
          };
          for (const int wanted : {0, 1, 2}) {
            const Bytes expected = run(Backend::reference, DeviceKind::cpu, wanted);
            const std::string at = ::testing::PrintToString(camera) + ::testing::PrintToString(shape) +
                                   ::testing::PrintToString(size) + (centred ? ", centred" : "");
            EXPECT_EQ(difference(run(Backend::cpu, DeviceKind::cpu, wanted), expected), "") << at;
            if (!has_cuda()) continue;
            EXPECT_EQ(difference(run(Backend::cuda, DeviceKind::cuda, wanted), expected), "") << at;
          }
        }
      }
    }
  }
}

TEST(Voxelize, ZeroHasNoSide) {
  const Grid grid{{0, 0, 0}, {1, 1, 1}, {1, 1, 1}};
  EXPECT_EQ(count<float>(DType::f32, {-0.0F, -0.0F, -0.0F}, grid).count[0], 1);
  const Grid around{{-1, -1, -1}, {1, 1, 1}, {2, 2, 2}};
  EXPECT_EQ(count<float>(DType::f32, {-0.0F, 0.0F, -0.0F}, around).count[7], 1);
}

TEST(Voxelize, DenormalsAreNumbers) {
  const float tiny = std::numeric_limits<float>::denorm_min();
  const Grid grid{{0, 0, 0}, {1, 1, 1}, {1, 1, 1}};
  EXPECT_EQ(count<float>(DType::f32, {tiny, tiny, tiny}, grid).count[0], 1);
  EXPECT_EQ(count<float>(DType::f32, {-tiny, tiny, tiny}, grid).dropped[3], 1);
  // Cells as small as that are cells.
  const Grid small{{0, 0, 0}, {tiny, tiny, tiny}, {4, 4, 4}};
  EXPECT_EQ(count<float>(DType::f32, {3 * tiny, 2 * tiny, tiny}, small).count[3 * 16 + 2 * 4 + 1], 1);
}

TEST(Voxelize, HugeCoordinatesAreOutsideAndNotFiniteOnesAreSaidSo) {
  const Grid grid{{-1, -1, -1}, {0.001, 0.001, 0.001}, {1, 1, 1}};
  const float huge = std::numeric_limits<float>::max();
  const float none = std::numeric_limits<float>::infinity();
  const Answer answer = count<float>(DType::f32, {huge, 0, 0, -huge, huge, 0, 0, none, 0, 0, NAN, huge}, grid);
  EXPECT_EQ(answer.dropped, (std::vector<std::int64_t>{0, 2, 0, 2}));
}

TEST(Voxelize, GridsOfMoreThan2To31CellsAreCounted) {
  const Grid grid{{0, 0, 0}, {0x1p-33, 1, 1}, {std::int64_t{1} << 40, 1, 1}};
  EXPECT_EQ(cells_of(grid), std::int64_t{1} << 40);
  EXPECT_EQ(cells_of({{0, 0, 0}, {1, 1, 1}, {std::int64_t{1} << 31, std::int64_t{1} << 31, 1}}), std::int64_t{1} << 62);
}

TEST(Voxelize, BoundsMakeTheSmallestGrid) {
  EXPECT_EQ(grid_from_bounds({-3, -3, 0}, {3, 3, 2}, {0.05, 0.05, 0.05}).shape,
            (std::array<std::int64_t, 3>{120, 120, 40}));
  EXPECT_EQ(grid_from_bounds({0, 0, 0}, {1, 1, 1.05}, {0.3, 0.1, 1}).shape, (std::array<std::int64_t, 3>{4, 10, 2}));
  EXPECT_EQ(sentence([] {
              grid_from_bounds({0, 0, 0}, {1, 0, 1}, {1, 1, 1});
            }),
            "Grid: from 0 to 0 along y in voxels of 1 there are no cells to make");
  EXPECT_EQ(sentence([] {
              grid_from_bounds({0, 0, 0}, {-1, 1, 1}, {-1, 1, 1});
            }),
            "Grid: the voxel size along x is -1; it must be positive and finite");
}

// ---- sums ----------------------------------------------------------------------------------------------------------

TEST(Voxelize, SumsDoNotDependOnOrder) {
  Random random(3);
  constexpr std::int64_t n = 5000;
  std::vector<float> points(3 * n, 0.5F), features;
  for (std::int64_t k = 0; k < n; ++k) {
    features.push_back(static_cast<float>(random.real(-1, 1) * std::exp2(random.real(-30, 30))));
  }
  const Grid grid{{0, 0, 0}, {1, 1, 1}, {1, 1, 1}};
  const auto run = [&](float& sum, float& mean) {
    Clouds clouds;
    clouds.points = TensorView::contiguous(points.data(), DType::f32, {n, 3});
    clouds.features = TensorView::contiguous(features.data(), DType::f32, {n, 1});
    const VoxelOutput outputs[] = {{Reduction::sum, TensorView::contiguous(&sum, DType::f32, {1, 1, 1, 1})},
                                   {Reduction::mean, TensorView::contiguous(&mean, DType::f32, {1, 1, 1, 1})}};
    voxelize({}, clouds, grid, {}, outputs);
  };
  float sum = 0, mean = 0, sum_again = 0, mean_again = 0;
  run(sum, mean);
  double truth = 0;
  for (const float x : features) truth += static_cast<double>(x);
  EXPECT_EQ(sum, static_cast<float>(truth));
  EXPECT_EQ(mean, static_cast<float>(truth / n));
  std::shuffle(features.begin(), features.end(), std::mt19937(1));
  run(sum_again, mean_again);
  EXPECT_EQ(sum, sum_again);
  EXPECT_EQ(mean, mean_again);
}

// Few voxels, which are summed as they are found; too many of them, or of cells, for that.
TEST(Voxelize, MeanPointsAreTheSameForAnyNumberOfThreads) {
  constexpr std::int64_t clouds_number = 2, n = 20'000;
  const std::string target_before = simd_target();
  const int threads_before = num_threads();
  const std::pair<DType, std::int64_t> kinds[] = {{DType::f32, 3}, {DType::f16, 4}, {DType::f64, 5}};
  for (const auto& kind : kinds) {
    const DType dtype = kind.first;
    const std::int64_t columns = kind.second;
    Random random(11);
    Array points = numbers(dtype, {clouds_number, n, columns}, [&]() -> double {
      if (random.chance(1)) return random.pick_of({not_a_number, infinity, -infinity, -0.0, 1e30, -1e30});
      return random.real(-3, 5);
    });
    for (const double size : {0.5, 0.2, 0.001}) {
      const auto run = [&](Backend backend) {
        std::vector<Array> arrays;
        const auto add = [&](DType type, std::vector<std::int64_t> shape) {
          arrays.push_back(numbers(type, shape, [] { return 42.0; }));
          return arrays.back().view(DeviceKind::cpu);
        };
        arrays.reserve(4);
        const TensorView dropped = add(DType::i64, {clouds_number, drop_reasons});
        Clouds clouds;
        clouds.points = points.view(DeviceKind::cpu);
        const DownsampleRows rows = [&](std::int64_t count) {
          return DownsampleOutput{.points = add(computed_type(dtype), {count, 3}),
                                  .counts = add(DType::i32, {count}),
                                  .coordinates = add(DType::i64, {count, 4})};
        };
        voxel_downsample({.backend = backend}, clouds, {{size, size, size}, {0.1, 0, 0}}, {}, rows, dropped);
        return fetched(arrays);
      };
      const auto expected = run(Backend::reference);
      for (const int threads : {1, 2, 7}) {
        set_num_threads(threads);
        for (const std::string& target : simd_targets()) {
          set_simd_target(target);
          EXPECT_EQ(difference(run(Backend::cpu), expected), "")
              << columns << " columns, voxels of " << size << ", " << threads << " threads, " << target;
        }
      }
      set_num_threads(threads_before);
      set_simd_target(target_before);
    }
  }
}

// ---- sentences -----------------------------------------------------------------------------------------------------

class VoxelizeSentences : public testing::Test {
 protected:
  VoxelizeSentences() {
    clouds.points = TensorView::contiguous(points, DType::f32, {2, 2, 3});
    images.depth = TensorView::contiguous(depth, DType::u16, {2, 2, 3});
    images.intrinsics = TensorView::contiguous(intrinsics, DType::f64, {4});
    outputs = {{Reduction::count, TensorView::contiguous(counts, DType::i32, {2, 1, 1, 2})}};
  }
  std::string said() {
    const std::string text = sentence([&] { voxelize(context, clouds, grid, options, outputs, dropped); });
    for (const std::int32_t x : counts) EXPECT_EQ(x, 42) << text;  // nothing was written
    return text;
  }
  std::string depth_said() {
    return sentence([&] { voxelize_depth(context, images, grid, options, outputs, dropped); });
  }

  float points[12] = {};
  float features[12] = {};
  std::uint16_t depth[12] = {};
  double intrinsics[4] = {2, 2, 1, 1};
  std::int32_t counts[4] = {42, 42, 42, 42};
  float values[12] = {};
  Context context;
  Clouds clouds;
  DepthImages images;
  Grid grid{{0, 0, 0}, {1, 1, 1}, {1, 1, 2}};
  VoxelizeOptions options;
  std::vector<VoxelOutput> outputs;
  TensorView dropped;
};

// Every member can be named in a call.
TEST(VoxelizeCalls, DesignatedInitialisers) {
  const float points[] = {0.5F, 0.5F, 0.5F, 1.5F, 0.5F, 0.5F, 0.5F, 0.5F, 0.5F, 9, 9, 9};
  const float features[] = {2, 4, 6, 8};
  const std::int32_t lengths[] = {2, 1};
  const std::int64_t into[] = {0, 0};
  const double pose[] = {1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1};
  const Grid grid{{0, 0, 0}, {1, 1, 1}, {2, 1, 1}};
  std::int32_t counts[2] = {};
  float means[2] = {};
  const std::vector<VoxelOutput> outputs = {
      {Reduction::count, TensorView::contiguous(counts, DType::i32, {1, 2, 1, 1})},
      {Reduction::mean, TensorView::contiguous(means, DType::f32, {1, 2, 1, 1, 1})}};
  voxelize({},
           {.points = TensorView::contiguous(points, DType::f32, {2, 2, 3}),
            .lengths = TensorView::contiguous(lengths, DType::i32, {2}),
            .features = TensorView::contiguous(features, DType::f32, {2, 2, 1}),
            .into = TensorView::contiguous(into, DType::i64, {2}),
            .poses = TensorView::contiguous(pose, DType::f64, {4, 4}),
            .crop = Box{.low = {0, 0, 0}, .high = {8, 8, 8}}},
           grid, {}, outputs);
  EXPECT_EQ((std::vector{counts[0], counts[1]}), (std::vector{2, 1}));
  EXPECT_EQ((std::vector{means[0], means[1]}), (std::vector{4.0F, 4.0F}));

  const std::uint16_t depth[] = {500, 0};
  const double intrinsics[] = {1, 1, 0, 0};
  const std::vector<VoxelOutput> count = {{Reduction::count, TensorView::contiguous(counts, DType::i32, {2, 1, 1})}};
  voxelize_depth({},
                 {.depth = TensorView::contiguous(depth, DType::u16, {1, 2}),
                  .intrinsics = TensorView::contiguous(intrinsics, DType::f64, {4}),
                  .poses = TensorView::contiguous(pose, DType::f64, {4, 4})},
                 grid, {}, count);
  EXPECT_EQ((std::vector{counts[0], counts[1]}), (std::vector{1, 0}));
}

TEST_F(VoxelizeSentences, Grids) {
  grid.shape = {1, 0, 2};
  EXPECT_EQ(said(), "Grid: the shape is [1, 0, 2]; every size must be positive");
  grid.shape = {std::int64_t{1} << 40, std::int64_t{1} << 30, 2};
  EXPECT_EQ(said(), "Grid: a shape of [1099511627776, 1073741824, 2] has more than 2^62 cells");
  grid.shape = {1, 1, 2};
  grid.voxel_size[2] = 0;
  EXPECT_EQ(said(), "Grid: the voxel size along z is 0; it must be positive and finite");
  grid.voxel_size[2] = 1e-60;
  EXPECT_EQ(
      said(),
      "voxelize: the grid's origin 0 or voxel size 1e-60 along z is beyond float32, in which float32 is computed; "
      "give float64");
  grid.voxel_size[2] = 1;
  grid.origin[0] = not_a_number;
  EXPECT_EQ(said(), "Grid: the origin along x is nan; it must be finite");
}

TEST_F(VoxelizeSentences, PointsAndFeatures) {
  const TensorView whole = clouds.points;
  clouds.points = {};
  EXPECT_EQ(said(), "voxelize: points are missing");
  clouds.points = TensorView::contiguous(points, DType::f32, {6, 2});
  EXPECT_EQ(said(),
            "voxelize: points have shape [6, 2]; expected [N, 3], [clouds, N, 3], or [N, 3] with offsets; further "
            "columns may follow");
  clouds.points = TensorView::contiguous(points, DType::i32, {4, 3});
  EXPECT_EQ(said(), "voxelize: points are int32; they must be float16, float32 or float64");
  clouds.points = whole;
  outputs[0].reduction = Reduction::mean;
  EXPECT_EQ(said(), "voxelize: reduce mean needs features");
  clouds.features = TensorView::contiguous(features, DType::f32, {4, 3});
  EXPECT_EQ(said(),
            "voxelize: features have shape [4, 3]; expected [2, 2] and a last dimension of channels; where "
            "there is one, features[..., None]");
  clouds.features = TensorView::contiguous(features, DType::f64, {2, 2, 1});
  EXPECT_EQ(said(), "voxelize: features are float64; they must be float16, bfloat16, float32 or uint8");
  clouds.features = TensorView::contiguous(features, DType::f32, {2, 2, 1});
  outputs[0].values = TensorView::contiguous(values, DType::f32, {2, 1, 1, 2, 1});
  options.accumulate = true;
  EXPECT_EQ(said(),
            "voxelize: accumulate with mean: the result would depend on the order of the calls; give all clouds to one "
            "call, with into");
  options.accumulate = false;
  outputs.push_back(outputs[0]);
  EXPECT_EQ(said(), "voxelize: reduce names mean twice");
}

TEST_F(VoxelizeSentences, Batches) {
  const std::int64_t lengths[] = {1, 3};
  clouds.lengths = TensorView::contiguous(lengths, DType::i64, {2});
  EXPECT_EQ(said(), "voxelize: lengths[1] = 3 is outside 0..2, the points that a cloud has room for");
  clouds.offsets = clouds.lengths;
  EXPECT_EQ(said(), "voxelize: lengths are for padded clouds and offsets for packed ones; give one");
  clouds.lengths = {};
  EXPECT_EQ(said(), "voxelize: points of shape [2, 2, 3] with offsets; expected [N, 3]");
  clouds.points = TensorView::contiguous(points, DType::f32, {4, 3});
  const std::int64_t backwards[] = {0, 3, 2};
  clouds.offsets = TensorView::contiguous(backwards, DType::i64, {3});
  EXPECT_EQ(said(), "voxelize: offsets[2] = 2 is below offsets[1] = 3; offsets must not decrease");
  const std::int64_t beyond[] = {0, 3, 5};
  clouds.offsets = TensorView::contiguous(beyond, DType::i64, {3});
  EXPECT_EQ(said(), "voxelize: offsets[2] = 5 is outside 0..4, the number of packed points");
  clouds.offsets = {};
  const std::int64_t into[] = {0, 2};
  clouds.into = TensorView::contiguous(into, DType::i64, {1});
  EXPECT_EQ(said(), "voxelize: into is for several clouds; there is one, without a batch dimension");
  clouds.points = TensorView::contiguous(points, DType::f32, {2, 2, 3});
  EXPECT_EQ(said(), "voxelize: into has 1 elements for 2 clouds");
  clouds.into = TensorView::contiguous(into, DType::i64, {2});
  EXPECT_EQ(said(), "voxelize: into[1] = 2 is outside 0..1, the grids that there are");
  outputs[0].values = TensorView::contiguous(counts, DType::i32, {0, 1, 1, 2});
  options.check = false;
  EXPECT_EQ(said(), "voxelize: there are 2 clouds and no grid for them to go into");
}

TEST_F(VoxelizeSentences, PosesAndBoxes) {
  double poses[32] = {1, 0, 0, 5, 0, 1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1};
  std::copy_n(poses, 16, poses + 16);
  clouds.poses = TensorView::contiguous(poses, DType::f64, {2, 4, 4});
  poses[16 + 5] = -1;  // a mirror
  EXPECT_EQ(said(),
            "voxelize: pose[1] is not rigid: its 3x3 part must be a rotation and its last row (0, 0, 0, 1), both to "
            "0.001");
  poses[16 + 5] = not_a_number;
  EXPECT_NE(said().find("pose[1] is not rigid"), std::string::npos);
  poses[16 + 5] = 1;
  poses[3] = infinity;
  EXPECT_NE(said().find("pose[0] is not rigid"), std::string::npos);
  poses[3] = 5;
  clouds.poses = TensorView::contiguous(poses, DType::f64, {4, 2, 4});
  EXPECT_EQ(said(), "voxelize: pose has shape [4, 2, 4]; expected [4, 4] or [clouds, 4, 4]");
  clouds.poses = {};
  clouds.crop = Box{{0, 0, 2}, {1, 1, 1}};
  EXPECT_EQ(said(), "voxelize: crop along z is 2..1; low must not be above high");
}

TEST_F(VoxelizeSentences, Outputs) {
  outputs[0].values = TensorView::contiguous(counts, DType::i32, {2, 1, 2});
  EXPECT_EQ(said(), "voxelize: count has shape [2, 1, 2]; expected [2, 1, 1, 2]");
  outputs[0].values = TensorView::contiguous(counts, DType::i64, {2, 1, 1, 2});
  EXPECT_EQ(said(), "voxelize: count is int64; it must be int32");
  outputs[0].values = TensorView::contiguous(counts, DType::i32, {2, 1, 1, 2});
  outputs[0].values.strides[0] = 1;
  outputs[0].values.strides[3] = 2;
  EXPECT_EQ(said(), "voxelize: count must be contiguous");
  outputs[0].values = TensorView::contiguous(counts, DType::i32, {2, 1, 1, 2});
  options.empty = 0.5;
  EXPECT_EQ(said(), "voxelize: empty = 0.5 is no value of count, which is int32");
  options.empty = 0;
  std::int64_t reasons[8];
  dropped = TensorView::contiguous(reasons, DType::i64, {2, 3});
  EXPECT_EQ(said(), "voxelize: dropped has shape [2, 3]; expected [2, 4]");
  dropped = {};
  outputs[0].values.strides[1] = 77;  // of a single element: no matter
  EXPECT_EQ(sentence([&] { voxelize(context, clouds, grid, options, outputs, dropped); }), "no error");
}

TEST_F(VoxelizeSentences, Depth) {
  images.rays = images.intrinsics;
  EXPECT_EQ(depth_said(), "voxelize_depth: give intrinsics or rays, one of the two");
  images.intrinsics = {};
  EXPECT_EQ(depth_said(),
            "voxelize_depth: rays have shape [4]; expected [H, W, 2] or [cameras, H, W, 2] for depth of [2, 2, 3]");
  images.rays = {};
  images.intrinsics = TensorView::contiguous(intrinsics, DType::f64, {2, 2});
  EXPECT_EQ(depth_said(),
            "voxelize_depth: intrinsics have shape [2, 2]; expected (fx, fy, cx, cy) as [4] or [cameras, 4], or [3, 3] "
            "or [cameras, 3, 3]");
  images.intrinsics = TensorView::contiguous(intrinsics, DType::f64, {4});
  images.depth_scale = -1;
  EXPECT_EQ(depth_said(), "voxelize_depth: depth_scale is -1; it must be positive and finite");
  images.depth_scale = 1e-60;
  EXPECT_EQ(depth_said(),
            "voxelize_depth: depth_scale 1e-60 is beyond float32, in which uint16 is computed; give float64");
  images.depth_scale = 0;
  images.depth_min = 3;
  images.depth_max = 2;
  EXPECT_EQ(depth_said(), "voxelize_depth: depth_min = 3 is not below depth_max = 2");
  images.depth_max = 4;
  images.invalid.assign(9, 0);
  EXPECT_EQ(depth_said(), "voxelize_depth: 9 invalid readings; at most 8");
  images.invalid.clear();
  images.depth.dtype = DType::i16;
  EXPECT_EQ(depth_said(), "voxelize_depth: depth is int16; it must be uint16, float16, float32 or float64");
}

TEST(Voxelize, CudaRaisesWhatTheDataHidInTheNextCall) {
  if (!has_cuda()) GTEST_SKIP() << no_cuda();
  Array points(DType::f32, {2, 1, 3}, std::vector<unsigned char>(24));
  Array into = listed<std::int64_t>(DType::i64, {0, 9}, {2});
  Array counts(DType::i32, {2, 1, 1, 1}, std::vector<unsigned char>(8));
  Clouds clouds;
  clouds.points = points.view(DeviceKind::cuda);
  clouds.into = into.view(DeviceKind::cuda);
  const VoxelOutput output{Reduction::count, counts.view(DeviceKind::cuda)};
  voxelize({}, clouds, {{0, 0, 0}, {1, 1, 1}, {1, 1, 1}}, {}, {&output, 1});
  EXPECT_EQ(sentence([] { synchronize(); }), "voxelize: into[1] = 9 is outside 0..1, the grids that there are");
  EXPECT_EQ(sentence([] { synchronize(); }), "no error");
}

}  // namespace
}  // namespace robocache::test
