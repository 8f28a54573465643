// Any bytes, as a manifest, or as a shard, its header and what it says of itself: read, or refused with a sentence. What
// was read is written, and read again.
#include <robocache/error.h>

#include <cstdlib>
#include <string>
#include <string_view>

#include "cache/manifest.h"
#include "cache/safetensors.h"

namespace {

using namespace robocache;

void require(bool holds) {
  if (!holds) std::abort();
}

void read_manifest(std::string_view text) {
  const cache::Manifest manifest = cache::parse_manifest(text, "fuzz");
  for (const CachedEpisode& episode : manifest.episodes) {
    for (const EpisodeStream& entry : episode.streams) {
      const cache::Shard* const shard = manifest.find_shard(episode.group, entry.stream);
      require(shard != nullptr && episode.row < shard->episodes && entry.samples <= shard->samples);
      require(entry.metadata != nullptr);
    }
  }
  const cache::Manifest again = cache::parse_manifest(cache::write_manifest(manifest), "fuzz");
  require(again.episodes.size() == manifest.episodes.size() && again.shards.size() == manifest.shards.size());
  for (std::size_t e = 0; e < again.episodes.size(); ++e) {
    const auto said = [](const CachedEpisode& episode, const cache::Manifest& in) {
      std::map<std::string, Metadata> metadata;
      for (const EpisodeStream& entry : episode.streams) {
        metadata[in.streams[static_cast<std::size_t>(entry.stream)].name] = *entry.metadata;
      }
      return metadata;
    };
    require(said(again.episodes[e], again) == said(manifest.episodes[e], manifest));
  }
}

void read_shard(std::span<const std::byte> content) {
  const cache::ShardHeader header = cache::read_header(bytes_of(content, "fuzz"));
  for (const cache::TensorEntry& tensor : header.tensors) {
    require(tensor.begin >= 0 && tensor.begin <= tensor.end);
    require(header.data + tensor.end <= static_cast<std::int64_t>(content.size()));
    require(cache::bytes_of_shape(tensor.dtype, tensor.shape) == tensor.end - tensor.begin);
  }
  if (header.description.empty()) return;
  const cache::Manifest said = cache::parse_description(header.description, "fuzz");
  const cache::Shard& shard = said.shards.at(0);
  cache::check_header(header, said.streams[static_cast<std::size_t>(shard.stream)], shard, "fuzz");
  static_cast<void>(cache::write_description(said, shard));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::span<const std::byte> content = std::as_bytes(std::span(data, size));
  try {
    if (size > 0 && data[0] == '{') {
      read_manifest({reinterpret_cast<const char*>(data), size});
    } else {
      read_shard(content);
    }
  } catch (const Error& error) {
    const std::string_view text = error.what();
    require(error.kind() == ErrorKind::file && text.starts_with("fuzz: ") && text.size() < 1000);
    for (const char c : text) require(c >= ' ' && c <= '~');
  }
  return 0;
}
