// The other names of openat() in libc: each calls the openat() that the including shim defines.
#pragma once

#define AS_OPENAT(name, at, ...)                                                  \
  int name(__VA_ARGS__ const char* path, int flags, ...) {                        \
    va_list list;                                                                 \
    va_start(list, flags);                                                        \
    const mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(list, mode_t) : 0; \
    va_end(list);                                                                 \
    return openat(at, path, flags, mode);                                         \
  }
AS_OPENAT(open, AT_FDCWD)
AS_OPENAT(open64, AT_FDCWD)
AS_OPENAT(openat64, at, int at, )
