#include "formats/clock/map.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace robocache::clock {

namespace {

constexpr std::int64_t end_reach = 2 * second;  // of the slopes outside: further away the rate may differ

}  // namespace

std::vector<double> slopes_of(std::span<const ClockMap::Node> nodes, std::int64_t reach, double otherwise) {
  std::vector<double> slopes;
  std::size_t low = 0, high = 0;
  for (const ClockMap::Node& node : nodes) {
    while (nodes[low].log_time < node.log_time - reach) ++low;
    while (high + 1 < nodes.size() && nodes[high + 1].log_time <= node.log_time + reach) ++high;
    const std::int64_t run = nodes[high].log_time - nodes[low].log_time;
    slopes.push_back(run > 0 ? static_cast<double>(nodes[high].time - nodes[low].time) / static_cast<double>(run)
                             : otherwise);
  }
  return slopes;
}

double slope_between(const ClockMap::Node& a, const ClockMap::Node& b) {
  return static_cast<double>(b.time - a.time) / static_cast<double>(b.log_time - a.log_time);
}

ClockMap finish(std::vector<ClockMap::Node> nodes, std::span<const Stall> stalls) {
  ClockMap map;
  for (std::size_t k = 1; k < nodes.size(); ++k) nodes[k].time = std::max(nodes[k].time, nodes[k - 1].time);
  if (nodes.size() > 1) {
    const std::int64_t first = nodes.front().log_time, last = nodes.back().log_time;
    const std::int64_t until = stalls.empty() ? limit : stalls.front().from;
    const std::int64_t since = stalls.empty() ? -limit : stalls.back().to;
    std::size_t head = 1, tail = nodes.size() - 2;
    while (head + 1 < nodes.size() && nodes[head + 1].log_time <= std::min(first + end_reach, until)) ++head;
    while (tail > 0 && nodes[tail - 1].log_time >= std::max(last - end_reach, since)) --tail;
    const double around = slope_between(nodes.front(), nodes.back());
    map.before = nodes[head].log_time <= until ? slope_between(nodes.front(), nodes[head]) : around;
    map.after = nodes[tail].log_time >= since ? slope_between(nodes[tail], nodes.back()) : around;
  }
  map.nodes = std::move(nodes);
  return map;
}

std::int64_t shifted(std::int64_t from, double by) {
  constexpr double most = 4e18;
  const double sum = static_cast<double>(from) + by;
  if (!(std::abs(sum) < most)) return static_cast<std::int64_t>(std::clamp(sum, -most, most));
  return from + std::llrint(by);
}

}  // namespace robocache::clock

namespace robocache {

using namespace clock;

std::int64_t ClockMap::at(std::int64_t log_time) const {
  if (nodes.empty()) return log_time;
  const auto above = std::ranges::upper_bound(nodes, log_time, {}, &Node::log_time);
  if (above == nodes.begin()) return shifted(above->time, before * static_cast<double>(log_time - above->log_time));
  const Node& low = *(above - 1);
  const auto run = static_cast<double>(log_time - low.log_time);
  if (above == nodes.end()) return shifted(low.time, after * run);
  const double slope =
      static_cast<double>(above->time - low.time) / static_cast<double>(above->log_time - low.log_time);
  return low.time + std::llrint(slope * run);
}

std::int64_t ClockMap::log_time_of(std::int64_t time, bool is_end) const {
  constexpr std::int64_t margin = 1'000;  // of rounding
  const std::int64_t spare = is_end ? margin : -margin;
  if (nodes.empty()) return shifted(time, static_cast<double>(spare));
  const auto outside = [&](const Node& node, double slope) {
    const auto run = static_cast<double>(time - node.time);
    if (slope <= 0) return run < 0 ? -limit : limit;
    return shifted(node.log_time, run / slope + static_cast<double>(spare));
  };
  const auto above = is_end ? std::ranges::upper_bound(nodes, time, {}, &Node::time)
                            : std::ranges::lower_bound(nodes, time, {}, &Node::time);
  if (above == nodes.begin()) return outside(nodes.front(), before);
  if (above == nodes.end()) return outside(nodes.back(), after);
  return is_end ? above->log_time + margin : (above - 1)->log_time - margin;
}

}  // namespace robocache
