#include "formats/clock/resets.h"

#include <algorithm>
#include <utility>

namespace robocache::clock {

namespace {

constexpr std::int64_t reset_before = 2 * second;    // how much earlier than /clock a stream may see a reset
constexpr std::int64_t reset_together = 5 * second;  // how far apart streams may see one reset

}  // namespace

std::vector<std::int64_t> find_resets(const ClockSurvey::State& survey, bool has_ticks,
                                      std::span<const Candidate* const> members) {
  std::vector<std::pair<std::int64_t, const StampSummary*>> events;
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
    std::vector<const StampSummary*> together;
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

}  // namespace robocache::clock
