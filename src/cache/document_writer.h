// Writes what manifest.json, a line of the journal and a shard's description have in common.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "cache/json_writer.h"
#include "cache/manifest.h"

namespace robocache::cache {

// The distinct metadata of a stream's episodes, in the order in which they first appear.
class Variants {
 public:
  void add(const Metadata& metadata) {
    if (places_.emplace(&metadata, static_cast<std::int64_t>(all_.size())).second) all_.push_back(&metadata);
  }
  const std::vector<const Metadata*>& all() const noexcept { return all_; }
  std::int64_t place_of(const Metadata& metadata) const {  // 0 where they were not added
    const auto found = places_.find(&metadata);
    return found == places_.end() ? 0 : found->second;
  }

 private:
  struct ByContent {
    bool operator()(const Metadata* a, const Metadata* b) const { return a != b && *a < *b; }
  };
  std::vector<const Metadata*> all_;
  std::map<const Metadata*, std::int64_t, ByContent> places_;
};

// One entry for each stream. `only`: the one stream to look at.
std::vector<Variants> variants_of(const Manifest& manifest, std::optional<std::int64_t> only = {});

std::string stream_text(const StreamInfo& info, const Variants& variants);
std::string source_text(const CacheSource& source);
std::string shard_text(const Manifest& manifest, const Shard& shard);
std::string episode_text(const Manifest& manifest, const CachedEpisode& episode, const std::vector<Variants>& variants);

}  // namespace robocache::cache
