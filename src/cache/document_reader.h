// Reads what manifest.json, a line of the journal and a shard's description have in common.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "cache/json_reader.h"
#include "cache/manifest.h"

namespace robocache::cache {

// The streams that a document names, while it is read.
struct StreamTable {
  std::map<std::string, std::int64_t> places{};
  std::vector<std::vector<std::shared_ptr<const Metadata>>>
      variants{};                 // of each stream, what its episodes say; never empty
  bool are_all_described = true;  // false: a shard describes its own stream, and only names the others of its episodes
};

// Throws Error(file) if this is no document of a cache, NewerVersion if a later RoboCache wrote it.
std::int64_t check_version(const JsonNode& root);

// Adds the document's streams, sources, shards and episodes to the manifest.
void parse_content(const JsonNode& root, Manifest& manifest, StreamTable& streams);

// Throws Error(file) where the parts contradict each other: what readers rely on beyond the types of single values.
void check_content(const JsonNode& root, const Manifest& manifest);

std::vector<std::int64_t> parse_shape(const JsonNode& node, std::size_t most_rank);

// Why a shard cannot be one of this stream; empty if it can.
std::string misfit(const StreamInfo& info, const Shard& shard);

}  // namespace robocache::cache
