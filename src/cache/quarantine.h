// The folder for files that are taken out of a cache: quarantine/<time>/, with the same names and a report. Nothing is deleted.
#pragma once

#include <string>
#include <vector>

#include "cache/file.h"

namespace robocache::cache {

struct QuarantinedFile {
  Path file{};           // within the cache
  std::string reason{};  // one sentence without the file's name
  bool is_copy = false;  // copied, because the file stays in use until the new manifest replaces it
};

class Quarantine {
 public:
  explicit Quarantine(Path cache);

  // Makes the folder and the report, copies and moves the files, and syncs everything. `report` says what is done and why. If
  // a step fails, the moved files are moved back, a note beside the report says so, and this throws. Returns the folder, a
  // path within the cache.
  Path take(const std::vector<QuarantinedFile>& files, const std::string& report);

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
