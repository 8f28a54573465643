#include "cache/journal.h"

#include <robocache/error.h>

#include "cache/hash.h"
#include "core/text.h"

namespace robocache::cache {

namespace {

constexpr std::string_view prefix = "journal.";
constexpr std::size_t hash_digits = 32;

std::string line_checksum(std::string_view last, std::string_view change) {
  Hash hash;
  hash.add(std::as_bytes(std::span(last)));
  hash.add(std::as_bytes(std::span(change)));
  return hash.text();
}

}  // namespace

std::string journal_name(std::string_view identity) { return concat(prefix, identity); }

bool is_journal_name(std::string_view name) {
  return name.size() == prefix.size() + hash_digits && name.starts_with(prefix) &&
         name.find_first_not_of("0123456789abcdef", prefix.size()) == std::string_view::npos;
}

JournalLine journal_line(std::string_view last_checksum, std::string_view change) {
  JournalLine line;
  line.checksum = line_checksum(last_checksum, change);
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
                          line_checksum(end.checksum, line.substr(hash_digits + 1)) == line.substr(0, hash_digits);
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
