// Which clock a recording is on, and the map that carries log times over to it.
#include <robocache/clock.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <tuple>
#include <unordered_set>
#include <utility>

#include "core/interrupt.h"
#include "formats/clock/survey.h"

namespace robocache {

namespace {

using namespace clock;

constexpr std::size_t most_common = 4096;            // seconds that two streams are compared over
constexpr std::size_t most_neighbours = 64;          // streams that one is compared with in a second
constexpr std::uint32_t most_failures = 256;         // comparisons of a stream with others that are on other clocks
constexpr std::size_t pieces = 64;                   // of a fit
constexpr std::int64_t least_span = 2 * second;      // of a fit: a shorter one tells no rate
constexpr std::int64_t wide_reach = 5 * second;      // of a slope, to either side
constexpr std::int64_t end_reach = 2 * second;       // of the slopes outside: the rate may have changed before
constexpr std::int64_t reset_before = 2 * second;    // streams may see a reset so much earlier than /clock,
constexpr std::int64_t reset_together = 5 * second;  // and so much apart
constexpr std::int64_t limit = std::numeric_limits<std::int64_t>::max();
constexpr std::int64_t epoch = 1'000'000'000 * second;  // 2001: a stamp that is later counts from 1970

double percentile(std::vector<double> values, double share) {
  if (values.empty()) return 0;
  const auto at = values.begin() + static_cast<std::ptrdiff_t>(share * static_cast<double>(values.size() - 1));
  std::nth_element(values.begin(), at, values.end());
  return *at;
}
double median(std::vector<double> values) { return percentile(std::move(values), 0.5); }

struct Candidate {
  const std::string* name;
  const Seen* seen;
  std::size_t group = 0;
};

// The median difference of (log - stamp) over common seconds; none: there are none.
std::optional<double> apart(const Seen& a, const Seen& b) {
  std::vector<double> differences;
  auto x = a.bins.begin(), y = b.bins.begin();
  const auto second_of = [](const Bin& bin) { return bin.first_log / second; };
  while (x != a.bins.end() && y != b.bins.end() && differences.size() < most_common) {
    const std::int64_t here = second_of(*x), there = second_of(*y);
    if (here == there) differences.push_back(x->delay() - y->delay());
    while (x != a.bins.end() && second_of(*x) <= std::min(here, there)) ++x;
    while (y != b.bins.end() && second_of(*y) <= std::min(here, there)) ++y;
  }
  if (differences.empty()) return {};
  return median(std::move(differences));
}
bool share_a_clock(const Seen& a, const Seen& b) {
  const std::optional<double> difference = apart(a, b);
  return difference && std::abs(*difference) < static_cast<double>(near);
}

// Groups of streams that share a clock with one of their group. Streams that share a clock have about the same delay in
// one of their common seconds, so in each second a stream is compared only with the few that follow it in the order of
// delays: the cost grows with the seconds of all streams, not with their pairs.
void group(std::vector<Candidate>& candidates) {
  struct Delay {
    std::int64_t second;
    double delay;
    std::uint32_t candidate;
  };
  std::vector<Delay> delays;
  for (std::size_t k = 0; k < candidates.size(); ++k) {
    for (const Bin& bin : candidates[k].seen->bins) {
      const std::int64_t here = bin.first_log / second;
      const bool is_same = !delays.empty() && delays.back().candidate == k && delays.back().second == here;
      if (!is_same) delays.push_back({here, bin.delay(), static_cast<std::uint32_t>(k)});
    }
  }
  std::ranges::sort(delays, {}, [](const Delay& delay) { return std::tuple(delay.second, delay.delay); });

  std::vector<std::uint32_t> parents(candidates.size());
  std::iota(parents.begin(), parents.end(), 0);
  const auto root_of = [&](std::uint32_t k) {
    while (parents[k] != k) k = parents[k] = parents[parents[k]];
    return k;
  };
  std::vector<std::uint32_t> failures(candidates.size());
  std::unordered_set<std::uint64_t> differing;  // pairs
  std::size_t groups = candidates.size();
  for (std::size_t k = 0; k < delays.size() && groups > 1; ++k) {
    check_interrupt();
    const std::size_t end = std::min(delays.size(), k + 1 + most_neighbours);
    for (std::size_t other = k + 1; other < end; ++other) {
      if (delays[other].second != delays[k].second) break;
      if (!(delays[other].delay - delays[k].delay < static_cast<double>(near))) break;
      const std::pair pair = std::minmax(delays[k].candidate, delays[other].candidate);
      const std::uint32_t a = pair.first, b = pair.second;
      if (root_of(a) == root_of(b) || std::max(failures[a], failures[b]) >= most_failures) continue;
      const std::uint64_t both = std::uint64_t{a} << 32U | b;
      if (differing.contains(both)) continue;
      if (share_a_clock(*candidates[b].seen, *candidates[a].seen)) {
        // The root is the last member, so that groups are numbered by it.
        const std::uint32_t x = root_of(a), y = root_of(b);
        parents[std::min(x, y)] = std::max(x, y);
        --groups;
      } else {
        differing.insert(both);
        ++failures[a];
        ++failures[b];
      }
    }
  }
  for (std::size_t k = 0; k < candidates.size(); ++k) candidates[k].group = root_of(static_cast<std::uint32_t>(k));
}

double usual_delay(const Seen& seen) {
  std::vector<double> delays;
  for (const Bin& bin : seen.bins) delays.push_back(bin.delay());
  return median(std::move(delays));
}

// log = log_0 + slope * (stamp - stamp_0), by the pairs of the fastest messages: delays only add.
StreamClock::Line fit(std::vector<Pair> floor) {
  StreamClock::Line line{.at = floor.front().stamp, .log_time = floor.front().log};
  const auto [first, last] = std::ranges::minmax(floor, {}, &Pair::stamp);
  const auto x = [&](const Pair& pair) { return static_cast<double>(pair.stamp - line.at); };
  const auto y = [&](const Pair& pair) { return static_cast<double>(pair.log - line.log_time); };
  if (last.stamp - first.stamp >= least_span && floor.size() >= 4) {
    line.slope = static_cast<double>(last.log - first.log) / static_cast<double>(last.stamp - first.stamp);
    // Of each piece the pair with the least delay; the median of the slopes between all pieces.
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

// Whether stamps moved against log time by over a second for good or for a while, as a pause of a simulation or a clock that
// was set does. The slope does not show it: it is a median. Delays only add, so each piece counts with its fastest message.
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

// The fastest message of each second.
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

StreamClock::Source source_of(const Seen& seen, bool is_member, bool is_constant, const RecordingClock& clock,
                              double usual) {
  if (!seen.is_stamped()) return StreamClock::Source::log;
  if (is_member) return StreamClock::Source::recording;
  if (!is_constant) return StreamClock::Source::own;
  // Few samples of a constant tell no clock: those that lie near the recording's are on it.
  if (clock.kind != RecordingClock::Kind::carried) return StreamClock::Source::recording;
  return std::abs(usual_delay(seen) - usual) < static_cast<double>(near) ? StreamClock::Source::recording
                                                                         : StreamClock::Source::log;
}

// Of each lap of its stamps a line of its own.
std::vector<StreamClock::Line> lines_of(const Seen& seen) {
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

// ---- Resets

std::vector<std::int64_t> find_resets(const ClockSurvey::State& survey, bool has_ticks,
                                      std::span<const Candidate* const> members) {
  std::vector<std::pair<std::int64_t, const Seen*>> events;
  for (const Candidate* const member : members) {
    const std::vector<std::int64_t>& laps = member->seen->laps;
    for (std::size_t k = 1; k < laps.size(); ++k) events.emplace_back(laps[k], member->seen);
  }
  std::ranges::sort(events);
  const auto logged = [](const auto& event) { return event.first; };
  std::vector<std::int64_t> cuts;
  if (has_ticks) {
    for (std::size_t k = 1; k < survey.simulation.laps.size(); ++k) {
      const std::int64_t tick = survey.simulation.laps[k];
      const auto event = std::ranges::lower_bound(events, tick - reset_before, {}, logged);
      cuts.push_back(event != events.end() ? std::min(tick, event->first) : tick);
    }
    return cuts;
  }
  for (std::size_t k = 0; k < events.size();) {
    const std::int64_t begin = events[k].first;
    std::vector<const Seen*> together;
    std::size_t next = k;
    for (; next < events.size() && events[next].first <= begin + reset_together; ++next) {
      if (std::ranges::find(together, events[next].second) == together.end()) together.push_back(events[next].second);
    }
    const auto is_there = [&](const Candidate* member) {
      return member->seen->first_log < begin && member->seen->bins.back().first_log >= begin - second;
    };
    if (2 * std::ssize(together) > std::ranges::count_if(members, is_there)) {
      cuts.push_back(begin);
      k = next;
    } else {
      ++k;
    }
  }
  return cuts;
}

// ---- The map

// The slope over +-`reach` around each of these, which are in the order of log times.
std::vector<double> slopes_of(std::span<const ClockMap::Node> nodes, std::int64_t reach = wide_reach) {
  std::vector<double> slopes;
  std::size_t low = 0, high = 0;
  for (const ClockMap::Node& node : nodes) {
    while (nodes[low].log_time < node.log_time - reach) ++low;
    while (high + 1 < nodes.size() && nodes[high + 1].log_time <= node.log_time + reach) ++high;
    const std::int64_t run = nodes[high].log_time - nodes[low].log_time;
    slopes.push_back(run > 0 ? static_cast<double>(nodes[high].time - nodes[low].time) / static_cast<double>(run)
                             : 1.0);
  }
  return slopes;
}

ClockMap finish(std::vector<ClockMap::Node> nodes) {
  ClockMap map;
  for (std::size_t k = 1; k < nodes.size(); ++k) nodes[k].time = std::max(nodes[k].time, nodes[k - 1].time);
  const std::vector<double> slopes = slopes_of(nodes, end_reach);
  if (!slopes.empty()) {
    map.before = slopes.front();
    map.after = slopes.back();
  }
  map.nodes = std::move(nodes);
  return map;
}

ClockMap map_of_ticks(const ClockSurvey::State& survey, std::int64_t start, std::int64_t end) {
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
  return finish(std::move(nodes));
}

using Bins = std::map<std::int64_t, std::vector<const Bin*>>;  // by number

// Of these the pair with the largest stamp - rate * log.
Pair most_ahead(std::span<const Pair> pairs, double rate) {
  const Pair base = pairs.front();
  return *std::ranges::max_element(pairs, {}, [&](const Pair& pair) {
    return static_cast<double>(pair.stamp - base.stamp) - rate * static_cast<double>(pair.log - base.log);
  });
}

ClockMap::Node node_of(const std::vector<const Bin*>& bins, double rate) {
  std::vector<Pair> pairs;
  pairs.reserve(bins.size());
  for (const Bin* const bin : bins) pairs.push_back(bin->best(rate));
  const Pair pair = most_ahead(pairs, rate);
  return {pair.log, pair.stamp};
}

ClockMap map_of_stamps(std::span<const Candidate* const> members, std::int64_t start, std::int64_t end) {
  Bins bins_of;
  for (const Candidate* const member : members) {
    check_interrupt();
    const Seen& seen = *member->seen;
    const auto is_before = [&](const Bin& bin) { return start != -limit && seen.laps[bin.lap] < start; };
    auto bin = std::ranges::partition_point(seen.bins, is_before);
    for (; bin != seen.bins.end() && bin->first_log < end; ++bin) bins_of[bin->number].push_back(&*bin);
  }
  if (bins_of.empty()) return {};
  std::vector<ClockMap::Node> nodes;
  for (const auto& [number, bins] : bins_of) nodes.push_back(node_of(bins, 0.0));
  const ClockMap::Node last = nodes.back();
  // The slope over +-5 s tells where to look; that over +-1 s, of the nodes so found, follows a rate that changes.
  for (const std::int64_t reach : {wide_reach, second}) {
    const std::vector<double> slopes = slopes_of(nodes, reach);
    std::size_t k = 0;
    for (const auto& [number, bins] : bins_of) {
      nodes[k] = node_of(bins, slopes[k]);
      ++k;
    }
  }
  // The first and the last bin have a pair at either side, so that less lies outside.
  std::vector<Pair> earliest;
  for (const Bin* const bin : bins_of.begin()->second) earliest.push_back(bin->hull.front());
  const Pair first = most_ahead(earliest, slopes_of(nodes).front());
  if (first.log < nodes.front().log_time) nodes.insert(nodes.begin(), {first.log, first.stamp});
  if (last.log_time > nodes.back().log_time) nodes.push_back(last);
  return finish(std::move(nodes));
}

void describe_rate(RecordingClock& clock) {
  const auto longest = std::ranges::max_element(
      clock.episodes, {}, [](const RecordingClock::Episode& episode) { return episode.map.nodes.size(); });
  const std::vector<ClockMap::Node>& nodes = longest->map.nodes;
  if (nodes.empty()) return;
  clock.offset = nodes.front().time - nodes.front().log_time;
  const std::int64_t run = nodes.back().log_time - nodes.front().log_time;
  if (run > 0) clock.rate = static_cast<double>(nodes.back().time - nodes.front().time) / static_cast<double>(run);
  const std::vector<double> slopes = slopes_of(nodes);
  clock.slowest = percentile(slopes, 0.05);
  clock.fastest = percentile(slopes, 0.95);
}

std::int64_t shifted(std::int64_t from, double by) {
  constexpr double most = 4e18;
  const double sum = static_cast<double>(from) + by;
  if (!(std::abs(sum) < most)) return static_cast<std::int64_t>(std::clamp(sum, -most, most));
  return from + std::llrint(by);
}

std::int64_t scaled(std::int64_t log_time, std::int64_t unit) {
  constexpr std::int64_t most = 4'000'000'000'000'000'000;
  std::int64_t result = 0;
  return __builtin_mul_overflow(log_time, unit, &result) ? (log_time < 0 ? -most : most) : result;
}

std::int64_t log_time_by(const StreamClock& stream, std::int64_t stamp, std::int64_t arrival) {
  auto line = std::ranges::upper_bound(stream.lines, arrival, {}, &StreamClock::Line::from);
  if (line != stream.lines.begin()) --line;
  return shifted(line->log_time, line->slope * static_cast<double>(stamp - line->at));
}

}  // namespace

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

bool RecordingClock::carries() const {
  const auto is_own = [](const auto& entry) { return entry.second.source == StreamClock::Source::own; };
  return kind == Kind::carried || log_unit != 1 || std::ranges::any_of(streams, is_own);
}

const StreamClock* RecordingClock::stream(std::string_view name) const {
  for (;;) {
    if (const auto found = streams.find(std::string(name)); found != streams.end()) return &found->second;
    const std::size_t slash = name.rfind('/');
    if (slash == std::string_view::npos || slash == 0) return nullptr;
    name = name.substr(0, slash);
  }
}

void RecordingClock::carry(std::size_t number, std::string_view name, Times times_are, std::span<std::int64_t> times,
                           std::span<std::int64_t> arrivals) const {
  const Episode& episode = episodes[number];
  const StreamClock* const found = stream(name);
  const auto source = found == nullptr || times_are == Times::log ? StreamClock::Source::log : found->source;
  // What was under way while the simulation was reset has stamps from before it, far ahead of its arrival.
  const std::int64_t settled = number == 0 ? -limit : episode.start + stray_within;
  for (std::size_t k = 0; k < times.size(); ++k) {
    const bool is_log = times_are == Times::mixed && times[k] == arrivals[k];
    const std::int64_t log = scaled(arrivals[k], log_unit);
    arrivals[k] = episode.map.at(log);
    const bool is_stray = log < settled && times[k] > arrivals[k] + step_back;
    if (source == StreamClock::Source::log || is_log || is_stray) {
      times[k] = arrivals[k];
    } else if (source == StreamClock::Source::own) {
      times[k] = episode.map.at(log_time_by(*found, times[k], log));
    }
  }
}

RecordingClock find_clock(const ClockSurvey& given, std::span<const std::string> static_streams) {
  const ClockSurvey::State& survey = *given.state_;
  RecordingClock clock;
  clock.log_unit = survey.unit;
  clock.episodes.push_back({-limit, limit, {}});
  const Topics constants(static_streams);
  std::vector<Candidate> candidates;
  for (const auto& [name, seen] : survey.streams) {
    if (seen.is_stamped() && !constants.have(name)) candidates.push_back({&name, &seen});
  }
  std::ranges::stable_sort(candidates, std::greater{}, [](const Candidate& c) { return c.seen->stamped; });
  group(candidates);
  std::map<std::size_t, std::vector<const Candidate*>> groups;
  for (const Candidate& candidate : candidates) groups[candidate.group].push_back(&candidate);

  std::vector<const Candidate*> members;
  double usual = 0;
  std::tuple<std::size_t, std::int64_t, bool> most{0, 0, false};
  for (const auto& [number, found] : groups) {
    std::int64_t messages = 0;
    std::vector<double> delays;
    for (const Candidate* const member : found) {
      messages += member->seen->stamped;
      for (const Bin& bin : member->seen->bins) delays.push_back(bin.delay());
    }
    const double delay = median(std::move(delays));
    const std::tuple rank{found.size(), messages, std::abs(delay) < static_cast<double>(near)};
    if (rank <= most) continue;
    most = rank;
    members = found;
    usual = delay;
  }
  if (!members.empty()) {
    clock.agreeing = std::ssize(members);
    const std::vector<Pair> floor = floor_of(members);
    const StreamClock::Line line = fit(floor);
    const double moved = std::abs(line.slope - 1) * static_cast<double>(floor.back().log - floor.front().log);
    const bool keeps_pace = (std::abs(line.slope - 1) <= rate_tolerance || moved <= least_apart) && !has_step(floor);
    const bool is_near = std::abs(usual) < static_cast<double>(near);
    clock.kind = is_near && keeps_pace ? RecordingClock::Kind::with_log_time : RecordingClock::Kind::carried;
    clock.is_wall = is_near || floor.front().stamp > epoch;
  }
  if (clock.kind == RecordingClock::Kind::carried) {
    const bool has_ticks = !survey.ticks.empty() && std::ranges::any_of(members, [&](const Candidate* member) {
      return share_a_clock(*member->seen, survey.simulation);
    });
    clock.by = has_ticks ? "/clock" : "stamps";
    std::vector<std::int64_t> bounds{-limit};
    for (const std::int64_t cut : find_resets(survey, has_ticks, members)) {
      if (cut > bounds.back()) bounds.push_back(cut);
    }
    bounds.push_back(limit);
    clock.episodes.clear();
    for (std::size_t k = 0; k + 1 < bounds.size(); ++k) {
      ClockMap map =
          has_ticks ? map_of_ticks(survey, bounds[k], bounds[k + 1]) : map_of_stamps(members, bounds[k], bounds[k + 1]);
      clock.episodes.push_back({bounds[k], bounds[k + 1], std::move(map)});
    }
    describe_rate(clock);
  } else if (!members.empty()) {
    clock.offset = -std::llrint(usual);
  }
  std::unordered_set<const Seen*> agreeing;
  for (const Candidate* const member : members) agreeing.insert(member->seen);
  for (const auto& [name, seen] : survey.streams) {
    check_interrupt();
    const bool is_member = agreeing.contains(&seen);
    StreamClock& stream = clock.streams[name];
    stream.messages = seen.messages;
    stream.stamped = seen.stamped;
    stream.source = source_of(seen, is_member, constants.have(name), clock, usual);
    if (stream.source == StreamClock::Source::own) stream.lines = lines_of(seen);
  }
  return clock;
}

}  // namespace robocache
