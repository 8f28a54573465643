#include "cache/rebuild.h"

#include <robocache/error.h>

#include <algorithm>
#include <map>
#include <set>
#include <string_view>
#include <tuple>

#include "cache/directory.h"
#include "cache/safetensors.h"
#include "cache/shard_check.h"
#include "core/interrupt.h"
#include "core/text.h"

namespace robocache::cache {

namespace {

// A shard's description of itself: a manifest of its group that describes only this shard and its stream.
struct DescribedShard {
  Manifest group{};
  const Shard& shard() const { return group.shards[0]; }
  const StreamInfo& stream() const { return group.streams[static_cast<std::size_t>(shard().stream)]; }
  const std::string& name_of(const EpisodeStream& entry) const {
    return group.streams[static_cast<std::size_t>(entry.stream)].name;
  }
};

DescribedShard read_described(const Path& cache, const Path& file) {
  const File opened = open_to_check(cache / file);
  const std::string name = opened.path().string();
  const ShardHeader header = read_header(bytes_of_file(opened));
  if (header.description.empty()) throw Error(ErrorKind::file, name + ": has no description of a cache");
  DescribedShard described{parse_description(header.description, name)};
  Shard& shard = described.group.shards[0];
  check_header(header, described.stream(), shard, name);
  shard.file = file.filename().string();
  shard.bytes = opened.size();
  shard.header_hash = hash_header(opened, header);
  std::set<std::int64_t> rows;
  for (const CachedEpisode& episode : described.group.episodes) {
    if (!rows.insert(episode.row).second) {
      throw Error(ErrorKind::file, concat(name, ": its description has row ", episode.row, " twice"));
    }
  }
  return described;
}

// Equal for shards of one commit: the rows with their streams and samples. A commit that was interrupted and repeated may
// have left shards of the same group with other rows.
std::string shape_of(const DescribedShard& described) {
  std::string text;
  for (const CachedEpisode& episode : described.group.episodes) {
    std::map<std::string, std::int64_t> samples;
    for (const EpisodeStream& entry : episode.streams) samples[described.name_of(entry)] = entry.samples;
    text += concat(episode.row, ":");
    for (const auto& [name, count] : samples) text += concat(name.size(), name, "=", count, ";");
  }
  return text;
}

using Group = std::vector<DescribedShard>;

std::int64_t whole_episodes(const Group& group) {
  std::set<std::string> here;
  for (const DescribedShard& described : group) here.insert(described.stream().name);
  return std::ranges::count_if(group[0].group.episodes, [&](const CachedEpisode& episode) {
    return std::ranges::all_of(episode.streams,
                               [&](const EpisodeStream& entry) { return here.contains(group[0].name_of(entry)); });
  });
}

// Whether shards of two groups can belong to one stream: the only change allowed is more named channels.
bool can_share(const StreamInfo& a, const StreamInfo& b) {
  if (a.dtype != b.dtype || a.is_ragged != b.is_ragged) return false;
  const std::size_t both = std::min(a.channels.size(), b.channels.size());
  if (!std::equal(a.channels.begin(), a.channels.begin() + static_cast<std::ptrdiff_t>(both), b.channels.begin())) {
    return false;
  }
  return a.shape == b.shape || (a.shape.size() == 1 && b.shape.size() == 1 && both > 0);
}

Path path_of(const Shard& shard) { return Path("shards") / shard.file; }

class Rebuild {
 public:
  explicit Rebuild(Manifest& manifest) : manifest_(manifest), before_(manifest) {
    for (const Shard& shard : manifest.shards) known_groups_.insert(shard.group);
    for (const CachedEpisode& episode : manifest.episodes) known_groups_.insert(episode.group);
  }

  bool has_group(std::int64_t group) const { return known_groups_.contains(group); }

  // Adds all of the group, or nothing if the result would not pass the reader.
  void add(const Group& group) {
    try {
      Manifest alone{.identity = new_identity(), .streams = manifest_.streams};
      AddedGroups ignored;
      take(group, alone, ignored);
      static_cast<void>(parse_manifest(write_manifest(alone), "the new manifest"));
    } catch (const Error& error) {
      for (const DescribedShard& described : group) {
        result.left_out.push_back({path_of(described.shard()), concat("does not fit: ", error.what())});
      }
      for (const CachedEpisode& episode : group[0].group.episodes) {
        result.lacking.push_back({episode, source_of(group[0], episode), "is of a group that does not fit"});
      }
      return;
    }
    take(group, manifest_, result);
  }

