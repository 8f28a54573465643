// The sources of a CacheWriter: which version of a source is known, and which must be read again.
#include <algorithm>
#include <numeric>

#include "cache/source_files.h"
#include "cache/writer_state.h"
#include "core/characters.h"
#include "io/hash.h"

namespace robocache {

namespace {

constexpr std::string_view content_prefix = "sha256:";  // of a source without files, whose name is its content

std::vector<Path> sorted(std::span<const Path> files) {
  std::vector<Path> result(files.begin(), files.end());
  std::ranges::sort(result);
  return result;
}

// The source as its files are now. Its stamp changes when any file changes, or when two files swap names.
CacheSource source_of(std::string_view name, std::span<const Path> files, std::span<const FileStamp> stamps,
                      std::string_view options) {
  CacheSource source{.path = as_utf8(name), .options = as_utf8(options)};
  io::Hash hash;
  for (std::size_t k = 0; k < files.size(); ++k) {
    source.size += stamps[k].size;
    source.mtime = std::max(source.mtime, stamps[k].mtime);
    const std::string file = files[k].filename().string();
    const std::int64_t numbers[] = {static_cast<std::int64_t>(file.size()), stamps[k].size, stamps[k].mtime};
    hash.add(std::as_bytes(std::span(numbers)));
    hash.add(std::as_bytes(std::span(file)));
  }
  if (files.empty()) source.size = -1;
  source.stamp = hash.text();
  return source;
}

bool is_unchanged(std::span<const Path> files, const std::vector<FileStamp>& stamps) {
  try {
    return stamps_of(files) == stamps;
  } catch (const Error&) {
    return false;
  }
}

}  // namespace

std::vector<SourceVersion> CacheWriter::State::versions_of(const std::vector<std::int64_t>& entries) const {
  std::vector<SourceVersion> versions;
  for (const std::int64_t place : entries) {
    const auto rows = by_source.find(place);
    versions.push_back(
        {sources[static_cast<std::size_t>(place)].is_complete, rows != by_source.end() && !rows->second.empty()});
  }
  return versions;
}

// The entry of this version of the source; -1 if there is none. An entry that a later version replaced has no episodes, so a
// file that is again what it was two versions ago is read again.
std::int64_t CacheWriter::State::find_source(const CacheSource& wanted, std::span<const Path> files) const {
  const auto entries = by_path.find(wanted.path);
  if (entries == by_path.end() || wanted.size < 0) return -1;
  const std::vector<bool> is_replaced = replaced_versions(versions_of(entries->second));
  std::string hash;
  for (std::size_t k = entries->second.size(); k-- > 0;) {
    const std::int64_t place = entries->second[k];
    const CacheSource& known = sources[static_cast<std::size_t>(place)];
    if (is_replaced[k] || known.options != wanted.options || known.size != wanted.size) continue;
    if (known.stamp.empty() ? known.mtime == wanted.mtime : known.stamp == wanted.stamp) return place;
    if (known.hash.empty()) continue;
    if (hash.empty()) hash = hash_of(files);
    if (known.hash == hash) return place;
  }
  return -1;
}

bool CacheWriter::knows(std::string_view path, std::span<const std::filesystem::path> files, std::string_view options) {
  State& state = *state_;
  const Entry entry(state);
  if (files.empty() && path.starts_with(content_prefix)) {
    const auto entries = state.by_path.find(as_utf8(path));
    const auto is_known = [&](std::int64_t place) {
      const CacheSource& source = state.sources[static_cast<std::size_t>(place)];
      return source.is_complete && source.options == as_utf8(options);
    };
    return entries != state.by_path.end() && std::ranges::any_of(entries->second, is_known);
  }
  const std::vector<Path> in_order = sorted(files);
  const CacheSource now = source_of(path, in_order, stamps_of(in_order), options);
  const std::int64_t found = state.find_source(now, in_order);
  if (found < 0) return false;
  CacheSource& source = state.sources[static_cast<std::size_t>(found)];
  if (!source.is_complete) return false;
  if (source.stamp != now.stamp) {  // the hash is equal, so remember the new stamp, which is faster to compare
    source.mtime = now.mtime;
    source.stamp = now.stamp;
    state.changed_sources.insert(found);
    state.is_dirty = true;
  }
  return true;
}

std::vector<std::int64_t> CacheWriter::begin_source(std::string_view path, std::span<const std::filesystem::path> files,
                                                    std::string_view options, std::span<const FileStamp> opened) {
  State& state = *state_;
  const Entry entry(state);
  if (!state.lock) refuse("CacheWriter: it is closed");
  if (state.episode) refuse("CacheWriter: a source cannot begin inside an episode");
  if (!opened.empty() && opened.size() != files.size()) {
    refuse("CacheWriter: ", files.size(), " files of a source, but ", opened.size(), " stamps of opened ones");
  }
  std::vector<std::size_t> order(files.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::sort(order, {}, [&](std::size_t k) -> const Path& { return files[k]; });
  state.source_files.clear();
  state.source_stamps.clear();
  for (const std::size_t k : order) {
    state.source_files.push_back(files[k]);
    if (!opened.empty()) state.source_stamps.push_back(opened[k]);
  }
  if (opened.empty()) state.source_stamps = stamps_of(state.source_files);
  state.has_lost = false;
  const CacheSource now = source_of(path, state.source_files, state.source_stamps, options);
  // The hash is of the files as they are now, so it counts only if they are still the files that were opened.
  const bool is_current = opened.empty() || is_unchanged(state.source_files, state.source_stamps);
  state.source = is_current ? state.find_source(now, state.source_files) : -1;
  std::vector<std::int64_t> numbers;
  if (state.source < 0) {
    state.source = static_cast<std::int64_t>(state.sources.size());
    state.sources.push_back(now);
    state.by_path[now.path].push_back(state.source);
  } else {
    CacheSource& known = state.sources[static_cast<std::size_t>(state.source)];
    known.mtime = now.mtime;
    known.stamp = now.stamp;
    for (const auto& [row, number] : state.by_source[state.source]) numbers.push_back(number);
  }
  state.changed_sources.insert(state.source);
  return numbers;
}

bool CacheWriter::end_source() {
  State& state = *state_;
  const Entry entry(state);
  if (state.source < 0) refuse("CacheWriter: no source has begun");
  if (state.episode) refuse("CacheWriter: a source cannot end inside an episode");
  CacheSource& source = state.sources[static_cast<std::size_t>(state.source)];
  std::string hash = source.hash;
  try {
    if (hash.empty()) hash = hash_of(state.source_files);
  } catch (const Error&) {
    hash.clear();
  }
  // If a file changed meanwhile, it is unknown which content was read: the source is read again the next time.
  const bool is_same = is_unchanged(state.source_files, state.source_stamps);
  source.hash = is_same ? hash : std::string();
  if (source.hash.empty()) source.size = -1;
  source.is_complete = is_same && !state.has_lost;
  state.source = -1;
  state.is_dirty = true;
  return is_same;
}

void CacheWriter::leave_source() noexcept {
  if (state_->is_forked()) return;
  const std::lock_guard guard(state_->mutex);
  state_->source = -1;
}

}  // namespace robocache
