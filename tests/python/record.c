// LD_PRELOAD: logs every call that changes files under the folder $RECORD_FOLDER into the file $RECORD_LOG, with its data, in the
// order in which the calls returned. crash_model.py reads the log. A call that failed is not logged: it changed nothing.
// record_mark(text) adds a line of the program's own, such as "commit returned".
//
// What goes past libc (fopen's own open, a shared writable mapping) is not seen; crash_model.py notices, because it compares the
// folder that it computes from the log with the real one.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <execinfo.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

enum { FRAMES = 4 };

// Fixed size; then path, other path and data follow.
struct record {
  char kind[8];  // "create", "mkdir", "write", "resize", "rename", "link", "unlink", "fsync", "mark"
  uint64_t inode;
  int64_t offset;
  uint64_t path, other, data;  // bytes of each
  uint64_t stack[FRAMES];      // of an fsync: its callers, as places in their library, to tell call sites apart
};

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static char folder[PATH_MAX];
static int log_file = -1;

#define REAL(type, name, ...)       \
  static type (*real)(__VA_ARGS__); \
  if (!real) real = (type(*)(__VA_ARGS__))dlsym(RTLD_NEXT, #name)

static void put(const void* bytes, size_t count) {
  for (const char* at = bytes; count > 0;) {
    const long written = syscall(SYS_write, log_file, at, count);
    if (written <= 0) abort();
    at += written;
    count -= (size_t)written;
  }
}

__attribute__((constructor)) static void begin(void) {
  const char* const where = getenv("RECORD_FOLDER");
  const char* const to = getenv("RECORD_LOG");
  if (!where || !to) return;
  snprintf(folder, sizeof folder, "%s", where);
  log_file = (int)syscall(SYS_openat, AT_FDCWD, to, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
  unsetenv("RECORD_LOG");  // children of the program are not recorded
}

static void add(const char* kind, uint64_t inode, int64_t offset, const char* path, const char* other, const void* data,
                size_t count) {
  struct record record = {.inode = inode, .offset = offset, .path = strlen(path), .other = strlen(other), .data = count};
  strncpy(record.kind, kind, sizeof record.kind);
  void* frames[FRAMES + 2] = {0};
  if (strcmp(kind, "fsync") == 0) {
    const int found = backtrace(frames, FRAMES + 2);
    const void* library = NULL;
    for (int k = 2; k < found; ++k) {
      Dl_info info;
      if (!dladdr(frames[k], &info) || (library && info.dli_fbase != library)) break;
      library = info.dli_fbase;
      record.stack[k - 2] = (uint64_t)((const char*)frames[k] - (const char*)library);
    }
  }
  put(&record, sizeof record);
  put(path, record.path);
  put(other, record.other);
  put(data, count);
}

void record_mark(const char* text) {
  if (log_file < 0) return;
  pthread_mutex_lock(&mutex);
  add("mark", 0, 0, text, "", NULL, 0);
  pthread_mutex_unlock(&mutex);
}

static int is_inside(const char* path) {
  const size_t length = strlen(folder);
  return log_file >= 0 && strncmp(path, folder, length) == 0 && (path[length] == '/' || path[length] == 0);
}

static int path_of(int descriptor, char* path) {
  char link[64];
  snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
  const ssize_t count = readlink(link, path, PATH_MAX - 1);
  path[count > 0 ? count : 0] = 0;
  return log_file >= 0 && is_inside(path);
}

// The absolute form of `path`, which is relative to the directory `at`. 0: it is outside.
static int resolve(int at, const char* path, char* to) {
  char base[PATH_MAX] = "";
  if (log_file < 0) return 0;
  if (path[0] == '/') {
    snprintf(to, PATH_MAX, "%s", path);
  } else {
    if (at == AT_FDCWD ? getcwd(base, sizeof base) == NULL : (path_of(at, base), 0)) return 0;
    snprintf(to, PATH_MAX, "%.2000s/%.2000s", base, path);
  }
  return is_inside(to);
}

static uint64_t inode_of(int descriptor) {
  struct stat status;
  return fstat(descriptor, &status) == 0 ? status.st_ino : 0;
}

// A call on a descriptor: CALL, then a record if it worked.
#define ON_DESCRIPTOR(type, call, worked, kind, offset, data, count)             \
  char path[PATH_MAX];                                                           \
  if (!path_of(d, path)) return call;                                            \
  pthread_mutex_lock(&mutex);                                                    \
  const type result = call;                                                      \
  const int error = errno;                                                       \
  if (worked) add(kind, inode_of(d), (int64_t)(offset), path, "", data, count);  \
  pthread_mutex_unlock(&mutex);                                                  \
  errno = error;                                                                 \
  return result;

ssize_t pwrite(int d, const void* p, size_t n, off_t o) {
  REAL(ssize_t, pwrite, int, const void*, size_t, off_t);
  ON_DESCRIPTOR(ssize_t, real(d, p, n, o), result > 0, "write", o, p, (size_t)result)
}
ssize_t pwrite64(int d, const void* p, size_t n, off_t o) { return pwrite(d, p, n, o); }
ssize_t write(int d, const void* p, size_t n) {
  REAL(ssize_t, write, int, const void*, size_t);
  ON_DESCRIPTOR(ssize_t, real(d, p, n), result > 0, "write", lseek(d, 0, SEEK_CUR) - result, p, (size_t)result)
}
ssize_t writev(int d, const struct iovec* parts, int count) {  // as single writes: each is one call to the program
  ssize_t all = 0;
  for (int k = 0; k < count; ++k) {
    const ssize_t some = write(d, parts[k].iov_base, parts[k].iov_len);
    if (some < 0) return all > 0 ? all : some;
    all += some;
    if ((size_t)some < parts[k].iov_len) break;
  }
  return all;
}
int ftruncate(int d, off_t n) {
  REAL(int, ftruncate, int, off_t);
  ON_DESCRIPTOR(int, real(d, n), result == 0, "resize", n, NULL, 0)
}
int ftruncate64(int d, off_t n) { return ftruncate(d, n); }
int fsync(int d) {
  REAL(int, fsync, int);
  ON_DESCRIPTOR(int, real(d), result == 0, "fsync", 0, NULL, 0)
}
int fdatasync(int d) {
  REAL(int, fdatasync, int);
  ON_DESCRIPTOR(int, real(d), result == 0, "fsync", 0, NULL, 0)
}
// sync_file_range() promises nothing after a crash, so it is not logged.

// A call on names: CALL, then a record if it worked.
#define ON_NAMES(inside, call, kind, inode, path, other)         \
  if (!(inside)) return call;                                    \
  pthread_mutex_lock(&mutex);                                    \
  const int result = call;                                       \
  const int error = errno;                                       \
  if (result == 0) add(kind, inode, 0, path, other, NULL, 0);    \
  pthread_mutex_unlock(&mutex);                                  \
  errno = error;                                                 \
  return result;

static uint64_t inode_at(const char* path) {
  struct stat status;
  return lstat(path, &status) == 0 ? status.st_ino : 0;
}

int renameat2(int from_at, const char* from, int to_at, const char* to, unsigned flags) {
  char a[PATH_MAX], b[PATH_MAX];
  const int inside = resolve(from_at, from, a) | resolve(to_at, to, b);
  ON_NAMES(inside, (int)syscall(SYS_renameat2, from_at, from, to_at, to, flags), "rename", 0, a, b)
}
int renameat(int from_at, const char* from, int to_at, const char* to) { return renameat2(from_at, from, to_at, to, 0); }
int rename(const char* from, const char* to) { return renameat2(AT_FDCWD, from, AT_FDCWD, to, 0); }

int linkat(int from_at, const char* from, int to_at, const char* to, int flags) {
  REAL(int, linkat, int, const char*, int, const char*, int);
  char a[PATH_MAX], b[PATH_MAX];
  const int inside = resolve(from_at, from, a) | resolve(to_at, to, b);
  ON_NAMES(inside, real(from_at, from, to_at, to, flags), "link", 0, a, b)
}
int link(const char* from, const char* to) { return linkat(AT_FDCWD, from, AT_FDCWD, to, 0); }

int unlinkat(int at, const char* path, int flags) {
  REAL(int, unlinkat, int, const char*, int);
  char a[PATH_MAX];
  const int inside = resolve(at, path, a);
  ON_NAMES(inside, real(at, path, flags), "unlink", 0, a, "")
}
int unlink(const char* path) { return unlinkat(AT_FDCWD, path, 0); }
int rmdir(const char* path) { return unlinkat(AT_FDCWD, path, AT_REMOVEDIR); }
int remove(const char* path) {
  const int result = unlink(path);
  return result != 0 && errno == EISDIR ? rmdir(path) : result;
}

int mkdirat(int at, const char* path, mode_t mode) {
  REAL(int, mkdirat, int, const char*, mode_t);
  char a[PATH_MAX];
  const int inside = resolve(at, path, a);
  ON_NAMES(inside, real(at, path, mode), "mkdir", inode_at(a), a, "")
}
int mkdir(const char* path, mode_t mode) { return mkdirat(AT_FDCWD, path, mode); }

int openat(int at, const char* path, int flags, ...) {
  REAL(int, openat, int, const char*, int, ...);
  va_list list;
  va_start(list, flags);
  const mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(list, mode_t) : 0;
  va_end(list);
  char a[PATH_MAX];
  if (!(flags & (O_CREAT | O_TRUNC)) || (flags & O_TMPFILE) == O_TMPFILE || !resolve(at, path, a))
    return real(at, path, flags, mode);
  pthread_mutex_lock(&mutex);
  const int is_new = inode_at(a) == 0;
  const int result = real(at, path, flags, mode);
  const int error = errno;
  if (result >= 0 && is_new) add("create", inode_of(result), 0, a, "", NULL, 0);
  if (result >= 0 && !is_new && (flags & O_TRUNC)) add("resize", inode_of(result), 0, a, "", NULL, 0);
  pthread_mutex_unlock(&mutex);
  errno = error;
  return result;
}
#include "openat.h"
int __open_2(const char* path, int flags) { return openat(AT_FDCWD, path, flags); }
int __open64_2(const char* path, int flags) { return openat(AT_FDCWD, path, flags); }
int creat(const char* path, mode_t mode) { return openat(AT_FDCWD, path, O_CREAT | O_WRONLY | O_TRUNC, mode); }
