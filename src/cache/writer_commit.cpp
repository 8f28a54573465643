// Commits what waits in a CacheWriter: finishes the shards, then writes a line of the journal or a new manifest.
#include <fcntl.h>

#include <algorithm>

#include "cache/writer_state.h"

namespace robocache {

namespace {

// In bytes. A commit writes a new manifest instead of a line if the journal is longer than this and than the manifest.
constexpr std::int64_t least_journal = 64 << 10;

}  // namespace

// Throws if another writer changed the cache, which can happen only after somebody removed the lock file.
void CacheWriter::State::check_fence() {
  const bool is_renewed = lock->renew();
  const std::string there = read_identity(path);
  std::error_code error;
  const auto size = std::filesystem::file_size(journal_path(path, manifest), error);
  const bool is_same_journal =
      needs_snapshot || (error ? journal_bytes == 0 : static_cast<std::int64_t>(size) == journal_bytes);
  const bool is_same = (there == manifest.identity && is_same_journal) || (is_uncertain && there == tried_identity);
  const auto is_there = [&](const auto& entry) { return std::filesystem::exists(shard_path(path, entry.second)); };
  if (!is_same || (is_renewed && !std::ranges::all_of(finished, is_there))) {
    throw Error(ErrorKind::file,
                concat(path.string(),
                       ": another writer has changed this cache since this one opened it, because the file `lock` was "
                       "removed; what waits here is not committed: open the cache again, and add it again"));
  }
}

void CacheWriter::State::finish_group() {
  // Each shard describes its whole group: all its episodes, and the sources that they need.
  Manifest group{.streams = streams, .episodes = episodes};
  std::map<std::int64_t, std::int64_t> places;
  for (CachedEpisode& entry : group.episodes) {
    if (entry.source < 0) continue;
    const auto [place, is_new] = places.emplace(entry.source, static_cast<std::int64_t>(group.sources.size()));
    if (is_new) group.sources.push_back(sources[static_cast<std::size_t>(entry.source)]);
    entry.source = place->second;
  }
  for (auto& [stream, shard] : shards) {
    if (!finished.contains(stream)) finished[stream] = shard.finish(group, manifest.next_group);
  }
  sync_directory(shards_path(path));
}

// `useless`: gets the shards of this group if none of its episodes stays.
Change CacheWriter::State::make_change(std::vector<Path>& useless) {
  Change change;
  Manifest& added = change.added;
  added.next_group = manifest.next_group + (episodes.empty() ? 0 : 1);
  std::set<Row> gone = replaced;

  // A complete new version replaces every older one. An incomplete version replaces older incomplete ones once it has an
  // episode.
  std::map<std::int64_t, CacheSource> changed;
  std::set<std::string_view> paths;
  for (const std::int64_t k : changed_sources) {
    changed.emplace(k, sources[static_cast<std::size_t>(k)]);
    paths.insert(sources[static_cast<std::size_t>(k)].path);
  }
  for (const std::string_view name : paths) {
    const std::vector<std::int64_t>& entries = by_path.at(std::string(name));
    const std::vector<SourceVersion> versions = versions_of(entries);
    const std::vector<bool> is_replaced = replaced_versions(versions);
    for (std::size_t k = 0; k < entries.size(); ++k) {
      if (!is_replaced[k]) continue;
      if (versions[k].has_episodes) {
        for (const auto& [row, number] : by_source.at(entries[k])) gone.insert(row);
      }
      if (!versions[k].is_complete) continue;
      CacheSource entry = sources[static_cast<std::size_t>(entries[k])];
      entry.is_complete = false;
      changed.insert_or_assign(entries[k], std::move(entry));
    }
  }
  std::map<std::int64_t, std::int64_t> source_places, stream_places;
  for (auto& [place, entry] : changed) {
    source_places.emplace(place, static_cast<std::int64_t>(added.sources.size()));
    change.places.push_back(place);
    added.sources.push_back(std::move(entry));
  }
  for (const CachedEpisode& entry : episodes) {
    if (!gone.contains({entry.group, entry.row})) added.episodes.push_back(entry);
  }
  for (const Row& row : gone) {
    if (row.first != manifest.next_group) change.dropped.push_back(row);
  }
  for (const auto& [stream, shard] : finished) {
    if (added.episodes.empty()) {
      useless.push_back(shard_path(path, shard));
      continue;
    }
    stream_places.emplace(stream, static_cast<std::int64_t>(added.streams.size()));
    added.streams.push_back(streams[static_cast<std::size_t>(stream)]);
    added.shards.push_back(shard);
    added.shards.back().stream = stream_places.at(stream);
  }
  for (CachedEpisode& entry : added.episodes) {
    for (EpisodeStream& of : entry.streams) of.stream = stream_places.at(of.stream);
    if (entry.source >= 0) entry.source = source_places.at(entry.source);
  }
  return change;
}

void CacheWriter::State::write_snapshot(Change change, bool is_last, std::vector<Path>& useless) {
  Manifest next = manifest;
  Merger merger(next, pool);
  merger.add(std::move(change), manifest_path(path).string());
  for (const Shard& shard : merger.finish(manifest_path(path).string())) useless.push_back(shard_path(path, shard));
  if (is_last) tidy(next);
  needs_snapshot = true;
  SavedManifest saved;
  bool may_be_there = false;
  try {
    saved = save_manifest(path, next, false, &may_be_there);
  } catch (...) {
    if (may_be_there) tried_identity = next.identity;
    is_uncertain = is_uncertain || may_be_there;
    throw;
  }
  manifest = std::move(next);
  take_saved(saved);
}

void CacheWriter::State::take_saved(const SavedManifest& saved) {
  checksum = saved.checksum;
  manifest_bytes = saved.bytes;
  journal_bytes = 0;
  journal = {};
  needs_snapshot = false;
  is_uncertain = false;
}

void CacheWriter::State::write_line(Change change, const std::string& text, std::vector<Path>& useless) {
  const std::string name = journal_path(path, manifest).string();
  JournalLine line = journal_line(checksum, text);
  needs_snapshot = true;  // if anything below fails
  const bool is_new = !journal;
  if (is_new) journal = File(name, O_WRONLY | O_CREAT | O_EXCL);
  journal.write(journal_bytes, std::as_bytes(std::span(line.text)));
  is_uncertain = true;
  journal.sync();
  if (is_new) sync_directory(path);
  is_uncertain = false;
  needs_snapshot = false;
  journal_bytes += static_cast<std::int64_t>(line.text.size());
  checksum = std::move(line.checksum);
  Merger merger(manifest, pool);
  merger.add(std::move(change), name);
  for (const Shard& shard : merger.finish(name)) useless.push_back(shard_path(path, shard));
}

// After a commit, or when the group is given up: streams and sources are those of the manifest again.
void CacheWriter::State::forget_group() {
  for (auto& [stream, shard] : shards) shard.keep_episode();
  shards.clear();
  finished.clear();
  episodes.clear();
  replaced.clear();
  streams = manifest.streams;
  streams_before.clear();
  must_commit = false;
}

// Called only while some shard of the group is unfinished: until all are finished, no manifest names any of them.
std::size_t CacheWriter::State::drop_group() {
  for (const CachedEpisode& entry : episodes) {
    if (entry.source < 0) continue;
    sources[static_cast<std::size_t>(entry.source)].is_complete = false;
    changed_sources.insert(entry.source);
    has_lost = has_lost || entry.source == source;
  }
  for (auto& [stream, shard] : shards) shard.abandon();
  for (const auto& [stream, shard] : finished) remove_file(shard_path(path, shard));
  const std::size_t count = episodes.size();
  forget_group();
  make_index();
  return count;
}

void CacheWriter::State::commit(bool is_last) {
  const bool has_news = !episodes.empty() || is_dirty;
  const bool has_journal = journal_bytes > 0;
  if (!has_news && !(is_last && has_journal)) return;
  must_commit = must_commit || has_news;
  check_fence();
  if (!episodes.empty()) {
    try {
      finish_group();
    } catch (const LostSamples& lost) {
      const std::size_t count = drop_group();
      throw Error(ErrorKind::file, concat(lost.what(), "; what was committed before is kept, the ", count,
                                          " episode(s) that waited are dropped: add them again"));
    }
  }
  std::vector<Path> useless;
  const std::string text = write_change(make_change(useless));
  // Read it back: the journal gets only what readers accept.
  Change change = parse_change(text, journal_path(path, manifest).string());
  const std::vector<std::int64_t> changed = change.places;
  const std::vector<Row> dropped = change.dropped;
  const auto length = static_cast<std::int64_t>(text.size());
  check_fence();  // again, because finishing the shards took time
  if (is_last || needs_snapshot || journal_bytes + length > std::max(manifest_bytes, least_journal)) {
    write_snapshot(std::move(change), is_last, useless);
  } else {
    write_line(std::move(change), text, useless);
  }
  is_uncertain = false;
  for (const Path& file : useless) remove_file(file);
  if (!is_last) {
    for (const std::int64_t place : changed) {
      sources[static_cast<std::size_t>(place)] = manifest.sources[static_cast<std::size_t>(place)];
    }
  }
  const bool must_index = !dropped.empty() || !useless.empty();
  forget_group();
  if (must_index) make_index();
  changed_sources.clear();
  if (source >= 0) changed_sources.insert(source);
  is_dirty = false;
}

// After a failed commit: removes the episode that ended last from those that wait. Returns false if that is impossible,
// because the commit may be on the disk and cannot be undone there.
bool CacheWriter::State::take_back() noexcept {
  try {
    if (is_uncertain) {  // write the last good manifest again, so that nothing on the disk names the new shards
      Manifest again = manifest;
      bool may_be_there = false;
      try {
        const SavedManifest saved = save_manifest(path, again, false, &may_be_there);
        manifest.identity = again.identity;
        take_saved(saved);
      } catch (...) {
        if (may_be_there) tried_identity = again.identity;
        throw;
      }
    }
    if (replaces) replaced.erase(*replaces);
    finished.clear();
    episodes.pop_back();
    discard();
    must_commit = !episodes.empty();
    make_index();
    return true;
  } catch (...) {
    return false;
  }
}

}  // namespace robocache
