#include "core/simd.h"

#include <robocache/context.h>
#include <robocache/error.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "robocache_config.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace robocache {
namespace {

constexpr int none = -1;

// Everything that the -march of cmake/ops.cmake lets a compiler use. The builtin also asks whether the system saves the
// wide registers.
#if defined(__x86_64__)
bool runs_avx2() {
  unsigned a = 0;
  unsigned b = 0;
  unsigned c = 0;
  unsigned d = 0;
  constexpr unsigned movbe = 1u << 22;
  constexpr unsigned half_floats = 1u << 29;
  constexpr unsigned leading_zeros = 1u << 5;
  if (__get_cpuid(1, &a, &b, &c, &d) == 0 || (c & movbe) == 0 || (c & half_floats) == 0) return false;
  if (__get_cpuid(0x80000001u, &a, &b, &c, &d) == 0 || (c & leading_zeros) == 0) return false;
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi") &&
         __builtin_cpu_supports("bmi2") && __builtin_cpu_supports("popcnt");
}
bool runs_avx512() {
  return runs_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}
#elif defined(__aarch64__)
bool runs_neon() { return true; }  // every aarch64 has it
#endif

struct Target {
  std::string_view name;
  bool (*runs)();
};
constexpr Target targets[] = {
#define ROBOCACHE_TARGET(name) {#name, runs_##name},
    ROBOCACHE_SIMD_TARGETS(ROBOCACHE_TARGET)
#undef ROBOCACHE_TARGET
        {"none", nullptr}};
constexpr int target_count = static_cast<int>(std::size(targets)) - 1;

// What `name` means on this CPU: a position, none, or `unknown`.
constexpr int unknown = -2;
int find(std::string_view name) {
  if (name == "none") return none;
  for (int k = 0; k < target_count; ++k) {
    if (targets[k].name == name && targets[k].runs()) return k;
  }
  return unknown;
}

int target_by_default() {
  if (const char* text = std::getenv("ROBOCACHE_SIMD"); text != nullptr && *text != '\0') {
    const int asked = find(text);
    if (asked != unknown) return asked;
    std::fprintf(stderr, "robocache: ROBOCACHE_SIMD is \"%s\", which does not run here, so it is ignored\n", text);
  }
  for (int k = 0; k < target_count; ++k) {
    if (targets[k].runs()) return k;
  }
  return none;
}

constexpr int undecided = -3;
constinit std::atomic<int> in_use{undecided};

}  // namespace

int simd_target_in_use() noexcept {
  int target = in_use.load(std::memory_order_relaxed);
  if (target == undecided) {
    const int chosen = target_by_default();
    if (in_use.compare_exchange_strong(target, chosen)) target = chosen;
  }
  return target;
}

std::vector<std::string> simd_targets() {
  std::vector<std::string> names;
  for (int k = 0; k < target_count; ++k) {
    if (targets[k].runs()) names.emplace_back(targets[k].name);
  }
  return names;
}

std::string simd_target() {
  const int target = simd_target_in_use();
  return std::string(target == none ? "none" : targets[target].name);
}

void set_simd_target(const std::string& name) {
  const int target = find(name);
  if (target == unknown) {
    std::string sentence = "set_simd_target: \"" + name + "\" does not run here; these do:";
    for (const std::string& one : simd_targets()) sentence += " \"" + one + "\",";
    throw Error(ErrorKind::value, sentence + " \"none\"");
  }
  in_use.store(target);
}

}  // namespace robocache
