// A manifest made from shards: each describes itself and all episodes of its group.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "cache/files.h"
#include "cache/manifest.h"

namespace robocache::cache {

struct LeftOut {
  Path file{};           // within the cache; of an episode: shards/
  std::string reason{};  // one sentence without the file's name
};

struct AddedGroups {
  std::vector<LeftOut> left_out{};        // what did not find its place
  std::vector<CachedEpisode> replaced{};  // episodes that the manifest had, and that an added episode has replaced
};

// Adds to the manifest the groups that the shards `files` (paths within the cache) hold. A group of which the manifest has a
// shard or an episode is not added. An episode comes back where the shards of all its streams are there. Where an added
// episode and another one are the same, the one of the later group stays. Where an added episode is of another version of a
// source, the rule of a commit decides (replaced_versions); episodes that were beside each other before stay so. The result
// passes the reader's rules. Throws SystemError where a file cannot be read, NewerVersion where a later RoboCache wrote one.
AddedGroups add_groups(const Path& cache, std::span<const Path> files, Manifest& manifest);

}  // namespace robocache::cache
