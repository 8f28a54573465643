// One clock for a recording: which clock its stamps are on, and how log times become times of that clock.
//
// ```cpp no_run
// robocache::McapRecording recording(robocache::open_bytes("drive.mcap"));
// robocache::ClockSurvey survey;
// recording.survey(survey);  // or, message by message in the order of log times: survey.add(stream, log_time, stamp)
// const robocache::RecordingClock clock = robocache::find_clock(survey);
//
// robocache::McapBatches batches = recording.batches();
// std::vector<robocache::StreamBatch> carried;
// while (std::optional<robocache::StreamBatch> batch = batches.next()) {
//   const auto kind = robocache::RecordingClock::Times::mixed;
//   clock.carry(0, batch->info->name, kind, batch->times, batch->arrivals);  // in place
//   carried.push_back(std::move(*batch));
// }
// const std::vector<robocache::RecordedStream> recorded = robocache::assemble(std::move(carried));
// ```
//
// A stream is stamped where at least half of its messages have a stamp that is not 0. Two stamped streams share a clock where
// the median difference of their (log time - stamp), over common seconds of log time, is under 60 s. Clocks are the connected
// groups. The recording's clock is the largest group; then the one with more messages; then wall time. Where nothing is
// stamped, log time is the clock.
//
// Nothing is carried over where the recording's clock runs with log time: within 60 s; its rate within 1,000 ppm, or less than
// 100 ms apart over the whole recording; no step of over a second. Else a map carries log times over: by /clock where it was
// recorded and belongs to that clock, else by nodes, one for each quarter of a second of log time. A node is the pair of the
// stamped streams with the largest stamp - r * log time (r: the slope over +-5 s, then over +-1 s of the nodes so found). Nodes
// never decrease. The map is linear between them, and goes on with the slope of the nearest 2 s outside. Where a simulation
// pauses, no stamp advances: the map runs up to the last stamp before the pause, stands still, and goes on from the first stamp
// behind it. A stamped stream on another clock is carried over by an offset and a drift of its own, fitted to its fastest
// messages.
//
// Where /clock, or else most streams of the clock, go back by over 1 s, the simulation was reset: a new episode begins at that
// log time, with a map of its own.
//
// Threads. A ClockSurvey is for one thread at a time. Any number of threads may use a RecordingClock that does not change.
// Limits. About 100 bytes for each stream and quarter of a second, at most 2^20 of these; then they become twice as wide.
// Determinism. The same messages give the same clock, bit for bit.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#pragma GCC visibility push(default)  // the shared library exports what follows

namespace robocache {

class RecordingClock;

// What was seen of the stamps of a recording. Add messages in the order of their log times.
class ClockSurvey {
 public:
  // log_unit: how many nanoseconds one count of the log times is. Some recorders write milliseconds.
  explicit ClockSurvey(std::int64_t log_unit = 1);
  ~ClockSurvey();
  ClockSurvey(ClockSurvey&&) noexcept;
  ClockSurvey& operator=(ClockSurvey&&) noexcept;

  // stamp: none, or 0, where the message has none.
  void add(std::string_view stream, std::int64_t log_time, std::optional<std::int64_t> stamp);
  // A message of /clock: the simulation's time.
  void add_clock(std::int64_t log_time, std::int64_t time);

  // Whether everything that was seen runs with log time, so that nothing needs to be carried over. `static_streams`, which are
  // constants, do not count: a latched message is older than its log time.
  bool runs_with_log_time(std::span<const std::string> static_streams = {}) const;
  // The nanoseconds of one count of the log times, as the stamps show: 1, or 1e3, 1e6, 1e9 where a recorder wrote us, ms, s.
  std::int64_t log_unit() const;
  std::map<std::string, std::int64_t> first_log_times() const;  // by stream

  struct State;

 private:
  friend RecordingClock find_clock(const ClockSurvey& survey, std::span<const std::string> static_streams);
  std::unique_ptr<State> state_;
};

// Log times to the recording's clock: linear between the nodes.
struct ClockMap {
  struct Node {
    std::int64_t log_time = 0, time = 0;
  };
  std::vector<Node> nodes{};         // log times increase, times do not decrease; none: times are log times
  double before = 1.0, after = 1.0;  // slopes outside

  std::int64_t at(std::int64_t log_time) const;
  // A log time at or before (is_end: at or after) all log times that are carried over to `time`.
  std::int64_t log_time_of(std::int64_t time, bool is_end) const;
};

struct StreamClock {
  enum class Source : std::uint8_t {
    log,        // it has no stamps: its times are log times, carried over
    recording,  // its stamps are on the recording's clock
    own,        // its stamps are on another clock, and are carried over
  };
  // log time = log_time + slope * (stamp - at), of samples that arrive from `from` on.
  struct Line {
    std::int64_t from = 0, at = 0, log_time = 0;
    double slope = 1.0;
  };
  Source source = Source::log;
  std::int64_t messages = 0, stamped = 0;
  std::vector<Line> lines{};  // of Source::own
};

class RecordingClock {
 public:
  enum class Kind : std::uint8_t { log_time, with_log_time, carried };
  struct Episode {
    std::int64_t start = 0, end = 0;  // log times [start, end); the first begins, and the last ends, at the limits
    ClockMap map{};
  };

  Kind kind = Kind::log_time;
  std::int64_t log_unit = 1;
  bool is_wall = true;                  // wall time: its stamps are within 60 s of log time, or count from 1970
  std::string by{};                     // what carries over: "/clock", "stamps" or nothing
  double rate = 1.0;                    // seconds of the clock in a second of log time: the real-time factor
  double slowest = 1.0, fastest = 1.0;  // 5th and 95th percentile of the rate over 10 s
  std::int64_t offset = 0;              // clock - log time at the start
  std::int64_t agreeing = 0;            // stamped streams on the clock
  std::map<std::string, StreamClock> streams{};
  std::vector<Episode> episodes{};  // one, or one more for each reset

  bool carries() const;  // whether carry() changes anything
  // Carries samples of an episode over, in place. `episode` is below episodes.size(). `kind` says what the times are; where they
  // are mixed, a time that equals its arrival is a log time. The stream is found by its name, or by that of its topic.
  enum class Times : std::uint8_t { log, stamp, mixed };
  void carry(std::size_t episode, std::string_view stream, Times kind, std::span<std::int64_t> times,
             std::span<std::int64_t> arrivals) const;
  const StreamClock* stream(std::string_view name) const;
};

// static_streams: constants, which are left out of the choice.
RecordingClock find_clock(const ClockSurvey& survey, std::span<const std::string> static_streams = {});

}  // namespace robocache

#pragma GCC visibility pop
