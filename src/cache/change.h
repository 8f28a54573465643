// What one commit changes in a manifest: its text in the journal, and how it is merged into the manifest.
#pragma once

#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "cache/manifest.h"

namespace robocache::cache {

struct Change {
  // The new shards and episodes, of groups from the old next_group up to added.next_group; every stream of these shards, as
  // it is after the commit; the sources that changed or are new.
  Manifest added{};
  std::vector<std::int64_t> places{};  // of each source in `added`: its place in the manifest; one past the end: new
  std::vector<Row> dropped{};          // episodes to remove. A group without episodes is removed, with its shards.
};
Change parse_change(std::string_view text, const std::string& name);  // throws Error(file) where check_content() does
std::string write_change(const Change& change);                       // without the end of the line

// Keeps equal metadata once.
class MetadataPool {
 public:
  std::shared_ptr<const Metadata> take(const std::shared_ptr<const Metadata>& metadata);

 private:
  struct ByContent {
    bool operator()(const std::shared_ptr<const Metadata>& a, const std::shared_ptr<const Metadata>& b) const {
      return a != b && *a < *b;
    }
  };
  std::set<std::shared_ptr<const Metadata>, ByContent> all_;
};

// Merges changes into a manifest, which must outlive it. The cost grows with the changes alone; if episodes are dropped,
// finish() also walks through all episodes once.
class Merger {
 public:
  Merger(Manifest& manifest, MetadataPool& pool);
  void add(Change change, const std::string& name);    // throws Error(file) if it does not continue the manifest
  std::vector<Shard> finish(const std::string& name);  // returns the removed shards; throws as add() does

 private:
  Manifest& manifest_;
  MetadataPool& pool_;
  std::map<std::string, std::int64_t, std::less<>> places_;  // of streams
  std::set<std::int64_t> reshaped_;                          // streams whose shape or dtype changed
  std::set<Row> dropped_;
};

}  // namespace robocache::cache
