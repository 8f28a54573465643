// The journal: what was committed since manifest.json was written, in the file journal.<identity of that manifest>.
//
// A line for each commit: a checksum, a space, the Change as JSON. The checksum goes over the checksum of the line before
// (of the first line: that of the manifest) and the JSON. So a journal fits one manifest only, and no line can be taken out.
// A line is synced before the next one is written: a crash can harm the last line only, and then its commit had not
// finished.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "cache/manifest.h"

namespace robocache::cache {

std::string journal_name(std::string_view identity);
bool is_journal_name(std::string_view name);

struct JournalLine {
  std::string text{};
  std::string checksum{};  // the next line continues it
};
JournalLine journal_line(std::string_view last_checksum, std::string_view change);

struct JournalEnd {
  std::string checksum{};       // of the last whole line; of the manifest where there is none
  std::int64_t commits = 0;     // whole lines
  std::int64_t bytes = 0;       // of them
  std::int64_t torn_bytes = 0;  // of a last line that is not whole: its commit had not finished, nothing is lost
};
// Carries the commits into the manifest. Throws Error(file), `name` first, where a line other than the last is damaged, or
// a whole line does not follow the manifest.
JournalEnd replay_journal(std::string_view text, std::string checksum, Manifest& manifest, const std::string& name);

}  // namespace robocache::cache
