// Finds what is wrong with a shard: reads all of its bytes and compares them with the manifest. Files are read, not mapped, so
// that a failing disk is an Error.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "cache/file.h"
#include "cache/manifest.h"
#include "cache/safetensors.h"

namespace robocache::cache {

// Opens a file of a cache to check it, without following a symbolic link. Throws Error(file), the file's name first, if it is
// missing or not a regular file, SystemError if it cannot be opened.
File open_to_check(const Path& path);

Bytes bytes_of_file(const File& file);                                 // `file` must outlive them
std::string hash_header(const File& file, const ShardHeader& header);  // the hash of the bytes before the data

// The rest of a sentence that begins with the file's name and a colon.
std::string without_name(const std::string& sentence, const Path& path);

class ShardCheck {
 public:
  // `manifest` must outlive it. `is_sealed`: the manifest has a checksum, as from version 2 on.
  ShardCheck(Path cache, const Manifest& manifest, bool is_sealed);

  // Throws Error(file), the file's name first, if the shard is missing or damaged: its size, header, checksums, offsets,
  // counts, or the order of its times. Throws SystemError if it cannot be read, which does not mean that it is damaged.
  // Returns what is wrong with its statistics, which nothing but themselves needs: one sentence, or empty.
  std::string check(const Shard& shard);
  std::int64_t tensors() const noexcept { return tensors_; }  // of the undamaged shards

  // A sentence about what a manifest without a checksum says and no shard confirms; empty if there is nothing. Call it after
  // all shards were checked.
  std::string disagreement() const;

 private:
  void check_content(const File& file, const ShardHeader& header, const Shard& shard) const;
  std::string check_statistics(const File& file, const ShardHeader& header, const Shard& shard) const;
  void compare_description(const Manifest& said, const Shard& shard);

  Path cache_;
  const Manifest& manifest_;
  bool is_sealed_;
  std::map<std::int64_t, std::map<std::int64_t, const CachedEpisode*>> groups_;  // episodes by group and row
  std::map<std::int64_t, bool> has_method_;  // by stream: whether a shard of version 1 has the manifest's method
  std::string disagreement_;
  std::int64_t tensors_ = 0;
};

}  // namespace robocache::cache
