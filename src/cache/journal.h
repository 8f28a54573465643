// The journal: what was committed since manifest.json was written, in the file journal.<identity of that manifest>.
//
// Each commit is a line: a checksum, a space, the Change as JSON. The checksum covers the checksum of the line before (for
// the first line: that of the manifest) and the JSON. So a journal fits one manifest only, and no line can be removed.
// A line is synced before the next one is written. So a crash can damage the last line only, and then its commit had not
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
  std::string checksum{};       // of the last whole line, or of the manifest if there is none
  std::int64_t commits = 0;     // the number of whole lines
  std::int64_t bytes = 0;       // of the whole lines
  std::int64_t torn_bytes = 0;  // of an incomplete last line: its commit had not finished, so nothing is lost
};
// Merges the commits into the manifest. Throws Error(file), `name` first, if a line other than the last is damaged, or a
// whole line does not continue the manifest.
JournalEnd replay_journal(std::string_view text, std::string checksum, Manifest& manifest, const std::string& name);

}  // namespace robocache::cache
