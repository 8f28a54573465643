// RoboCache from somebody else's project: an action expert's queries over a cached prefix with padding and their own keys.
#include <robocache/robocache.h>

#include "expect.h"

#include <array>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <limits>

namespace rc = robocache;

int main() {
  constexpr std::int64_t head_dim = 32;
  constexpr float not_a_number = std::numeric_limits<float>::quiet_NaN();

  // Two query heads read one head of keys. All scores are zero, so that a query sees the mean of what it may see.
  std::array<float, 2 * 2 * head_dim> queries{}, out{};
  std::array<float, 3 * head_dim> prefix_keys{}, prefix_values{};
  std::array<float, 2 * head_dim> keys{}, values{};
  const std::array<float, 5> worth = {1, not_a_number, 3, 5, 9};
  for (std::size_t d = 0; d < head_dim; ++d) {
    for (std::size_t j = 0; j < 3; ++j) prefix_values[j * head_dim + d] = worth[j];
    for (std::size_t j = 0; j < 2; ++j) values[j * head_dim + d] = worth[3 + j];
  }
  const std::array<bool, 5> valid = {true, false, true, true, true};  // the second place of the prefix is padding
  std::array<float, 4> lse{};

  const auto vectors = [](auto& data, std::int64_t heads, std::int64_t places) {
    return rc::TensorView::contiguous(data.data(), rc::DType::f32, {1, heads, places, head_dim});
  };
  rc::Attention call;
  call.queries = vectors(queries, 2, 2);
  call.segments = {{vectors(prefix_keys, 1, 3), vectors(prefix_values, 1, 3)},
                   {vectors(keys, 1, 2), vectors(values, 1, 2)}};
  call.mask.causal = true;
  call.mask.key_valid = rc::TensorView::contiguous(valid.data(), rc::DType::boolean, {5});
  try {
    rc::attention({}, call, vectors(out, 2, 2), rc::TensorView::contiguous(lse.data(), rc::DType::f32, {1, 2, 2}));
    std::printf("%s\n", rc::describe_attention({}, call).c_str());
  } catch (const rc::Error& error) {
    std::fprintf(stderr, "consumer: %s\n", error.what());
    return 1;
  }
  for (std::size_t row = 0; row < 4; ++row) {
    const bool last = row % 2 == 1;
    std::printf("head %zu query %zu: %.2f, lse %.3f\n", row / 2, row % 2, out[row * head_dim], lse[row]);
    expect(std::abs(out[row * head_dim] - (last ? 4.5F : 3.0F)) < 1e-5F, "a query sees the mean of its keys");
    expect(std::abs(lse[row] - std::log(last ? 4.0F : 3.0F)) < 1e-5F, "lse is the logarithm of how many there are");
  }

  // Bad input gets a sentence, and the library works on.
  call.segments.pop_back();
  try {
    rc::attention({}, call, vectors(out, 2, 2));
    expect(false, "a mask of the wrong length must be refused");
  } catch (const rc::Error& error) {
    std::printf("refused as it must: %s\n", error.what());
    expect(error.kind() == rc::ErrorKind::value, "a mask of the wrong length is an Error of the kind value");
  }
  return mismatches == 0 ? 0 : 1;
}
