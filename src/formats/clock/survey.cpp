#include "formats/clock/survey.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/limits.h"

namespace robocache {

namespace {

using namespace clock;

constexpr std::size_t most_bins = std::size_t{1} << 20;
constexpr std::size_t most_ticks = std::size_t{1} << 20;
constexpr std::size_t most_corners = 16;  // of a hull

// How far b lies above the line from a to c.
double above(const Pair& a, const Pair& b, const Pair& c) {
  const auto x = static_cast<double>(b.log - a.log), y = static_cast<double>(b.stamp - a.stamp);
  const auto w = static_cast<double>(c.log - a.log), h = static_cast<double>(c.stamp - a.stamp);
  return y * w - x * h;
}

bool is_usable(std::int64_t log_time, std::int64_t unit) {
  return log_time > -time_limit / unit && log_time < time_limit / unit;
}

std::int64_t floor_divide(std::int64_t a, std::int64_t b) { return a / b - (a % b < 0 ? 1 : 0); }

}  // namespace

bool clock::Topics::have(std::string_view name) const {
  if (names_.contains(name)) return true;
  for (std::size_t slash = name.find('/'); slash != std::string_view::npos; slash = name.find('/', slash + 1)) {
    if (names_.contains(name.substr(0, slash))) return true;
  }
  return false;
}

Pair clock::Bin::best(double rate) const {
  const Pair base = hull.front();
  Pair found = base;
  double most = -std::numeric_limits<double>::infinity();
  for (const Pair& pair : hull) {
    const double value = static_cast<double>(pair.stamp - base.stamp) - rate * static_cast<double>(pair.log - base.log);
    if (value > most) {
      most = value;
      found = pair;
    }
  }
  return found;
}

void clock::Bin::add(Pair pair) {
  if (!hull.empty() && pair.log <= hull.back().log) {
    if (pair.log < hull.back().log || pair.stamp <= hull.back().stamp) return;  // log times are in order
    hull.pop_back();
  }
  while (hull.size() >= 2 && above(hull[hull.size() - 2], hull.back(), pair) <= 0) hull.pop_back();
  hull.push_back(pair);
  if (hull.size() <= most_corners) return;
  std::size_t flattest = 1;
  double least = std::numeric_limits<double>::infinity();
  for (std::size_t k = 1; k + 1 < hull.size(); ++k) {
    const double height = above(hull[k - 1], hull[k], hull[k + 1]);
    if (height < least) {
      least = height;
      flattest = k;
    }
  }
  hull.erase(hull.begin() + static_cast<std::ptrdiff_t>(flattest));
}

bool clock::StampSummary::add(Pair pair, std::int64_t width) {
  const std::int64_t delay = pair.log - pair.stamp;
  if (laps.size() > 1 && pair.log - laps.back() < stray_within && pair.stamp > last_stamp + step_back &&
      pair.stamp > stamp_before - stray_reach && pair.stamp < stamp_before + step_back) {
    ++stamped;
    return false;  // it was sent before the reset
  }
  const bool is_lap = stamped == 0 || pair.stamp < last_stamp - step_back;
  if (is_lap) {
    laps.push_back(pair.log);
    stamp_before = last_stamp;
  }
  least_delay = stamped == 0 ? delay : std::min(least_delay, delay);
  greatest_delay = stamped == 0 ? delay : std::max(greatest_delay, delay);
  last_stamp = pair.stamp;
  ++stamped;
  const auto lap = static_cast<std::uint32_t>(laps.size() - 1);
  const std::int64_t number = floor_divide(pair.log, width);
  const bool is_new = bins.empty() || bins.back().number != number || bins.back().lap != lap;
  if (is_new) {
    bins.push_back({.number = number, .first_log = pair.log, .lap = lap, .still_from = pair.log, .still_to = pair.log});
  }
  Bin& bin = bins.back();
  if (is_lap || pair.stamp > furthest.stamp) {
    if (!is_lap && pair.log - furthest.log > bin.still_to - bin.still_from) {
      bin.still_from = furthest.log;
      bin.still_to = pair.log;
    }
    furthest = pair;
  }
  ++bin.count;
  bin.delays += static_cast<double>(delay);
  bin.add(pair);
  return is_new;
}

// Halves the number of bins.
void ClockSurvey::State::widen() {
  width *= 2;
  bins = 0;
  const auto merge = [&](StampSummary& seen) {
    std::vector<Bin> wide;
    for (Bin& bin : seen.bins) {
      bin.number = floor_divide(bin.number, 2);
      if (wide.empty() || wide.back().number != bin.number || wide.back().lap != bin.lap) {
        wide.push_back(std::move(bin));
        continue;
      }
      if (bin.still_to - bin.still_from > wide.back().still_to - wide.back().still_from) {
        wide.back().still_from = bin.still_from;
        wide.back().still_to = bin.still_to;
      }
      wide.back().count += bin.count;
      wide.back().delays += bin.delays;
      for (const Pair& pair : bin.hull) wide.back().add(pair);
    }
    seen.bins = std::move(wide);
    bins += seen.bins.size();
  };
  for (auto& [name, seen] : streams) merge(seen);
  merge(simulation);
}

void ClockSurvey::State::thin() {
  spacing *= 2;
  std::vector<Pair> kept;
  for (const Pair& tick : ticks) {
    if (kept.empty() || tick.log - kept.back().log >= spacing || tick.stamp < kept.back().stamp) kept.push_back(tick);
  }
  ticks = std::move(kept);
}

ClockSurvey::ClockSurvey(std::int64_t log_unit) : state_(std::make_unique<State>()) { state_->unit = log_unit; }
ClockSurvey::~ClockSurvey() = default;
ClockSurvey::ClockSurvey(ClockSurvey&&) noexcept = default;
ClockSurvey& ClockSurvey::operator=(ClockSurvey&&) noexcept = default;

void ClockSurvey::add(std::string_view stream, std::int64_t log_time, std::optional<std::int64_t> stamp) {
  State& state = *state_;
  if (!is_usable(log_time, state.unit)) return;
  auto found = state.streams.find(stream);
  if (found == state.streams.end()) {
    found = state.streams.emplace(stream, StampSummary{}).first;
    found->second.first_log = log_time * state.unit;
  }
  StampSummary& seen = found->second;
  ++seen.messages;
  if (!stamp || *stamp == 0 || !is_in_time_limit(*stamp)) return;
  if (seen.add({log_time * state.unit, *stamp}, state.width) && ++state.bins > most_bins) state.widen();
}

void ClockSurvey::add_clock(std::int64_t log_time, std::int64_t time) {
  State& state = *state_;
  if (!is_usable(log_time, state.unit)) return;
  const Pair tick{log_time * state.unit, time};
  ++state.simulation.messages;
  const std::size_t laps = state.simulation.laps.size();
  if (state.simulation.add(tick, state.width) && ++state.bins > most_bins) state.widen();
  const bool is_due = state.ticks.empty() || tick.log - state.ticks.back().log >= state.spacing;
  if (is_due || state.simulation.laps.size() > laps) state.ticks.push_back(tick);
  if (state.ticks.size() > most_ticks) state.thin();
}

bool ClockSurvey::runs_with_log_time(std::span<const std::string> static_streams) const {
  const State& state = *state_;
  if (state.unit != 1) return false;
  const Topics constants(static_streams);
  std::vector<double> moved;
  std::int64_t first = std::numeric_limits<std::int64_t>::max(), last = std::numeric_limits<std::int64_t>::min();
  for (const auto& [name, seen] : state.streams) {
    if (!seen.is_stamped() || constants.have(name)) continue;
    if (seen.least_delay <= -near || seen.greatest_delay >= near || seen.laps.size() > 1) return false;
    const Pair begin = seen.bins.front().best(1.0), end = seen.bins.back().best(1.0);
    first = std::min(first, begin.log);
    last = std::max(last, end.log);
    moved.push_back(std::abs(static_cast<double>((end.log - end.stamp) - (begin.log - begin.stamp))));
  }
  if (moved.empty()) return true;
  std::ranges::nth_element(moved, moved.begin() + std::ssize(moved) / 2);
  return moved[moved.size() / 2] <= rate_tolerance * static_cast<double>(last - first) + least_apart;
}

std::int64_t ClockSurvey::log_unit() const {
  std::int64_t votes = 0;
  std::map<std::int64_t, std::int64_t> units;
  for (const auto& [name, seen] : state_->streams) {
    if (!seen.is_stamped()) continue;
    ++votes;
    const Pair pair = seen.bins.front().hull.front();
    const auto stamp = static_cast<double>(pair.stamp);
    if (stamp < 1e18 || stamp > 4e18 || pair.log <= 0) continue;  // not a time since 1970
    for (const std::int64_t unit : {1'000, 1'000'000, 1'000'000'000}) {
      if (std::abs(static_cast<double>(pair.log) * static_cast<double>(unit) / stamp - 1) < 1e-5) ++units[unit];
    }
  }
  for (const auto& [unit, count] : units) {
    if (2 * count > votes) return unit;
  }
  return 1;
}

std::map<std::string, std::int64_t> ClockSurvey::first_log_times() const {
  std::map<std::string, std::int64_t> found;
  for (const auto& [name, seen] : state_->streams) found.emplace(name, seen.first_log / state_->unit);
  return found;
}

}  // namespace robocache
