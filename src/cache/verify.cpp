// Finds what is wrong with a cache and plans the repair. Everything is read and planned before anything is changed.
#include <fcntl.h>
#include <robocache/cache.h>
#include <robocache/error.h>
#include <sys/stat.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>

#include "cache/directory.h"
#include "cache/lock.h"
#include "cache/manifest.h"
#include "cache/partials.h"
#include "cache/quarantine.h"
#include "cache/rebuild.h"
#include "cache/shard_check.h"
#include "core/counted.h"
#include "core/interrupt.h"
#include "core/text.h"

namespace robocache {

using namespace cache;

namespace {

bool is_shard(const Path& file) { return file.has_parent_path() && is_shard_name(file.filename().string()); }

// The type of the file at a path, without following a link; 0: there is none.
mode_t type_of(const Path& path) {
  struct stat status {};
  if (lstat(path.c_str(), &status) == 0) return status.st_mode & S_IFMT;
  if (errno != ENOENT) fail_errno(path, "cannot be read", errno);
  return 0;
}

// An episode that the cache no longer has.
struct LostEpisode {
  std::string name{};
  std::int64_t number = 0;
  std::string source{};  // the path; empty: it has none
  std::string why{};
};

class Verifier {
 public:
  Verifier(const Path& path, bool repair) : path_(path), repair_(repair) {}

  CacheReport run() {
    if (!std::filesystem::is_directory(path_)) {
      throw Error(ErrorKind::file, concat(path_.string(), ": there is no such cache"));
    }
    load();
    check_shards_folder();
    check_shards();
    drop_damaged();
    check_leftovers();
    report_.episodes = static_cast<std::int64_t>(manifest_.episodes.size());
    report_.streams = static_cast<std::int64_t>(manifest_.streams.size());
    for (const QuarantinedFile& taken : taken_) report_.moved.push_back({taken.file.string(), taken.reason});
    return report_;
  }

  // Does what run() planned. The caller holds the lock.
  void apply(CacheReport& report) {
    if (taken_.empty() && !must_write_) return;
    check_plan();
    if (must_write_) {  // check with the reader before anything is changed
      tidy(manifest_);
      Manifest trial = manifest_;
      trial.identity = new_identity();
      static_cast<void>(parse_manifest(write_manifest(trial), manifest_path(path_).string()));
    }
    Quarantine quarantine(path_);
    report.quarantine = quarantine.take(taken_, report_text()).string();
    if (must_write_) {
      make_directory(shards_path(path_), false);
      save_manifest(path_, manifest_);
    }
  }

  // Throws if the repaired manifest would name a shard that would not be there.
  void check_plan() const {
    const Manifest stays = must_write_ ? manifest_ : load_cache(path_).manifest;
    for (const Shard& shard : stays.shards) {
      const Path file = Path("shards") / shard.file;
      std::error_code error;
      const auto bytes = std::filesystem::file_size(path_ / file, error);
      if (!error && static_cast<std::int64_t>(bytes) == shard.bytes && !taken_files_.contains(file)) continue;
      throw Error(ErrorKind::file, concat((path_ / file).string(),
                                          ": the repaired cache would name this shard, but it would not be there as it "
                                          "was; nothing was changed, please report this"));
    }
  }

  // Differs between any two states of the cache; empty if it cannot be loaded.
  std::string state() const {
    try {
      return load_cache(path_).journal.checksum;
    } catch (const Error&) {
      return {};
    }
  }

 private:
  void problem(std::string file, std::string sentence, std::string repair) {
    report_.problems.push_back({std::move(file), std::move(sentence), std::move(repair)});
  }

  // Each file is taken once, and the report tells the first reason.
  void take(const Path& file, std::string reason, bool is_copy = false) {
    if (taken_files_.insert(file).second) taken_.push_back({file, std::move(reason), is_copy});
  }

  // ---- The manifest

