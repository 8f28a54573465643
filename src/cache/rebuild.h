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

// Adds to the manifest what the shards `files` (paths within the cache) hold, as far as their groups come after those of
// the manifest. An episode comes back where the shards of all its streams are there; of an episode that was replaced, the
// newest. The result passes the reader's rules. Returns what did not find its place. Throws SystemError where a file
// cannot be read, NewerVersion where a later RoboCache wrote one.
std::vector<LeftOut> add_groups(const Path& cache, std::span<const Path> files, Manifest& manifest);

}  // namespace robocache::cache
