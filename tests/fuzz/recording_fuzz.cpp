// Any bytes, as an MCAP recording: into streams, or refused with a sentence. Which streams its topics have is found twice, by
// their first messages and by all of them, and must agree.
#include <robocache/error.h>

#include <set>
#include <string>
#include <string_view>

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

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  for (const TimeSource time : {TimeSource::automatic, TimeSource::log}) {
    try {
      McapRecording recording(bytes_of(std::as_bytes(std::span(data, size)), "fuzz"), time);
      read(recording);
    } catch (const Error& error) {
      require(error.kind() == ErrorKind::file);
      check_sentence(error.what());
    }
  }
  return 0;
}