  void load() {
    std::string words;
    Path file;
    try {
      LoadedCache loaded = load_cache(path_);
      manifest_ = std::move(loaded.manifest);
      identity_ = manifest_.identity;
      has_live_journal_ = type_of(path_ / journal_name(identity_)) != 0;
      is_sealed_ = has_live_journal_ || !identity_of_manifest(read_head()).empty();
      tidy(manifest_);
      if (repair_ || !Lock::is_held(path_)) take_up_commits(loaded.journal.torn_bytes);
      return;
    } catch (const NewerVersion&) {
      throw;
    } catch (const SystemError&) {
      throw;
    } catch (const Error& error) {
      words = error.what();
      const std::string journal = (path_ / "journal.").string();
      if (words.starts_with(manifest_path(path_).string())) file = "manifest.json";
      if (words.starts_with(journal)) {
        identity_ = words.substr(journal.size(), 32);
        has_live_journal_ = true;
        file = journal_name(identity_);
      }
      if (file.empty() || !is_cache(path_)) throw;
    }
    const std::size_t advice = words.find("; `robocache verify");
    rebuild(file, without_name(words.substr(0, advice), path_ / file));
  }

  std::string read_head() const {  // of manifest.json
    const File file(manifest_path(path_), O_RDONLY);
    std::string head(std::min(identity_head, static_cast<std::size_t>(file.size())), '\0');
    file.read(0, std::as_writable_bytes(std::span(head)));
    return head;
  }

  // Copies all files of the manifest to the quarantine. The originals stay valid until the new manifest is written.
  void replace_manifest(const std::string& reason) {
    must_write_ = true;
    const mode_t type = type_of(manifest_path(path_));
    if (type == S_IFREG || type == S_IFLNK) {
      take("manifest.json", reason, true);
    } else if (type != 0) {
      take("manifest.json", reason);
    }
    if (has_live_journal_) take(journal_name(identity_), "belongs to that manifest.json", true);
  }

  void rebuild(const Path& file, const std::string& words) {
    manifest_ = {};
    std::vector<Path> shards = find_leftovers(path_, manifest_);
    std::erase_if(shards, [](const Path& path) { return !is_shard(path); });
    const AddedGroups groups = add_groups(path_, shards, manifest_);
    problem(file.string(), words,
            concat("made anew from the shards: ", counted(manifest_.episodes.size(), "episode"), " of ",
                   counted(manifest_.streams.size(), "stream")));
    report_left_out(groups.left_out);
    report_lost(groups);
    replace_manifest(words);
    manifest_.identity = identity_;  // so that saving the new manifest removes the old journal, which was copied
  }

  // Takes in the whole episodes of shards whose groups the manifest does not know: a commit was interrupted before its line
  // was in the journal, or the line was damaged, or the journal is gone.
  void take_up_commits(std::int64_t torn_bytes) {
    std::vector<Path> shards = find_leftovers(path_, manifest_);
    std::erase_if(shards, [](const Path& path) { return !is_shard(path); });
    if (shards.empty() && torn_bytes == 0) return;
    std::set<std::string> before;
    for (const Shard& shard : manifest_.shards) before.insert(shard.file);
    const AddedGroups groups = add_groups(path_, shards, manifest_);
    const auto added = static_cast<std::size_t>(
        std::ranges::count_if(manifest_.shards, [&](const Shard& shard) { return !before.contains(shard.file); }));
    if (torn_bytes > 0) {
      const std::string words =
          concat("its last ", torn_bytes, " bytes are not whole: the last commit was interrupted, ",
                 "or they were damaged since");
      problem(journal_name(identity_), words, "the manifest is written anew");
      replace_manifest(words);
    }
    if (added > 0) {
      const std::string words = concat("does not name the ", counted(added, "shard"),
                                       " of other commits: they were interrupted, or their journal is gone");
      problem("manifest.json", words, "their whole episodes are taken in");
      if (!must_write_) replace_manifest(words);
    }
    for (const CachedEpisode& episode : groups.replaced) {
      const std::string words = concat("has episode ", quote(episode.name), " of group ", episode.group,
                                       ", which an episode of those commits replaces");
      problem("manifest.json", words, "the older episode is dropped");
      drop(episode, "was replaced by an episode that this repair took in");
    }
    report_left_out(groups.left_out);
  }

