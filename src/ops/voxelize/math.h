// The arithmetic of voxelize, once for every backend: where a point comes from, which cell it falls into, and what the
// points of a cell become. docs/semantics.md says the same in words.
#pragma once

#include "core/element.h"
#include "core/limits.h"
#include "ops/voxelize/plan.h"

namespace robocache::voxelize_op {
inline namespace ROBOCACHE_SIMD_TARGET {

template <class F>
inline void with_feature_type(const Plan& plan, const F& f) {
  with_type(plan.feature_dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    if constexpr (std::is_same_v<T, float> || std::is_same_v<T, f16> || std::is_same_v<T, bf16> ||
                  std::is_same_v<T, std::uint8_t>) {
      f(type);
    }
  });
}
template <class F>
inline void with_point_type(const Plan& plan, const F& f) {
  camera::with_depth_type(plan.dtype, f);
}

// ---- clouds --------------------------------------------------------------------------------------------------------

// What all points of a cloud share. Its numbers never lead outside the arrays, whatever lengths, offsets and into
// hold.
template <class C>
struct Cloud {
  std::int64_t number = 0;
  std::int64_t first = 0;  // along a packed axis
  std::int64_t count = 0;
  std::int64_t grid = 0;
  C rotation[3][3] = {};
  C shift[3] = {};
  C fx = 1, fy = 1, cx = 0, cy = 0;
  C origin[3] = {}, voxel_size[3] = {};  // the grid's, as points are computed
};

template <class C>
ROBOCACHE_HD void set_extent(const Plan& plan, std::int64_t number, Cloud<C>& cloud) {
  cloud.number = number;
  cloud.count = plan.points_per_cloud;
  if (plan.offsets.data != nullptr) {
    cloud.first = clamp_to(integer(plan.offsets, number), 0, plan.points_per_cloud);
    cloud.count = clamp_to(integer(plan.offsets, number + 1), cloud.first, plan.points_per_cloud) - cloud.first;
  } else if (plan.lengths.data != nullptr) {
    cloud.count = clamp_to(integer(plan.lengths, number), 0, plan.points_per_cloud);
  }
  cloud.grid = plan.into.data != nullptr ? clamp_to(integer(plan.into, number), 0, plan.grids - 1) : number;
}

template <class C>
ROBOCACHE_HD Cloud<C> cloud_of(const Plan& plan, std::int64_t number) {
  Cloud<C> cloud;
  set_extent(plan, number, cloud);
  for (int axis = 0; axis < 3; ++axis) {
    cloud.origin[axis] = static_cast<C>(plan.origin[axis]);
    cloud.voxel_size[axis] = static_cast<C>(plan.voxel_size[axis]);
  }
  if (plan.poses.data != nullptr) camera::read_pose<C>(plan.poses, number, cloud);
  if (plan.source == Source::pinhole) camera::read_intrinsics<C>(plan, number, cloud);
  return cloud;
}

// The number of the cloud's point k among all in memory.
template <class C>
ROBOCACHE_HD std::int64_t point_number(const Plan& plan, const Cloud<C>& cloud, std::int64_t k) {
  return plan.offsets.data != nullptr ? cloud.first + k : cloud.number * plan.points_per_cloud + k;
}

// ---- where a point falls -------------------------------------------------------------------------------------------

// Why a point is dropped: the first of these that holds.
enum class Drop : std::int8_t { no_reading, not_finite, cropped, outside, none };

struct Place {
  Drop drop = Drop::none;
  std::int64_t cell = -1;  // in its grid
};

template <class C>
ROBOCACHE_HD bool all_finite(const C (&p)[3]) {
  return is_finite(p[0]) && is_finite(p[1]) && is_finite(p[2]);
}

template <class C>
ROBOCACHE_HD bool is_cropped(const Plan& plan, const C (&p)[3]) {
  bool inside = true;
  for (int axis = 0; axis < 3; ++axis) {
    inside = inside && p[axis] >= static_cast<C>(plan.crop_low[axis]) && p[axis] < static_cast<C>(plan.crop_high[axis]);
  }
  return !inside;
}

// Pixel k of an image in the camera's frame. False where there is no reading.
template <class T, class C>
ROBOCACHE_HD bool unproject(const Plan& plan, const Cloud<C>& cloud, std::int64_t k, C (&p)[3]) {
  const std::int64_t v =
      static_cast<std::uint32_t>(k) / static_cast<std::uint32_t>(plan.width);  // fewer than 2^31 pixels
  const std::int64_t u = k - v * plan.width;
  C z = 0;
  if (!camera::depth_of(plan, camera::pixel_at<T>(plan, cloud.number, v, u), z)) return false;
  if (plan.source == Source::rays) {
    camera::unproject_by_ray(plan, cloud.number, v, u, z, p);
  } else {
    camera::unproject(cloud, v, u, z, p);
  }
  p[2] = z;
  return true;
}

// The cell of a point that is in the grid's frame. Index is int32 only where plan.is_small().
template <class Index, class C>
ROBOCACHE_HD Place cell_of(const Plan& plan, const Cloud<C>& cloud, const C (&p)[3]) {
#if defined(__CUDA_ARCH__)
  if constexpr (sizeof(Index) == 4) {  // the same in fewer instructions: __float2int_rd saturates
    unsigned cell = 0;
    bool inside = true;
    for (int axis = 0; axis < 3; ++axis) {
      const C at = (p[axis] - cloud.origin[axis]) / cloud.voxel_size[axis];
      const auto size = static_cast<unsigned>(plan.shape[axis]);
      unsigned index;
      if constexpr (sizeof(C) == 4) {
        index = static_cast<unsigned>(__float2int_rd(at));
      } else {
        index = static_cast<unsigned>(__double2int_rd(at));
      }
      inside = inside && index < size;
      cell = cell * size + index;
    }
    return inside ? Place{Drop::none, static_cast<std::int32_t>(cell)} : Place{Drop::outside, -1};
  }
#endif
  constexpr C limit = sizeof(Index) == 8 ? C(size_limit) : C(0x1p30);
  Place place;
  Index cell = 0;
  bool inside = true;
  for (int axis = 0; axis < 3; ++axis) {
    const C at = floor_of((p[axis] - cloud.origin[axis]) / cloud.voxel_size[axis]);
    const bool near = at >= C(0) && at < limit;
    const auto size = static_cast<Index>(plan.shape[axis]);
    const Index index = near ? static_cast<Index>(at) : -1;
    inside = inside && near && index < size;
    cell = inside ? cell * size + index : 0;
  }
  place.drop = inside ? Drop::none : Drop::outside;
  if (inside) place.cell = cell;
  return place;
}

// The cell of a point in a grid without end. False where no integer counts that far.
template <class C>
ROBOCACHE_HD bool lattice_cell(const Cloud<C>& cloud, const C (&p)[3], std::int64_t (&cell)[3]) {
  bool near = true;
  for (int axis = 0; axis < 3; ++axis) {
    const C at = floor_of((p[axis] - cloud.origin[axis]) / cloud.voxel_size[axis]);
    near = near && at >= -C(size_limit) && at < C(size_limit);
    cell[axis] = near ? static_cast<std::int64_t>(at) : 0;
  }
  return near;
}
template <class C>
ROBOCACHE_HD Place lattice_place(const Plan& plan, const Cloud<C>& cloud, const C (&p)[3]) {
  std::int64_t cell[3];
  if (!lattice_cell(cloud, p, cell)) return {Drop::outside, -1};
  for (int axis = 0; axis < 3; ++axis) cell[axis] -= plan.lowest[axis];
  return {Drop::none, (cell[0] * plan.shape[1] + cell[1]) * plan.shape[2] + cell[2]};
}

// Point k of a cloud as its sensor has it. False where there is no reading.
template <class T, class C = compute_t<T>>
ROBOCACHE_HD bool read_point(const Plan& plan, const Cloud<C>& cloud, std::int64_t k, C (&p)[3]) {
  if (plan.source != Source::points) return unproject<T>(plan, cloud, k, p);
  if constexpr (is_float_type<T>) {
    const T* const point =
        static_cast<const T*>(plan.points) + cloud.number * plan.cloud_stride + (cloud.first + k) * plan.point_stride;
    for (int axis = 0; axis < 3; ++axis) p[axis] = widen(point[axis * plan.axis_stride]);
  }
  return true;
}

// Point k of a cloud in the grid's frame, and why it is dropped where it is.
template <class T, class C = compute_t<T>>
ROBOCACHE_HD Drop to_grid_frame(const Plan& plan, const Cloud<C>& cloud, std::int64_t k, C (&p)[3]) {
  if (!read_point<T>(plan, cloud, k, p)) return Drop::no_reading;
  if (!all_finite(p)) return Drop::not_finite;
  const bool cropped_before = plan.crops && plan.crop_in_sensor_frame && is_cropped(plan, p);
  if (plan.poses.data != nullptr) {
    camera::transform(cloud, p);
    if (!all_finite(p)) return Drop::not_finite;
  }
  if (cropped_before || (plan.crops && !plan.crop_in_sensor_frame && is_cropped(plan, p))) return Drop::cropped;
  return Drop::none;
}
template <class T, class Index = std::int64_t, class C = compute_t<T>>
ROBOCACHE_HD Place locate(const Plan& plan, const Cloud<C>& cloud, std::int64_t k, C (&p)[3]) {
  const Drop drop = to_grid_frame<T>(plan, cloud, k, p);
  if (drop != Drop::none) return {drop, -1};
  return plan.lattice ? lattice_place(plan, cloud, p) : cell_of<Index>(plan, cloud, p);
}

// Grid, x, y and z of a key. Index is int32 only where plan.is_small().
template <class Index = std::int64_t>
ROBOCACHE_HD void write_coordinates(const Plan& plan, std::int64_t key, std::int64_t* to) {
  auto rest = static_cast<Index>(key);
  for (int axis = 2; axis >= 0; --axis) {
    const auto size = static_cast<Index>(plan.shape[axis]);
    const Index before = rest / size;
    to[1 + axis] = rest - before * size + plan.lowest[axis];
    rest = before;
  }
  to[0] = rest;
}

// ---- features ------------------------------------------------------------------------------------------------------

#if defined(__CUDACC__)
#define ROBOCACHE_NOINLINE __noinline__  // a slow path, and large
#else
#define ROBOCACHE_NOINLINE
#endif

// Where the features of a point are, by its number among all in memory.
ROBOCACHE_NOINLINE ROBOCACHE_HD std::int64_t scattered_feature_offset(const Plan& plan, std::int64_t number) {
  const std::int64_t cloud = number / plan.points_per_cloud;
  const std::int64_t k = number - cloud * plan.points_per_cloud;
  if (plan.width == 0) return cloud * plan.feature_cloud_stride + k * plan.feature_stride[0];
  const std::int64_t v = k / plan.width;
  return cloud * plan.feature_cloud_stride + v * plan.feature_stride[0] + (k - v * plan.width) * plan.feature_stride[1];
}
ROBOCACHE_HD std::int64_t feature_offset(const Plan& plan, std::int64_t number) {
  if (plan.flat_feature_stride != 0) return number * plan.flat_feature_stride;
  return scattered_feature_offset(plan, number);
}

// What a feature is computed in: double only for points of that type, whose mean voxel_downsample takes.
template <class F>
using feature_t = std::conditional_t<std::is_same_v<F, double>, double, float>;

template <class F>
ROBOCACHE_HD feature_t<F> feature_value(F x) {
  if constexpr (std::is_integral_v<F>) {
    return static_cast<float>(x);
  } else {
    return widen(x);
  }
}

// A feature beside the coordinates of its point.
template <class C, class F>
ROBOCACHE_HD C feature_as(F x) {
  return canonical(static_cast<C>(feature_value(x)));
}

// The magnitude of a feature as an integer with the same order: the bits of a float, the upper half of those of a
// double. 0 where it is not finite, so that it does not decide the scale.
ROBOCACHE_HD std::uint32_t magnitude_of(float x) {
  return is_finite(x) ? bit_copy<std::uint32_t>(x) & 0x7fffffffu : 0u;
}
ROBOCACHE_HD std::uint32_t magnitude_of(double x) {
  return is_finite(x) ? static_cast<std::uint32_t>(bit_copy<std::uint64_t>(x) >> 32) & 0x7fffffffu : 0u;
}

ROBOCACHE_HD int bit_width(std::uint64_t x) {
#if defined(__CUDA_ARCH__)
  return 64 - __clzll(static_cast<long long>(x));
#else
  return x == 0 ? 0 : 64 - __builtin_clzll(x);
#endif
}

// Sums are integers times 2^-exponent: with this exponent, `points` features of at most that magnitude fit 62 bits.
template <class F = float>
ROBOCACHE_HD int exponent_of(std::uint32_t largest, std::int64_t points) {
  if (largest == 0) return 0;
  const int room = 61 - bit_width(static_cast<std::uint64_t>(points));
  if constexpr (std::is_same_v<F, double>) {
    const int exponent = room - (static_cast<int>(largest >> 20) - 1023);
    return exponent < 1000 ? exponent : 1000;  // 2^exponent and 2^-exponent are doubles
  } else {
    const int normal = static_cast<int>(largest >> 23) - 127;
    return room - (largest >> 23 != 0 ? normal : bit_width(largest) - 150);
  }
}

// 2^k as a double; |k| is at most 1022.
ROBOCACHE_HD double power_of_two(int k) { return bit_copy<double>(static_cast<std::int64_t>(k + 1023) << 52); }

ROBOCACHE_HD std::int64_t nearest_integer(double x) {
#if defined(__CUDA_ARCH__)
  return __double2ll_rn(x);
#else
  return static_cast<std::int64_t>(::rint(x));
#endif
}

// The same, and back, for magnitudes below 2^51. Near 1.5 * 2^52 the doubles are exactly the integers, and their bits
// count up by one. On a GPU this is cheaper than a conversion.
inline constexpr double among_integers = 0x1.8p52;
inline constexpr std::int64_t among_integers_bits = 0x4338000000000000;
ROBOCACHE_HD std::int64_t nearest_small_integer(double x) {
  return bit_copy<std::int64_t>(x + among_integers) - among_integers_bits;
}
ROBOCACHE_HD double small_integer_as_double(std::int64_t x) {
  return bit_copy<double>(x + among_integers_bits) - among_integers;
}

// Division of sums by the number of points, for means.
struct Divisor {
  double count = 1;
  double inverse = 1;  // rounded; on a GPU

