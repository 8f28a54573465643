// Whether a stream's samples come all the time or only on change, by the steps between its stamps.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace robocache::statistics {

inline constexpr std::int64_t few_samples = 8;  // with fewer, equal steps prove nothing

// The steps are regular where most of them lie within half a median of the median: 60 %, and 90 % of fewer than 20 steps,
// which may agree by chance. Reorders `steps`. Steps of 0 are left out by the caller.
bool are_regular(std::vector<std::int64_t>& steps);

// Whether samples with these times, which do not decrease, come all the time.
bool come_all_the_time(std::span<const std::int64_t> times);

}  // namespace robocache::statistics
