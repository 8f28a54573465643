#include "core/simd.h"

#include <gtest/gtest.h>
#include <robocache/context.h>
#include <robocache/error.h>

#include <string>

namespace robocache {
namespace {

TEST(Simd, EveryTargetCanBeSet) {
  const std::string before = simd_target();
  for (const std::string& name : simd_targets()) {
    set_simd_target(name);
    EXPECT_EQ(simd_target(), name);
    EXPECT_GE(simd_target_in_use(), 0);
  }
  set_simd_target("none");
  EXPECT_EQ(simd_target(), "none");
  EXPECT_EQ(simd_target_in_use(), -1);
  set_simd_target(before);
}

TEST(Simd, RefusesWhatDoesNotRunHere) {
  const std::string before = simd_target();
  try {
    set_simd_target("mmx");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::value);
    EXPECT_NE(std::string(error.what()).find("\"mmx\" does not run here"), std::string::npos);
    EXPECT_NE(std::string(error.what()).find("\"none\""), std::string::npos);
  }
  EXPECT_EQ(simd_target(), before);
}

}  // namespace
}  // namespace robocache
