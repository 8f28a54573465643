// Where a repair puts what it takes out of a cache: quarantine/<time>/, under the same names, with a report beside it.
// Nothing is removed.
#pragma once

#include <string>
#include <vector>

#include "cache/files.h"

namespace robocache::cache {

struct Taken {
  Path file{};           // within the cache
  std::string reason{};  // one sentence without the file's name
  bool is_copy = false;  // the file stays where it is until the new manifest takes its place
};

class Quarantine {
 public:
  explicit Quarantine(Path cache);

  // Makes the folder and the report, copies and moves the files, and syncs everything. `report` is the text that says what
  // is done and why. Where something fails, what was moved is moved back, the report says so, and this throws.
  // Returns the folder within the cache.
  Path take(const std::vector<Taken>& files, const std::string& report);

 private:
  void make_folder();
  void copy(const Path& file) const;
  void move(const Path& file);
  void move_back() noexcept;

  Path cache_;
  Path folder_;              // within the cache
  std::vector<Path> moved_;  // within the cache, in order
};

// "2026-11-16 15:58:00 UTC"
std::string time_in_words();

}  // namespace robocache::cache
