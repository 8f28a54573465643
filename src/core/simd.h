// SIMD dispatch: an op compiles its cpu/simd.cpp once for each of ROBOCACHE_SIMD_TARGETS (robocache_config.h), each time in a
// namespace of the target's name, and the best target that the CPU runs is picked at run time.
//
// An op's cpu/cpu.h declares `struct CpuFunctions`, a table of function pointers. Its cpu/simd.cpp ends with the table of the
// target:
//
//   extern const CpuFunctions cpu_functions;
//   constexpr CpuFunctions cpu_functions{locate, reduce};
//
// One other file of the op has, in the op's namespace, ROBOCACHE_SIMD_DISPATCH(cpu_functions_in_use). That defines
// `const CpuFunctions* cpu_functions_in_use()`: the table of the target in use, or nullptr where the reference code is to run.
#pragma once

#include "robocache_config.h"

namespace robocache {

// The position in ROBOCACHE_SIMD_TARGETS of the target in use; -1: none, so the reference code runs.
int simd_target_in_use() noexcept;

// A macro, because only the preprocessor knows the names of the targets.
#define ROBOCACHE_SIMD_DECLARE_TABLE(target) \
  namespace target {                         \
  extern const CpuFunctions cpu_functions;   \
  }
#define ROBOCACHE_SIMD_TABLE(target) &target::cpu_functions,
#define ROBOCACHE_SIMD_DISPATCH(name)                                                                       \
  ROBOCACHE_SIMD_TARGETS(ROBOCACHE_SIMD_DECLARE_TABLE)                                                      \
  static const CpuFunctions* name() {                                                                       \
    static constexpr const CpuFunctions* tables[] = {ROBOCACHE_SIMD_TARGETS(ROBOCACHE_SIMD_TABLE) nullptr}; \
    const int target = simd_target_in_use();                                                                \
    return target < 0 ? nullptr : tables[target];                                                           \
  }

}  // namespace robocache
