#include "cache/lock.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <utility>

#include "core/text.h"

namespace robocache::cache {

namespace {

// All locks of this process. The mutex is held across a fork, so that the child finds the list whole.
struct Locks {
  std::mutex mutex;
  std::set<Lock*> held;
  bool survives_fork = false;
};
Locks& locks() {
  static auto* const all = new Locks;  // never destroyed: writers may live until the process ends
  return *all;
}

}  // namespace

Lock::Lock(const Path& directory) : directory_(directory) {
  const std::lock_guard guard(locks().mutex);
  if (!locks().survives_fork) {
    const int error = pthread_atfork([] { locks().mutex.lock(); }, [] { locks().mutex.unlock(); },
                                     [] {
                                       forget_after_fork();
                                       locks().mutex.unlock();
                                     });
    if (error != 0) fail_errno(directory / "lock", "cannot be locked", error);
    locks().survives_fork = true;
  }
  take();
  locks().held.insert(this);
}

Lock::~Lock() {
  const std::lock_guard guard(locks().mutex);
  let_go();
  locks().held.erase(this);
}

void Lock::take() {
  const Path path = directory_ / "lock";
  struct stat status {};
  is_made_ = lstat(path.c_str(), &status) != 0 && errno == ENOENT;
  file_ = File(path, O_RDWR | O_CREAT);
  const auto is_taken = [&] {
    if (io::retried([&] { return flock(file_.descriptor().number(), LOCK_EX | LOCK_NB); }) == 0) return true;
    if (errno != EWOULDBLOCK) fail_errno(file_.path(), "cannot be locked", errno);
    return false;
  };
  // is_held() of another process takes a shared lock for a moment, so a lock that is released within 50 ms is no writer's.
  bool has_it = is_taken();
  for (int k = 0; k < 25 && !has_it; ++k) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    has_it = is_taken();
  }
  if (!has_it) {
    char process[32] = {};
    const ssize_t count = pread(file_.descriptor().number(), process, sizeof(process) - 1, 0);
    const bool is_own = process == std::to_string(getpid());
    const std::string who = is_own ? " in this process" : count > 0 ? concat(" (process ", process, ")") : "";
    throw Error(ErrorKind::file, concat(directory_.string(), ": another writer", who,
                                        " has this cache; one at a time can write, wait until it is done"));
  }
  const std::string process = std::to_string(getpid());  // only for the sentence above, so a failure is ignored
  if (ftruncate(file_.descriptor().number(), 0) == 0) {
    static_cast<void>(!pwrite(file_.descriptor().number(), process.data(), process.size(), 0));
  }
}

// The file is unlocked, not only closed: a child that was forked without pthread_atfork may still have the descriptor. The
// process id is removed first, so that no later sentence names this process.
void Lock::let_go() noexcept {
  if (file_) {
    static_cast<void>(!ftruncate(file_.descriptor().number(), 0));
    static_cast<void>(flock(file_.descriptor().number(), LOCK_UN));
  }
  file_ = {};
}

void Lock::forget_after_fork() noexcept {
  for (Lock* const lock : locks().held) lock->file_ = {};  // closed, not unlocked: the parent still holds the lock
}

bool Lock::renew() {
  struct stat mine {
  }, there{};
  if (fstat(file_.descriptor().number(), &mine) != 0) fail_errno(file_.path(), "cannot be read", errno);
  const bool is_there = stat(file_.path().c_str(), &there) == 0;
  if (!is_there && errno != ENOENT) fail_errno(file_.path(), "cannot be read", errno);
  if (is_there && mine.st_dev == there.st_dev && mine.st_ino == there.st_ino) return false;
  File before = std::move(file_);
  try {
    take();
  } catch (...) {
    file_ = std::move(before);  // still open, so that this can be tried again
    throw;
  }
  return true;
}

// A writer that waits for the lock then holds a file without a name; its renew() notices that before it writes.
void Lock::remove_if_made() noexcept {
  if (is_made_ && file_) remove_file(file_.path());
  is_made_ = false;
}

bool Lock::is_held(const Path& directory) {
  const io::Descriptor lock(directory / "lock", O_RDONLY | O_NONBLOCK | O_NOFOLLOW);
  return lock && flock(lock.number(), LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK;
}

}  // namespace robocache::cache
