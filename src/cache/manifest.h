// What manifest.json and the headers of shards say, and their text. All JSON of the cache is in manifest.cpp.
#pragma once

#include <robocache/cache.h>
#include <robocache/error.h>

#include <cstdint>
#include <map>
#include <optional>
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
};

void unite(Metadata& into, const Metadata& more);  // "varies" where they differ

struct Manifest {
  std::int64_t next_group = 0;
  std::vector<StreamInfo> streams{};
  std::vector<CacheSource> sources{};
  std::vector<Shard> shards{};
  std::vector<CachedEpisode> episodes{};

  std::int64_t find_stream(std::string_view name) const;  // -1: there is none
  const Shard* find_shard(std::int64_t group, std::int64_t stream) const;
};

// Episodes and shards that point at streams, sources and groups which are there, no episode or shard twice, names of
// files that lie in shards/ and nowhere else: what readers rely on. Throws Error(file), `name` first.
Manifest parse_manifest(std::string_view text, const std::string& name);
std::string write_manifest(const Manifest& manifest);

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
// the other streams there are names). `bytes` of the shard are those of its tensors alone.
Manifest parse_description(std::string_view text, const std::string& name);
std::string write_description(const Manifest& group, const Shard& shard);

// Text for sentences: short, printable, in quotes. (Not `quoted`: of a std::string that would be the standard's.)
std::string in_quotes(std::string_view text);
// Bytes that are not UTF-8 become U+FFFD.
std::string as_utf8(std::string_view text);

}  // namespace robocache::cache
