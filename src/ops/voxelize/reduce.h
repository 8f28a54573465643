// Reduces the features of a voxel's points, for the reference backend and for each SIMD target. It calls nothing of
// the standard library: such functions would be compiled for the SIMD target, and the linker might take that copy for
// the whole program.
#pragma once

#include "ops/voxelize/math.h"

namespace robocache::voxelize_op {

// Consecutive points of one voxel: sensors see a voxel many times in a row.
struct PointRun {
  std::uint32_t first, count;
};

// Cells that have points, by rising key, and the points of each, by rising number.
struct Voxels {
  bool dense = false;  // a voxel is written at its key, else at its row
  std::int64_t count = 0;
  const std::int64_t* keys = nullptr;
  const std::uint32_t* starts = nullptr;  // in `runs`; count + 1 of them
  const PointRun* runs = nullptr;

  std::int64_t place_of(std::int64_t voxel) const { return dense ? keys[voxel] : voxel; }
  std::int64_t points_of(std::int64_t voxel) const {
    std::int64_t points = 0;
    for (std::uint32_t k = starts[voxel]; k < starts[voxel + 1]; ++k) points += runs[k].count;
    return points;
  }
};

inline namespace ROBOCACHE_SIMD_TARGET {

// Also float64, which points are but features are not.
template <class F>
inline void with_value_type(const Plan& plan, const F& f) {
  if (plan.feature_dtype == DType::f64) return f(Type<double>{});
  with_feature_type(plan, f);
}

template <int w>
struct Width {
  static constexpr int value = w;
};

// Calls f(Width, first) for channels that are taken together.
template <class F>
inline void over_channels(std::int64_t channels, const F& f) {
  std::int64_t c = 0;
  for (; channels - c >= 16; c += 16) f(Width<16>{}, c);
  if (channels - c >= 8) f(Width<8>{}, c), c += 8;
  if (channels - c >= 4) f(Width<4>{}, c), c += 4;
  switch (channels - c) {
    case 3:
      return f(Width<3>{}, c);
    case 2:
      return f(Width<2>{}, c);
    case 1:
      return f(Width<1>{}, c);
    default:
      return;
  }
}

// Calls f(number) for each point of a voxel.
template <class F>
inline void over_points(const Voxels& voxels, std::int64_t voxel, const F& f) {
  for (std::uint32_t k = voxels.starts[voxel]; k < voxels.starts[voxel + 1]; ++k) {
    for (std::uint32_t n = 0; n < voxels.runs[k].count; ++n) f(std::int64_t{voxels.runs[k].first} + n);
  }
}

// Calls f(features) for each, from channel `first` on.
template <class F, class Each>
inline void over_features(const Plan& plan, const Voxels& voxels, std::int64_t voxel, std::int64_t first,
                          const Each& f) {
  constexpr std::uint32_t ahead = 16;  // runs, which lie anywhere in memory
  const auto* const features = static_cast<const F*>(plan.features) + first * plan.channel_stride;
  const std::uint32_t last = voxels.starts[voxels.count] - 1;
  for (std::uint32_t k = voxels.starts[voxel]; k < voxels.starts[voxel + 1]; ++k) {
    __builtin_prefetch(features + feature_offset(plan, voxels.runs[k + ahead < last ? k + ahead : last].first));
    const PointRun run = voxels.runs[k];
    for (std::uint32_t n = 0; n < run.count; ++n) f(features + feature_offset(plan, std::int64_t{run.first} + n));
  }
}

// Calls f(stride of channels): 1 as a constant where they lie side by side, so that they become vectors.
template <class F>
inline void with_stride(const Plan& plan, const F& f) {
  if (plan.channel_stride == 1) return f(std::integral_constant<int, 1>{});
  f(plan.channel_stride);
}

// `exponents` are those of the voxel's grid.
template <class F, int width, class Stride>
inline void write_sums(const Plan& plan, const Voxels& voxels, std::int64_t voxel, std::int64_t first,
                       const int* exponents, Stride stride) {
  using R = feature_t<F>;  // of sums and means
  std::int64_t fixed[width] = {};
  Sum odd[width];  // of points that are not all finite
  bool any_odd = false;
  std::int64_t count = 0;
  double scales[width];
  for (int c = 0; c < width; ++c) scales[c] = power_of_two(exponents[first + c]);
  over_features<F>(plan, voxels, voxel, first, [&](const F* from) {
    bool finite = true;
    for (int c = 0; c < width; ++c) finite &= is_finite(feature_value(from[c * stride]));
    if (finite) {
      for (int c = 0; c < width; ++c) {
        fixed[c] += nearest_integer(static_cast<double>(feature_value(from[c * stride])) * scales[c]);
      }
    } else {
      any_odd = true;
      for (int c = 0; c < width; ++c) odd[c].add(feature_value(from[c * stride]), scales[c]);
    }
    ++count;
  });
  const std::int64_t out = voxels.place_of(voxel) * plan.channels + first;
  const auto write = [&](float* values, const auto& divisor) {
    if (values == nullptr) return;
    R* const to = reinterpret_cast<R*>(values) + out;
    for (int c = 0; c < width; ++c) {
      to[c] = Sum{fixed[c]}.template value<R>(power_of_two(-exponents[first + c]), divisor);
    }
    for (int c = 0; any_odd && c < width; ++c) {
      const Sum sum{odd[c].fixed + fixed[c], odd[c].flags};
      to[c] = sum.template value<R>(power_of_two(-exponents[first + c]), divisor);
    }
  };
  write(plan.sum, NoDivisor());
  write(plan.mean, Divisor(count));
}

template <class F, int width, class Stride>
inline void write_extremes(const Plan& plan, const Voxels& voxels, std::int64_t voxel, std::int64_t first,
                           bool greatest, Stride stride) {
  F* const values = static_cast<F*>(greatest ? plan.max : plan.min);
  if (values == nullptr) return;
  F* const to = values + voxels.place_of(voxel) * plan.channels + first;
  Extreme extremes[width];
  for (int c = 0; plan.accumulate && c < width; ++c) extremes[c].add(greatest, to[c]);
  over_features<F>(plan, voxels, voxel, first, [&](const F* from) {
    for (int c = 0; c < width; ++c) extremes[c].add(greatest, from[c * stride]);
  });
  for (int c = 0; c < width; ++c) to[c] = feature_at<F>(greatest, extremes[c].order);
}

// The features of voxels [begin, end). `exponents` are those of all grids; nullptr where there are no sums.
inline void reduce(const Plan& plan, const Voxels& voxels, std::int64_t begin, std::int64_t end, const int* exponents) {
  with_value_type(plan, [&](auto type) {
    using F = typename decltype(type)::type;
    const auto write = [&](auto stride, auto wide, std::int64_t first) {
      constexpr int width = decltype(wide)::value;
      for (std::int64_t voxel = begin; voxel < end; ++voxel) {
        if (plan.sums()) {
          const std::int64_t grid = plan.grids == 1 ? 0 : voxels.keys[voxel] / plan.cells;
          write_sums<F, width>(plan, voxels, voxel, first, exponents + grid * plan.channels, stride);
        }
        if constexpr (!std::is_same_v<F, double>) {
          write_extremes<F, width>(plan, voxels, voxel, first, true, stride);
          write_extremes<F, width>(plan, voxels, voxel, first, false, stride);
        }
      }
    };
    with_stride(plan, [&](auto stride) {
      over_channels(plan.channels, [&](auto wide, std::int64_t first) { write(stride, wide, first); });
    });
  });
}

}  // namespace ROBOCACHE_SIMD_TARGET
}  // namespace robocache::voxelize_op
