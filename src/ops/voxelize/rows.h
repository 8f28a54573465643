// What the host backends share of sparse results: points sorted by key become rows, one for each voxel.
#pragma once

#include <atomic>
#include <functional>

#include "ops/voxelize/cells.h"

namespace robocache::voxelize_op {

struct Entry {
  std::int64_t key, point;
};

inline void raise(std::uint32_t& largest, std::uint32_t here) {
  std::atomic_ref<std::uint32_t> shared(largest);
  std::uint32_t known = shared.load(std::memory_order_relaxed);
  while (here > known && !shared.compare_exchange_weak(known, here, std::memory_order_relaxed)) {
  }
}

// How a backend loops over [0, count): parallel_for, or one after the other.
using Loop = std::function<void(std::int64_t count, std::int64_t grain,
                                const std::function<void(std::int64_t begin, std::int64_t end)>& piece)>;

// The exponents of every grid and channel for points that are sorted by key.
template <class F>
std::vector<int> exponents_for(const Plan& plan, std::span<const Entry> entries, const Loop& loop) {
  std::vector<std::uint32_t> largest(static_cast<std::size_t>(plan.grids * plan.channels));
  const auto* const features = static_cast<const F*>(plan.features);
  loop(static_cast<std::int64_t>(entries.size()), 1 << 13, [&](std::int64_t begin, std::int64_t end) {
    std::vector<std::uint32_t> here(static_cast<std::size_t>(plan.channels));
    while (begin < end) {  // as long as points are of one grid
      const std::int64_t grid = entries[static_cast<std::size_t>(begin)].key / plan.cells;
      std::fill(here.begin(), here.end(), 0);
      for (; begin < end && entries[static_cast<std::size_t>(begin)].key < (grid + 1) * plan.cells; ++begin) {
        const F* const from = features + feature_offset(plan, entries[static_cast<std::size_t>(begin)].point);
        for (std::int64_t c = 0; c < plan.channels; ++c) {
          std::uint32_t& most = here[static_cast<std::size_t>(c)];
          most = std::max(most, magnitude_of(feature_value(from[c * plan.channel_stride])));
        }
      }
      std::uint32_t* const all = largest.data() + grid * plan.channels;
      for (std::int64_t c = 0; c < plan.channels; ++c) raise(all[c], here[static_cast<std::size_t>(c)]);
    }
  });
  return exponents_of<F>(plan, largest);
}

class Rows {
 public:
  // `entries` are sorted by key, then by point; `located` as in with_point_means().
  Rows(Plan& plan, std::span<const Entry> entries, const void* located, const SetRows& set_rows, const Loop& loop)
      : plan_(plan), entries_(entries), located_(located), loop_(loop) {
    for (std::size_t k = 0; k < entries.size(); ++k) {
      if (k == 0 || entries[k].key != entries[k - 1].key) starts_.push_back(static_cast<std::int64_t>(k));
    }
    voxels_ = static_cast<std::int64_t>(starts_.size());
    starts_.push_back(static_cast<std::int64_t>(entries.size()));
    set_rows(plan, voxels_);
    kept_ = std::min(voxels_, plan.rows);
  }

  void write() {
    if (plan_.found != nullptr) {
      plan_.found[0] = kept_;
      plan_.found[1] = voxels_ - kept_;
    }
    if (plan_.point_to_voxel != nullptr) std::fill_n(plan_.point_to_voxel, plan_.all_points, -1);
    fill_cells(plan_, kept_, plan_.rows);
    fill_rest();
    with_point_type(plan_, [&](auto type) { write_places<compute_t<typename decltype(type)::type>>(); });
    if (plan_.reduces_features()) {
      with_feature_type(plan_, [&](auto type) { reduce<typename decltype(type)::type>(plan_); });
    }
    if (plan_.point_means == nullptr) return;
    const Plan means = with_point_means(plan_, located_);
    if (means.feature_dtype == DType::f64) {
      reduce<double>(means);
    } else {
      reduce<float>(means);
    }
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
    const std::int64_t bytes = plan_.first_points * (3 + plan_.channels) * (plan_.dtype == DType::f64 ? 8 : 4);
    fill(static_cast<char*>(plan_.first), bytes, char{0});
  }

  std::span<const Entry> points_of(std::int64_t row) const {
    const auto begin = static_cast<std::size_t>(starts_[static_cast<std::size_t>(row)]);
    return entries_.subspan(begin, static_cast<std::size_t>(starts_[static_cast<std::size_t>(row) + 1]) - begin);
  }

  // What does not depend on features' sums.
  template <class C>
  void write_places() {
    loop_(voxels_, 256, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t row = begin; row < std::min(end, kept_); ++row) {
        const std::span<const Entry> points = points_of(row);
        const auto count = static_cast<std::int64_t>(points.size());
        write_count(plan_, row, count);
        if (plan_.counts != nullptr) plan_.counts[row] = static_cast<std::int32_t>(count);
        if (plan_.coordinates != nullptr) write_coordinates(plan_, points[0].key, plan_.coordinates + row * 4);
        if (plan_.first_counts != nullptr) {
          plan_.first_counts[row] = static_cast<std::int32_t>(std::min(count, plan_.first_points));
        }
        if (plan_.first != nullptr) write_first<C>(row, points);
        for (std::size_t k = 0; plan_.point_to_voxel != nullptr && k < points.size(); ++k) {
          plan_.point_to_voxel[points[k].point] = row;
        }
      }
    });
  }

  template <class C>
  void write_first(std::int64_t row, std::span<const Entry> points) {
    const std::int64_t width = 3 + plan_.channels;
    C* to = static_cast<C*>(plan_.first) + row * plan_.first_points * width;
    for (std::int64_t k = 0; k < plan_.first_points; ++k, to += width) {
      if (k >= static_cast<std::int64_t>(points.size())) {
        std::fill_n(to, width, C(0));
        continue;
      }
      const std::int64_t point = points[static_cast<std::size_t>(k)].point;
      std::copy_n(static_cast<const C*>(located_) + point * 3, 3, to);
      if (plan_.channels == 0) continue;
      with_feature_type(plan_, [&](auto type) {
        const auto* const from =
            static_cast<const typename decltype(type)::type*>(plan_.features) + feature_offset(plan_, point);
        for (std::int64_t c = 0; c < plan_.channels; ++c) to[3 + c] = feature_as<C>(from[c * plan_.channel_stride]);
      });
    }
  }

  template <class F>
  void reduce(const Plan& plan) {
    std::vector<int> exponents;
    if (plan.sums()) exponents = exponents_for<F>(plan, entries_, loop_);
    loop_(kept_, 256, [&](std::int64_t begin, std::int64_t end) {
      std::vector<std::int64_t> points;
      for (std::int64_t row = begin; row < end; ++row) {
        points.clear();
        for (const Entry& entry : points_of(row)) points.push_back(entry.point);
        const std::int64_t grid = points_of(row)[0].key / plan.cells;
        write_features<F>(plan, row, points, plan.sums() ? exponents.data() + grid * plan.channels : nullptr);
      }
    });
  }

  Plan& plan_;
  std::span<const Entry> entries_;
  const void* located_;
  const Loop& loop_;
  std::vector<std::int64_t> starts_;
  std::int64_t voxels_ = 0, kept_ = 0;
};

}  // namespace robocache::voxelize_op
