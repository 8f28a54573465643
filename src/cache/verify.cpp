// What is wrong with a cache, and what can be put right. Files are read, not mapped: a damaged disk is an Error then.
#include <fcntl.h>
#include <robocache/cache.h>
#include <robocache/error.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <optional>
#include <set>

#include "cache/directory.h"
#include "cache/files.h"
#include "cache/hash.h"
#include "cache/manifest.h"
#include "cache/safetensors.h"
#include "core/interrupt.h"
#include "core/text.h"

namespace robocache {

using namespace cache;

namespace {

constexpr std::int64_t block = 1 << 20;

Bytes bytes_of_file(const File& file, const std::string& name) {
  return {name, file.size(), [&file](std::int64_t at, std::span<std::byte> to) { file.read(at, to); }};
}

// The part of a sentence after the file's name, which the problem has on its own.
std::string without_name(const std::string& sentence, const std::string& name) {
  return sentence.starts_with(name + ": ") ? sentence.substr(name.size() + 2) : sentence;
}

class Verifier {
 public:
  Verifier(const Path& path, bool repair) : path_(path), repair_(repair) {}

  CacheReport run() {
    if (!std::filesystem::is_directory(path_)) {
      throw Error(ErrorKind::file, concat(path_.string(), ": there is no such cache"));
    }
    if (repair_) {
      refuse_links(path_);
      lock_.emplace(path_);
    }
    load();
    check_shards();
    check_leftovers();
    drop_damaged();
    if (repair_ && must_write_) {
      if (!std::filesystem::is_directory(shards_path(path_))) make_directory(shards_path(path_));
      tidy(manifest_);
      save_manifest(path_, manifest_);
    }
    if (repair_) {
      for (const Path& file : useless_) remove_file(path_ / file);
    }
    report_.is_repaired = repair_ && !report_.problems.empty();
    report_.episodes = static_cast<std::int64_t>(manifest_.episodes.size());
    report_.streams = static_cast<std::int64_t>(manifest_.streams.size());
    return report_;
  }

 private:
  void problem(std::string file, std::string sentence, std::string repair) {
    report_.problems.push_back({std::move(file), std::move(sentence), std::move(repair)});
  }

  // ---- The manifest

  void load() {
    std::string words, file;
    try {
      const LoadedCache loaded = load_cache(path_);
      manifest_ = loaded.manifest;
      tidy(manifest_);
      if (loaded.journal.torn_bytes > 0 && (repair_ || !Lock::is_held(path_))) {
        problem(journal_name(manifest_.identity),
                concat("its last ", loaded.journal.torn_bytes,
                       " bytes are not whole: nothing is lost, the commit had not finished"),
                "left out of the manifest, which is written anew");
        must_write_ = true;
      }
      return;
    } catch (const NewerVersion&) {
      throw;
    } catch (const SystemError&) {
      throw;
    } catch (const Error& error) {
      words = error.what();
      const std::string journal = (path_ / "journal.").string();
      if (words.starts_with(manifest_path(path_).string())) file = "manifest.json";
      if (words.starts_with(journal)) file = journal_name(words.substr(journal.size(), 32));
      if (file.empty()) throw;  // no cache at all
    }
    rebuild();
    const std::size_t advice = words.find("; `robocache verify");
    problem(file, without_name(words.substr(0, advice), (path_ / file).string()),
            concat("made anew from the shards: ", manifest_.episodes.size(), " episodes of ", manifest_.streams.size(),
                   " streams"));
    must_write_ = true;
  }

  // Each shard knows all episodes of its group; an episode is back where the shards of all its streams are.
  void rebuild() {
    std::map<std::int64_t, std::vector<Manifest>> groups;
    for (const Path& file : find_leftovers(path_, {})) {
      const std::string name = file.filename().string();
      if (!is_shard_name(name)) continue;
      try {
        const File opened(path_ / file, O_RDONLY);
        const std::string place = (path_ / file).string();
        const ShardHeader header = read_header(bytes_of_file(opened, place));
        if (header.description.empty()) continue;
        Manifest said = parse_description(header.description, place);
        Shard& shard = said.shards[0];
        check_header(header, said.streams[static_cast<std::size_t>(shard.stream)], shard, place);
        shard.file = name;
        shard.bytes = opened.size();
        groups[shard.group].push_back(std::move(said));
      } catch (const NewerVersion&) {
        throw;
      } catch (const Error& error) {
        problem(file.string(), without_name(error.what(), (path_ / file).string()), "left out of the new manifest");
      }
    }
    for (auto& [group, shards] : groups) {
      take_group(shards);
      manifest_.next_group = group + 1;
    }
    drop_replaced();
  }

