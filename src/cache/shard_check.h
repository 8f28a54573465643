// What is wrong with a shard: all of its bytes are read and held against the manifest. Files are read, not mapped, so that
// a disk that fails is an Error.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "cache/files.h"
#include "cache/manifest.h"
#include "cache/safetensors.h"

namespace robocache::cache {

// A file of a cache, opened to be checked. Symbolic links are not followed. Throws Error(file), the file's name first,
// where there is no such file or it is not a regular one, SystemError where it cannot be opened.
File open_to_check(const Path& path);

Bytes bytes_of_file(const File& file);                                 // of one that outlives them
std::string hash_header(const File& file, const ShardHeader& header);  // of the bytes before the data

// The part of a sentence after the file's name and a colon.
std::string without_name(const std::string& sentence, const Path& path);

class ShardCheck {
 public:
  // `manifest` outlives it. `is_sealed`: a checksum vouches for it, as of version 2 on.
  ShardCheck(Path cache, const Manifest& manifest, bool is_sealed);

  // Throws Error(file), the file's name first, where the shard is missing or damaged: its size, header, checksums, offsets,
  // counts, or the order of its times. Throws SystemError where it cannot be read, which says nothing about the shard.
  void check(const Shard& shard);
  std::int64_t tensors() const noexcept { return tensors_; }  // of the shards that were fine

  // What a manifest that is not sealed says that no shard says, as a sentence; empty where there is nothing. Asked when
  // all shards were checked.
  std::string disagreement() const;

 private:
  void check_content(const File& file, const ShardHeader& header, const Shard& shard) const;
  void compare_description(const Manifest& said, const Shard& shard);

  Path cache_;
  const Manifest& manifest_;
  bool is_sealed_;
  std::map<std::int64_t, std::map<std::int64_t, const CachedEpisode*>> groups_;  // episodes by group and row
  std::map<std::int64_t, bool> has_method_;  // by stream: a shard of version 1 has the manifest's method
  std::string disagreement_;
  std::int64_t tensors_ = 0;
};

}  // namespace robocache::cache
