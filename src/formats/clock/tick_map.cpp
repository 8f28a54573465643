#include "formats/clock/tick_map.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "core/interrupt.h"
#include "formats/clock/stamp_map.h"

namespace robocache::clock {

namespace {

// Around a stall the ticks are too far apart to show when it began and ended. There the map by stamps shows how the time
// passed between two ticks, before the first one or after the last one.
void add_stalls(std::vector<ClockMap::Node>& nodes, const StampMap& by_stamps) {
  const std::vector<ClockMap::Node>& stamped = by_stamps.map.nodes;
  std::vector<ClockMap::Node> found;
  auto stall = by_stamps.stalls.begin();
  for (std::size_t k = 0; k <= nodes.size(); ++k) {
    check_interrupt();
    const std::int64_t low = k == 0 ? -limit : nodes[k - 1].log_time,
                       high = k < nodes.size() ? nodes[k].log_time : limit;
    while (stall != by_stamps.stalls.end() && stall->to <= low) ++stall;
    if (stall != by_stamps.stalls.end() && stall->from < high) {
      const ClockMap::Node base = k == 0 ? nodes.front() : nodes[k - 1];
      const std::int64_t begin = by_stamps.map.at(base.log_time);
      double scale = 1.0;
      if (k > 0 && k < nodes.size()) {
        const std::int64_t passed = by_stamps.map.at(high) - begin;
        scale = passed > 0 ? static_cast<double>(nodes[k].time - base.time) / static_cast<double>(passed) : 0.0;
      }
      auto node = std::ranges::upper_bound(stamped, low, {}, &ClockMap::Node::log_time);
      for (; scale > 0 && node != stamped.end() && node->log_time < high; ++node) {
        found.push_back({node->log_time, shifted(base.time, scale * static_cast<double>(node->time - begin))});
      }
    }
    if (k < nodes.size()) found.push_back(nodes[k]);
  }
  nodes = std::move(found);
}

}  // namespace

ClockMap map_of_ticks(const ClockSurvey::State& survey, std::span<const Candidate* const> members, std::int64_t start,
                      std::int64_t end) {
  // A tick that arrives between the cut and the first one of the new lap is of the old lap.
  std::int64_t from = start;
  if (start != -limit) {
    const auto after = std::ranges::lower_bound(survey.simulation.laps, end);
    if (after != survey.simulation.laps.begin()) from = std::max(start, *(after - 1));
  }
  std::vector<ClockMap::Node> nodes;
  auto tick_at = std::ranges::lower_bound(survey.ticks, from, {}, &Pair::log);
  for (; tick_at != survey.ticks.end() && tick_at->log < end; ++tick_at) {
    const Pair& tick = *tick_at;
    if (!nodes.empty() && nodes.back().log_time == tick.log) nodes.pop_back();
    nodes.push_back({tick.log, tick.stamp});
  }
  const StampMap by_stamps = map_of_stamps(members, survey.width, start, end);
  if (!nodes.empty() && !by_stamps.stalls.empty()) add_stalls(nodes, by_stamps);
  return finish(std::move(nodes), by_stamps.stalls);
}

}  // namespace robocache::clock
