// The truth: every point one after the other, then every cell that has some.
#include <cstddef>

#include "ops/voxelize/rows.h"

namespace robocache::voxelize_op {
namespace {

const Loop one_after_the_other = [](std::int64_t count, std::int64_t, const auto& piece) {
  if (count > 0) piece(0, count);
};

// `located`, where given: each point in the grid's frame.
template <class T>
std::vector<Entry> locate_all(const Plan& plan, compute_t<T>* located = nullptr) {
  std::vector<Entry> entries;
  for (std::int64_t c = 0; c < plan.clouds; ++c) {
    const auto cloud = cloud_of<compute_t<T>>(plan, c);
    std::int64_t dropped[drop_reasons] = {};
    for (std::int64_t k = 0; k < cloud.count; ++k) {
      compute_t<T> p[3] = {};
      const Place place = locate<T>(plan, cloud, k, p);
      if (place.drop != Drop::none) {
        ++dropped[static_cast<int>(place.drop)];
      } else {
        const std::int64_t number = point_number(plan, cloud, k);
        entries.push_back({cloud.grid * plan.cells + place.cell, number});
        if (located != nullptr) std::copy_n(p, 3, located + number * 3);
      }
    }
    if (plan.dropped != nullptr) std::copy_n(dropped, drop_reasons, plan.dropped + c * drop_reasons);
  }
  std::stable_sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) { return a.key < b.key; });
  return entries;
}

template <class F>
void reduce(const Plan& plan, const std::vector<Entry>& entries) {
  std::vector<int> exponents;
  if (plan.reduces_features()) exponents = exponents_for<F>(plan, entries, one_after_the_other);
  std::vector<std::int64_t> points;
  for (std::size_t begin = 0; begin < entries.size(); begin += points.size()) {
    const std::int64_t key = entries[begin].key;
    points.clear();
    for (std::size_t k = begin; k < entries.size() && entries[k].key == key; ++k) points.push_back(entries[k].point);
    write_count(plan, key, static_cast<std::int64_t>(points.size()));
    if (plan.reduces_features()) {
      write_features<F>(plan, key, points, exponents.data() + key / plan.cells * plan.channels);
    }
  }
}

template <class T>
void find_lattice(Plan& plan) {
  std::int64_t low[3] = {farthest, farthest, farthest};
  std::int64_t high[3] = {-farthest, -farthest, -farthest};
  for (std::int64_t c = 0; c < plan.clouds; ++c) {
    const auto cloud = cloud_of<compute_t<T>>(plan, c);
    for (std::int64_t k = 0; k < cloud.count; ++k) {
      compute_t<T> p[3] = {};
      std::int64_t cell[3];
      if (bring<T>(plan, cloud, k, p) != Drop::none || !lattice_cell(cloud, p, cell)) continue;
      for (int axis = 0; axis < 3; ++axis) {
        low[axis] = std::min(low[axis], cell[axis]);
        high[axis] = std::max(high[axis], cell[axis]);
      }
    }
  }
  set_lattice(plan, low, high);
}

}  // namespace

void run_reference(const Plan& plan) {
  fill_cells(plan, 0, plan.grids * plan.cells);
  with_point_type(plan, [&](auto type) {
    const std::vector<Entry> entries = locate_all<typename decltype(type)::type>(plan);
    with_feature_type(plan, [&](auto feature) { reduce<typename decltype(feature)::type>(plan, entries); });
  });
}

void run_sparse_reference(Plan plan, const SetRows& set_rows) {
  with_point_type(plan, [&](auto type) {
    using T = typename decltype(type)::type;
    if (plan.lattice) find_lattice<T>(plan);
    std::vector<compute_t<T>> located(static_cast<std::size_t>(plan.locates() ? plan.all_points * 3 : 0));
    const std::vector<Entry> entries = locate_all<T>(plan, plan.locates() ? located.data() : nullptr);
    Rows(plan, entries, located.data(), set_rows, one_after_the_other).write();
  });
}

}  // namespace robocache::voxelize_op
