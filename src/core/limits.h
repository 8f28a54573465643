// The limits that every part of the library keeps. Values below them can be added and subtracted in 64 bits.
#pragma once

#include <bit>
#include <cstdint>
#include <string>

namespace robocache {

// Times, durations and latencies in nanoseconds: |t| must be below.
inline constexpr std::int64_t time_limit = std::int64_t{1} << 62;

// Latencies, and the span of a timeline: |t| must be below. A time less a latency then fits in 64 bits.
inline constexpr std::int64_t span_limit = time_limit / 2;

constexpr bool is_in_time_limit(std::int64_t time) { return time > -time_limit && time < time_limit; }
constexpr bool is_in_span_limit(std::int64_t span) { return span > -span_limit && span < span_limit; }

// Products of sizes that a caller or a file claims: bytes, elements, cells. At most this.
inline constexpr std::int64_t size_limit = std::int64_t{1} << 62;

// Counts that a cache's files claim: episodes, samples, rows, groups. At most this.
inline constexpr std::int64_t count_limit = std::int64_t{1} << 48;

// How sentences write a limit, a power of two: "2^62".
inline std::string limit_in_words(std::int64_t limit) {
  return "2^" + std::to_string(std::countr_zero(static_cast<std::uint64_t>(limit)));
}
// "2^62 ns (146 years)".
inline std::string time_limit_in_words() {
  constexpr std::int64_t year = std::int64_t{365} * 86'400 * 1'000'000'000;
  return limit_in_words(time_limit) + " ns (" + std::to_string(time_limit / year) + " years)";
}

}  // namespace robocache