  // Drops the episodes that added episodes replace, and added episodes that are replaced themselves.
  void finish() {
    if (manifest_.shards.size() == before_.shards.size()) {  // no group was added
      manifest_ = std::move(before_);
      return;
    }
    std::set<Row> gone = replaced_by_same();
    gone.merge(replaced_by_version());
    std::set<std::int64_t> groups;  // groups that keep an episode
    std::erase_if(manifest_.episodes, [&](const CachedEpisode& episode) {
      const bool goes = gone.contains({episode.group, episode.row});
      if (!goes) groups.insert(episode.group);
      if (goes && !is_added(episode)) result.replaced.push_back(episode);
      return goes;
    });
    std::set<std::int64_t> emptied;  // groups
    for (const Row& row : gone) {
      if (!groups.contains(row.first)) emptied.insert(row.first);
    }
    std::erase_if(manifest_.shards, [&](const Shard& shard) {
      if (!emptied.contains(shard.group)) return false;
      result.left_out.push_back({path_of(shard), "later episodes have replaced all episodes of its group"});
      return true;
    });
    if (std::ranges::none_of(manifest_.shards, [&](const Shard& shard) { return !has_group(shard.group); }) &&
        result.replaced.empty()) {
      manifest_ = std::move(before_);
      return;
    }
    std::ranges::stable_sort(manifest_.episodes, {}, [](const CachedEpisode& e) { return Row(e.group, e.row); });
  }

  AddedGroups result;

 private:
  bool is_added(const CachedEpisode& episode) const { return !has_group(episode.group); }

  // The same episode in two groups, at least one of them added: the later one stays.
  std::set<Row> replaced_by_same() const {
    const auto identity = [](const CachedEpisode& episode) {
      return std::tuple(episode.source, episode.source < 0 ? 0 : episode.number, std::string_view(episode.name));
    };
    using Identity = std::tuple<std::int64_t, std::int64_t, std::string_view>;
    struct Same {
      std::vector<Row> rows{};
      bool has_added = false;
    };
    std::map<Identity, Same> all;
    for (const CachedEpisode& episode : manifest_.episodes) {
      Same& same = all[identity(episode)];
      same.rows.emplace_back(episode.group, episode.row);
      same.has_added = same.has_added || is_added(episode);
    }
    std::set<Row> gone;
    for (auto& [key, same] : all) {
      if (!same.has_added || same.rows.size() == 1) continue;
      std::ranges::sort(same.rows);
      gone.insert(same.rows.begin(), same.rows.end() - 1);
    }
    return gone;
  }

  // The versions of a source are ordered by their places in the manifest. A version that the manifest did not have is older
  // than one with an episode in a later group.
  std::set<Row> replaced_by_version() const {
    struct Version {
      std::vector<Row> kept{}, added{};
      std::int64_t last_group = -1;
    };
    std::vector<Version> of(manifest_.sources.size());
    std::set<std::string_view> paths;
    for (const CachedEpisode& episode : manifest_.episodes) {
      if (episode.source < 0) continue;
      const auto source = static_cast<std::size_t>(episode.source);
      (is_added(episode) ? of[source].added : of[source].kept).emplace_back(episode.group, episode.row);
      of[source].last_group = std::max(of[source].last_group, episode.group);
      if (is_added(episode)) paths.insert(manifest_.sources[source].path);
    }
    std::map<std::string_view, std::vector<std::size_t>> versions_of;  // sources of these paths, oldest first
    for (std::size_t k = 0; k < manifest_.sources.size(); ++k) {
      if (!paths.contains(manifest_.sources[k].path)) continue;
      std::vector<std::size_t>& order = versions_of[manifest_.sources[k].path];
      const bool is_new = k >= before_.sources.size();
      const auto later = [&](std::size_t other) { return is_new && of[other].last_group > of[k].last_group; };
      order.insert(std::ranges::find_if(order, later), k);
    }
    std::set<Row> gone;
    for (const auto& [path, order] : versions_of) {
      std::vector<SourceVersion> versions;
      for (const std::size_t k : order) {
        versions.push_back({manifest_.sources[k].is_complete, of[k].last_group >= 0});
      }
      const std::vector<bool> is_replaced = replaced_versions(versions);
      bool is_added_later = false;
      for (std::size_t k = order.size(); k-- > 0;) {
        const Version& version = of[order[k]];
        if (is_replaced[k] && (version.kept.empty() || is_added_later)) {
          gone.insert(version.kept.begin(), version.kept.end());
          gone.insert(version.added.begin(), version.added.end());
        }
        is_added_later = is_added_later || !version.added.empty();
      }
    }
    return gone;
  }

  static std::string source_of(const DescribedShard& described, const CachedEpisode& episode) {
    return episode.source < 0 ? "" : described.group.sources[static_cast<std::size_t>(episode.source)].path;
  }

