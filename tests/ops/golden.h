// Hashes of what drawn cases give, in tests/golden: every machine, x86 or ARM, with a GPU or without, checks the same
// numbers. tests/python/test_golden.py does the same for the cases of the Python tests.
#pragma once

#include <robocache/robocache.h>

#include <functional>
#include <span>
#include <string_view>

#include "ops/compare.h"

namespace robocache::test {

// All outputs of the case with this seed.
using GoldenRun = std::function<Bytes(unsigned seed, Backend backend, DeviceKind where)>;

// Runs seed k of `expected` on every backend and SIMD target of this machine, and expects the hash expected[k].
// With ROBOCACHE_GOLDEN=write in the environment it writes the hashes of the reference backend into tests/golden/`file`
// instead. A change there is a change of what RoboCache computes: say why in CHANGELOG.md.
void expect_golden(std::string_view file, std::span<const std::string_view> expected, const GoldenRun& run);

}  // namespace robocache::test
