#include "numpy.h"

#include <nanobind/ndarray.h>

#include <memory>
#include <utility>
#include <vector>

#include "tensor.h"

namespace nb = nanobind;

namespace robocache::python {

nb::object numpy_of(Array&& array) {
  const std::vector<std::size_t> shape(array.shape.begin(), array.shape.end());
  const dlpack::DataType type = dlpack_type(array.dtype);
  std::byte* const data = array.data.get();
  auto kept = std::make_unique<Array>(std::move(array));
  const nb::capsule owner(kept.get(), [](void* memory) noexcept { delete static_cast<Array*>(memory); });
  static_cast<void>(kept.release());
  return nb::cast(
      nb::ndarray<nb::numpy>(data, shape.size(), shape.data(), owner, nullptr, {type.code, type.bits, type.lanes}));
}

}  // namespace robocache::python
