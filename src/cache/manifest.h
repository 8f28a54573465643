// What manifest.json, the journal and the headers of shards say, and their text. All JSON of the cache is in manifest.cpp.
#pragma once

#include <robocache/cache.h>
#include <robocache/error.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace robocache::cache {

inline constexpr std::int64_t max_header = 100'000'000;  // bytes; safetensors' own limit

using Hashes = std::map<std::string, std::string>;  // by tensor

struct Shard {
  std::string file{};  // within shards/
  std::int64_t stream = 0;
  std::int64_t group = 0;
  std::int64_t bytes = 0;
  std::int64_t episodes = 0;
  std::int64_t samples = 0;
  std::int64_t rows = 0;      // of values: as many as samples where they are not ragged
  std::int64_t channels = 0;  // the first ones of the stream's, where it was widened later
  Hashes hashes{};
  std::string header_hash{};  // of the bytes before the data; empty in caches of version 1
};

using Row = std::pair<std::int64_t, std::int64_t>;  // group and row of an episode: no other episode ever has them

// Metadata of two batches of one episode: "varies" where they differ. A batch may be silent on what the other one says.
void unite(Metadata& into, const Metadata& more);
// Metadata of two episodes: "varies" where they differ, or only one of them has the key.
void agree(Metadata& into, const Metadata& more);

struct Manifest {
  std::string identity{};  // 32 hexadecimal digits. Every snapshot that is written gets a new one.
  std::int64_t next_group = 0;
  std::vector<StreamInfo> streams{};
  std::vector<CacheSource> sources{};
  std::vector<Shard> shards{};
  std::vector<CachedEpisode> episodes{};

  std::int64_t find_stream(std::string_view name) const;  // -1: there is none
  const Shard* find_shard(std::int64_t group, std::int64_t stream) const;
};

// Which versions of one source are replaced by later ones. `versions` are all those of one path, oldest first. A complete
// version replaces every older one. An incomplete version replaces older incomplete ones once it has an episode.
struct SourceVersion {
  bool is_complete = false;
  bool has_episodes = false;
};
std::vector<bool> replaced_versions(const std::vector<SourceVersion>& versions);

// 32 random hexadecimal digits.
std::string new_identity();

// Removes streams that no shard has, and sources that are not complete and have no episode. Returns whether there were any.
bool tidy(Manifest& manifest);

// The text of manifest.json. The result satisfies what readers rely on: episodes and shards point at streams, sources and
// groups that exist; no episode or shard is there twice; names of shards lie in shards/ and nowhere else. Throws
// Error(file), `name` first. Version 2 ends with a checksum of the text before it; a wrong one is an error. Version 1 has
// neither checksum nor identity: its identity is then the hash of the text.
Manifest parse_manifest(std::string_view text, const std::string& name);
std::string write_manifest(const Manifest& manifest);

// The checksum that a manifest's text ends with (of version 1: the hash of the text). The journal's first record continues it.
std::string checksum_of_manifest(std::string_view text);

// The identity in the first bytes of a manifest's text; empty where it has none (version 1, or damaged).
std::string identity_of_manifest(std::string_view head);
inline constexpr std::size_t identity_head = 256;  // bytes that always hold it

// What one commit changes: one record of the journal.
struct Change {
  // Shards and episodes that come, all of groups from the old next_group up to added.next_group; every stream of these
  // shards, as it is after the commit; the sources that changed or are new.
  Manifest added{};
  std::vector<std::int64_t> places{};  // by source in `added`: its place in the manifest; one past the end: it is new
  std::vector<Row> dropped{};          // episodes that go. A group goes, with its shards, when it has no episode left.
};
Change parse_change(std::string_view text, const std::string& name);  // obeys the reader's rules; throws Error(file)
std::string write_change(const Change& change);                       // one line without its end

// Equal metadata are kept once.
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

// Carries changes into a manifest, which must outlive it. Costs what the changes are long; where episodes are dropped,
// finish() also walks through all episodes once.
class Merger {
 public:
  Merger(Manifest& manifest, MetadataPool& pool);
  void add(Change change, const std::string& name);    // throws Error(file) where it does not follow the manifest
  std::vector<Shard> finish(const std::string& name);  // returns the shards that went; throws as add() does

 private:
  Manifest& manifest_;
  MetadataPool& pool_;
  std::map<std::string, std::int64_t, std::less<>> places_;  // of streams
  std::set<std::int64_t> reshaped_;                          // streams whose samples have another shape or dtype now
  std::set<Row> dropped_;
};

class NewerVersion : public Error {
 public:
  explicit NewerVersion(const std::string& sentence) : Error(ErrorKind::file, sentence) {}
};

struct TensorEntry {
  std::string name{};
  DType dtype = DType::u8;
  std::vector<std::int64_t> shape{};
  std::int64_t begin = 0, end = 0;  // bytes, from the end of the header
};

struct ShardHeader {
  std::vector<TensorEntry> tensors{};  // in the order of their bytes, without a gap
  std::int64_t data = 0;               // where in the file the first begins
  std::string description{};           // empty: this file is not of a cache

  const TensorEntry* find(std::string_view name) const;
};

// The text between the length and the data: safetensors. `data_bytes`: how many follow it.
ShardHeader parse_header(std::string_view text, std::int64_t data_bytes, const std::string& name);
std::string write_header(std::span<const TensorEntry> tensors, std::string_view description);

// What a shard says about itself: a manifest of its group, in which only this shard and its stream are described (of
// the other streams there are names). `bytes` of the shard are those of its tensors alone. From version 2 on it ends with a
// checksum of the text before it; a wrong one is an error.
Manifest parse_description(std::string_view text, const std::string& name);
std::string write_description(const Manifest& group, const Shard& shard);

std::string_view method_name(Method method);

// Text for sentences: short, printable, in quotes. (Not `quoted`: of a std::string that would be the standard's.)
std::string in_quotes(std::string_view text);
// Bytes that are not UTF-8 become U+FFFD.
std::string as_utf8(std::string_view text);

}  // namespace robocache::cache
