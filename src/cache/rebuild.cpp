#include "cache/rebuild.h"

#include <robocache/error.h>

#include <algorithm>
#include <map>
#include <set>

#include "cache/directory.h"
#include "cache/safetensors.h"
#include "cache/shard_check.h"
#include "core/interrupt.h"
#include "core/text.h"

namespace robocache::cache {

namespace {

// A shard, as the file itself says: a manifest of its group, in which only this shard and its stream are described.
struct Described {
  Manifest group{};
  const Shard& shard() const { return group.shards[0]; }
  const StreamInfo& stream() const { return group.streams[static_cast<std::size_t>(shard().stream)]; }
  const std::string& name_of(const EpisodeStream& entry) const {
    return group.streams[static_cast<std::size_t>(entry.stream)].name;
  }
};

Described read_described(const Path& cache, const Path& file) {
  const File opened = open_to_check(cache / file);
  const std::string name = opened.path().string();
  const ShardHeader header = read_header(bytes_of_file(opened));
  if (header.description.empty()) throw Error(ErrorKind::file, name + ": has no description of a cache");
  Described described{parse_description(header.description, name)};
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

// Shards of one commit have the same rows with the same streams and samples. A commit that was interrupted and made again
// may have left shards of the same group with others.
std::string shape_of(const Described& described) {
  std::string text;
  for (const CachedEpisode& episode : described.group.episodes) {
    std::map<std::string, std::int64_t> samples;
    for (const EpisodeStream& entry : episode.streams) samples[described.name_of(entry)] = entry.samples;
    text += concat(episode.row, ":");
    for (const auto& [name, count] : samples) text += concat(name.size(), name, "=", count, ";");
  }
  return text;
}

using Group = std::vector<Described>;

std::int64_t whole_episodes(const Group& group) {
  std::set<std::string> here;
  for (const Described& described : group) here.insert(described.stream().name);
  return std::ranges::count_if(group[0].group.episodes, [&](const CachedEpisode& episode) {
    return std::ranges::all_of(episode.streams,
                               [&](const EpisodeStream& entry) { return here.contains(group[0].name_of(entry)); });
  });
}

// Whether shards of two groups can be of one stream: a stream may only have got more named channels.
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
  explicit Rebuild(Manifest& manifest) : manifest_(manifest) {}

  // The group goes in as a whole, or, where it would break a rule of the reader, not at all.
  void add(const Group& group) {
    try {
      Manifest alone{.identity = new_identity(), .streams = manifest_.streams};
      std::vector<LeftOut> ignored;
      take(group, alone, ignored);
      static_cast<void>(parse_manifest(write_manifest(alone), "the new manifest"));
    } catch (const Error& error) {
      for (const Described& described : group) {
        left_out.push_back({path_of(described.shard()), concat("does not fit: ", error.what())});
      }
      return;
    }
    take(group, manifest_, left_out);
  }

  // Of an episode that was replaced, only the newest stays. A source that was read again takes the place of what was read
  // before as in a commit: of a complete one when it is complete itself, else when it has an episode.
  void drop_replaced() {
    struct Last {
      std::int64_t begun = -1, complete = -1;  // sources of one path
    };
    std::map<std::string, Last> last_of;
    for (const CachedEpisode& episode : manifest_.episodes) {
      if (episode.source < 0) continue;
      std::int64_t& last = last_of[manifest_.sources[static_cast<std::size_t>(episode.source)].path].begun;
      last = std::max(last, episode.source);
    }
    for (std::size_t k = 0; k < manifest_.sources.size(); ++k) {
      if (!manifest_.sources[k].is_complete) continue;
      Last& last = last_of[manifest_.sources[k].path];
      last.complete = static_cast<std::int64_t>(k);
      last.begun = std::max(last.begun, last.complete);
    }
    const auto is_replaced = [&](std::int64_t source) {
      const CacheSource& one = manifest_.sources[static_cast<std::size_t>(source)];
      const Last& last = last_of[one.path];
      return source < (one.is_complete ? last.complete : last.begun);
    };
    const auto identity = [](const CachedEpisode& episode) {
      return std::pair(episode.source, episode.source < 0 ? episode.name : std::to_string(episode.number));
    };
    std::map<std::pair<std::int64_t, std::string>, Row> last;  // by source and identity
    for (const CachedEpisode& episode : manifest_.episodes) last[identity(episode)] = {episode.group, episode.row};
    std::erase_if(manifest_.episodes, [&](const CachedEpisode& episode) {
      if (last[identity(episode)] != Row(episode.group, episode.row)) return true;
      return episode.source >= 0 && is_replaced(episode.source);
    });
  }

  std::vector<LeftOut> left_out;

 private:
  static void take(const Group& group, Manifest& into, std::vector<LeftOut>& left) {
    std::set<std::string> here;
    std::map<std::pair<std::int64_t, std::int64_t>, std::shared_ptr<const Metadata>> metadata;  // by row and stream
    for (const Described& described : group) {
      const StreamInfo& info = described.stream();
      std::int64_t stream = into.find_stream(info.name);
      if (stream >= 0 && !can_share(into.streams[static_cast<std::size_t>(stream)], info)) {
        left.push_back({path_of(described.shard()),
                        concat("its samples of ", in_quotes(info.name), " are of another kind than those of ",
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
      if (channels_of(info) >= channels_of(known)) known = info;       // the newest, and the widest
      for (const CachedEpisode& episode : described.group.episodes) {  // only its own shard has a stream's metadata
        const auto entry = std::ranges::find(episode.streams, described.shard().stream, &EpisodeStream::stream);
        if (entry != episode.streams.end()) metadata[{episode.row, stream}] = entry->metadata;
      }
      Shard shard = described.shard();
      shard.stream = stream;
      into.next_group = std::max(into.next_group, shard.group + 1);
      into.shards.push_back(std::move(shard));
    }
    const Described& first = group[0];
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
        left.push_back({"shards", concat("episode ", in_quotes(episode.name), " of group ", episode.group,
                                         " lacks the shard of its stream ", in_quotes(lacking))});
        continue;
      }
      std::ranges::sort(episode.streams, {}, &EpisodeStream::stream);
      if (episode.source >= 0) {
        episode.source = take_source(first.group.sources[static_cast<std::size_t>(episode.source)], into);
      }
      into.episodes.push_back(std::move(episode));
    }
  }

  static std::int64_t take_source(const CacheSource& source, Manifest& into) {
    const auto found = std::ranges::find_if(into.sources, [&](const CacheSource& known) {
      return known.path == source.path && known.size == source.size && known.mtime == source.mtime &&
             known.options == source.options && known.stamp == source.stamp;
    });
    if (found != into.sources.end()) return found - into.sources.begin();
    into.sources.push_back(source);
    into.sources.back().is_complete = false;  // nobody knows: the next build looks
    return static_cast<std::int64_t>(into.sources.size()) - 1;
  }

  Manifest& manifest_;
};

}  // namespace

std::vector<LeftOut> add_groups(const Path& cache, std::span<const Path> files, Manifest& manifest) {
  Rebuild rebuild(manifest);
  const std::int64_t next_group = manifest.next_group;
  std::map<std::int64_t, std::map<std::string, Group>> groups;  // by number, by what they say that they hold
  for (const Path& file : files) {
    check_interrupt();
    try {
      Described described = read_described(cache, file);
      if (described.shard().group < next_group) {
        rebuild.left_out.push_back({file, "no manifest names it: left by a crash"});
        continue;
      }
      Group& group = groups[described.shard().group][shape_of(described)];
      group.push_back(std::move(described));
    } catch (const NewerVersion&) {
      throw;
    } catch (const SystemError&) {
      throw;
    } catch (const Error& error) {
      rebuild.left_out.push_back({file, without_name(error.what(), cache / file)});
    }
  }
  for (const auto& [number, candidates] : groups) {
    const auto best = std::ranges::max_element(
        candidates, {}, [](const auto& entry) { return std::pair(whole_episodes(entry.second), entry.second.size()); });
    for (auto entry = candidates.begin(); entry != candidates.end(); ++entry) {
      if (entry == best) continue;
      for (const Described& described : entry->second) {
        rebuild.left_out.push_back({path_of(described.shard()), "does not go with the other shards of its group"});
      }
    }
    rebuild.add(best->second);
  }
  rebuild.drop_replaced();
  return std::move(rebuild.left_out);
}

}  // namespace robocache::cache
