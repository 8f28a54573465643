// Which SIMD target the cpu backend uses. An op compiles its cpu.cpp once for each of ROBOCACHE_SIMD_TARGETS and keeps a
// table of what they export, in that order.
#pragma once

namespace robocache {

// The position in ROBOCACHE_SIMD_TARGETS of the target in use; -1: none, so the reference code runs.
int simd_target_in_use() noexcept;

}  // namespace robocache
