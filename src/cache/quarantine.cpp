#include "cache/quarantine.h"

#include <fcntl.h>
#include <robocache/error.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <ctime>

#include "core/interrupt.h"
#include "core/text.h"

namespace robocache::cache {

namespace {

constexpr std::int64_t block = 1 << 20;

std::string time_text(const char* format) {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  gmtime_r(&now, &parts);
  char text[64] = {};
  std::strftime(text, sizeof(text), format, &parts);
  return text;
}

void write_new(const Path& path, std::string_view content) {
  const File file(path, O_WRONLY | O_CREAT | O_EXCL);
  file.write(0, std::as_bytes(std::span(content)));
  file.sync();
}

void rename_file(const Path& from, const Path& to) {
  if (std::rename(from.c_str(), to.c_str()) != 0) fail_errno(from, concat("cannot be moved to ", to.string()), errno);
}

}  // namespace

std::string time_in_words() { return time_text("%Y-%m-%d %H:%M:%S UTC"); }

Quarantine::Quarantine(Path cache) : cache_(std::move(cache)) {}

void Quarantine::make_folder() {
  const Path all = cache_ / "quarantine";
  struct stat status {};
  if (lstat(all.c_str(), &status) == 0 && !S_ISDIR(status.st_mode)) {
    throw Error(ErrorKind::file, concat(all.string(), ": is not a directory; move it away, a repair needs the name"));
  }
  make_directory(all);
  const std::string time = time_text("%Y%m%dT%H%M%SZ");
  for (int k = 1;; ++k) {
    folder_ = Path("quarantine") / (k == 1 ? time : concat(time, "-", k));
    if (mkdir((cache_ / folder_).c_str(), 0777) == 0) break;
    if (errno != EEXIST) fail_errno(cache_ / folder_, "the directory cannot be made", errno);
  }
  sync_directory(all);
}

void Quarantine::copy(const Path& file) const {
  const File from(cache_ / file, O_RDONLY);
  const File to(cache_ / folder_ / file, O_WRONLY | O_CREAT | O_EXCL);
  std::vector<std::byte> bytes;
  const std::int64_t size = from.size();
  for (std::int64_t at = 0; at < size; at += block) {
    check_interrupt();
    bytes.resize(static_cast<std::size_t>(std::min(block, size - at)));
    from.read(at, bytes);
    to.write(at, bytes);
  }
  to.sync();
}

void Quarantine::move(const Path& file) {
  rename_file(cache_ / file, cache_ / folder_ / file);
  moved_.push_back(file);
}

void Quarantine::move_back() noexcept {
  for (auto file = moved_.rbegin(); file != moved_.rend(); ++file) {
    static_cast<void>(std::rename((cache_ / folder_ / *file).c_str(), (cache_ / *file).c_str()));
  }
  moved_.clear();
}

Path Quarantine::take(const std::vector<QuarantinedFile>& files, const std::string& report) {
  make_folder();
  const Path at = cache_ / folder_;
  write_new(at / "report.txt", report);
  try {
    make_directory(at / "shards");  // this also puts the report's name on the disk before anything is moved
    for (const QuarantinedFile& taken : files) {
      if (taken.is_copy) copy(taken.file);
    }
    for (const QuarantinedFile& taken : files) {
      if (!taken.is_copy) move(taken.file);
    }
    sync_directory(at / "shards");  // puts the new names on the disk first
    sync_directory(at);
  } catch (...) {
    move_back();
    try {
      write_new(at / "undone.txt", "This repair failed. What it had moved was moved back; the cache is as it was.\n");
    } catch (const Error&) {  // report the first failure
    }
    throw;
  }
  return folder_;
}

}  // namespace robocache::cache
