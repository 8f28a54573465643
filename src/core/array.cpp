#include <robocache/array.h>
#include <robocache/error.h>

#include <cstddef>
#include <limits>
#include <utility>

#include "core/text.h"

namespace robocache {

namespace {

// Throws where the shape has too many dimensions, a negative size, or more bytes than a pointer difference can count.
std::size_t checked_bytes(DType dtype, std::span<const std::int64_t> shape) {
  if (shape.size() > max_rank) {
    throw Error(ErrorKind::value, concat("an array has ", shape.size(), " dimensions; at most ", max_rank));
  }
  bool is_empty = false;
  for (const std::int64_t size : shape) {
    if (size < 0) throw Error(ErrorKind::value, concat("an array has shape ", shape_text(shape)));
    is_empty = is_empty || size == 0;
  }
  if (is_empty) return 0;
  std::int64_t bytes = size_of(dtype);
  for (const std::int64_t size : shape) {
    if (bytes > std::numeric_limits<std::ptrdiff_t>::max() / size) {
      throw Error(ErrorKind::value,
                  concat("an array of ", name_of(dtype), " with shape ", shape_text(shape), " has 2^63 bytes or more"));
    }
    bytes *= size;
  }
  return static_cast<std::size_t>(bytes);
}

}  // namespace

Array Array::zeros(DType dtype, std::vector<std::int64_t> shape) {
  const std::size_t bytes = checked_bytes(dtype, shape);
  return {dtype, std::move(shape), std::make_unique<std::byte[]>(bytes)};
}

Array Array::adopt(void* memory, DType dtype, std::vector<std::int64_t> shape, std::function<void()> release) {
  checked_bytes(dtype, shape);
  if (!release) release = [] {};
  return {dtype, std::move(shape), {static_cast<std::byte*>(memory), ArrayRelease(std::move(release))}};
}

}  // namespace robocache