  ROBOCACHE_HD explicit Divisor(std::int64_t points) : count(static_cast<double>(points)) {
#if defined(__CUDA_ARCH__)
    inverse = __drcp_rn(count);
#endif
  }
  // a / count, rounded once.
  template <class R>
  ROBOCACHE_HD double divide(double a) const {
#if defined(__CUDA_ARCH__)
    // The channels of a cell share one reciprocal. The first quotient is off by a few units in the last place; the
    // first correction step leaves less than one, and the second gives the correctly rounded quotient (Markstein).
    // That fails near the ends of double's range, where only sums of doubles can be.
    if constexpr (sizeof(R) == 4) {
      double quotient = a * inverse;
      quotient = fused(fused(-quotient, count, a), inverse, quotient);
      return fused(fused(-quotient, count, a), inverse, quotient);
    }
#endif
    return a / count;
  }
};

// Stands in for Divisor where nothing is divided: sums, and means of one point.
struct NoDivisor {
  template <class R>
  ROBOCACHE_HD double divide(double a) const {
    return a;
  }
};

// A sum of features in any order.
struct Sum {
  enum Flag : int { none = 0, nan = 1, up = 2, down = 4 };  // features that were not finite

  std::int64_t fixed = 0;
  int flags = none;

  template <class T>
  ROBOCACHE_HD void add(T x, double scale) {
    if (is_finite(x)) {
      fixed += nearest_integer(static_cast<double>(x) * scale);
    } else {
      flags |= flag_of(x);
    }
  }
  template <class T>
  ROBOCACHE_HD static int flag_of(T x) {
    if (is_finite(x)) return none;
    return is_nan(x) ? nan : (x > 0 ? up : down);
  }
  // `scale` is 2^-exponent; Small: the sum is below 2^51.
  template <class R = float, bool Small = false, class By>
  ROBOCACHE_HD R value(double scale, const By& divisor) const {
    if (flags != none) {
      if (flags == up || flags == down) return static_cast<R>(bit_copy<float>(flags == up ? 0x7f800000u : 0xff800000u));
      return quiet_nan<R>();
    }
    return narrow<R>(
        divisor.template divide<R>((Small ? small_integer_as_double(fixed) : static_cast<double>(fixed)) * scale));
  }
};

// The order of max (greatest: true) and min among features as an integer: the greatest is taken. NaN is beyond all,
// -0 < +0, and nothing is as low as below_all.
inline constexpr std::int32_t below_all = std::numeric_limits<std::int32_t>::min();
inline constexpr std::int32_t beyond_all = std::numeric_limits<std::int32_t>::max();

template <class F>
ROBOCACHE_HD std::int32_t feature_order(bool greatest, F x) {
  std::int32_t key = 0;
  if constexpr (std::is_integral_v<F>) {
    key = x;
  } else {
    const float value = feature_value(x);
    if (is_nan(value)) return beyond_all;
    const auto bits = bit_copy<std::int32_t>(value);
    key = bits < 0 ? bits ^ beyond_all : bits;
  }
  return greatest ? key : ~key;
}
// The feature that has an order; the canonical NaN beyond all.
template <class F>
ROBOCACHE_HD F feature_at(bool greatest, std::int32_t order) {
  const std::int32_t key = greatest ? order : ~order;
  if constexpr (std::is_integral_v<F>) {
    return static_cast<F>(key);
  } else {
    const float value = bit_copy<float>(key < 0 ? key ^ beyond_all : key);
    return narrow<F>(order == beyond_all ? quiet_nan<float>() : value);
  }
}

// The greatest or smallest of features in any order: equals have equal bits.
struct Extreme {
  std::int32_t order = below_all;

  template <class F>
  ROBOCACHE_HD void add(bool greatest, F x) {
    const std::int32_t here = feature_order(greatest, x);
    order = here > order ? here : order;
  }
};

}  // namespace ROBOCACHE_SIMD_TARGET
}  // namespace robocache::voxelize_op
