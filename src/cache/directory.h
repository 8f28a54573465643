// The names in a cache's directory.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "cache/file.h"
#include "cache/journal.h"
#include "cache/manifest.h"

namespace robocache::cache {

inline Path manifest_path(const Path& cache) { return cache / "manifest.json"; }
inline Path shards_path(const Path& cache) { return cache / "shards"; }
inline Path shard_path(const Path& cache, const Shard& shard) { return shards_path(cache) / shard.file; }

inline Path journal_path(const Path& cache, const Manifest& manifest) {
  return cache / journal_name(manifest.identity);
}

// A cache as it is on the disk: the manifest with all commits of the journal merged into it.
struct LoadedCache {
  int version = cache_version;
  Manifest manifest{};              // not tidied: streams and sources have the places that the files give them
  std::int64_t manifest_bytes = 0;  // of manifest.json
  JournalEnd journal{};             // journal.checksum identifies this state of the cache
};
// Throws Error(file) if there is no cache, or if it is damaged; then the sentence says what helps. An incomplete last line of
// the journal is ignored and counted in journal.torn_bytes. A writer may be at work meanwhile.
LoadedCache load_cache(const Path& cache);

// Throws Error(file), with the sentence that load_cache() would throw, if there is no manifest.json.
void require_manifest(const Path& cache);

// Whether a folder whose manifest.json cannot be read is a cache: what is left of manifest.json begins as a manifest does, or
// a file in shards/ has the name and the beginning of a shard. A repair must not touch any other folder.
bool is_cache(const Path& folder);

// Throws, with the sentence that load_cache() would throw, if a folder is no cache. Call it before anything is written there.
void refuse_strangers(const Path& folder);

// What identifies a state of manifest.json without parsing it: its identity, or in version 1 a hash of the file. Throws
// Error(file) if it cannot be read.
std::string read_identity(const Path& cache);

// Writes all of the manifest to manifest.json, with a new identity, which `manifest` gets at once, and removes the old journal,
// which is then out of date. With `reads_back` the text must first pass the reader; a writer saves that time, because each of
// its changes passed. The caller holds the lock. Throws if the new state may not be on the disk. Then *is_uncertain says
// whether it may be there nevertheless (the file was renamed, but the directory could not be synced).
struct SavedManifest {
  std::string checksum{};  // the first line of the journal continues it
  std::int64_t bytes = 0;
};
SavedManifest save_manifest(const Path& cache, Manifest& manifest, bool reads_back = true,
                            bool* is_uncertain = nullptr);

// Throws Error(file) if shards/ is a symbolic link. Call it before files there are written or removed.
void refuse_links(const Path& cache);

// The files of a cache that the manifest does not name, which a crash left. Paths within the cache.
std::vector<Path> find_leftovers(const Path& cache, const Manifest& manifest);

// The lowest group above those of all shards in quarantine/. A writer begins there or later, so that shards that are moved
// back from the quarantine can be taken into the cache.
std::int64_t first_group_after_quarantine(const Path& cache);

// Whether a file name in shards/ is the name of a shard.
bool is_shard_name(std::string_view name);

// The group that the name of a shard begins with; -1 if it is too large for a group.
std::int64_t group_of_name(std::string_view name);

// "000012-joint-states"; the caller makes it unique.
std::string shard_stem(std::int64_t group, std::string_view stream);

}  // namespace robocache::cache
