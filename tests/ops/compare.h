// How a test of an op draws its cases, and how it compares two runs of one.
#pragma once

#include <gtest/gtest.h>
#include <robocache/robocache.h>

#include <algorithm>
#include <cstdlib>
#include <random>
#include <string>
#include <vector>

namespace robocache::test {

// A case is a seed: whatever fails can be run again.
class Random {
 public:
  explicit Random(unsigned seed) : random_(seed) {}

  bool chance(int percent) { return static_cast<int>(random_() % 100) < percent; }
  std::int64_t uniform(std::int64_t low, std::int64_t high) {
    return low + static_cast<std::int64_t>(random_() % static_cast<std::uint64_t>(high - low + 1));
  }
  double real(double low, double high) { return low + (high - low) * (static_cast<double>(random_()) * 0x1p-32); }
  std::int64_t pick(std::initializer_list<std::int64_t> list) { return pick_of(list); }
  template <class T>
  T pick_of(std::initializer_list<T> list) {
    return list.begin()[random_() % list.size()];
  }

 protected:
  std::mt19937 random_;
};

inline std::int64_t product(const std::vector<std::int64_t>& shape) {
  std::int64_t n = 1;
  for (const std::int64_t x : shape) n *= x;
  return n;
}

// The bytes of every output of a call.
using Bytes = std::vector<std::vector<unsigned char>>;

// Where two runs differ first; "" where they are equal.
inline std::string difference(const Bytes& a, const Bytes& b) {
  if (a.size() != b.size()) return std::to_string(a.size()) + " arrays and " + std::to_string(b.size());
  for (std::size_t k = 0; k < a.size(); ++k) {
    const auto [x, y] = std::mismatch(a[k].begin(), a[k].end(), b[k].begin(), b[k].end());
    if (x == a[k].end() && y == b[k].end()) continue;
    const auto at = static_cast<std::size_t>(x - a[k].begin());
    std::string text = "array " + std::to_string(k) + " of " + std::to_string(a[k].size()) + " bytes, from byte " +
                       std::to_string(at) + ":";
    for (std::size_t n = at / 8 * 8; n < std::min(at / 8 * 8 + 16, a[k].size()); ++n) {
      text += " " + std::to_string(a[k][n]) + "|" + std::to_string(b[k][n]);
    }
    return text;
  }
  return "";
}

// compute-sanitizer is slow: it may ask for fewer.
inline unsigned cuda_cases() {
  const char* const asked = std::getenv("ROBOCACHE_CUDA_CASES");
  return asked != nullptr ? static_cast<unsigned>(std::atoi(asked)) : 250u;
}

inline std::string seed_name(unsigned seed) { return "seed " + std::to_string(seed); }

// Expects that the cpu backend gives what the reference gives, on every SIMD target. run(backend): the outputs.
template <class Run>
void expect_cpu_equals_reference(const std::string& name, const Run& run) {
  const Bytes expected = run(Backend::reference);
  const std::string before = simd_target();
  for (const std::string& target : simd_targets()) {
    set_simd_target(target);
    EXPECT_EQ(difference(run(Backend::cpu), expected), "") << name << ", " << target;
  }
  set_simd_target(before);
}

// The same for CUDA. run(backend, where its arrays are).
template <class Run>
void expect_cuda_equals_reference(const std::string& name, const Run& run) {
  EXPECT_EQ(difference(run(Backend::cuda, DeviceKind::cuda), run(Backend::reference, DeviceKind::cpu)), "") << name;
}

}  // namespace robocache::test
