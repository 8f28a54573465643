// LD_PRELOAD: calls on files under a folder fail when told to. fault_arm(folder, n, error, sticky): the n-th call from now
// fails with `error` (0: a read or write does half of what it was asked to), and with `sticky` every later one too. The calls
// that count are those that change files; fault_calls_of(" pread mmap ") names others. A file whose fsync fails is held, so
// that fault_retried() can tell how many later ones of the same file passed; with fault_lose(1) it has zeros from then on, as
// Linux may drop what it could not write; with fault_lose(2) the files without a name in the folder have.
// fault_after(end, call): calls `call` once, after the next rename to a name that ends so.
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static char folder[PATH_MAX];
static long at, calls, fired;
static int failure, sticky;
static char last[PATH_MAX + 32];
static int failed = -1, loses;
static long retried;
static int exact;
static char counted[256] = " pwrite write fsync fdatasync ftruncate rename mkdir create ";

void fault_arm(const char* where, long n, int error, int all) {
  strncpy(folder, where, sizeof folder - 1);
  at = n;
  calls = fired = 0;
  failure = error;
  sticky = all;
  last[0] = 0;
  if (failed >= 0) close(failed);
  failed = -1;
  retried = 0;
}
void fault_calls_of(const char* names) { snprintf(counted, sizeof counted, "%s", names); }
void fault_exact(int yes) { exact = yes; }  // only calls on the folder itself
void fault_lose(int all) { loses = all; }
long fault_retried(void) { return retried; }
long fault_fired(void) { return fired; }
long fault_calls(void) { return calls; }
const char* fault_last(void) { return last; }