  void take_group(std::vector<Manifest>& shards) {
    std::set<std::string> here;
    std::map<std::pair<std::int64_t, std::int64_t>, std::shared_ptr<const Metadata>> metadata;  // by row and stream
    for (Manifest& said : shards) {
      Shard shard = said.shards[0];
      const StreamInfo& info = said.streams[static_cast<std::size_t>(shard.stream)];
      std::int64_t stream = manifest_.find_stream(info.name);
      if (stream < 0) {
        stream = static_cast<std::int64_t>(manifest_.streams.size());
        manifest_.streams.push_back(info);
      }
      StreamInfo& known = manifest_.streams[static_cast<std::size_t>(stream)];
      const bool is_same = known.dtype == info.dtype && known.is_ragged == info.is_ragged &&
                           (known.shape == info.shape || (known.shape.size() == 1 && info.shape.size() == 1));
      if (!is_same || !here.insert(info.name).second) {
        problem((Path("shards") / shard.file).string(), "does not go with the other shards",
                "left out of the new manifest");
        continue;
      }
      if (channels_of(info) >= channels_of(known)) known = info;  // widened later
      for (const CachedEpisode& episode : said.episodes) {
        const auto entry = std::ranges::find(episode.streams, shard.stream, &EpisodeStream::stream);
        if (entry != episode.streams.end()) metadata[{episode.row, stream}] = entry->metadata;
      }
      shard.stream = stream;
      manifest_.shards.push_back(std::move(shard));
    }
    for (CachedEpisode episode : shards[0].episodes) {
      bool is_whole = true;
      for (EpisodeStream& entry : episode.streams) {
        const std::string& name = shards[0].streams[static_cast<std::size_t>(entry.stream)].name;
        is_whole = is_whole && here.contains(name);
        entry.stream = manifest_.find_stream(name);
        const auto known = metadata.find({episode.row, entry.stream});  // only its own shard has them
        if (known != metadata.end()) entry.metadata = known->second;
      }
      if (!is_whole) {
        problem("shards", concat("episode ", in_quotes(episode.name), " of group ", episode.group, " lacks shards"),
                "left out of the new manifest");
        continue;
      }
      std::ranges::sort(episode.streams, {}, &EpisodeStream::stream);
      if (episode.source >= 0)
        episode.source = take_source(shards[0].sources[static_cast<std::size_t>(episode.source)]);
      manifest_.episodes.push_back(std::move(episode));
    }
  }

  std::int64_t take_source(const CacheSource& source) {
    const auto found = std::ranges::find_if(manifest_.sources, [&](const CacheSource& known) {
      return known.path == source.path && known.size == source.size && known.mtime == source.mtime &&
             known.options == source.options;
    });
    if (found != manifest_.sources.end()) return found - manifest_.sources.begin();
    manifest_.sources.push_back(source);
    manifest_.sources.back().is_complete = false;  // nobody knows: the next build looks
    return static_cast<std::int64_t>(manifest_.sources.size()) - 1;
  }

  // What a later group has taken the place of.
  void drop_replaced() {
    std::map<std::string, std::int64_t> newest;  // of a path, the last source
    for (const CachedEpisode& episode : manifest_.episodes) {
      if (episode.source < 0) continue;
      std::int64_t& last = newest[manifest_.sources[static_cast<std::size_t>(episode.source)].path];
      last = std::max(last, episode.source);
    }
    std::map<std::pair<std::int64_t, std::string>, std::pair<std::int64_t, std::int64_t>> last;  // by source, identity
    const auto identity = [](const CachedEpisode& episode) {
      return std::pair(episode.source, episode.source < 0 ? episode.name : std::to_string(episode.number));
    };
    for (const CachedEpisode& episode : manifest_.episodes) last[identity(episode)] = {episode.group, episode.row};
    std::erase_if(manifest_.episodes, [&](const CachedEpisode& episode) {
      if (last[identity(episode)] != std::pair(episode.group, episode.row)) return true;
      return episode.source >= 0 &&
             newest[manifest_.sources[static_cast<std::size_t>(episode.source)].path] != episode.source;
    });
  }

