// The line between the stamps of a clock and log time.
#pragma once

#include <robocache/clock.h>

#include <span>
#include <vector>

#include "formats/clock/agreement.h"

namespace robocache::clock {

// log = log_0 + slope * (stamp - stamp_0), fitted to the pairs of the fastest messages, because delays only add.
StreamClock::Line fit(std::vector<Pair> floor);

// Whether the stamps moved against log time by over a second, for good or for a while: a simulation paused, or the clock was
// set. The slope of fit() is a median and does not show it. Delays only add, so the fastest message of each piece counts.
bool has_step(const std::vector<Pair>& floor);

// The fastest message of each second.
std::vector<Pair> floor_of(std::span<const Candidate* const> members);

// A line for each lap of a stream's stamps.
std::vector<StreamClock::Line> lines_of(const StampSummary& seen);

}  // namespace robocache::clock
