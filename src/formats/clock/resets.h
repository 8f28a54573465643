// Where a simulation was reset.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "formats/clock/agreement.h"

namespace robocache::clock {

// The log times of the resets, in order: where /clock steps back, or, without /clock, where most streams do.
std::vector<std::int64_t> find_resets(const ClockSurvey::State& survey, bool has_ticks,
                                      std::span<const Candidate* const> members);

}  // namespace robocache::clock
