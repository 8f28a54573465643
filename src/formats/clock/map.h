// The map from log time to a recording's clock: nodes with straight lines between them.
#pragma once

#include <robocache/clock.h>

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "formats/clock/survey.h"

namespace robocache::clock {

inline constexpr std::int64_t limit = std::numeric_limits<std::int64_t>::max();
inline constexpr std::int64_t wide_reach = 5 * second;  // to either side, of a slope

// A stretch of log time in which the clock stood still: from the last stamp before it to the first one after it.
struct Stall {
  std::int64_t from = 0, to = 0;
};

// from + by, rounded, and kept within 64 bits.
std::int64_t shifted(std::int64_t from, double by);

double slope_between(const ClockMap::Node& a, const ClockMap::Node& b);

// The slope over `reach` to either side of each node, which are in the order of log times. A node without neighbours there
// gets `otherwise`.
std::vector<double> slopes_of(std::span<const ClockMap::Node> nodes, std::int64_t reach = wide_reach,
                              double otherwise = 1.0);

// Makes times increase, and sets the slopes outside the nodes: those of the nearest 2 s, or of the nearest two nodes, without
// stalls.
ClockMap finish(std::vector<ClockMap::Node> nodes, std::span<const Stall> stalls = {});

}  // namespace robocache::clock