  // `why`: what the report says after the episode's name.
  void drop(const CachedEpisode& episode, std::string why) {
    const bool has_source = episode.source >= 0;
    drop(episode, has_source ? manifest_.sources[static_cast<std::size_t>(episode.source)].path : "", std::move(why));
  }
  void drop(const CachedEpisode& episode, std::string source, std::string why) {
    report_.dropped.push_back(episode.name);
    lost_.push_back({episode.name, episode.number, std::move(source), std::move(why)});
  }

  // Reports the episodes that shards name and a rebuilt manifest lacks, except those that a later commit replaced.
  void report_lost(const AddedGroups& groups) {
    const auto path_of = [&](const CachedEpisode& episode) {
      return episode.source < 0 ? std::string() : manifest_.sources[static_cast<std::size_t>(episode.source)].path;
    };
    std::set<std::int64_t> told;  // groups whose episodes are known from a shard
    for (const Shard& shard : manifest_.shards) told.insert(shard.group);
    for (const IncompleteEpisode& lacking : groups.lacking) {
      told.insert(lacking.episode.group);
      const bool is_there = std::ranges::any_of(manifest_.episodes, [&](const CachedEpisode& episode) {
        return episode.name == lacking.episode.name && episode.number == lacking.episode.number &&
               path_of(episode) == lacking.source;
      });
      if (is_there) continue;
      drop(lacking.episode, lacking.source, lacking.reason);
      if (!lacking.source.empty()) lost_sources_.insert(lacking.source);
    }
    for (const LeftOutFile& item : groups.left_out) {
      if (item.is_unread && !told.contains(group_of_name(item.file.filename().string()))) {
        unnamed_.push_back(item.file);
      }
    }
  }

  void report_left_out(const std::vector<LeftOutFile>& left_out) {
    for (const LeftOutFile& item : left_out) {
      const bool is_file = is_shard(item.file);
      problem(item.file.string(), item.reason, is_file ? "moved to quarantine" : "left out of the new manifest");
      if (is_file) take(item.file, item.reason);
    }
  }

  // ---- Shards

  // If shards/ is missing, a disk may be unmounted; do not treat it as damage.
  void check_shards_folder() const {
    if (manifest_.shards.empty() || std::filesystem::is_directory(shards_path(path_))) return;
    throw Error(ErrorKind::file,
                concat(shards_path(path_).string(), ": is missing, with all ",
                       counted(manifest_.shards.size(), "shard"), "; mount or restore it. Nothing was changed"));
  }

  void check_shards() {
    if (check_shards_once()) return;
    // A manifest of version 1 has no checksum, and it contradicts its shards: the shards count.
    const std::string words = disagreement_;
    report_.problems.clear();
    taken_.clear();
    taken_files_.clear();
    report_.dropped.clear();
    lost_.clear();
    unnamed_.clear();
    damaged_.clear();
    rebuild("manifest.json", words);
    check_shards_once();
  }

  bool check_shards_once() {
    report_.shards = report_.tensors = report_.bytes = 0;
    ShardCheck checks(path_, manifest_, is_sealed_ || must_write_);
    for (Shard& shard : manifest_.shards) {
      check_interrupt();
      const Path file = Path("shards") / shard.file;
      try {
        const std::string words = checks.check(shard);
        if (!words.empty()) drop_statistics(shard, file, words);
      } catch (const NewerVersion&) {
        throw;
      } catch (const SystemError&) {
        throw;
      } catch (const Error& error) {
        const std::string words = without_name(error.what(), path_ / file);
        damaged_[{shard.group, shard.stream}] = file;
        std::size_t mine = 0;
        for (const CachedEpisode& episode : manifest_.episodes) mine += is_in(episode, shard) ? 1 : 0;
        const bool is_there = type_of(path_ / file) != 0;
        problem(file.string(), words,
                concat(is_there ? "moved to quarantine; " : "", "the cache loses the ", counted(mine, "episode"),
                       " that it has a part of"));
        if (is_there) take(file, words);
      }
    }
    report_.tensors = checks.tensors();
    disagreement_ = checks.disagreement();
    return disagreement_.empty();
  }

