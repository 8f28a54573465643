// The lock of a cache: one writer at a time.
#pragma once

#include "cache/file.h"

namespace robocache::cache {

// Held by the one writer of a cache. A forked child does not inherit it: the child closes its copy, so that it never
// keeps the next writer out.
class Lock {
 public:
  explicit Lock(const Path& directory);  // throws Error(file) if another process or another object holds it
  ~Lock();
  Lock(const Lock&) = delete;
  Lock& operator=(const Lock&) = delete;

  // If somebody removed or replaced the lock file, another writer may have come. Then this takes the lock again, or throws
  // as the constructor does. Returns whether it took the lock again.
  bool renew();
  void remove_if_made() noexcept;              // removes the file if this object created it
  static bool is_held(const Path& directory);  // by another process or object

 private:
  void take();
  void let_go() noexcept;
  static void forget_after_fork() noexcept;

  Path directory_;
  File file_;
  bool is_made_ = false;  // this object created the file
};

}  // namespace robocache::cache
