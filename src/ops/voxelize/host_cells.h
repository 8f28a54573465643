// Cells on the host: how they are filled and written, by their key (grid * cells + cell) or, in a sparse result, by
// their row. Shared by reference and cpu.
#pragma once

#include <algorithm>
#include <vector>

#include "ops/voxelize/reduce.h"

namespace robocache::voxelize_op {
inline namespace ROBOCACHE_SIMD_TARGET {

// Where a cell's bit is: Z is a whole number of bytes in the packed layout.
struct Bit {
  std::int64_t byte;
  std::uint8_t mask;
};
inline Bit bit_of(const Plan& plan, std::int64_t key) {
  const std::int64_t line = key / plan.shape[2];
  const std::int64_t z = key - line * plan.shape[2];
  return {line * ((plan.shape[2] + 7) / 8) + z / 8, static_cast<std::uint8_t>(1u << (z % 8))};
}

// What an empty cell holds.
template <class T>
T empty_value(double empty) {
  if constexpr (std::is_integral_v<T>) {
    return static_cast<T>(empty);
  } else {
    return narrow<T>(empty);
  }
}

// Cells [begin, end), which are whole lines along z, as they are without points.
inline void fill_cells(const Plan& plan, std::int64_t begin, std::int64_t end) {
  if (plan.accumulate) return;
  const auto fill = [&]<class T>(T* values, std::int64_t each) {
    if (values != nullptr) std::fill(values + begin * each, values + end * each, empty_value<T>(plan.empty));
  };
  fill(plan.count, 1);
  fill(plan.occupancy, 1);
  fill(plan.sum, plan.channels);
  fill(plan.mean, plan.channels);
  if (plan.bits != nullptr) {
    const std::int64_t bytes = (plan.shape[2] + 7) / 8;
    std::fill(plan.bits + begin / plan.shape[2] * bytes, plan.bits + end / plan.shape[2] * bytes, std::uint8_t{0});
  }
  with_feature_type(plan, [&](auto type) {
    using T = typename decltype(type)::type;
    fill(static_cast<T*>(plan.max), plan.channels);
    fill(static_cast<T*>(plan.min), plan.channels);
  });
}

inline void write_bit(const Plan& plan, std::int64_t key) {
  const Bit bit = bit_of(plan, key);
  plan.bits[bit.byte] = static_cast<std::uint8_t>(plan.bits[bit.byte] | bit.mask);
}
inline void write_count(const Plan& plan, std::int64_t row, std::int64_t points) {
  if (plan.count != nullptr) {
    plan.count[row] = static_cast<std::int32_t>((plan.accumulate ? plan.count[row] : 0) + points);
  }
  if (plan.occupancy != nullptr) plan.occupancy[row] = 1;
  if (plan.bits != nullptr) write_bit(plan, row);
}

// Points given to each grid.
inline std::vector<std::int64_t> points_of_grids(const Plan& plan) {
  std::vector<std::int64_t> points(static_cast<std::size_t>(plan.grids));
  for (std::int64_t c = 0; c < plan.clouds; ++c) {
    Cloud<float> cloud;
    set_extent(plan, c, cloud);
    points[static_cast<std::size_t>(cloud.grid)] += cloud.count;
  }
  return points;
}

// The exponents of every grid and channel, from the largest magnitudes there.
inline std::vector<int> exponents_of(const Plan& plan, std::span<const std::uint32_t> largest) {
  const std::vector<std::int64_t> points = points_of_grids(plan);
  std::vector<int> exponents(largest.size());
  for (std::size_t k = 0; k < largest.size(); ++k) {
    const std::int64_t given = points[k / static_cast<std::size_t>(plan.channels)];
    exponents[k] = plan.feature_dtype == DType::f64 ? exponent_of<double>(largest[k], given)
                                                    : exponent_of<float>(largest[k], given);
  }
  return exponents;
}

}  // namespace ROBOCACHE_SIMD_TARGET
}  // namespace robocache::voxelize_op
