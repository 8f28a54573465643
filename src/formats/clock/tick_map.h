// The map by /clock, the messages in which a simulator says its time.
#pragma once

#include <cstdint>
#include <span>

#include "formats/clock/agreement.h"
#include "formats/clock/map.h"

namespace robocache::clock {

// The map of the episode [start, end), both log times.
ClockMap map_of_ticks(const ClockSurvey::State& survey, std::span<const Candidate* const> members, std::int64_t start,
                      std::int64_t end);

}  // namespace robocache::clock
