// Any bytes, as an MCAP recording: into streams, or refused with a sentence. Which streams its topics have is found twice, by
// their first messages and by all of them, and must agree. Its clock is found at a glance and by all messages.
#include <robocache/clock.h>
#include <robocache/error.h>

#include <cstdint>
#include <limits>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "batches.h"

namespace {

using namespace robocache;
using fuzz::require;

void check_sentence(std::string_view text) {
  require(text.starts_with("fuzz: ") && text.size() < 2000);
  for (const char c : text) require(c >= ' ' && c <= '~');
}

void check(const std::vector<Problem>& problems) {
  for (const Problem& problem : problems) check_sentence(problem.sentence);
}

void read(McapRecording& recording) {
  const Summary summary = recording.summary();
  for (const std::string& warning : summary.warnings) check_sentence(warning);
  std::vector<std::string> topics;
  for (const Topic& topic : summary.topics) topics.push_back(topic.name);
  const Discovery found = recording.discover(topics);
  check(found.problems);
  std::set<std::string> known;
  for (const auto& [topic, names] : found.streams) known.insert(names.begin(), names.end());
  McapBatches batches = recording.batches();
  std::set<std::string> seen;
  while (const auto batch = batches.next()) {
    fuzz::visit(*batch);
    seen.insert(batch->info->name);
  }
  check(batches.problems());
  // TF and joints may name more streams later; a stream that the first messages name is there.
  for (const std::string& name : known) require(seen.contains(name) || !batches.problems().empty());
}

// What a clock says is consistent, and carries any samples over without a fault.
void check(const RecordingClock& clock, std::size_t messages) {
  require(!clock.episodes.empty() && clock.episodes.size() <= messages + 1);
  require(clock.agreeing >= 0 && clock.agreeing <= std::ssize(clock.streams));
  for (const auto& [name, stream] : clock.streams) {
    require(stream.stamped >= 0 && stream.stamped <= stream.messages);
    require(stream.lines.empty() == (stream.source != StreamClock::Source::own));
    require(stream.lines.size() <= messages);
  }
  constexpr std::int64_t most = std::numeric_limits<std::int64_t>::max();
  for (std::size_t number = 0; number < clock.episodes.size(); ++number) {
    const RecordingClock::Episode& episode = clock.episodes[number];
    require(episode.start < episode.end);
    require(number == 0 || clock.episodes[number - 1].end == episode.start);
    require(episode.map.nodes.size() <= 2 * messages + 2);
    for (std::size_t k = 1; k < episode.map.nodes.size(); ++k) {
      require(episode.map.nodes[k - 1].log_time < episode.map.nodes[k].log_time);
      require(episode.map.nodes[k - 1].time <= episode.map.nodes[k].time);
    }
    for (const std::int64_t at : {std::int64_t{0}, std::int64_t{1'000'000'000'000'000'000}, most / 4, -most / 4}) {
      (void)episode.map.at(at);
      (void)episode.map.log_time_of(at, false);
      (void)episode.map.log_time_of(at, true);
    }
    if (number >= 4) continue;  // a few of them tell
    std::size_t carried = 0;
    for (const auto& [name, stream] : clock.streams) {
      if (++carried > 16) break;
      std::vector<std::int64_t> times{0, 1'000'000'000, most / 4}, arrivals{1, 1'000'000'000, most / 4};
      clock.carry(number, name, RecordingClock::Times::mixed, times, arrivals);
    }
  }
}

void find_clocks(McapRecording& recording, std::size_t size) {
  for (const bool at_a_glance : {true, false}) {
    ClockSurvey survey;
    recording.survey(survey, at_a_glance);
    (void)survey.runs_with_log_time();
    const std::int64_t unit = survey.log_unit();
    require(unit == 1 || unit == 1'000 || unit == 1'000'000 || unit == 1'000'000'000);
    std::vector<std::string> constants;
    for (const auto& [name, log_time] : survey.first_log_times()) {
      if (constants.size() < 2) constants.push_back(name);
    }
    // zstd and lz4 may unpack a byte to some hundred messages at most.
    check(find_clock(survey), 1024 * size);
    check(find_clock(survey, constants), 1024 * size);
    if (unit == 1) continue;
    ClockSurvey scaled(unit);
    recording.survey(scaled, at_a_glance);
    check(find_clock(scaled), 1024 * size);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  for (const TimeSource time : {TimeSource::automatic, TimeSource::log}) {
    try {
      McapRecording recording(bytes_of(std::as_bytes(std::span(data, size)), "fuzz"), time);
      read(recording);
      find_clocks(recording, size);
    } catch (const Error& error) {
      require(error.kind() == ErrorKind::file);
      check_sentence(error.what());
    }
  }
  return 0;
}
