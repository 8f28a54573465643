#include "cache/journal.h"

#include <robocache/error.h>

#include "cache/change.h"
#include "cache/checksum.h"
#include "core/text.h"

namespace robocache::cache {

namespace {

constexpr std::string_view prefix = "journal.";

}  // namespace

std::string journal_name(std::string_view identity) { return concat(prefix, identity); }

bool is_journal_name(std::string_view name) { return name.starts_with(prefix) && is_hash(name.substr(prefix.size())); }

JournalLine journal_line(std::string_view last_checksum, std::string_view change) {
  JournalLine line;
  line.checksum = hash_text(last_checksum, change);
  line.text = concat(line.checksum, " ", change, "\n");
  return line;
}

JournalEnd replay_journal(std::string_view text, std::string checksum, Manifest& manifest, const std::string& name) {
  JournalEnd end{.checksum = std::move(checksum)};
  MetadataPool pool;
  Merger merger(manifest, pool);
  while (!text.empty()) {
    const std::size_t length = text.find('\n');
    const std::string_view line = text.substr(0, length);
    const bool is_last = length == std::string_view::npos || length + 1 == text.size();
    const bool is_whole = length != std::string_view::npos && line.size() > hash_digits && line[hash_digits] == ' ' &&
                          hash_text(end.checksum, line.substr(hash_digits + 1)) == line.substr(0, hash_digits);
    if (!is_whole) {
      if (!is_last) {
        throw Error(ErrorKind::file, concat(name, ": line ", end.commits + 1, " is damaged: its checksum is wrong"));
      }
      end.torn_bytes = static_cast<std::int64_t>(text.size());
      break;
    }
    merger.add(parse_change(line.substr(hash_digits + 1), name), name);
    end.checksum = line.substr(0, hash_digits);
    end.commits += 1;
    end.bytes += static_cast<std::int64_t>(length + 1);
    text.remove_prefix(length + 1);
  }
  merger.finish(name);
  return end;
}

}  // namespace robocache::cache
