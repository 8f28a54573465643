#include "cache/directory.h"

#include <fcntl.h>
#include <robocache/error.h>
#include <sys/stat.h>

#include <algorithm>
#include <charconv>
#include <set>
#include <utility>

#include "core/text.h"

namespace robocache::cache {

namespace {

constexpr std::int64_t max_manifest = std::int64_t{1} << 31;  // bytes
constexpr std::string_view advice = "; `robocache verify --repair` makes it anew from the shards";

std::vector<std::string> names_in(const Path& directory) {
  std::vector<std::string> names;
  std::error_code error;
  do {
    names.clear();
    error.clear();
    for (std::filesystem::directory_iterator it(directory, error), end; !error && it != end; it.increment(error)) {
      names.push_back(it->path().filename().string());
    }
  } while (error == std::errc::interrupted);
  if (error && error != std::errc::no_such_file_or_directory) {
    fail_errno(directory, "cannot be listed", error.value());
  }
  std::ranges::sort(names);
  return names;
}

bool starts_with_group(std::string_view name) {
  const std::size_t digits = std::min(name.find_first_not_of("0123456789"), name.size());
  return digits >= 1 && digits < name.size() && name[digits] == '-';
}

}  // namespace

namespace {

// The first bytes of any file; empty if it is empty, or not a regular file.
std::string read_beginning(const Path& path) {
  struct stat status {};
  if (lstat(path.c_str(), &status) != 0 || !S_ISREG(status.st_mode)) return {};
  const File file(path, O_RDONLY | O_NOFOLLOW);
  std::string head(std::min(identity_head, static_cast<std::size_t>(file.size())), '\0');
  file.read(0, std::as_writable_bytes(std::span(head)));
  return head;
}

// Every version begins with an object whose first member is the format.
bool begins_as_manifest(std::string_view head) {
  for (const std::string_view word : {"{", "\"format\"", ":", "\"robocache\""}) {
    head.remove_prefix(std::min(head.find_first_not_of(" \t\r\n"), head.size()));
    if (!head.starts_with(word)) return false;
    head.remove_prefix(word.size());
  }
  return true;
}

}  // namespace

bool is_cache(const Path& folder) try {
  if (begins_as_manifest(read_beginning(manifest_path(folder)))) return true;
  return std::ranges::any_of(names_in(shards_path(folder)), [&](const std::string& name) {
    // A header begins with its metadata, of which "robocache" is the key.
    return is_shard_name(name) && read_beginning(shards_path(folder) / name).find("robocache") != std::string::npos;
  });
} catch (const SystemError&) {
  return true;  // An unreadable folder may be ours: the caller's own read reports why it failed.
}

void refuse_strangers(const Path& folder) {
  if (!is_cache(folder)) static_cast<void>(load_cache(folder));
}

void require_manifest(const Path& cache) {
  const Path path = manifest_path(cache);
  if (std::filesystem::exists(path)) return;
  if (!std::filesystem::exists(cache)) throw Error(ErrorKind::file, concat(cache.string(), ": there is no such cache"));
  if (is_cache(cache))
    throw Error(ErrorKind::file, concat(path.string(), ": is missing, but there are shards", advice));
  throw Error(ErrorKind::file, concat(cache.string(), ": this is no cache: it has no manifest.json"));
}

namespace {

LoadedCache load_once(const Path& cache) {
  LoadedCache loaded;
  const std::string text = read_text(manifest_path(cache), max_manifest);
  loaded.manifest = parse_manifest(text, manifest_path(cache).string());
  if (identity_of_manifest(text.substr(0, identity_head)).empty()) loaded.version = 1;
  loaded.manifest_bytes = static_cast<std::int64_t>(text.size());
  loaded.journal.checksum = checksum_of_manifest(text);
  const Path journal = journal_path(cache, loaded.manifest);
  if (std::filesystem::exists(journal)) {
    loaded.journal = replay_journal(read_text(journal, max_manifest), std::move(loaded.journal.checksum),
                                    loaded.manifest, journal.string());
  }
  return loaded;
}

}  // namespace

LoadedCache load_cache(const Path& cache) try {
  // A writer that replaces the manifest removes the journal. If that happens between the two reads, they are repeated.
  for (int attempts = 100;; --attempts) {
    require_manifest(cache);
    const std::string before = read_identity(cache);
    const auto is_replaced = [&] {
      try {
        return attempts > 0 && read_identity(cache) != before;
      } catch (const Error&) {
        return false;
      }
    };
    try {
      LoadedCache loaded = load_once(cache);
      if (!is_replaced()) return loaded;
    } catch (const NewerVersion&) {
      throw;
    } catch (const SystemError&) {
      if (!is_replaced()) throw;
    } catch (const Error& error) {
      if (is_replaced()) continue;
      throw Error(ErrorKind::file, concat(error.what(), is_cache(cache) ? advice : "; this folder is no cache"));
    }
  }
} catch (const std::filesystem::filesystem_error& error) {
  fail_errno(cache, "cannot be read", error.code().value());
}

std::string read_identity(const Path& cache) {
  const File file(manifest_path(cache), O_RDONLY);
  std::string head(std::min(identity_head, static_cast<std::size_t>(file.size())), '\0');
  file.read(0, std::as_writable_bytes(std::span(head)));
  std::string identity = identity_of_manifest(head);
  return identity.empty() ? checksum_of_manifest(read_text(manifest_path(cache), max_manifest)) : identity;
}

SavedManifest save_manifest(const Path& cache, Manifest& manifest, bool reads_back, bool* is_uncertain) {
  const std::string before = std::exchange(manifest.identity, new_identity());
  const std::string text = write_manifest(manifest);
  if (reads_back) static_cast<void>(parse_manifest(text, manifest_path(cache).string()));
  replace_file(manifest_path(cache), text, is_uncertain);
  remove_file(cache / journal_name(before));
  return {checksum_of_manifest(text), static_cast<std::int64_t>(text.size())};
}

void refuse_links(const Path& cache) {
  if (!is_link(shards_path(cache))) return;
  throw Error(ErrorKind::file,
              concat(shards_path(cache).string(),
                     ": is a symbolic link, and what it leads to may not be this cache's; nothing is "
                     "written or removed there. Move the shards into the cache, or link the whole cache"));
}

std::vector<Path> find_leftovers(const Path& cache, const Manifest& manifest) {
  std::set<std::string_view> known;
  for (const Shard& shard : manifest.shards) known.insert(shard.file);
  const std::string journal = journal_name(manifest.identity);
  std::vector<Path> found;
  for (const std::string& name : names_in(cache)) {
    if (name == "manifest.json.tmp" || (is_journal_name(name) && name != journal)) found.emplace_back(name);
  }
  for (const std::string& name : names_in(shards_path(cache))) {
    const bool ours = is_shard_name(name) || (starts_with_group(name) && name.ends_with(".tmp"));
    if (ours && !known.contains(name)) found.push_back(Path("shards") / name);
  }
  return found;
}

std::int64_t first_group_after_quarantine(const Path& cache) {
  const Path quarantine = cache / "quarantine";
  std::int64_t first = 0;
  std::error_code error;
  if (!std::filesystem::is_directory(quarantine, error)) return first;
  for (const std::string& folder : names_in(quarantine)) {
    const Path shards = quarantine / folder / "shards";
    if (!std::filesystem::is_directory(shards, error)) continue;
    for (const std::string& name : names_in(shards)) {
      if (is_shard_name(name)) first = std::max(first, group_of_name(name) + 1);
    }
  }
  return first;
}

bool is_shard_name(std::string_view name) {
  const auto plain = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-' || c == '_' || c == '.';
  };
  return starts_with_group(name) && name.size() < 200 && name.ends_with(".safetensors") &&
         std::ranges::all_of(name, plain);
}

std::int64_t group_of_name(std::string_view name) {
  constexpr std::int64_t most = std::int64_t{1} << 40;
  std::int64_t group = 0;
  const auto parsed = std::from_chars(name.data(), name.data() + name.size(), group);
  return parsed.ec == std::errc() && group < most ? group : -1;
}

std::string shard_stem(std::int64_t group, std::string_view stream) {
  constexpr std::size_t longest = 60;
  std::string stem = std::to_string(group);
  stem.insert(0, stem.size() < 6 ? 6 - stem.size() : 0, '0');
  const std::size_t prefix = stem.size();
  for (const char c : stream) {
    const char lower = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
    const bool plain = (lower >= 'a' && lower <= 'z') || (lower >= '0' && lower <= '9') || lower == '_' || lower == '.';
    if (plain) {
      if (stem.size() == prefix) stem += '-';
      stem += lower;
    } else if (stem.back() != '-') {
      stem += '-';
    }
    if (stem.size() > prefix + longest) break;
  }
  while (stem.back() == '-' || stem.back() == '.') stem.pop_back();
  return stem.size() == prefix ? stem + "-stream" : stem;
}

}  // namespace robocache::cache