  // The samples are whole, so the shard stays. Without the checksum in the manifest its statistics are not read.
  void drop_statistics(Shard& shard, const Path& file, const std::string& words) {
    shard.hashes.erase(statistics_name);
    problem(file.string(), words,
            "the samples are whole and stay; their statistics are dropped, and computed when needed");
    if (!must_write_) replace_manifest("names statistics of a shard that are damaged");
  }

  static bool is_in(const CachedEpisode& episode, const Shard& shard) {
    return episode.group == shard.group &&
           std::ranges::any_of(episode.streams, [&](const EpisodeStream& s) { return s.stream == shard.stream; });
  }

  // The damaged shard that holds a part of an episode; nullptr: none.
  const Path* damage_of(const CachedEpisode& episode) const {
    for (const EpisodeStream& entry : episode.streams) {
      const auto found = damaged_.find({episode.group, entry.stream});
      if (found != damaged_.end()) return &found->second;
    }
    return nullptr;
  }

  // ---- What goes

  void drop_damaged() {
    std::set<std::int64_t> groups;
    for (const CachedEpisode& episode : manifest_.episodes) {
      const Path* const damage = damage_of(episode);
      if (damage == nullptr) {
        groups.insert(episode.group);
        continue;
      }
      drop(episode, concat("has a part in ", damage->string()));
      if (episode.source < 0) continue;
      CacheSource& source = manifest_.sources[static_cast<std::size_t>(episode.source)];
      lost_sources_.insert(source.path);
      source.is_complete = false;  // the next build reads it again
    }
    std::erase_if(manifest_.episodes, [&](const CachedEpisode& episode) { return damage_of(episode) != nullptr; });
    const std::size_t gone = std::erase_if(manifest_.shards, [&](const Shard& shard) {
      const bool is_damaged = damaged_.contains({shard.group, shard.stream});
      if (groups.contains(shard.group) && !is_damaged) {
        ++report_.shards;
        report_.bytes += shard.bytes;
        return false;
      }
      if (!is_damaged) take(Path("shards") / shard.file, "is whole, but no episode of its group is");
      return true;
    });
    if (gone > 0 && !must_write_) {
      if (damaged_.empty()) problem("manifest.json", "names shards of which no episode is left", "written anew");
      replace_manifest("names shards that were damaged or missing, or that no episode needs");
    }
  }

  void check_leftovers() {
    if (!repair_ && Lock::is_held(path_)) return;  // a writer is at work, and these files are its own
    Manifest kept = manifest_;
    kept.identity = identity_;
    for (const Path& file : find_leftovers(path_, kept)) {
      if (taken_files_.contains(file)) continue;
      if (must_write_ && is_journal_name(file.string())) {
        take(file, "belongs to a manifest.json that is not there");
      } else {
        take(file, "no manifest names it: left by a crash");
      }
      problem(file.string(), taken_.back().reason, "moved to quarantine");
    }
  }

