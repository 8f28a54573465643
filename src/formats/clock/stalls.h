// Where a clock stands still: a simulation that pauses stamps nothing, or the same time again and again.
#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <span>
#include <vector>

#include "formats/clock/agreement.h"
#include "formats/clock/map.h"

namespace robocache::clock {

using Bins = std::map<std::int64_t, std::vector<const Bin*>>;  // by number

// The bins of these streams in the episode [start, end).
Bins bins_between(std::span<const Candidate* const> members, std::int64_t start, std::int64_t end);

// The pairs of some bins with log times in [from, to].
struct Cell {
  const std::vector<const Bin*>* bins = nullptr;
  std::int64_t from = -limit, to = limit;

  // The pair with the largest stamp - rate * log.
  std::optional<Pair> most_ahead(double rate) const {
    std::optional<Pair> found;
    for (const Bin* const bin : *bins) {
      for (const Pair& pair : bin->hull) {
        if (pair.log < from || pair.log > to) continue;
        const bool is_more = !found || static_cast<double>(pair.stamp - found->stamp) >
                                           rate * static_cast<double>(pair.log - found->log);
        if (is_more) found = pair;
      }
    }
    return found;
  }
};

// The pair whose stamp is furthest ahead, of those with log times in [from, to].
std::optional<Pair> most_ahead(const Bins& bins_of, std::int64_t width, std::int64_t from, std::int64_t to,
                               double rate);

// The rate at which the clock usually runs around this stretch: the median over the steps between nodes within 5 s in which
// it runs at all. (Streams may repeat the same stamp throughout another stall.)
double rate_around(std::span<const ClockMap::Node> nodes, const Stall& stretch);

inline constexpr std::int64_t stall_reach =
    second / 2;  // how far to either side of a stall the messages show the clock

// No message arrived for a while, and the clock went on: what was held up came late.
struct HoldUp {
  Stall stretch{};
  Pair before{}, behind{};  // the fastest messages around it
};
inline constexpr std::int64_t least_hold_up = second / 10;  // of log time: what a shorter one delays matters little

std::vector<Stall> find_stalls(const Bins& bins_of, std::int64_t width, std::span<const ClockMap::Node> nodes,
                               std::vector<HoldUp>& hold_ups);

}  // namespace robocache::clock
