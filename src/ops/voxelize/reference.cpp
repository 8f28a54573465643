// The reference backend: every point one after the other, then every cell that has points.
#include <cstddef>

#include "core/interrupt.h"
#include "ops/voxelize/sparse_rows.h"

namespace robocache::voxelize_op {
namespace {

struct Entry {
  std::int64_t key, point;
};

// One after the other.
const auto loop = [](std::int64_t count, std::int64_t, const auto& piece) { piece(std::int64_t{0}, count); };

// `located`, where given: each point in the grid's frame.
template <class T>
std::vector<Entry> locate_all(const Plan& plan, compute_t<T>* located = nullptr) {
  std::vector<Entry> entries;
  for (std::int64_t c = 0; c < plan.clouds; ++c) {
    const auto cloud = cloud_of<compute_t<T>>(plan, c);
    std::int64_t dropped[drop_reasons] = {};
    for (std::int64_t k = 0; k < cloud.count; ++k) {
      check_interrupt();
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

struct Lists {
  std::vector<std::int64_t> keys;
  std::vector<std::uint32_t> starts;
  std::vector<PointRun> runs;  // each of one point

  explicit Lists(const std::vector<Entry>& entries) {
    for (const Entry& entry : entries) {
      if (keys.empty() || entry.key != keys.back()) {
        keys.push_back(entry.key);
        starts.push_back(static_cast<std::uint32_t>(runs.size()));
      }
      runs.push_back({static_cast<std::uint32_t>(entry.point), 1});
    }
    starts.push_back(static_cast<std::uint32_t>(runs.size()));
  }
  Voxels voxels(bool dense) const {
    return {dense, static_cast<std::int64_t>(keys.size()), keys.data(), starts.data(), runs.data()};
  }
};

template <class F>
std::vector<int> find_exponents(const Plan& plan, const Voxels& voxels) {
  std::vector<std::uint32_t> largest(static_cast<std::size_t>(plan.grids * plan.channels));
  for (std::int64_t voxel = 0; voxel < voxels.count; ++voxel) {
    std::uint32_t* const here = largest.data() + voxels.keys[voxel] / plan.cells * plan.channels;
    over_features<F>(plan, voxels, voxel, 0, [&](const F* from) {
      for (std::int64_t c = 0; c < plan.channels; ++c) {
        here[c] = std::max(here[c], magnitude_of(feature_value(from[c * plan.channel_stride])));
      }
    });
  }
  return exponents_of(plan, largest);
}

// The first `count` voxels.
const auto reduce_voxels = [](const Plan& plan, const Voxels& voxels, std::int64_t count) {
  std::vector<int> exponents;
  with_value_type(plan, [&](auto type) { exponents = find_exponents<typename decltype(type)::type>(plan, voxels); });
  reduce(plan, voxels, 0, count, exponents.data());
};

template <class T>
void find_lattice(Plan& plan) {
  std::int64_t low[3] = {farthest, farthest, farthest};
  std::int64_t high[3] = {-farthest, -farthest, -farthest};
  for (std::int64_t c = 0; c < plan.clouds; ++c) {
    const auto cloud = cloud_of<compute_t<T>>(plan, c);
    for (std::int64_t k = 0; k < cloud.count; ++k) {
      compute_t<T> p[3] = {};
      std::int64_t cell[3];
      if (to_grid_frame<T>(plan, cloud, k, p) != Drop::none || !lattice_cell(cloud, p, cell)) continue;
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
    const Lists lists(locate_all<typename decltype(type)::type>(plan));
    const Voxels voxels = lists.voxels(true);
    for (std::int64_t n = 0; n < voxels.count; ++n) write_count(plan, voxels.keys[n], voxels.points_of(n));
    if (plan.reduces_features()) reduce_voxels(plan, voxels, voxels.count);
  });
}

void run_sparse_reference(Plan plan, const SetRows& set_rows) {
  with_point_type(plan, [&](auto type) {
    using T = typename decltype(type)::type;
    if (plan.lattice) find_lattice<T>(plan);
    std::vector<compute_t<T>> located(static_cast<std::size_t>(plan.locates() ? plan.all_points * 3 : 0));
    const Lists lists(locate_all<T>(plan, plan.locates() ? located.data() : nullptr));
    Rows(plan, lists.voxels(false), located.data(), set_rows, loop, reduce_voxels).write();
  });
}

}  // namespace robocache::voxelize_op
