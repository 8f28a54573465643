#include "cache/files.h"

#include <fcntl.h>
#include <pthread.h>
#include <robocache/error.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <mutex>
#include <set>
#include <thread>
#include <utility>

#include "cache/hash.h"
#include "core/interrupt.h"
#include "core/text.h"

namespace robocache::cache {

namespace {

constexpr std::int64_t block = 1 << 20;
constexpr std::int64_t write_back_step = 8 << 20;

Path scratch_name(const Path& beside) {
  static std::atomic<unsigned> count = 0;
  return beside.string() + "." + std::to_string(getpid()) + "." + std::to_string(count++) + ".tmp";
}

template <class Call>
auto retried(const Call& call) {
  auto result = call();
  while (result < 0 && errno == EINTR) result = call();
  return result;
}

}  // namespace

void fail_errno(const Path& path, std::string_view what, int error) {
  const char* const more = error == ENOSPC || error == EDQUOT ? "; what was committed before is kept" : "";
  throw SystemError(concat(path.string(), ": ", what, ": ", std::strerror(error), more), error);
}

// ---- File

File::File(const Path& path, int flags) : path_(path) {
  const bool writes = (flags & O_ACCMODE) != O_RDONLY;
  const int more = O_CLOEXEC | O_NOCTTY | O_NONBLOCK | (writes ? O_NOFOLLOW : 0);
  descriptor_ = retried([&] { return open(path.c_str(), flags | more, 0666); });
  if (descriptor_ < 0) {
    const int error = errno;
    if (writes && (error == ELOOP || error == EEXIST) && is_link(path)) {
      throw Error(ErrorKind::file,
                  concat(path.string(), ": is a symbolic link, which a cache never writes to; remove it"));
    }
    fail_errno(path, (flags & O_CREAT) != 0 ? "cannot be made" : "cannot be opened", error);
  }
  struct stat status {};
  const bool is_known = fstat(descriptor_, &status) == 0;
  if (is_known && (S_ISREG(status.st_mode) || (flags & O_DIRECTORY) != 0)) return;
  const int error = errno;
  close(std::exchange(descriptor_, -1));
  if (!is_known) fail_errno(path, "cannot be read", error);
  throw Error(ErrorKind::file, concat(path.string(), ": is not a regular file"));
}

File& File::operator=(File&& other) noexcept {
  std::swap(descriptor_, other.descriptor_);
  std::swap(path_, other.path_);
  return *this;
}

File::~File() {
  if (descriptor_ >= 0) close(descriptor_);
}

void File::write(std::int64_t offset, std::span<const std::byte> from) const {
  while (!from.empty()) {
    const ssize_t count = retried([&] { return pwrite(descriptor_, from.data(), from.size(), offset); });
    if (count < 0) fail_errno(path_, "cannot be written", errno);
    if (count == 0) fail_errno(path_, "cannot be written", ENOSPC);
    from = from.subspan(static_cast<std::size_t>(count));
    offset += count;
  }
}

void File::read(std::int64_t offset, std::span<std::byte> to) const {
  while (!to.empty()) {
    const ssize_t count = retried([&] { return pread(descriptor_, to.data(), to.size(), offset); });
    if (count < 0) fail_errno(path_, "cannot be read", errno);
    if (count == 0) {  // another process is shortening the file; a repair must not treat that as damage
      throw SystemError(concat(path_.string(), ": the file became shorter while it was read"), EIO);
    }
    to = to.subspan(static_cast<std::size_t>(count));
    offset += count;
  }
}

std::int64_t File::size() const {
  struct stat status {};
  if (fstat(descriptor_, &status) != 0) fail_errno(path_, "cannot be read", errno);
  return status.st_size;
}

void File::resize(std::int64_t size) const {
  if (retried([&] { return ftruncate(descriptor_, size); }) != 0) fail_errno(path_, "cannot be written", errno);
}

void File::sync() const {
  if (retried([&] { return fsync(descriptor_); }) != 0) fail_errno(path_, "cannot be written to the disk", errno);
}

void File::write_back(std::int64_t offset, std::int64_t count) const {
  static_cast<void>(sync_file_range(descriptor_, offset, count, SYNC_FILE_RANGE_WRITE));  // sync() tells of failures
}

void File::rename(const Path& to) {
  if (::rename(path_.c_str(), to.c_str()) != 0) {
    fail_errno(path_, concat("cannot be renamed to ", to.filename().string()), errno);
  }
  path_ = to;
}

// ---- Spool

Spool::Spool(Path path, Kind kind, std::int64_t base, std::size_t memory)
    : path_(std::move(path)), kind_(kind), base_(base), memory_(memory) {}

void Spool::create() {
  const bool named = kind_ == Kind::named;
  file_ = File(named ? path_ : scratch_name(path_), O_RDWR | O_CREAT | O_EXCL);
  if (!named) remove_file(file_.path());
}

void Spool::flush() {
  if (tail_.empty()) return;
  if (!file_) create();
  file_.write(base_ + flushed_, tail_);
  flushed_ += static_cast<std::int64_t>(tail_.size());
  tail_.clear();
}

void Spool::append(std::span<const std::byte> from) {
  if (tail_.size() + from.size() > memory_) flush();
  if (from.size() > memory_) {
    if (!file_) create();
    file_.write(base_ + flushed_, from);
    flushed_ += static_cast<std::int64_t>(from.size());
  } else {
    tail_.insert(tail_.end(), from.begin(), from.end());
  }
  size_ += static_cast<std::int64_t>(from.size());
  if (kind_ == Kind::named && flushed_ - written_back_ >= write_back_step) {
    file_.write_back(base_ + written_back_, flushed_ - written_back_);
    written_back_ = flushed_;
  }
}

void Spool::read(std::int64_t offset, std::span<std::byte> to) const {
  const std::int64_t in_file = std::clamp<std::int64_t>(flushed_ - offset, 0, static_cast<std::int64_t>(to.size()));
  if (in_file > 0) file_.read(base_ + offset, to.first(static_cast<std::size_t>(in_file)));
  const auto rest = to.subspan(static_cast<std::size_t>(in_file));
  if (!rest.empty()) std::memcpy(rest.data(), tail_.data() + (offset + in_file - flushed_), rest.size());
}

void Spool::write(std::int64_t offset, std::span<const std::byte> from) {
  const std::int64_t in_file = std::clamp<std::int64_t>(flushed_ - offset, 0, static_cast<std::int64_t>(from.size()));
  if (in_file > 0) file_.write(base_ + offset, from.first(static_cast<std::size_t>(in_file)));
  const auto rest = from.subspan(static_cast<std::size_t>(in_file));
  if (!rest.empty()) std::memcpy(tail_.data() + (offset + in_file - flushed_), rest.data(), rest.size());
}

void Spool::truncate(std::int64_t size) {
  if (size >= size_) return;
  tail_.resize(static_cast<std::size_t>(std::max<std::int64_t>(size - flushed_, 0)));
  flushed_ = std::min(flushed_, size);
  written_back_ = std::min(written_back_, size);
  size_ = size;
}

std::int64_t Spool::settle(std::int64_t base, const Path& other, bool anew) {
  if (!file_) base_ = base;  // nothing was written yet: no need to reserve
  if (file_ && (anew || base > base_)) {
    Spool moved(other, kind_, base, memory_);
    try {
      moved.create();
      std::vector<std::byte> bytes(static_cast<std::size_t>(block));
      for (std::int64_t at = 0; at < size_; at += block) {
        check_interrupt();
        const auto part = std::span(bytes).first(static_cast<std::size_t>(std::min(block, size_ - at)));
        read(at, part);
        moved.append(part);
      }
    } catch (...) {
      remove_file(other);
      throw;
    }
    if (path_ != other) remove_file(path_);
    *this = std::move(moved);
  }
  if (!file_) create();
  flush();
  return base_;
}

void Spool::rename(const Path& to) {
  if (file_) file_.rename(to);
  path_ = to;
}

// ---- Names

void make_directory(const Path& path, bool is_synced) {
  if (mkdir(path.c_str(), 0777) == 0) {
    if (!is_synced) return;
    const Path parent = path.parent_path();
    sync_directory(parent.empty() ? "." : parent);
    return;
  }
  const int error = errno;
  if (error == EEXIST && std::filesystem::is_directory(path)) return;
  fail_errno(path, "the directory cannot be made", error == EEXIST ? ENOTDIR : error);
}

void sync_directory(const Path& path) { File(path, O_RDONLY | O_DIRECTORY).sync(); }

bool is_link(const Path& path) {
  struct stat status {};
  return lstat(path.c_str(), &status) == 0 && S_ISLNK(status.st_mode);
}

void replace_file(const Path& path, std::string_view content, bool* is_uncertain) {
  if (is_uncertain != nullptr) *is_uncertain = false;
  const Path temporary = path.string() + ".tmp";
  if (!is_link(temporary)) remove_file(temporary);  // left by a crash
  File file(temporary, O_WRONLY | O_CREAT | O_EXCL);
  try {
    file.write(0, std::as_bytes(std::span(content)));
    file.sync();
    file.rename(path);
  } catch (const Error&) {
    remove_file(temporary);
    throw;
  }
  if (is_uncertain != nullptr) *is_uncertain = true;
  sync_directory(path.parent_path());
  if (is_uncertain != nullptr) *is_uncertain = false;
}

void remove_file(const Path& path) noexcept { static_cast<void>(unlink(path.c_str())); }

std::string read_text(const Path& path, std::int64_t most) {
  const File file(path, O_RDONLY);
  const std::int64_t size = file.size();
  if (size > most) throw Error(ErrorKind::file, concat(path.string(), ": has ", size, " bytes; at most ", most));
  std::string text(static_cast<std::size_t>(size), '\0');
  file.read(0, std::as_writable_bytes(std::span(text)));
  return text;
}

// ---- Lock

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

FileStamp stamp_from(const struct stat& status) {
  return {static_cast<std::int64_t>(status.st_dev), static_cast<std::int64_t>(status.st_ino), status.st_size,
          status.st_mtim.tv_sec * 1'000'000'000LL + status.st_mtim.tv_nsec};
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
  file_ = File(directory_ / "lock", O_RDWR | O_CREAT);
  const auto is_taken = [&] {
    if (retried([&] { return flock(file_.descriptor(), LOCK_EX | LOCK_NB); }) == 0) return true;
    if (errno != EWOULDBLOCK) fail_errno(file_.path(), "cannot be locked", errno);
    return false;
  };
  // is_held() of another process holds a shared lock for a moment: a lock that is let go of within 50 ms was that.
  bool has_it = is_taken();
  for (int k = 0; k < 25 && !has_it; ++k) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    has_it = is_taken();
  }
  if (!has_it) {
    char process[32] = {};
    const ssize_t count = pread(file_.descriptor(), process, sizeof(process) - 1, 0);
    const bool is_own = process == std::to_string(getpid());
    const std::string who = is_own ? " in this process" : count > 0 ? concat(" (process ", process, ")") : "";
    throw Error(ErrorKind::file, concat(directory_.string(), ": another writer", who,
                                        " has this cache; one at a time can write, wait until it is done"));
  }
  const std::string process = std::to_string(getpid());  // for the sentence above, no more: a failure is no matter
  if (ftruncate(file_.descriptor(), 0) == 0) {
    static_cast<void>(!pwrite(file_.descriptor(), process.data(), process.size(), 0));
  }
}

// Unlocked, not only closed: a child that was forked by other means may still have the descriptor. The number of this
// process goes first, so that no later sentence names it.
void Lock::let_go() noexcept {
  if (file_) {
    static_cast<void>(!ftruncate(file_.descriptor(), 0));
    static_cast<void>(flock(file_.descriptor(), LOCK_UN));
  }
  file_ = {};
}

void Lock::forget_after_fork() noexcept {
  for (Lock* const lock : locks().held) lock->file_ = {};  // closed, not unlocked: the parent still has it
}

bool Lock::renew() {
  struct stat mine {
  }, there{};
  if (fstat(file_.descriptor(), &mine) != 0) fail_errno(file_.path(), "cannot be read", errno);
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

bool Lock::is_held(const Path& directory) {
  const int descriptor = open((directory / "lock").c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW);
  if (descriptor < 0) return false;
  const bool held = flock(descriptor, LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK;
  close(descriptor);
  return held;
}

// ---- Sources

std::vector<FileStamp> stamps_of(std::span<const Path> files) {
  std::vector<FileStamp> stamps;
  for (const Path& path : files) {
    struct stat status {};
    if (stat(path.c_str(), &status) != 0) fail_errno(path, "cannot be read", errno);
    stamps.push_back(stamp_from(status));
  }
  return stamps;
}

std::string hash_of(std::span<const Path> files) {
  if (files.empty()) return {};
  Hash hash;
  std::vector<std::byte> bytes(static_cast<std::size_t>(block));
  for (const Path& path : files) {
    const File file(path, O_RDONLY);
    static_cast<void>(posix_fadvise(file.descriptor(), 0, 0, POSIX_FADV_SEQUENTIAL));
    const std::int64_t size = file.size();
    hash.add(std::as_bytes(std::span(&size, 1)));
    for (std::int64_t at = 0; at < size; at += block) {
      check_interrupt();
      const auto part = std::span(bytes).first(static_cast<std::size_t>(std::min(block, size - at)));
      file.read(at, part);
      hash.add(part);
    }
  }
  return hash.text();
}

}  // namespace robocache::cache