  // ---- Shards

  void check_shards() {
    for (const Shard& shard : manifest_.shards) {
      check_interrupt();
      const std::string file = (Path("shards") / shard.file).string();
      try {
        check_shard(shard);
        ++report_.shards;
        report_.bytes += shard.bytes;
      } catch (const Error& error) {
        damaged_.insert({shard.group, shard.stream});
        std::int64_t mine = 0;
        for (const CachedEpisode& episode : manifest_.episodes) mine += is_in(episode, shard) ? 1 : 0;
        problem(file, without_name(error.what(), shard_path(path_, shard).string()),
                concat("dropped, with the ", mine, mine == 1 ? " episode" : " episodes", " that it has a part of"));
      }
    }
  }

  static bool is_in(const CachedEpisode& episode, const Shard& shard) {
    return episode.group == shard.group &&
           std::ranges::any_of(episode.streams, [&](const EpisodeStream& s) { return s.stream == shard.stream; });
  }

  bool is_lost(const CachedEpisode& episode) const {
    return std::ranges::any_of(episode.streams, [&](const EpisodeStream& entry) {
      return damaged_.contains({episode.group, entry.stream});
    });
  }

  void check_shard(const Shard& shard) {
    const Path path = shard_path(path_, shard);
    const std::string name = path.string();
    if (!std::filesystem::exists(path)) throw Error(ErrorKind::file, name + ": is missing");
    const File file(path, O_RDONLY);
    if (file.size() != shard.bytes) {
      throw Error(ErrorKind::file, concat(name, ": has ", file.size(), " bytes, but the manifest says ", shard.bytes));
    }
    const StreamInfo& stream = manifest_.streams[static_cast<std::size_t>(shard.stream)];
    const ShardHeader header = read_header(bytes_of_file(file, name));
    check_header(header, stream, shard, name);
    for (const TensorEntry& tensor : header.tensors) {
      const auto expected = shard.hashes.find(tensor.name);
      if (expected == shard.hashes.end())
        throw Error(ErrorKind::file, concat(name, ": ", in_quotes(tensor.name), " has no checksum"));
      if (hash_tensor(file, header, tensor) != expected->second) {
        throw Error(ErrorKind::file, concat(name, ": the checksum of ", in_quotes(tensor.name), " is wrong: its ",
                                            tensor.end - tensor.begin, " bytes are not those that were written"));
      }
    }
    check_content(file, header, shard, name);
    report_.tensors += static_cast<std::int64_t>(header.tensors.size());
  }

  static std::string hash_tensor(const File& file, const ShardHeader& header, const TensorEntry& tensor) {
    Hash hash;
    std::vector<std::byte> bytes;
    for (std::int64_t at = tensor.begin; at < tensor.end; at += block) {
      check_interrupt();
      bytes.resize(static_cast<std::size_t>(std::min(block, tensor.end - at)));
      file.read(header.data + at, bytes);
      hash.add(bytes);
    }
    return hash.text();
  }

  // The numbers of an int64 tensor one by one, in little memory.
  template <class F>
  static void each(const File& file, const ShardHeader& header, const TensorEntry& tensor, const F& f) {
    std::vector<std::int64_t> numbers;
    std::int64_t k = 0;
    for (std::int64_t at = tensor.begin; at < tensor.end; at += block) {
      check_interrupt();
      numbers.resize(static_cast<std::size_t>(std::min(block, tensor.end - at)) / sizeof(std::int64_t));
      file.read(header.data + at, std::as_writable_bytes(std::span(numbers)));
      for (const std::int64_t number : numbers) f(k++, number);
    }
  }