static int fails(const char* what, const char* path) {
  if (at == 0 || (exact ? strcmp(path, folder) : strncmp(path, folder, strlen(folder))) != 0) return 0;
  char name[32];
  snprintf(name, sizeof name, " %s ", what);
  if (!strstr(counted, name)) return 0;
  ++calls;
  if (calls != at && !(sticky && calls > at)) return 0;
  ++fired;
  if (fired == 1) snprintf(last, sizeof last, "%s %s", what, path);
  return 1;
}
static int fails_on(const char* what, int descriptor) {
  if (at == 0) return 0;
  char link[64], path[PATH_MAX];
  snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
  const ssize_t n = readlink(link, path, sizeof path - 1);
  if (n <= 0) return 0;
  path[n] = 0;
  return fails(what, path);
}
#define REAL(type, name, ...)                         \
  static type (*real)(__VA_ARGS__);                   \
  if (!real) real = (type(*)(__VA_ARGS__))dlsym(RTLD_NEXT, #name)
#define FAIL(condition) \
  if (condition) {      \
    errno = failure;    \
    return -1;          \
  }

ssize_t pwrite(int d, const void* p, size_t n, off_t o) {
  REAL(ssize_t, pwrite, int, const void*, size_t, off_t);
  const int fail = fails_on("pwrite", d);
  FAIL(fail && failure != 0)
  return real(d, p, fail && n > 1 ? n / 2 : n, o);
}
ssize_t pwrite64(int d, const void* p, size_t n, off_t o) { return pwrite(d, p, n, o); }
ssize_t write(int d, const void* p, size_t n) {
  REAL(ssize_t, write, int, const void*, size_t);
  const int fail = fails_on("write", d);
  FAIL(fail && failure != 0)
  return real(d, p, fail && n > 1 ? n / 2 : n);
}
static void lose(int d, off_t size) {
  REAL(int, ftruncate, int, off_t);
  if (real(d, 0) == 0) real(d, size);
}
static void lose_nameless(void) {
  DIR* const all = opendir("/proc/self/fd");
  for (struct dirent* entry; all && (entry = readdir(all));) {
    char link[320], path[PATH_MAX];
    snprintf(link, sizeof link, "/proc/self/fd/%s", entry->d_name);
    const ssize_t n = readlink(link, path, sizeof path - 1);
    if (n <= 0) continue;
    path[n] = 0;
    struct stat status;
    const int d = atoi(entry->d_name);
    if (strncmp(path, folder, strlen(folder)) == 0 && strstr(path, " (deleted)") && fstat(d, &status) == 0)
      lose(d, status.st_size);
  }
  if (all) closedir(all);
}
int fsync(int d) {
  REAL(int, fsync, int);
  struct stat here, there;
  const int is_file = fstat(d, &here) == 0 && S_ISREG(here.st_mode);
  if (fails_on("fsync", d) && failure != 0) {
    if (is_file && failed < 0) failed = dup(d);
    if (is_file && loses == 1) lose(d, here.st_size);
    if (is_file && loses == 2) lose_nameless();
    errno = failure;
    return -1;
  }
  retried += is_file && failed >= 0 && fstat(failed, &there) == 0 && here.st_ino == there.st_ino;
  return real(d);
}
int fdatasync(int d) {
  REAL(int, fdatasync, int);
  FAIL(fails_on("fdatasync", d) && failure != 0)
  return real(d);
}
int ftruncate(int d, off_t n) {
  REAL(int, ftruncate, int, off_t);
  FAIL(fails_on("ftruncate", d) && failure != 0)
  return real(d, n);
}
int ftruncate64(int d, off_t n) { return ftruncate(d, n); }
static void (*after)(void);
static char ending[64];
void fault_after(const char* end, void (*call)(void)) {
  snprintf(ending, sizeof ending, "%s", end);
  after = call;
}
int rename(const char* from, const char* to) {
  REAL(int, rename, const char*, const char*);
  FAIL(fails("rename", from) && failure != 0)
  const int result = real(from, to);
  const size_t length = strlen(to), tail = strlen(ending);
  if (after && length >= tail && strcmp(to + length - tail, ending) == 0) {
    void (*const call)(void) = after;
    after = 0;
    call();
  }
  return result;
}
int mkdir(const char* path, mode_t mode) {
  REAL(int, mkdir, const char*, mode_t);
  FAIL(fails("mkdir", path) && failure != 0)
  return real(path, mode);
}
int unlink(const char* path) {
  REAL(int, unlink, const char*);
  FAIL(fails("unlink", path) && failure != 0)
  return real(path);
}
int flock(int d, int operation) {
  REAL(int, flock, int, int);
  FAIL(fails_on("flock", d) && failure != 0)
  return real(d, operation);
}
int close(int d) {
  REAL(int, close, int);
  const int fail = fails_on("close", d) && failure != 0;
  const int result = real(d);  // Linux closes it whatever it says
  FAIL(fail)
  return result;
}
void* mmap(void* where, size_t n, int protection, int flags, int d, off_t o) {
  REAL(void*, mmap, void*, size_t, int, int, int, off_t);
  if (d >= 0 && fails_on("mmap", d) && failure != 0) {
    errno = failure;
    return MAP_FAILED;
  }
  return real(where, n, protection, flags, d, o);
}
void* mmap64(void* where, size_t n, int protection, int flags, int d, off_t o) {
  return mmap(where, n, protection, flags, d, o);
}
ssize_t pread(int d, void* p, size_t n, off_t o) {
  REAL(ssize_t, pread, int, void*, size_t, off_t);
  const int fail = fails_on("pread", d);
  FAIL(fail && failure != 0)
  return real(d, p, fail && n > 1 ? n / 2 : n, o);
}
ssize_t pread64(int d, void* p, size_t n, off_t o) { return pread(d, p, n, o); }
ssize_t read(int d, void* p, size_t n) {
  REAL(ssize_t, read, int, void*, size_t);
  const int fail = fails_on("read", d);
  FAIL(fail && failure != 0)
  return real(d, p, fail && n > 1 ? n / 2 : n);
}

// Opening counts as "create" where it may make the file, else as "open".
int openat(int at, const char* path, int flags, ...) {
  REAL(int, openat, int, const char*, int, ...);
  va_list list;
  va_start(list, flags);
  const mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(list, mode_t) : 0;
  va_end(list);
  FAIL(fails(flags & O_CREAT ? "create" : "open", path) && failure != 0)
  return real(at, path, flags, mode);
}
#include "openat.h"
