// Makes a manifest from shards: each shard describes itself and all episodes of its group.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "cache/file.h"
#include "cache/manifest.h"

namespace robocache::cache {

struct LeftOutFile {
  Path file{};             // within the cache; shards/ for an episode
  std::string reason{};    // one sentence without the file's name
  bool is_unread = false;  // its description cannot be read, so its episodes are unknown
};

// An episode that a shard describes, but of which a part is missing.
struct IncompleteEpisode {
  CachedEpisode episode{};  // its streams and source refer to the shard's description
  std::string source{};     // the path; empty: it has none
  std::string reason{};     // what a report says after the episode's name
};

struct AddedGroups {
  std::vector<LeftOutFile> left_out{};       // shards and episodes that could not be added
  std::vector<IncompleteEpisode> lacking{};  // of groups that the manifest did not have
  std::vector<CachedEpisode> replaced{};     // episodes of the manifest that an added episode replaced
};

// Adds the groups of the shards `files` (paths within the cache) to the manifest. A group is not added if the manifest has a
// shard or an episode of it. An episode is added if the shards of all its streams are there. If an added episode equals
// another one, the one in the later group stays. If an added episode belongs to another version of a source, the rule of a
// commit decides (replaced_versions()); episodes that the manifest had together stay together. The result passes
// check_content(). Throws SystemError if a file cannot be read, NewerVersion if a later RoboCache wrote it.
AddedGroups add_groups(const Path& cache, std::span<const Path> files, Manifest& manifest);

}  // namespace robocache::cache