  std::string report_text() const {
    std::string text =
        concat("RoboCache repaired the cache ", path_.string(), "\non ", time_in_words(), ".\n\nNothing was deleted. ",
               taken_.empty() ? "No file was taken out of the cache.\n"
                              : "What was taken out of the cache is in this folder, under the same names:\n");
    for (const QuarantinedFile& taken : taken_) {
      text += concat("\n  ", taken.file.string(), taken.is_copy ? " (a copy; the cache has a new one)" : "", "\n    ",
                     taken.reason, "\n");
    }
    if (!lost_.empty()) text += "\nEpisodes that the cache no longer has:\n";
    for (const LostEpisode& lost : lost_) {
      text += concat("\n  ", quote(lost.name));
      if (!lost.source.empty()) text += concat(", number ", lost.number, " of ", quote(lost.source));
      text += concat("\n    ", lost.why, "\n");
    }
    if (!unnamed_.empty()) {
      text +=
          "\nThe cache also lost all episodes of the groups of these shards. Their names are not known, since no\n"
          "shard of these groups can be read:\n";
    }
    for (const Path& file : unnamed_) text += concat("\n  ", file.string(), "\n");
    if (!lost_sources_.empty()) text += "\nThe next `robocache build` reads the sources of these episodes again.\n";
    text += "\nTo undo this repair, while nothing else was written to the cache: ";
    if (!taken_.empty()) text += "move these files back to where they were";
    if (!must_write_) {
      text += ".\n";
    } else if (taken_files_.contains("manifest.json")) {
      text += ", with this\nmanifest.json in the place of the cache's.\n";
    } else {
      text += concat(taken_.empty() ? "" : ",\nand ", "remove the cache's manifest.json, which this repair made.\n");
    }
    return text + "\nDelete this folder when you need none of it any more.\n";
  }

  Path path_;
  bool repair_;
  Manifest manifest_;
  std::string identity_;           // of manifest.json; empty where it cannot be read
  bool has_live_journal_ = false;  // with commits since manifest.json
  bool is_sealed_ = false;         // the manifest has a checksum, or a journal continues it
  bool must_write_ = false;        // a new manifest must be written
  std::string disagreement_;
  std::map<std::pair<std::int64_t, std::int64_t>, Path> damaged_;  // by group and stream
  std::vector<QuarantinedFile> taken_;
  std::set<Path> taken_files_;
  std::vector<LostEpisode> lost_;
  std::vector<Path> unnamed_;  // unreadable shards of groups that no other shard describes
  std::set<std::string> lost_sources_;
  CacheReport report_;
};

CacheReport verify(const Path& path) {
  // While the shards are read a writer may replace the manifest and remove shards that only the old one names: try again.
  for (int attempts = 10;; --attempts) {
    Verifier verifier(path, false);
    const std::string before = verifier.state();
    CacheReport report = verifier.run();
    if (report.problems.empty() || attempts == 0 || verifier.state() == before) return report;
  }
}

CacheReport repair_cache(const Path& path, bool dry_run) {
  refuse_links(path);
  if (dry_run) {
    if (Lock::is_held(path)) {
      throw Error(ErrorKind::file, concat(path.string(), ": a writer has this cache; repair it when that is done"));
    }
    return Verifier(path, true).run();
  }
  if (!std::filesystem::is_directory(path)) {
    throw Error(ErrorKind::file, concat(path.string(), ": there is no such cache"));
  }
  refuse_strangers(path);
  Lock lock(path);
  try {
    Verifier verifier(path, true);
    CacheReport report = verifier.run();
    if (report.problems.empty()) return report;
    if (lock.renew()) {
      throw Error(ErrorKind::file, concat((path / "lock").string(),
                                          ": was replaced meanwhile, so another writer may have come; nothing was "
                                          "changed, run the repair again"));
    }
    verifier.apply(report);
    report.is_repaired = true;
    return report;
  } catch (...) {
    lock.remove_if_made();
    throw;
  }
}

}  // namespace

CacheReport verify_cache(const std::filesystem::path& path, bool repair, bool dry_run) {
  try {
    return repair || dry_run ? repair_cache(path, dry_run) : verify(path);
  } catch (const std::filesystem::filesystem_error& error) {
    fail_errno(path, "cannot be read", error.code().value());
  }
}

}  // namespace robocache