  void check_content(const File& file, const ShardHeader& header, const Shard& shard, const std::string& name) const {
    const auto fail = [&](const auto&... parts) { throw Error(ErrorKind::file, concat(name, ": ", parts...)); };
    const auto check_offsets = [&](const char* which, std::int64_t most) {
      std::int64_t last = 0;
      each(file, header, *header.find(which), [&](std::int64_t k, std::int64_t offset) {
        if (k == 0 && offset != 0) fail(which, "[0] is ", offset, "; it must be 0");
        if (offset < last) fail(which, "[", k, "] = ", offset, " is below ", which, "[", k - 1, "] = ", last);
        last = offset;
      });
      if (last != most) fail("the last of ", which, " is ", last, ", but there are ", most);
    };
    check_offsets("offsets", shard.samples);
    if (manifest_.streams[static_cast<std::size_t>(shard.stream)].is_ragged) check_offsets("inner", shard.rows);

    std::map<std::int64_t, const CachedEpisode*> rows;
    for (const CachedEpisode& episode : manifest_.episodes) {
      if (episode.group == shard.group) rows[episode.row] = &episode;
    }
    std::vector<std::int64_t> offsets;
    offsets.reserve(static_cast<std::size_t>(shard.episodes + 1));
    each(file, header, *header.find("offsets"), [&](std::int64_t, std::int64_t offset) { offsets.push_back(offset); });
    for (const auto& [row, episode] : rows) {
      const auto entry = std::ranges::find(episode->streams, shard.stream, &EpisodeStream::stream);
      const std::int64_t said = entry == episode->streams.end() ? 0 : entry->samples;
      if (row >= shard.episodes) {
        if (entry != episode->streams.end()) fail("has no row ", row, " for episode ", in_quotes(episode->name));
        continue;
      }
      const std::int64_t count = offsets[static_cast<std::size_t>(row + 1)] - offsets[static_cast<std::size_t>(row)];
      if (count != said) {
        fail("has ", count, " samples of episode ", in_quotes(episode->name), ", but the manifest says ", said);
      }
    }
    std::size_t row = 0;
    std::int64_t last = 0, latency = 0;
    const CachedEpisode* episode = nullptr;
    each(file, header, *header.find("times"), [&](std::int64_t k, std::int64_t time) {
      bool is_first = false;
      while (row + 1 < offsets.size() && k >= offsets[row]) {
        if (k < offsets[row + 1]) {
          is_first = k == offsets[row];
          break;
        }
        ++row;
      }
      if (is_first) {
        const auto found = rows.find(static_cast<std::int64_t>(row));
        episode = found == rows.end() ? nullptr : found->second;
        if (episode != nullptr) {
          const auto entry = std::ranges::find(episode->streams, shard.stream, &EpisodeStream::stream);
          latency = entry == episode->streams.end() ? 0 : entry->latency;
        }
      } else if (time < last) {
        fail("times[", k, "] = ", time, " is before times[", k - 1, "] = ", last);
      }
      last = time;
      if (episode != nullptr && (time - latency < episode->start || time - latency > episode->end)) {
        fail("times[", k, "] = ", time, " is outside of its episode ", in_quotes(episode->name));
      }
    });
  }

  // ---- What goes

  void check_leftovers() {
    if (!repair_ && Lock::is_held(path_)) return;  // a writer is at work: they are its own
    for (const Path& file : find_leftovers(path_, manifest_)) {
      problem(file.string(), "belongs to nothing: left by a crash", "removed");
      useless_.push_back(file);
    }
  }

  void drop_damaged() {
    if (damaged_.empty() && !must_write_) return;
    must_write_ = true;
    for (const CachedEpisode& episode : manifest_.episodes) {
      if (!is_lost(episode) || episode.source < 0) continue;
      manifest_.sources[static_cast<std::size_t>(episode.source)].is_complete = false;  // the next build reads it again
    }
    std::erase_if(manifest_.episodes, [&](const CachedEpisode& episode) { return is_lost(episode); });
    std::set<std::int64_t> groups;
    for (const CachedEpisode& episode : manifest_.episodes) groups.insert(episode.group);
    std::erase_if(manifest_.shards, [&](const Shard& shard) {
      if (groups.contains(shard.group) && !damaged_.contains({shard.group, shard.stream})) return false;
      useless_.push_back(Path("shards") / shard.file);
      return true;
    });
  }

  Path path_;
  bool repair_;
  std::optional<Lock> lock_;
  Manifest manifest_;
  CacheReport report_;
  std::set<std::pair<std::int64_t, std::int64_t>> damaged_;  // group and stream
  std::vector<Path> useless_;
  bool must_write_ = false;
};

}  // namespace

CacheReport verify_cache(const std::filesystem::path& path, bool repair) {
  try {
    return Verifier(path, repair).run();
  } catch (const std::filesystem::filesystem_error& error) {
    fail_errno(path, "cannot be read", error.code().value());
  }
}

}  // namespace robocache
