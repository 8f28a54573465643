// What a cache holds, as manifest.json says it: streams, sources, shards, episodes; and the text of that file.
#pragma once

#include <robocache/cache.h>
#include <robocache/error.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace robocache::cache {

inline constexpr const char* format_name = "robocache";  // in every document of a cache

using Hashes = std::map<std::string, std::string>;  // by tensor

struct Shard {
  std::string file{};  // within shards/
  std::int64_t stream = 0;
  std::int64_t group = 0;
  std::int64_t bytes = 0;
  std::int64_t episodes = 0;
  std::int64_t samples = 0;
  std::int64_t rows = 0;      // of values; unless they are ragged, as many as samples
  std::int64_t channels = 0;  // the first channels of the stream, which may have got more later
  Hashes hashes{};
  std::string header_hash{};  // of the bytes before the data; empty in caches of version 1
};

using Row = std::pair<std::int64_t, std::int64_t>;  // group and row of an episode, which identify it

// Merges the metadata of two batches of one episode: "varies" for a key whose values differ. A key may be in one of them.
void unite(Metadata& into, const Metadata& more);
// Merges the metadata of two episodes: "varies" for a key whose values differ, or that only one of them has.
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

// Removes streams without a shard, and incomplete sources without an episode. Returns whether there were any.
bool tidy(Manifest& manifest);

// Parses the text of manifest.json. The result is consistent: episodes and shards refer to streams, sources and groups that
// exist; no episode or shard is there twice; every shard lies in shards/. Throws Error(file), `name` first. Version 2 ends
// with a checksum of the text before it; a wrong one is an error. Version 1 has neither a checksum nor an identity; the hash
// of the text serves as its identity.
Manifest parse_manifest(std::string_view text, const std::string& name);
std::string write_manifest(const Manifest& manifest);

// The checksum at the end of a manifest's text, or for version 1 the hash of the text. The journal's first line continues it.
std::string checksum_of_manifest(std::string_view text);

// The identity in the first bytes of a manifest's text; empty if it has none (version 1, or damaged).
std::string identity_of_manifest(std::string_view head);
inline constexpr std::size_t identity_head = 256;  // how many first bytes always hold it

class NewerVersion : public Error {
 public:
  explicit NewerVersion(const std::string& sentence) : Error(ErrorKind::file, sentence) {}
};

}  // namespace robocache::cache
