// Which clock a recording is on, and how times are carried over to it.
#include <robocache/clock.h>

#include <algorithm>
#include <cmath>
#include <tuple>
#include <unordered_set>
#include <utility>

#include "core/interrupt.h"
#include "formats/clock/agreement.h"
#include "formats/clock/fit.h"
#include "formats/clock/map.h"
#include "formats/clock/resets.h"
#include "formats/clock/stamp_map.h"
#include "formats/clock/statistics.h"
#include "formats/clock/survey.h"
#include "formats/clock/tick_map.h"

namespace robocache {

namespace {

using namespace clock;

constexpr std::int64_t epoch = 1'000'000'000 * second;  // 2001: a stamp that is later counts from 1970

double usual_delay(const StampSummary& seen) {
  std::vector<double> delays;
  for (const Bin& bin : seen.bins) delays.push_back(bin.delay());
  return median(std::move(delays));
}

StreamClock::Source source_of(const StampSummary& seen, bool is_member, bool is_constant, const RecordingClock& clock,
                              double usual) {
  if (!seen.is_stamped()) return StreamClock::Source::log;
  if (is_member) return StreamClock::Source::recording;
  if (!is_constant) return StreamClock::Source::own;
  // Few samples of a constant tell no clock: those that lie near the recording's are on it.
  if (clock.kind != RecordingClock::Kind::carried) return StreamClock::Source::recording;
  return std::abs(usual_delay(seen) - usual) < static_cast<double>(near) ? StreamClock::Source::recording
                                                                         : StreamClock::Source::log;
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
  // A message that was under way during the reset has a stamp from before it, far ahead of its arrival.
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
      ClockMap map = has_ticks ? map_of_ticks(survey, members, bounds[k], bounds[k + 1])
                               : map_of_stamps(members, survey.width, bounds[k], bounds[k + 1]).map;
      clock.episodes.push_back({bounds[k], bounds[k + 1], std::move(map)});
    }
    describe_rate(clock);
  } else if (!members.empty()) {
    clock.offset = -std::llrint(usual);
  }
  std::unordered_set<const StampSummary*> agreeing;
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