  static void take(const Group& group, Manifest& into, AddedGroups& told) {
    std::vector<LeftOutFile>& left = told.left_out;
    std::set<std::string> here;
    std::map<std::pair<std::int64_t, std::int64_t>, std::shared_ptr<const Metadata>> metadata;  // by row and stream
    for (const DescribedShard& described : group) {
      const StreamInfo& info = described.stream();
      std::int64_t stream = into.find_stream(info.name);
      if (stream >= 0 && !can_share(into.streams[static_cast<std::size_t>(stream)], info)) {
        left.push_back({path_of(described.shard()),
                        concat("its samples of ", quote(info.name), " are of another kind than those of ",
                               "the other shards of that stream")});
        continue;
      }
      if (!here.insert(info.name).second) {
        left.push_back({path_of(described.shard()), "another shard has the same stream of the same group"});
        continue;
      }
      if (stream < 0) {
        stream = static_cast<std::int64_t>(into.streams.size());
        into.streams.push_back(info);
      }
      StreamInfo& known = into.streams[static_cast<std::size_t>(stream)];
      const std::int64_t more = channels_of(info) - channels_of(known);
      const bool is_newest = described.shard().group + 1 >= into.next_group;
      if (more > 0 || (more == 0 && is_newest)) known = info;
      for (const CachedEpisode& episode : described.group.episodes) {  // only the shard of a stream has its metadata
        const auto entry = std::ranges::find(episode.streams, described.shard().stream, &EpisodeStream::stream);
        if (entry != episode.streams.end()) metadata[{episode.row, stream}] = entry->metadata;
      }
      Shard shard = described.shard();
      shard.stream = stream;
      into.next_group = std::max(into.next_group, shard.group + 1);
      into.shards.push_back(std::move(shard));
    }
    const DescribedShard& first = group[0];
    for (CachedEpisode episode : first.group.episodes) {
      std::string lacking;
      for (EpisodeStream& entry : episode.streams) {
        const std::string& name = first.name_of(entry);
        if (!here.contains(name) && lacking.empty()) lacking = name;
        entry.stream = into.find_stream(name);
        const auto known = metadata.find({episode.row, entry.stream});
        if (known != metadata.end()) entry.metadata = known->second;
      }
      if (!lacking.empty()) {
        left.push_back({"shards", concat("episode ", quote(episode.name), " of group ", episode.group,
                                         " lacks the shard of its stream ", quote(lacking))});
        told.lacking.push_back(
            {episode, source_of(first, episode), concat("lacks the shard of its stream ", quote(lacking))});
        continue;
      }
      std::ranges::sort(episode.streams, {}, &EpisodeStream::stream);
      if (episode.source >= 0) {
        episode.source = take_source(first.group.sources[static_cast<std::size_t>(episode.source)], into);
      }
      into.episodes.push_back(std::move(episode));
    }
  }

  // Finds a source as a writer does (CacheWriter::State::find_source): by its stamp, or by the hash of its content.
  static std::int64_t take_source(const CacheSource& source, Manifest& into) {
    const auto found = std::ranges::find_if(into.sources, [&](const CacheSource& known) {
      if (known.path != source.path || known.size != source.size || known.options != source.options) return false;
      if (known.mtime == source.mtime && known.stamp == source.stamp) return true;
      return !known.hash.empty() && known.hash == source.hash;
    });
    if (found != into.sources.end()) return found - into.sources.begin();
    into.sources.push_back(source);
    into.sources.back().is_complete = false;  // unknown: the next build finds out
    return static_cast<std::int64_t>(into.sources.size()) - 1;
  }

  Manifest& manifest_;
  Manifest before_;
  std::set<std::int64_t> known_groups_;  // of `before_`
};

}  // namespace

AddedGroups add_groups(const Path& cache, std::span<const Path> files, Manifest& manifest) {
  Rebuild rebuild(manifest);
  std::map<std::int64_t, std::map<std::string, Group>> groups;  // by number, then by shape_of()
  for (const Path& file : files) {
    check_interrupt();
    try {
      DescribedShard described = read_described(cache, file);
      if (rebuild.has_group(described.shard().group)) {
        rebuild.result.left_out.push_back({file, "no manifest names it: left by a crash"});
        continue;
      }
      Group& group = groups[described.shard().group][shape_of(described)];
      group.push_back(std::move(described));
    } catch (const NewerVersion&) {
      throw;
    } catch (const SystemError&) {
      throw;
    } catch (const Error& error) {
      rebuild.result.left_out.push_back({file, without_name(error.what(), cache / file), true});
    }
  }
  for (const auto& [number, candidates] : groups) {
    const auto best = std::ranges::max_element(
        candidates, {}, [](const auto& entry) { return std::pair(whole_episodes(entry.second), entry.second.size()); });
    for (auto entry = candidates.begin(); entry != candidates.end(); ++entry) {
      if (entry == best) continue;
      for (const DescribedShard& described : entry->second) {
        rebuild.result.left_out.push_back(
            {path_of(described.shard()), "does not go with the other shards of its group"});
      }
    }
    rebuild.add(best->second);
  }
  rebuild.finish();
  return std::move(rebuild.result);
}

}  // namespace robocache::cache
