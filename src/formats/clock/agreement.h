// Which streams share a clock.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "formats/clock/survey.h"

namespace robocache::clock {

// A stream with stamps, and the group of streams that it shares a clock with.
struct Candidate {
  const std::string* name;
  const StampSummary* seen;
  std::size_t group = 0;
};

// Whether two streams have about the same delay in the seconds that they have in common.
bool share_a_clock(const StampSummary& a, const StampSummary& b);

// Numbers the groups: two candidates that share a clock are in one group.
void group(std::vector<Candidate>& candidates);

}  // namespace robocache::clock
