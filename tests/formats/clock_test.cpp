// One clock for a recording, by pairs whose truth is known.
#include <gtest/gtest.h>
#include <robocache/clock.h>

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

namespace robocache {
namespace {

constexpr std::int64_t second = 1'000'000'000;
constexpr std::int64_t wall = 1'780'000'000 * second;

// A stream of `rate` hertz whose stamps run `factor` times as fast as log time, from `begin` on, `length` seconds long.
void add(ClockSurvey& survey, const std::string& name, double rate, double factor, std::int64_t begin, double length,
         std::int64_t log_begin = wall) {
  for (int k = 0; k < static_cast<int>(rate * length); ++k) {
    const double log = k / rate;
    const std::int64_t delay = (k % 7) * 300'000;
    survey.add(name, log_begin + std::llrint(log * 1e9) + delay, begin + std::llrint(factor * log * 1e9));
  }
}

TEST(Clock, NothingIsStamped) {
  ClockSurvey survey;
  for (int k = 0; k < 10; ++k) survey.add("/a", wall + k * second, {});
  EXPECT_TRUE(survey.runs_with_log_time());
  const RecordingClock clock = find_clock(survey);
  EXPECT_EQ(clock.kind, RecordingClock::Kind::log_time);
  EXPECT_FALSE(clock.carries());
}

TEST(Clock, CarriesLogTimesOver) {
  ClockSurvey survey;
  add(survey, "/a", 100, 0.5, 3 * second, 60);
  for (int k = 0; k < 600; ++k) survey.add("/b", wall + k * second / 10, {});
  EXPECT_FALSE(survey.runs_with_log_time());
  const RecordingClock clock = find_clock(survey);
  EXPECT_EQ(clock.kind, RecordingClock::Kind::carried);
  EXPECT_NEAR(clock.rate, 0.5, 1e-3);
  std::vector<std::int64_t> times{wall + 10 * second}, arrivals = times;
  clock.carry(0, "/b", RecordingClock::Times::log, times, arrivals);
  EXPECT_NEAR(static_cast<double>(times[0] - 8 * second), 0, 2e6);
  EXPECT_EQ(times, arrivals);
  // A stamp is kept, and what equals its arrival is a log time where both are mixed.
  times = {7 * second, wall + 10 * second}, arrivals = {wall + 8 * second, wall + 10 * second};
  clock.carry(0, "/a", RecordingClock::Times::mixed, times, arrivals);
  EXPECT_EQ(times[0], 7 * second);
  EXPECT_EQ(times[1], arrivals[1]);
}

TEST(Clock, StandsStillWhileASimulationPauses) {
  for (const bool has_ticks : {false, true}) {
    ClockSurvey survey;
    const auto log_of = [](std::int64_t time) { return wall + time + (time > 10 * second ? 30 * second : 0); };
    for (std::int64_t time = 0; time < 20 * second; time += second / 200) {
      survey.add("/a", log_of(time), time + 1);  // a stamp of 0 is none
      if (has_ticks && time % (second / 2) == 0) survey.add_clock(log_of(time), time + 1);
    }
    const RecordingClock clock = find_clock(survey);
    EXPECT_EQ(clock.by, has_ticks ? "/clock" : "stamps");
    for (std::int64_t time = 9 * second; time < 11 * second; time += second / 1000) {
      const double error = static_cast<double>(clock.episodes[0].map.at(log_of(time)) - time);
      EXPECT_NEAR(error, 0, 5e6) << time;  // one period of the stamps
    }
  }
}

TEST(Clock, TheLargestGroupThenMoreMessagesThenWallTime) {
  ClockSurvey two;
  add(two, "/wall", 200, 1.0, wall, 20);
  add(two, "/sim/a", 10, 1.0, 5 * second, 20);
  add(two, "/sim/b", 10, 1.0, 5 * second, 20);
  EXPECT_EQ(find_clock(two).kind, RecordingClock::Kind::carried);
  ClockSurvey messages;
  add(messages, "/wall", 100, 1.0, wall, 20);
  add(messages, "/sim", 200, 1.0, 5 * second, 20);
  EXPECT_EQ(find_clock(messages).kind, RecordingClock::Kind::carried);
  ClockSurvey even;
  add(even, "/wall", 100, 1.0, wall, 20);
  add(even, "/sim", 100, 1.0, 5 * second, 20);
  const RecordingClock clock = find_clock(even);
  EXPECT_EQ(clock.kind, RecordingClock::Kind::with_log_time);
  EXPECT_EQ(clock.stream("/sim")->source, StreamClock::Source::own);
}

TEST(Clock, StaticStreamsDoNotVote) {
  ClockSurvey survey;
  add(survey, "/imu", 100, 1.0, wall, 20);
  for (const char* child : {"/tf_static/a", "/tf_static/b", "/tf_static/c"}) survey.add(child, wall, 5 * second);
  const std::vector<std::string> constants{"/tf_static"};
  EXPECT_FALSE(survey.runs_with_log_time());
  EXPECT_TRUE(survey.runs_with_log_time(constants));
  EXPECT_EQ(find_clock(survey, constants).kind, RecordingClock::Kind::with_log_time);
  EXPECT_EQ(find_clock(survey).kind, RecordingClock::Kind::carried);  // three of them agree
}

TEST(Clock, ResetsCutByArrival) {
  ClockSurvey survey;
  for (const char* name : {"/a", "/b", "/c"}) add(survey, name, 50, 1.0, second, 20);
  for (const char* name : {"/a", "/b", "/c"}) add(survey, name, 50, 2.0, second, 20, wall + 21 * second);
  const RecordingClock clock = find_clock(survey);
  ASSERT_EQ(clock.episodes.size(), 2U);
  EXPECT_EQ(clock.episodes[0].end, wall + 21 * second);
  const std::int64_t at = clock.episodes[1].map.at(wall + 26 * second);
  EXPECT_NEAR(static_cast<double>(at - 11 * second), 0, 5e6);
}

TEST(Clock, OneStreamThatGoesBackIsNoReset) {
  ClockSurvey survey;
  for (const char* name : {"/a", "/b", "/c"}) add(survey, name, 50, 1.0, second, 40);
  add(survey, "/d", 50, 1.0, second, 20);
  add(survey, "/d", 50, 1.0, second, 20, wall + 20 * second);
  EXPECT_EQ(find_clock(survey).episodes.size(), 1U);
}

TEST(Clock, TheInverseHoldsAllLogTimes) {
  ClockMap map;
  map.nodes = {{100, 10}, {200, 10}, {300, 40}};  // paused from 100 to 200
  map.before = 1.0;
  map.after = 0.5;
  for (std::int64_t time = -20; time < 80; ++time) {
    const std::int64_t low = map.log_time_of(time, false), high = map.log_time_of(time, true);
    for (std::int64_t log = 0; log < 500; ++log) {
      EXPECT_TRUE(map.at(log) >= time || log < high) << log;
      EXPECT_TRUE(map.at(log) < time || log >= low) << log;
    }
  }
}

TEST(Clock, MemoryIsBounded) {
  ClockSurvey survey;  // a week of two streams at 10 Hz would be 4.8 million quarters of a second
  for (std::int64_t k = 0; k < 3'000'000; ++k) {
    survey.add("/a", wall + k * second / 4, second + k * second / 4);
    if (k % 2 == 0) survey.add("/b", wall + k * second / 4, second + k * second / 4);
  }
  const RecordingClock clock = find_clock(survey);
  EXPECT_EQ(clock.kind, RecordingClock::Kind::carried);
  EXPECT_LE(clock.episodes[0].map.nodes.size(), std::size_t{1} << 20);
  EXPECT_NEAR(static_cast<double>(clock.episodes[0].map.at(wall + 1000 * second) - 1001 * second), 0, 1e3);
}

}  // namespace
}  // namespace robocache
