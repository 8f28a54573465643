// What a ClockSurvey keeps: for each stream and quarter of a second of log time, the upper hull of its (log time, stamp) pairs.
// For every r a hull has the pair with the largest stamp - r * log time, so the slope need not be known while messages pass.
#pragma once

#include <robocache/clock.h>

#include <cstddef>
#include <functional>
#include <set>
#include <string>
#include <vector>

namespace robocache {

namespace clock {

inline constexpr std::int64_t second = 1'000'000'000;
inline constexpr std::int64_t near = 60 * second;  // closer stamps are on one clock
inline constexpr std::int64_t step_back = second;  // a larger step back begins a lap
inline constexpr double rate_tolerance = 1e-3;     // 1,000 ppm
inline constexpr double least_apart = 1e8;         // nanoseconds over a recording, below which a rate means nothing

// A message sent before a reset may arrive up to stray_within after it, with a stamp up to stray_reach before it.
inline constexpr std::int64_t stray_within = 5 * second;
inline constexpr std::int64_t stray_reach = 10 * second;

struct Pair {
  std::int64_t log = 0, stamp = 0;
};

struct Bin {
  std::int64_t number = 0;     // log time / width
  std::int64_t first_log = 0;  // of its first message
  std::uint32_t lap = 0;
  std::uint32_t count = 0;
  double delays = 0;  // the sum of log - stamp
  // The longest stretch of log time that ends in this bin and in which the stamps did not advance: [still_from, still_to].
  std::int64_t still_from = 0, still_to = 0;
  std::vector<Pair> hull{};

  double delay() const { return delays / count; }
  // The pair with the largest stamp - rate * log.
  Pair best(double rate) const;
  void add(Pair pair);
};

struct StampSummary {
  std::int64_t messages = 0, stamped = 0;
  std::int64_t first_log = 0, last_stamp = 0;
  Pair furthest{};                // the first pair with the greatest stamp in this lap
  std::int64_t stamp_before = 0;  // the last stamp before this lap
  std::int64_t least_delay = 0, greatest_delay = 0;
  std::vector<std::int64_t> laps{};  // the log time of the first message of each lap
  std::vector<Bin> bins{};

  bool is_stamped() const { return stamped > 0 && 2 * stamped >= messages; }
  // Returns whether this began a bin.
  bool add(Pair pair, std::int64_t width);
};

// A set of topics.
class Topics {
 public:
  explicit Topics(std::span<const std::string> names) : names_(names.begin(), names.end()) {}
  // Whether `name` is one of these topics, or a part of one: "/tf_static/base" of "/tf_static".
  bool have(std::string_view name) const;

 private:
  std::set<std::string, std::less<>> names_;
};

}  // namespace clock

struct ClockSurvey::State {
  std::int64_t unit = 1;
  std::int64_t width = clock::second / 4;
  std::size_t bins = 0;
  std::map<std::string, clock::StampSummary, std::less<>> streams{};
  clock::StampSummary simulation{};  // of /clock
  std::vector<clock::Pair> ticks{};  // its messages, at least `spacing` apart
  std::int64_t spacing = 10'000'000;

  void widen();
  void thin();
};

}  // namespace robocache
