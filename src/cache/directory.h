// The names in a cache's directory.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "cache/files.h"
#include "cache/manifest.h"

namespace robocache::cache {

inline Path manifest_path(const Path& cache) { return cache / "manifest.json"; }
inline Path shards_path(const Path& cache) { return cache / "shards"; }
inline Path shard_path(const Path& cache, const Shard& shard) { return shards_path(cache) / shard.file; }

// The text of the manifest, as far as memory allows. Throws Error(file) where there is none, or no cache at all.
std::string read_manifest(const Path& cache);

// The same, parsed; where it is damaged, the sentence says what helps.
Manifest load_manifest(const Path& cache);

// Files of ours that the manifest does not name: what a crash left. Paths within the cache.
std::vector<Path> find_leftovers(const Path& cache, const Manifest& manifest);

// Whether a name in shards/ is that of a shard.
bool is_shard_name(std::string_view name);

// "000012-joint-states"
std::string shard_stem(std::int64_t group, std::string_view stream);

}  // namespace robocache::cache
