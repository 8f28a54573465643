#include "cache/manifest.h"

#include <robocache/error.h>

#include <algorithm>
#include <random>

#include "cache/checksum.h"
#include "cache/document_reader.h"
#include "cache/document_writer.h"
#include "core/characters.h"
#include "core/limits.h"
#include "core/text.h"

namespace robocache::cache {

namespace {

constexpr Seal manifest_seal{",\n  \"checksum\": \"", "\"\n}\n"};
constexpr std::string_view manifest_head = "{\n  \"format\": \"robocache\",\n  \"version\": ";
constexpr std::string_view identity_key = ",\n  \"identity\": \"";

}  // namespace

void unite(Metadata& into, const Metadata& more) {
  for (const auto& [key, value] : more) {
    const auto [place, is_new] = into.emplace(key, value);
    if (!is_new && place->second != value) place->second = "varies";
  }
}

void agree(Metadata& into, const Metadata& more) {
  for (auto& [key, value] : into) {
    const auto found = more.find(key);
    if (found == more.end() || found->second != value) value = "varies";
  }
  for (const auto& entry : more) into.try_emplace(entry.first, "varies");
}

std::int64_t Manifest::find_stream(std::string_view name) const {
  const auto found = std::ranges::find(streams, name, &StreamInfo::name);
  return found == streams.end() ? -1 : found - streams.begin();
}

const Shard* Manifest::find_shard(std::int64_t group, std::int64_t stream) const {
  const auto found =
      std::ranges::find_if(shards, [&](const Shard& s) { return s.group == group && s.stream == stream; });
  return found == shards.end() ? nullptr : &*found;
}

std::vector<bool> replaced_versions(const std::vector<SourceVersion>& versions) {
  std::vector<bool> replaced(versions.size());
  bool is_begun = false, is_complete = false;  // whether there is a later version of that kind
  for (std::size_t k = versions.size(); k-- > 0;) {
    replaced[k] = versions[k].is_complete ? is_complete : is_begun;
    is_begun = is_begun || versions[k].has_episodes || versions[k].is_complete;
    is_complete = is_complete || versions[k].is_complete;
  }
  return replaced;
}

std::string new_identity() {
  std::random_device random;
  std::string text;
  while (text.size() < hash_digits) {
    for (std::uint32_t bits = random(), k = 0; k < 8; ++k, bits >>= 4) text += hex_digits[bits & 15];
  }
  return text;
}

bool tidy(Manifest& manifest) {
  constexpr std::int64_t gone = -1;
  // Removes what is not needed. Returns the new place of each item; `gone` for those that were removed.
  const auto keep = [&](auto& items, const std::vector<bool>& needed) {
    std::vector<std::int64_t> places;
    std::size_t count = 0;
    for (std::size_t k = 0; k < items.size(); ++k) {
      places.push_back(needed[k] ? static_cast<std::int64_t>(count) : gone);
      if (!needed[k]) continue;
      if (count != k) items[count] = std::move(items[k]);
      ++count;
    }
    items.resize(count);
    return places;
  };
  std::vector<bool> used(manifest.streams.size(), false), needed;
  for (const Shard& shard : manifest.shards) used[static_cast<std::size_t>(shard.stream)] = true;
  for (const CacheSource& source : manifest.sources) needed.push_back(source.is_complete);
  for (const CachedEpisode& episode : manifest.episodes) {
    if (episode.source >= 0) needed[static_cast<std::size_t>(episode.source)] = true;
  }
  const auto all = [](const std::vector<bool>& flags) { return std::ranges::find(flags, false) == flags.end(); };
  if (all(used) && all(needed)) return false;
  const std::vector<std::int64_t> streams = keep(manifest.streams, used), sources = keep(manifest.sources, needed);
  for (Shard& shard : manifest.shards) shard.stream = streams[static_cast<std::size_t>(shard.stream)];
  for (CachedEpisode& episode : manifest.episodes) {
    for (EpisodeStream& entry : episode.streams) entry.stream = streams[static_cast<std::size_t>(entry.stream)];
    if (episode.source >= 0) episode.source = sources[static_cast<std::size_t>(episode.source)];
  }
  return true;
}

Manifest parse_manifest(std::string_view text, const std::string& name) {
  const Json json = parse_json(text, name);
  const JsonNode root(json, name, "");
  Manifest manifest;
  if (check_version(root) == 1) {
    manifest.identity = hash_text({}, text);
  } else {
    if (!is_sealed(text, manifest_seal)) root.fail("its checksum is wrong: the file was changed after it was written");
    manifest.identity = root["identity"].string();
    if (!is_hash(manifest.identity)) root["identity"].fail("is not 32 hexadecimal digits");
  }
  StreamTable streams;
  parse_content(root, manifest, streams);
  manifest.next_group = root["next_group"].integer(0, count_limit);

  check_content(root, manifest);
  return manifest;
}

std::string write_manifest(const Manifest& manifest) {
  const std::vector<Variants> variants = variants_of(manifest);
  std::string text = concat(manifest_head, cache_version, identity_key, manifest.identity,
                            "\",\n  \"next_group\": ", manifest.next_group);
  const auto add = [&](std::string_view key, std::size_t count, const auto& item) {
    text += concat(",\n  \"", key, "\": [");
    for (std::size_t k = 0; k < count; ++k) {
      text += k == 0 ? "\n    " : ",\n    ";
      text += item(k);
    }
    text += count == 0 ? "]" : "\n  ]";
  };
  add("streams", manifest.streams.size(), [&](std::size_t k) { return stream_text(manifest.streams[k], variants[k]); });
  add("sources", manifest.sources.size(), [&](std::size_t k) { return source_text(manifest.sources[k]); });
  add("shards", manifest.shards.size(), [&](std::size_t k) { return shard_text(manifest, manifest.shards[k]); });
  add("episodes", manifest.episodes.size(),
      [&](std::size_t k) { return episode_text(manifest, manifest.episodes[k], variants); });
  return sealed(std::move(text), manifest_seal);
}

std::string checksum_of_manifest(std::string_view text) {
  const std::string_view said = said_checksum(text, manifest_seal);
  return said.empty() ? hash_text({}, text) : std::string(said);
}

std::string identity_of_manifest(std::string_view head) {
  const std::size_t at = head.find(identity_key);
  if (!head.starts_with(manifest_head) || at == std::string_view::npos) return {};
  const std::string_view identity = head.substr(at + identity_key.size(), hash_digits);
  return is_hash(identity) ? std::string(identity) : std::string();
}

}  // namespace robocache::cache
