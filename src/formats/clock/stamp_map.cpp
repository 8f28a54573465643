#include "formats/clock/stamp_map.h"

#include <algorithm>
#include <optional>
#include <tuple>
#include <utility>

#include "core/interrupt.h"

namespace robocache::clock {

namespace {

// The pair with the largest stamp - rate * log.
Pair most_ahead(std::span<const Pair> pairs, double rate) {
  const Pair base = pairs.front();
  return *std::ranges::max_element(pairs, {}, [&](const Pair& pair) {
    return static_cast<double>(pair.stamp - base.stamp) - rate * static_cast<double>(pair.log - base.log);
  });
}

// A stretch between two stalls.
struct Segment {
  std::vector<ClockMap::Node> nodes{};
  double first_slope = 1.0, last_slope = 1.0;
};

Segment segment_of(const std::vector<Cell>& cells, double usual) {
  Segment segment;
  std::vector<ClockMap::Node>& nodes = segment.nodes;
  for (const Cell& cell : cells) {
    const Pair pair = *cell.most_ahead(0.0);
    nodes.push_back({pair.log, pair.stamp});
  }
  // The slope over +-5 s picks the first nodes. Their slope over +-1 s then follows a changing rate.
  for (const std::int64_t reach : {wide_reach, second}) {
    const std::vector<double> slopes = slopes_of(nodes, reach, usual);
    for (std::size_t k = 0; k < cells.size(); ++k) {
      const Pair pair = *cells[k].most_ahead(slopes[k]);
      nodes[k] = {pair.log, pair.stamp};
    }
  }
  const std::vector<double> slopes = slopes_of(nodes, second, usual);
  segment.first_slope = std::max(slopes.front(), 0.0);
  segment.last_slope = std::max(slopes.back(), 0.0);
  return segment;
}

// Adds the nodes around a stall: the clock runs as before until the stall begins, stands still, and then runs as the fastest
// messages after the stall show.
void join_over(const Stall& stall, std::vector<ClockMap::Node>& nodes, double slope, const Segment& next,
               const Pair& before, const Pair& behind) {
  const auto line = [](const Pair& pair, double rate, std::int64_t log) {
    return shifted(pair.stamp, rate * static_cast<double>(log - pair.log));
  };
  const std::int64_t last = nodes.back().time;
  const std::int64_t to = std::max(last, std::min(next.nodes.front().time, line(behind, next.first_slope, stall.to)));
  const std::int64_t from = std::max(last, line(before, slope, stall.from));
  if (from <= to) {
    if (stall.from > nodes.back().log_time) nodes.push_back({stall.from, from});
  } else {  // the last messages were late: the clock stood still before they arrived
    const std::int64_t corner = shifted(stall.from, -static_cast<double>(from - to) / slope);
    if (corner > nodes.back().log_time) nodes.push_back({corner, to});
  }
  const bool is_between = stall.to > nodes.back().log_time && stall.to < next.nodes.front().log_time;
  if (is_between) nodes.push_back({stall.to, to});
}

// Where only messages that were held up arrived in a quarter of a second, its node is late.
void remove_late(std::vector<ClockMap::Node>& nodes, std::span<const HoldUp> hold_ups) {
  std::vector<bool> is_late(nodes.size());
  for (const auto& [stretch, before, behind] : hold_ups) {
    check_interrupt();
    const double rate = slope_between({before.log, before.stamp}, {behind.log, behind.stamp});
    const double most = rate * static_cast<double>(std::max(least_hold_up / 2, (stretch.to - stretch.from) / 10));
    auto node = std::ranges::lower_bound(nodes, stretch.to, {}, &ClockMap::Node::log_time);
    for (; node != nodes.end() && node->log_time < behind.log; ++node) {
      const double usual = rate * static_cast<double>(node->log_time - before.log);
      const double late = usual - static_cast<double>(node->time - before.stamp);
      if (late > most) is_late[static_cast<std::size_t>(node - nodes.begin())] = true;
    }
  }
  is_late.front() = is_late.back() = false;
  std::vector<ClockMap::Node> kept;
  for (std::size_t k = 0; k < nodes.size(); ++k) {
    if (!is_late[k]) kept.push_back(nodes[k]);
  }
  nodes = std::move(kept);
}

// No message arrives before it is stamped: the map is raised to go through one that would.
void raise_to(std::vector<ClockMap::Node>& nodes, const Bins& bins_of) {
  const ClockMap map{.nodes = nodes};
  for (const auto& [number, bins] : bins_of) {
    for (const Bin* const bin : bins) {
      for (const Pair& pair : bin->hull) {
        const bool is_inside = pair.log > map.nodes.front().log_time && pair.log < map.nodes.back().log_time;
        if (is_inside && map.at(pair.log) < pair.stamp) nodes.push_back({pair.log, pair.stamp});
      }
    }
  }
  std::ranges::sort(nodes, {}, [](const ClockMap::Node& node) { return std::tuple(node.log_time, -node.time); });
  // Keep one node per log time: the first, which has the greatest time. (Clang 14 cannot compile std::ranges::unique.)
  const auto is_same = [](const ClockMap::Node& a, const ClockMap::Node& b) { return a.log_time == b.log_time; };
  nodes.erase(std::unique(nodes.begin(), nodes.end(), is_same), nodes.end());
}

}  // namespace

StampMap map_of_stamps(std::span<const Candidate* const> members, std::int64_t width, std::int64_t start,
                       std::int64_t end) {
  const Bins bins_of = bins_between(members, start, end);
  if (bins_of.empty()) return {};
  std::vector<ClockMap::Node> rough;
  for (const auto& [number, bins] : bins_of) {
    const Pair pair = *Cell{&bins}.most_ahead(0.0);
    rough.push_back({pair.log, pair.stamp});
  }
  std::vector<HoldUp> hold_ups;
  std::vector<Stall> stalls = find_stalls(bins_of, width, rough, hold_ups);

  std::vector<ClockMap::Node> nodes;
  double slope = 1.0;
  auto entry = bins_of.begin();
  for (std::size_t k = 0; k <= stalls.size(); ++k) {
    check_interrupt();
    const std::int64_t from = k == 0 ? -limit : stalls[k - 1].to, to = k < stalls.size() ? stalls[k].from : limit;
    std::vector<Cell> cells;
    for (; entry != bins_of.end(); ++entry) {
      const Cell cell{&entry->second, from, to};
      if (cell.most_ahead(0.0)) cells.push_back(cell);
      if (to != limit && (entry->first + 1) * width > to) break;  // the rest of this bin may lie behind the stall
    }
    if (cells.empty()) continue;
    const std::int64_t edge = from != -limit ? from : to;
    const double usual = stalls.empty() ? 1.0 : rate_around(rough, {edge, edge});
    const Segment segment = segment_of(cells, usual);
    if (!nodes.empty()) {
      const std::optional<Pair> before = most_ahead(bins_of, width, nodes.back().log_time, stalls[k - 1].from, slope);
      const std::optional<Pair> behind = most_ahead(bins_of, width, from, from + stall_reach, segment.first_slope);
      const ClockMap::Node last = nodes.back(), first = segment.nodes.front();
      join_over(stalls[k - 1], nodes, slope, segment, before.value_or(Pair{last.log_time, last.time}),
                behind.value_or(Pair{first.log_time, first.time}));
    }
    nodes.insert(nodes.end(), segment.nodes.begin(), segment.nodes.end());
    slope = segment.last_slope;
  }
  remove_late(nodes, hold_ups);
  // Add the earliest and the latest pair, so that the nodes cover more of the episode.
  std::vector<Pair> earliest;
  for (const Bin* const bin : bins_of.begin()->second) earliest.push_back(bin->hull.front());
  const Pair first = most_ahead(earliest, slopes_of(nodes).front());
  if (first.log < nodes.front().log_time) nodes.insert(nodes.begin(), {first.log, first.stamp});
  if (rough.back().log_time > nodes.back().log_time) nodes.push_back(rough.back());
  raise_to(nodes, bins_of);
  ClockMap map = finish(std::move(nodes), stalls);
  return {std::move(map), std::move(stalls)};
}

}  // namespace robocache::clock
