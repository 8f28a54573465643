// What the cpu backend computes, compiled once for each SIMD target. Points are placed a block at a time, by loops over
// the block that have no branches: compilers turn them into vectors.
#include "ops/voxelize/cpu/cpu.h"

namespace robocache::voxelize_op {
inline namespace ROBOCACHE_SIMD_TARGET {
namespace {

constexpr std::int32_t block_points = 256;  // what a few loops keep in the first cache

template <class C>
struct Block {
  std::int32_t count = 0;
  C p[3][block_points];             // points, in the grid's frame in the end
  std::int32_t drop[block_points];  // a Drop

  template <class F>
  void each(const F& f) {
    for (std::int32_t k = 0; k < count; ++k) f(k);
  }
  // The smallest Drop is the reason.
  template <class F>
  void drop_unless(Drop reason, const F& holds) {
    for (std::int32_t k = 0; k < count; ++k) {
      const C at[3] = {p[0][k], p[1][k], p[2][k]};
      const auto here = static_cast<std::int32_t>(holds(at) ? Drop::none : reason);
      drop[k] = here < drop[k] ? here : drop[k];
    }
  }
};

// As to_grid_frame(), for points from k on.
template <class T, class C = compute_t<T>>
void to_grid_frame_block(const Plan& plan, const Cloud<C>& cloud, std::int64_t k, Block<C>& block) {
  if (plan.source == Source::points) {
    if constexpr (is_float_type<T>) {
      const std::int64_t stride = plan.point_stride;
      const T* const first =
          static_cast<const T*>(plan.points) + cloud.number * plan.cloud_stride + (cloud.first + k) * stride;
      const auto read = [&](auto from_point, auto from_axis) {
        block.each([&](std::int32_t n) {
          for (int axis = 0; axis < 3; ++axis) block.p[axis][n] = widen(first[n * from_point + axis * from_axis]);
        });
      };
      using std::integral_constant;
      if (plan.axis_stride == 1 && stride == 3) {  // known numbers, so that points are read as vectors
        read(integral_constant<int, 3>{}, integral_constant<int, 1>{});
      } else if (plan.axis_stride == 1 && stride == 4) {
        read(integral_constant<int, 4>{}, integral_constant<int, 1>{});
      } else {
        read(stride, plan.axis_stride);
      }
    }
    block.each([&](std::int32_t n) { block.drop[n] = static_cast<std::int32_t>(Drop::none); });
  } else {
    block.each([&](std::int32_t n) {
      C p[3] = {};
      block.drop[n] = static_cast<std::int32_t>(unproject<T>(plan, cloud, k + n, p) ? Drop::none : Drop::no_reading);
      for (int axis = 0; axis < 3; ++axis) block.p[axis][n] = p[axis];
    });
  }
  const auto finite = [](const C(&p)[3]) { return all_finite(p); };
  const auto crop = [&] {
    C low[3], high[3];
    for (int axis = 0; axis < 3; ++axis) {
      low[axis] = static_cast<C>(plan.crop_low[axis]);
      high[axis] = static_cast<C>(plan.crop_high[axis]);
    }
    block.drop_unless(Drop::cropped, [=](const C(&p)[3]) {
      bool inside = true;
      for (int axis = 0; axis < 3; ++axis) inside &= p[axis] >= low[axis] && p[axis] < high[axis];
      return inside;
    });
  };
  block.drop_unless(Drop::not_finite, finite);
  if (plan.crops && plan.crop_in_sensor_frame) crop();
  if (plan.poses.data != nullptr) {
    const Cloud<C> posed = cloud;  // a copy, so that writing points cannot change it
    block.each([&](std::int32_t n) {
      C p[3] = {block.p[0][n], block.p[1][n], block.p[2][n]};
      camera::transform(posed, p);
      for (int axis = 0; axis < 3; ++axis) block.p[axis][n] = p[axis];
    });
    block.drop_unless(Drop::not_finite, finite);
  }
  if (plan.crops && !plan.crop_in_sensor_frame) crop();
}

// As cell_of() and lattice_place(), which differ only in what `lowest` is. Index is int32 where fits_int32().
template <class Index, class C>
void place_block(const Plan& plan, const Cloud<C>& cloud, Block<C>& block, std::int64_t* keys) {
  constexpr C limit = sizeof(Index) == 8 ? C(size_limit) : C(0x1p30);
  const std::int64_t base = cloud.grid * plan.cells;
  C origin[3], voxel_size[3];
  Index lowest[3], size[3];
  for (int axis = 0; axis < 3; ++axis) {
    origin[axis] = cloud.origin[axis];
    voxel_size[axis] = cloud.voxel_size[axis];
    lowest[axis] = static_cast<Index>(plan.lowest[axis]);
    size[axis] = static_cast<Index>(plan.shape[axis]);
  }
  block.each([&](std::int32_t k) {
    Index cell = 0;
    bool inside = true;
    for (int axis = 0; axis < 3; ++axis) {
      const C at = floor_of((block.p[axis][k] - origin[axis]) / voxel_size[axis]);
      const bool near = at >= static_cast<C>(lowest[axis]) && at < limit;
      const Index index = static_cast<Index>(near ? at : C(0)) - lowest[axis];
      inside &= near && index < size[axis];
      cell = cell * size[axis] + (inside ? index : 0);
    }
    const auto reason = static_cast<std::int32_t>(inside ? Drop::none : Drop::outside);
    block.drop[k] = reason < block.drop[k] ? reason : block.drop[k];
    keys[k] = block.drop[k] == static_cast<std::int32_t>(Drop::none) ? base + cell : -1;
  });
}

bool fits_int32(const Plan& plan) {
  bool fits = plan.is_small();
  for (int axis = 0; axis < 3; ++axis) {
    fits = fits && plan.lowest[axis] >= -(1 << 30) && plan.lowest[axis] + plan.shape[axis] <= 1 << 30;
  }
  return fits;
}

template <class C, class F>
void each_block(const Part& part, Block<C>& block, const F& f) {
  for (std::int64_t k = part.begin; k < part.end; k += block_points) {
    block.count = static_cast<std::int32_t>(part.end - k < block_points ? part.end - k : block_points);
    f(k);
  }
}

template <class T>
void locate_points(const Plan& plan, const Part& part, std::int64_t* keys, compute_t<T>* located,
                   std::int64_t (&dropped)[drop_reasons]) {
  using C = compute_t<T>;
  const auto cloud = cloud_of<C>(plan, part.cloud);
  const bool small = fits_int32(plan);
  Block<C> block;
  each_block(part, block, [&](std::int64_t k) {
    to_grid_frame_block<T>(plan, cloud, k, block);
    if (small) {
      place_block<std::int32_t>(plan, cloud, block, keys);
    } else {
      place_block<std::int64_t>(plan, cloud, block, keys);
    }
    keys += block.count;
    for (std::int32_t reason = 0; reason < drop_reasons; ++reason) {
      std::int32_t here = 0;
      block.each([&](std::int32_t n) { here += block.drop[n] == reason ? 1 : 0; });
      dropped[reason] += here;
    }
    if (located == nullptr) return;
    block.each([&](std::int32_t n) {
      for (int axis = 0; axis < 3; ++axis) located[3 * n + axis] = block.p[axis][n];
    });
    located += 3 * block.count;
  });
}

// Extremes over the points at the same place of every block, along one axis. Vectors are reduced only at the end.
template <class C>
struct BlockExtremes {
  C low[block_points], high[block_points];
  std::uint32_t largest[block_points];
};

template <class T>
void bound_points(const Plan& plan, const Part& part, Bounds& bounds, std::uint32_t (&largest)[3]) {
  using C = compute_t<T>;
  constexpr C none = std::numeric_limits<C>::infinity();
  const auto cloud = cloud_of<C>(plan, part.cloud);
  const std::int32_t used =
      part.end - part.begin < block_points ? static_cast<std::int32_t>(part.end - part.begin) : block_points;
  Block<C> block;
  BlockExtremes<C> spreads[3];
  C cells[3][block_points];
  for (BlockExtremes<C>& spread : spreads) {
    for (std::int32_t n = 0; n < used; ++n) {
      spread.low[n] = none;
      spread.high[n] = -none;
      spread.largest[n] = 0;
    }
  }
  each_block(part, block, [&](std::int64_t k) {
    to_grid_frame_block<T>(plan, cloud, k, block);
    for (int axis = 0; axis < 3; ++axis) {
      const C origin = cloud.origin[axis], voxel_size = cloud.voxel_size[axis];
      block.each([&](std::int32_t n) {
        const C at = floor_of((block.p[axis][n] - origin) / voxel_size);
        cells[axis][n] = at;
        block.drop[n] = at >= -C(size_limit) && at < C(size_limit) ? block.drop[n] : 0;
      });
    }
    for (int axis = 0; axis < 3; ++axis) {
      BlockExtremes<C>& spread = spreads[axis];
      block.each([&](std::int32_t n) {
        const bool kept = block.drop[n] == static_cast<std::int32_t>(Drop::none);
        const C at = cells[axis][n];
        spread.low[n] = kept && at < spread.low[n] ? at : spread.low[n];
        spread.high[n] = kept && at > spread.high[n] ? at : spread.high[n];
        const std::uint32_t magnitude = kept ? magnitude_of(block.p[axis][n]) : 0u;
        spread.largest[n] = magnitude > spread.largest[n] ? magnitude : spread.largest[n];
      });
    }
  });
  for (int axis = 0; axis < 3; ++axis) {
    const BlockExtremes<C>& spread = spreads[axis];
    for (std::int32_t n = 0; n < used; ++n) {
      if (spread.low[n] > spread.high[n]) continue;
      const auto low = static_cast<std::int64_t>(spread.low[n]), high = static_cast<std::int64_t>(spread.high[n]);
      bounds.low[axis] = low < bounds.low[axis] ? low : bounds.low[axis];
      bounds.high[axis] = high > bounds.high[axis] ? high : bounds.high[axis];
      largest[axis] = spread.largest[n] > largest[axis] ? spread.largest[n] : largest[axis];
    }
  }
}

std::int64_t count_marks(const Marks* marks, std::int64_t words) {
  std::int64_t count = 0;
  for (std::int64_t k = 0; k < words; ++k) count += __builtin_popcount(marks[k].bits);
  return count;
}

void rank_marks(Marks* marks, std::int64_t words, std::int64_t before) {
  for (std::int64_t k = 0; k < words; ++k) {
    marks[k].before = static_cast<std::uint32_t>(before);
    before += __builtin_popcount(marks[k].bits);
  }
}

template <class T>
void add_points(const Plan& plan, const Part& part, const std::int64_t* keys, const Marks* marks, const int* exponents,
                PointSum* sums) {
  using C = compute_t<T>;
  const auto cloud = cloud_of<C>(plan, part.cloud);
  Block<C> block;
  std::int64_t fixed[3][block_points];
  each_block(part, block, [&](std::int64_t k) {
    to_grid_frame_block<T>(plan, cloud, k, block);
    for (int axis = 0; axis < 3; ++axis) {
      const double scale = power_of_two(exponents[axis]);
      block.each([&](std::int32_t n) {
        const C kept = keys[n] < 0 ? C(0) : block.p[axis][n];  // others may be no numbers
        fixed[axis][n] = nearest_integer(static_cast<double>(kept) * scale);
      });
    }
    block.each([&](std::int32_t n) {
      if (keys[n] < 0) return;
      const auto key = static_cast<std::uint64_t>(keys[n]);
      const Marks here = marks[key / 32];
      const int before = __builtin_popcount(here.bits & ((1u << (key % 32)) - 1));
      PointSum& sum = sums[here.before + static_cast<std::uint32_t>(before)];
      for (int axis = 0; axis < 3; ++axis) sum.fixed[axis] += fixed[axis][n];
      ++sum.count;
    });
    keys += block.count;
  });
}

template <class F, class Stride>
void measure_features(const Plan& plan, std::int64_t first, std::int64_t count, const std::int64_t* keys,
                      std::uint32_t* largest, Stride stride) {
  const auto* const features = static_cast<const F*>(plan.features);
  over_channels(plan.channels, [&](auto wide, std::int64_t channel) {
    constexpr int width = decltype(wide)::value;
    std::uint32_t most[width];
    for (int c = 0; c < width; ++c) most[c] = largest[channel + c];
    for (std::int64_t k = 0; k < count; ++k) {
      if (keys[k] < 0) continue;
      const F* const from = features + feature_offset(plan, first + k) + channel * stride;
      for (int c = 0; c < width; ++c) {
        const std::uint32_t here = magnitude_of(feature_value(from[c * stride]));
        most[c] = here > most[c] ? here : most[c];
      }
    }
    for (int c = 0; c < width; ++c) largest[channel + c] = most[c];
  });
}

void locate(const Plan& plan, const Part& part, std::int64_t* keys, void* located,
            std::int64_t (&dropped)[drop_reasons]) {
  with_point_type(plan, [&](auto type) {
    using T = typename decltype(type)::type;
    locate_points<T>(plan, part, keys, static_cast<compute_t<T>*>(located), dropped);
  });
}
void bound(const Plan& plan, const Part& part, Bounds& bounds, std::uint32_t (&largest)[3]) {
  with_point_type(plan, [&](auto type) { bound_points<typename decltype(type)::type>(plan, part, bounds, largest); });
}
void add(const Plan& plan, const Part& part, const std::int64_t* keys, const Marks* marks, const int* exponents,
         PointSum* sums) {
  with_point_type(
      plan, [&](auto type) { add_points<typename decltype(type)::type>(plan, part, keys, marks, exponents, sums); });
}
void measure(const Plan& plan, std::int64_t first, std::int64_t count, const std::int64_t* keys,
             std::uint32_t* largest) {
  with_value_type(plan, [&](auto type) {
    using F = typename decltype(type)::type;
    with_stride(plan, [&](auto stride) { measure_features<F>(plan, first, count, keys, largest, stride); });
  });
}

}  // namespace

extern const CpuFunctions cpu_functions;
constexpr CpuFunctions cpu_functions{locate, bound, measure, count_marks, rank_marks, add, reduce};

}  // namespace ROBOCACHE_SIMD_TARGET
}  // namespace robocache::voxelize_op
