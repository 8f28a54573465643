// The names in a cache's directory.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "cache/files.h"
#include "cache/journal.h"
#include "cache/manifest.h"

namespace robocache::cache {

inline Path manifest_path(const Path& cache) { return cache / "manifest.json"; }
inline Path shards_path(const Path& cache) { return cache / "shards"; }
inline Path shard_path(const Path& cache, const Shard& shard) { return shards_path(cache) / shard.file; }

inline Path journal_path(const Path& cache, const Manifest& manifest) {
  return cache / journal_name(manifest.identity);
}

// A cache as its directory says: the manifest with all commits of the journal in it.
struct LoadedCache {
  int version = cache_version;
  Manifest manifest{};              // not tidied: numbers of streams and sources are those of the files
  std::int64_t manifest_bytes = 0;  // of manifest.json
  JournalEnd journal{};             // journal.checksum names this state: no other state of the cache has it
};
// Throws Error(file) where there is no cache, or it is damaged; then the sentence says what helps. A last line of the
// journal that is not whole is left out, and journal.torn_bytes tells of it. A writer may be at work meanwhile.
LoadedCache load_cache(const Path& cache);

// The manifest of load_cache(), tidied: what readers want.
Manifest load_manifest(const Path& cache);

// Throws Error(file), with the sentence that load_cache() would throw, where there is no manifest.json.
void require_manifest(const Path& cache);

// Tells apart two states of manifest.json, without parsing it: its identity, or in version 1 a hash of the file. Throws
// Error(file) where it cannot be read.
std::string read_identity(const Path& cache);

// Writes manifest.json: all of the manifest, under a new identity, which `manifest` gets at once. With `reads_back` the text
// must first pass the reader; a writer, whose every change did, saves that time. The old journal is out of date from then
// on, and removed. The caller holds the lock. Throws where the new state may not be on the disk; then *is_uncertain says
// whether it may be there all the same (the file was renamed, but the directory could not be synced).
struct SavedManifest {
  std::string checksum{};  // the first line of the journal continues it
  std::int64_t bytes = 0;
};
SavedManifest save_manifest(const Path& cache, Manifest& manifest, bool reads_back = true,
                            bool* is_uncertain = nullptr);

// Throws Error(file) if shards/ is a symbolic link. To be called before files there are written or removed.
void refuse_links(const Path& cache);

// Files of ours that the manifest does not name: what a crash left. Paths within the cache.
std::vector<Path> find_leftovers(const Path& cache, const Manifest& manifest);

// A group above those of all shards in quarantine/. A writer begins there at the earliest, so that shards that are moved
// back from the quarantine can be taken into the cache.
std::int64_t first_group_after_quarantine(const Path& cache);

// Whether a name in shards/ is that of a shard.
bool is_shard_name(std::string_view name);

// "000012-joint-states"; the caller adds what makes it unique.
std::string shard_stem(std::int64_t group, std::string_view stream);

}  // namespace robocache::cache
