// The truth: every point one after the other, then every cell that has some.
#include <cstddef>

#include "ops/voxelize/cells.h"

namespace robocache::voxelize_op {
namespace {

struct Entry {
  std::int64_t key, point;
};

template <class T>
std::vector<Entry> locate_all(const Plan& plan) {
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
        entries.push_back({cloud.grid * plan.cells + place.cell, point_number(plan, cloud, k)});
      }
    }
    if (plan.dropped != nullptr) std::copy_n(dropped, drop_reasons, plan.dropped + c * drop_reasons);
  }
  std::stable_sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) { return a.key < b.key; });
  return entries;
}

template <class F>
std::vector<int> exponents_for(const Plan& plan, const std::vector<Entry>& entries) {
  std::vector<std::uint32_t> largest(static_cast<std::size_t>(plan.grids * plan.channels));
  const auto* const features = static_cast<const F*>(plan.features);
  for (const Entry& entry : entries) {
    std::uint32_t* const here = largest.data() + entry.key / plan.cells * plan.channels;
    const std::int64_t offset = feature_offset(plan, entry.point);
    for (std::int64_t c = 0; c < plan.channels; ++c) {
      here[c] = std::max(here[c], magnitude_of(feature_value(features[offset + c * plan.channel_stride])));
    }
  }
  return exponents_of(plan, largest);
}

template <class F>
void reduce(const Plan& plan, const std::vector<Entry>& entries) {
  std::vector<int> exponents;
  if (plan.reduces_features()) exponents = exponents_for<F>(plan, entries);
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

}  // namespace

void run_reference(const Plan& plan) {
  fill_cells(plan, 0, plan.grids * plan.cells);
  with_point_type(plan, [&](auto type) {
    const std::vector<Entry> entries = locate_all<typename decltype(type)::type>(plan);
    with_feature_type(plan, [&](auto feature) { reduce<typename decltype(feature)::type>(plan, entries); });
  });
}

}  // namespace robocache::voxelize_op
