// What the programs say where the library is not what its headers promise.
#pragma once

#include <cstdio>

inline int mismatches = 0;

inline void expect(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "consumer: %s\n", what);
  ++mismatches;
}
