// Sparse results on the host: voxels become rows. Shared by reference and cpu.
#pragma once

#include "ops/voxelize/host_cells.h"

namespace robocache::voxelize_op {

inline void write_place(const Plan& plan, std::int64_t row, std::int64_t key) {
  if (plan.coordinates == nullptr) return;
  if (plan.is_small()) {
    write_coordinates<std::int32_t>(plan, key, plan.coordinates + row * 4);
  } else {
    write_coordinates(plan, key, plan.coordinates + row * 4);
  }
}

// `Loop` is how a backend loops over [0, count): parallel_for, or one after the other. `Reduce` calls reduce() of
// reduce.h with the exponents.
template <class Loop, class Reduce>
class Rows {
 public:
  // `located` as in with_point_means().
  Rows(Plan& plan, const Voxels& voxels, const void* located, const SetRows& set_rows, const Loop& loop,
       const Reduce& reduce)
      : plan_(plan), voxels_(voxels), located_(located), loop_(loop), reduce_(reduce) {
    set_rows(plan, voxels.count);
    kept_ = std::min(voxels.count, plan.rows);
  }

  void write() {
    if (plan_.found != nullptr) {
      plan_.found[0] = kept_;
      plan_.found[1] = voxels_.count - kept_;
    }
    if (plan_.point_to_voxel != nullptr) std::fill_n(plan_.point_to_voxel, plan_.all_points, -1);
    fill_cells(plan_, kept_, plan_.rows);
    fill_rest();
    with_point_type(plan_, [&](auto type) { write_places<compute_t<typename decltype(type)::type>>(); });
    if (plan_.reduces_features()) reduce_(plan_, voxels_, kept_);
    if (plan_.point_means != nullptr) reduce_(with_point_means(plan_, located_), voxels_, kept_);
  }

 private:
  // Rows without a voxel.
  void fill_rest() {
    const auto fill = [&](auto* values, std::int64_t each, auto value) {
      if (values != nullptr) std::fill(values + kept_ * each, values + plan_.rows * each, value);
    };
    fill(plan_.coordinates, 4, std::int64_t{-1});
    fill(plan_.counts, 1, 0);
    fill(plan_.first_counts, 1, 0);
    const std::int64_t bytes = plan_.first_points * (3 + plan_.channels) * size_of(computed_type(plan_.dtype));
    fill(static_cast<char*>(plan_.first), bytes, char{0});
  }

  // Everything that needs no features.
  template <class C>
  void write_places() {
    loop_(kept_, 256, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t row = begin; row < end; ++row) {
        const std::int64_t count = voxels_.points_of(row);
        write_count(plan_, row, count);
        if (plan_.counts != nullptr) plan_.counts[row] = static_cast<std::int32_t>(count);
        write_place(plan_, row, voxels_.keys[row]);
        if (plan_.first_counts != nullptr) {
          plan_.first_counts[row] = static_cast<std::int32_t>(std::min(count, plan_.first_points));
        }
        if (plan_.first != nullptr) write_first<C>(row);
        if (plan_.point_to_voxel == nullptr) continue;
        over_points(voxels_, row, [&](std::int64_t point) { plan_.point_to_voxel[point] = row; });
      }
    });
  }

  template <class C>
  void write_first(std::int64_t row) {
    const std::int64_t width = 3 + plan_.channels;
    C* to = static_cast<C*>(plan_.first) + row * plan_.first_points * width;
    C* const end = to + plan_.first_points * width;
    over_points(voxels_, row, [&](std::int64_t point) {
      if (to == end) return;
      std::copy_n(static_cast<const C*>(located_) + point * 3, 3, to);
      if (plan_.channels > 0) write_features(point, to + 3);
      to += width;
    });
    std::fill(to, end, C(0));
  }

  template <class C>
  void write_features(std::int64_t point, C* to) {
    with_feature_type(plan_, [&](auto type) {
      const auto* const from =
          static_cast<const typename decltype(type)::type*>(plan_.features) + feature_offset(plan_, point);
      for (std::int64_t c = 0; c < plan_.channels; ++c) to[c] = feature_as<C>(from[c * plan_.channel_stride]);
    });
  }

  Plan& plan_;
  const Voxels& voxels_;
  const void* located_;
  const Loop& loop_;
  const Reduce& reduce_;
  std::int64_t kept_ = 0;
};

}  // namespace robocache::voxelize_op
