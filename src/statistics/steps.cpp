#include "statistics/steps.h"

#include <algorithm>
#include <cmath>

namespace robocache::statistics {

namespace {

constexpr double share_of_regular = 0.6;
constexpr double share_of_regular_few = 0.9;
constexpr std::size_t few_steps = 20;

// As numpy.median has it: of an even number, the mean of the two in the middle.
double median_of(std::vector<std::int64_t>& steps) {
  const auto middle = steps.begin() + static_cast<std::ptrdiff_t>(steps.size() / 2);
  std::nth_element(steps.begin(), middle, steps.end());
  const auto upper = static_cast<double>(*middle);
  if (steps.size() % 2 == 1) return upper;
  return (static_cast<double>(*std::max_element(steps.begin(), middle)) + upper) / 2;
}

}  // namespace

bool are_regular(std::vector<std::int64_t>& steps) {
  if (static_cast<std::int64_t>(steps.size()) < few_samples - 1) return false;
  const double period = median_of(steps);
  const auto near = std::ranges::count_if(
      steps, [period](std::int64_t step) { return std::abs(static_cast<double>(step) - period) <= 0.5 * period; });
  const double share = static_cast<double>(near) / static_cast<double>(steps.size());
  return share >= (steps.size() >= few_steps ? share_of_regular : share_of_regular_few);
}

bool come_all_the_time(std::span<const std::int64_t> times) {
  if (times.size() < 2) return false;
  std::int64_t least = times[1] - times[0];
  std::int64_t most = least;
  for (std::size_t k = 1; k + 1 < times.size(); ++k) {
    const std::int64_t step = times[k + 1] - times[k];
    least = std::min(least, step);
    most = std::max(most, step);
  }
  // Then no step is far from the median, which need not be found.
  if (static_cast<std::int64_t>(times.size()) > few_samples && least > 0 &&
      static_cast<double>(most - least) <= 0.5 * static_cast<double>(least)) {
    return true;
  }
  std::vector<std::int64_t> steps;
  steps.reserve(times.size() - 1);
  for (std::size_t k = 0; k + 1 < times.size(); ++k) {
    if (times[k + 1] > times[k]) steps.push_back(times[k + 1] - times[k]);
  }
  return are_regular(steps);
}

}  // namespace robocache::statistics
