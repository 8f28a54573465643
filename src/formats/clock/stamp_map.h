// The map by the stamps of all streams that share the recording's clock.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "formats/clock/stalls.h"

namespace robocache::clock {

struct StampMap {
  ClockMap map{};
  std::vector<Stall> stalls{};
};

// The map of the episode [start, end), both log times. `width`: that of the bins.
StampMap map_of_stamps(std::span<const Candidate* const> members, std::int64_t width, std::int64_t start,
                       std::int64_t end);

}  // namespace robocache::clock
