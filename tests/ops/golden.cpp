#include "ops/golden.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

#include "io/hash.h"
#include "ops/device.h"

namespace robocache::test {
namespace {

constexpr unsigned written_cases = 100;

std::string hash_of(const Bytes& arrays) {
  io::Hash hash;
  for (const std::vector<unsigned char>& array : arrays) {
    const std::string size = std::to_string(array.size()) + ":";  // where one array ends and the next begins
    hash.add(std::as_bytes(std::span(size)));
    hash.add(std::as_bytes(std::span(array)));
  }
  return hash.text().substr(0, 16);
}

void write(std::string_view file, const GoldenRun& run) {
  const std::string path = std::string(ROBOCACHE_GOLDEN_FOLDER "/").append(file);
  std::ofstream out(path);
  for (unsigned seed = 0; seed < written_cases; ++seed) {
    out << '"' << hash_of(run(seed, Backend::reference, DeviceKind::cpu)) << "\",\n";
  }
  ASSERT_TRUE(out.flush()) << path;
}

}  // namespace

void expect_golden(std::string_view file, std::span<const std::string_view> expected, const GoldenRun& run) {
  if (const char* const asked = std::getenv("ROBOCACHE_GOLDEN");
      asked != nullptr && std::string_view(asked) == "write") {
    return write(file, run);
  }
  ASSERT_EQ(expected.size(), written_cases);
  const std::string before = simd_target();
  std::vector<std::string> targets = simd_targets();
  targets.emplace_back("none");
  for (unsigned seed = 0; seed < expected.size(); ++seed) {
    const auto check = [&](Backend backend, DeviceKind where, const std::string& name) {
      EXPECT_EQ(hash_of(run(seed, backend, where)), expected[seed]) << file << ", seed " << seed << ", " << name;
    };
    check(Backend::reference, DeviceKind::cpu, "reference");
    for (const std::string& target : targets) {
      set_simd_target(target);
      check(Backend::cpu, DeviceKind::cpu, target);
    }
    set_simd_target(before);
    if (has_cuda()) check(Backend::cuda, DeviceKind::cuda, "cuda");
  }
}

}  // namespace robocache::test
