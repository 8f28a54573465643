#include "formats/clock/stalls.h"

#include <algorithm>
#include <utility>

#include "core/interrupt.h"
#include "formats/clock/statistics.h"

namespace robocache::clock {

Bins bins_between(std::span<const Candidate* const> members, std::int64_t start, std::int64_t end) {
  Bins bins_of;
  for (const Candidate* const member : members) {
    check_interrupt();
    const StampSummary& seen = *member->seen;
    const auto is_before = [&](const Bin& bin) { return start != -limit && seen.laps[bin.lap] < start; };
    auto bin = std::ranges::partition_point(seen.bins, is_before);
    for (; bin != seen.bins.end() && bin->first_log < end; ++bin) bins_of[bin->number].push_back(&*bin);
  }
  return bins_of;
}

std::optional<Pair> most_ahead(const Bins& bins_of, std::int64_t width, std::int64_t from, std::int64_t to,
                               double rate) {
  std::optional<Pair> found;
  auto entry = bins_of.lower_bound(from / width - 1);
  for (; entry != bins_of.end() && entry->first <= to / width; ++entry) {
    const std::optional<Pair> pair = Cell{&entry->second, from, to}.most_ahead(rate);
    if (!pair) continue;
    const bool is_more =
        !found || static_cast<double>(pair->stamp - found->stamp) > rate * static_cast<double>(pair->log - found->log);
    if (is_more) found = pair;
  }
  return found;
}

double rate_around(std::span<const ClockMap::Node> nodes, const Stall& stretch) {
  std::vector<double> slopes;
  auto node = std::ranges::lower_bound(nodes, stretch.from - wide_reach, {}, &ClockMap::Node::log_time);
  for (; node != nodes.end() && node + 1 != nodes.end() && node->log_time <= stretch.to + wide_reach; ++node) {
    const bool is_outside = (node + 1)->log_time <= stretch.from || node->log_time >= stretch.to;
    if (is_outside && (node + 1)->time > node->time) slopes.push_back(slope_between(*node, *(node + 1)));
  }
  return slopes.empty() ? 1.0 : median(std::move(slopes));
}

namespace {

constexpr std::int64_t least_stall = second / 50;  // of log time: the clock loses too little in a shorter one

// Finds where no stream's stamps advanced for much longer than usual. There, all messages may only have been held up.
std::vector<Stall> find_still(const Bins& bins_of) {
  std::vector<Stall> found;
  std::vector<double> lengths;
  for (const auto& [number, bins] : bins_of) {
    Stall stall{-limit, limit};
    for (const Bin* const bin : bins) {  // that of the most messages first
      // A slower stream's stretch around the stall may end in a later bin. Then it says nothing about this stall.
      const bool is_around = bin->still_from < stall.to && bin->still_to > stall.from;
      if (bin->still_from == bin->still_to || !is_around) continue;
      stall.from = std::max(stall.from, bin->still_from);
      stall.to = std::min(stall.to, bin->still_to);
    }
    if (stall.from == -limit) continue;
    lengths.push_back(static_cast<double>(stall.to - stall.from));
    if (stall.to - stall.from < least_stall) continue;
    if (!found.empty() && stall.from < found.back().to) {
      if (stall.to - stall.from <= found.back().to - found.back().from) continue;
      found.pop_back();
    }
    found.push_back(stall);
  }
  const double usual = median(std::move(lengths));
  std::erase_if(found, [&](const Stall& stall) { return static_cast<double>(stall.to - stall.from) < 2 * usual; });
  return found;
}

}  // namespace

// Finds the stretches of find_still() in which the clock advanced by less than half of what it usually does. If all
// messages were only held up, the fastest ones afterwards have the same delay as before.
std::vector<Stall> find_stalls(const Bins& bins_of, std::int64_t width, std::span<const ClockMap::Node> nodes,
                               std::vector<HoldUp>& hold_ups) {
  std::vector<Stall> found;
  for (Stall stall : find_still(bins_of)) {
    check_interrupt();
    const double rate = rate_around(nodes, stall);
    std::optional<Pair> low = most_ahead(bins_of, width, stall.from - stall_reach, stall.from, rate);
    const std::optional<Pair> high = most_ahead(bins_of, width, stall.to, stall.to + stall_reach, rate);
    if (!low || !high) continue;
    const double lost =
        rate * static_cast<double>(high->log - low->log) - static_cast<double>(high->stamp - low->stamp);
    if (lost <= rate * static_cast<double>(stall.to - stall.from) / 2) {
      if (stall.to - stall.from >= least_hold_up) hold_ups.push_back({stall, *low, *high});
      continue;
    }
    if (!found.empty() && !most_ahead(bins_of, width, found.back().to, stall.from, rate)) {
      stall.from = found.back().from;
      found.pop_back();
    }
    found.push_back(stall);
  }
  return found;
}

}  // namespace robocache::clock
