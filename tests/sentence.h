// The sentence of a call that must fail.
#pragma once

#include <gtest/gtest.h>
#include <robocache/error.h>

#include <optional>
#include <string>

namespace robocache::test {

template <class F>
std::string sentence(const F& f, std::optional<ErrorKind> kind = {}) {
  try {
    f();
  } catch (const Error& error) {
    if (kind) {
      EXPECT_EQ(error.kind(), *kind) << error.what();
    }
    return error.what();
  }
  return "no error";
}

}  // namespace robocache::test
