#include "formats/clock/fit.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <utility>

#include "formats/clock/statistics.h"

namespace robocache::clock {

namespace {

constexpr std::size_t pieces = 64;               // that a fit is cut into
constexpr std::int64_t least_span = 2 * second;  // of a fit: a shorter one shows no rate

}  // namespace

StreamClock::Line fit(std::vector<Pair> floor) {
  StreamClock::Line line{.at = floor.front().stamp, .log_time = floor.front().log};
  const auto [first, last] = std::ranges::minmax(floor, {}, &Pair::stamp);
  const auto x = [&](const Pair& pair) { return static_cast<double>(pair.stamp - line.at); };
  const auto y = [&](const Pair& pair) { return static_cast<double>(pair.log - line.log_time); };
  if (last.stamp - first.stamp >= least_span && floor.size() >= 4) {
    line.slope = static_cast<double>(last.log - first.log) / static_cast<double>(last.stamp - first.stamp);
    // The median of the slopes between all pieces, each by its pair with the least delay.
    const std::size_t count = std::min(pieces, floor.size() / 2);
    std::vector<Pair> least;
    for (std::size_t k = 0; k < count; ++k) {
      const std::size_t begin = k * floor.size() / count, end = (k + 1) * floor.size() / count;
      least.push_back(*std::ranges::min_element(floor.begin() + static_cast<std::ptrdiff_t>(begin),
                                                floor.begin() + static_cast<std::ptrdiff_t>(end), {},
                                                [&](const Pair& pair) { return y(pair) - line.slope * x(pair); }));
    }
    std::vector<double> slopes;
    for (std::size_t i = 0; i < least.size(); ++i) {
      for (std::size_t j = i + 1; j < least.size(); ++j) {
        if (least[j].stamp > least[i].stamp)
          slopes.push_back((y(least[j]) - y(least[i])) / (x(least[j]) - x(least[i])));
      }
    }
    if (!slopes.empty()) line.slope = median(std::move(slopes));
  }
  std::vector<double> rest;
  rest.reserve(floor.size());
  for (const Pair& pair : floor) rest.push_back(y(pair) - line.slope * x(pair));
  line.log_time += std::llrint(percentile(std::move(rest), 0.1));
  return line;
}

bool has_step(const std::vector<Pair>& floor) {
  const std::size_t count = std::min(pieces, floor.size() / 2);
  if (count < 2) return false;
  double least = std::numeric_limits<double>::infinity(), most = -least;
  for (std::size_t k = 0; k < count; ++k) {
    const auto begin = floor.begin() + static_cast<std::ptrdiff_t>(k * floor.size() / count);
    const auto end = floor.begin() + static_cast<std::ptrdiff_t>((k + 1) * floor.size() / count);
    const auto delay = [](const Pair& pair) { return static_cast<double>(pair.log - pair.stamp); };
    const double fastest =
        delay(*std::min_element(begin, end, [&](const Pair& a, const Pair& b) { return delay(a) < delay(b); }));
    least = std::min(least, fastest);
    most = std::max(most, fastest);
  }
  return most - least >
         static_cast<double>(step_back) + rate_tolerance * static_cast<double>(floor.back().log - floor.front().log);
}

std::vector<Pair> floor_of(std::span<const Candidate* const> members) {
  std::map<std::int64_t, Pair> best;
  for (const Candidate* const member : members) {
    for (const Bin& bin : member->seen->bins) {
      const Pair pair = bin.best(1.0);
      const auto [entry, is_new] = best.try_emplace(bin.number, pair);
      if (!is_new && pair.stamp - pair.log > entry->second.stamp - entry->second.log) entry->second = pair;
    }
  }
  std::vector<Pair> floor;
  floor.reserve(best.size());
  for (const auto& [number, pair] : best) floor.push_back(pair);
  return floor;
}

std::vector<StreamClock::Line> lines_of(const StampSummary& seen) {
  std::vector<StreamClock::Line> lines;
  double slope = 1.0;
  std::size_t longest = 0;
  for (std::size_t k = 0; k < seen.bins.size();) {  // bins are in the order of laps
    const std::uint32_t lap = seen.bins[k].lap;
    std::vector<Pair> floor;
    for (; k < seen.bins.size() && seen.bins[k].lap == lap; ++k) floor.push_back(seen.bins[k].best(1.0));
    StreamClock::Line line = fit(floor);
    if (floor.size() >= 4 && floor.size() > longest) {
      longest = floor.size();
      slope = line.slope;
    }
    line.from = seen.laps[lap];
    lines.push_back(line);
  }
  for (StreamClock::Line& line : lines) {
    if (std::abs(line.slope - 1) == 0) line.slope = slope;  // too short a lap to tell
  }
  return lines;
}

}  // namespace robocache::clock
