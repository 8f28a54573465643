// Opens a cache to write to it: makes or checks its folder, loads what is committed, clears up what a crash left.
#include <algorithm>

#include "cache/quarantine.h"
#include "cache/writer_state.h"

namespace robocache {

void CacheWriter::State::open() {
  refuse_links(path);
  check_folder();
  make_directory(path);
  lock.emplace(path);
  try {
    load();
  } catch (...) {
    lock->remove_if_made();
    throw;
  }
}

// Throws if the folder holds something else, or a cache that lost its manifest.
void CacheWriter::State::check_folder() const {
  const bool is_new = !std::filesystem::exists(manifest_path(path));
  if (is_new && std::filesystem::is_directory(path)) {
    for (const auto& entry : std::filesystem::directory_iterator(path)) {
      const std::string name = entry.path().filename().string();
      if (name != "shards" && name != "lock" && name != "manifest.json.tmp" && !is_journal_name(name)) {
        throw Error(ErrorKind::file,
                    concat(path.string(), ": this is no cache, and not empty: it holds ", quote(name)));
      }
    }
    // A writer makes the manifest before any shard.
    const auto in_shards = find_leftovers(path, {});
    if (std::ranges::any_of(in_shards, [](const Path& p) { return is_shard_name(p.filename().string()); })) {
      require_manifest(path);  // throws: there are shards, and verify can help
    }
  }
  if (!is_new) refuse_strangers(path);
}

void CacheWriter::State::load() {
  check_folder();  // again: the previous holder of the lock may have made the cache
  if (!std::filesystem::exists(manifest_path(path))) {
    make_directory(shards_path(path), false);  // save_manifest() syncs the folder that it is in
    Manifest empty;
    save_manifest(path, empty, false);
  }
  LoadedCache loaded = load_cache(path);
  const bool is_old = loaded.version < cache_version;
  manifest = std::move(loaded.manifest);
  checksum = std::move(loaded.journal.checksum);
  manifest_bytes = loaded.manifest_bytes;
  journal_bytes = loaded.journal.bytes;
  make_directory(shards_path(path));
  const bool has_journal = std::filesystem::exists(journal_path(path, manifest));
  remove_leftovers();
  manifest.next_group = std::max(manifest.next_group, first_group_after_quarantine(path));
  // A journal that another writer left is not continued: its last line may not be whole, or not on the disk.
  needs_snapshot = tidy(manifest) || has_journal || is_old;
  streams = manifest.streams;
  sources = manifest.sources;
  make_index();
}

// Clears up what a crash left. A finished shard that no commit names may have been committed by lines of the journal that
// are damaged or gone: a journal that lost its last lines looks whole. So a writer never deletes another writer's finished
// shard, but moves it to the quarantine, with the old journals.
void CacheWriter::State::remove_leftovers() {
  std::vector<Path> leftovers = find_leftovers(path, manifest);
  const auto is_shard = [](const Path& file) { return is_shard_name(file.filename().string()); };
  const bool has_shard = std::ranges::any_of(leftovers, is_shard);
  std::vector<QuarantinedFile> kept;
  for (Path& leftover : leftovers) {
    if (is_shard(leftover)) {
      kept.push_back({std::move(leftover), "no commit that is known names it"});
    } else if (has_shard && is_journal_name(leftover.string())) {
      kept.push_back({std::move(leftover), "belongs to a manifest.json that is not there"});
    } else {
      remove_file(path / leftover);
    }
  }
  if (!has_shard) return;
  std::string report =
      concat("A writer opened this cache on ", time_in_words(), " and found shards that no commit names.\n",
             "Either a crash interrupted their commit, or the journal that named them was damaged.\n",
             "To take their episodes into the cache: move the files back to the folder shards,\n",
             "then run `robocache verify --repair`. They are:\n");
  for (const QuarantinedFile& taken : kept) report += concat("  ", taken.file.string(), "\n");
  quarantine = Quarantine(path).take(kept, report);
}

void CacheWriter::State::index(const CachedEpisode& entry) {
  const Row place{entry.group, entry.row};
  if (entry.source >= 0) {
    by_source[entry.source][place] = entry.number;
  } else if (!replaced.contains(place)) {
    by_name[entry.name] = place;
  }
}

void CacheWriter::State::make_index() {
  by_path.clear();
  by_source.clear();
  by_name.clear();
  for (std::size_t k = 0; k < sources.size(); ++k) by_path[sources[k].path].push_back(static_cast<std::int64_t>(k));
  for (const auto* const all : {&manifest.episodes, &episodes}) {
    for (const CachedEpisode& entry : *all) index(entry);
  }
}

}  // namespace robocache
