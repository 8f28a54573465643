#include "call.h"

#include <utility>

namespace robocache::python {

namespace {

// The first byte, and the one after the last.
std::pair<std::uintptr_t, std::uintptr_t> extent(const TensorView& view) {
  std::int64_t first = 0, last = 0;  // elements
  for (int k = 0; k < view.rank; ++k) {
    const auto d = static_cast<std::size_t>(k);
    const std::int64_t reach = (view.shape[d] - 1) * view.strides[d];
    (reach < 0 ? first : last) += reach;
  }
  const auto origin = reinterpret_cast<std::uintptr_t>(view.data);
  const auto bytes = [&](std::int64_t elements) { return static_cast<std::uintptr_t>(elements * size_of(view.dtype)); };
  return {origin + bytes(first), origin + bytes(last + 1)};
}

}  // namespace

void check_apart(const Where& where, const TensorView& out, const char* argument, const TensorView& input,
                 const char* written) {
  if (!input || out.size() == 0 || input.size() == 0) return;
  const auto [begin, end] = extent(out);
  const auto [other_begin, other_end] = extent(input);
  if (begin >= other_end || other_begin >= end) return;
  fail(ErrorKind::value, where, written, " overlaps ", argument, " in memory; pass an array of its own");
}

}  // namespace robocache::python
