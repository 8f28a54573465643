// The percentiles that clocks are found by.
#pragma once

#include <algorithm>
#include <utility>
#include <vector>

namespace robocache::clock {

inline double percentile(std::vector<double> values, double share) {
  if (values.empty()) return 0;
  const auto at = values.begin() + static_cast<std::ptrdiff_t>(share * static_cast<double>(values.size() - 1));
  std::nth_element(values.begin(), at, values.end());
  return *at;
}
inline double median(std::vector<double> values) { return percentile(std::move(values), 0.5); }

}  // namespace robocache::clock
