#include "numpy.h"

#include <nanobind/ndarray.h>

#include <vector>

#include "tensor.h"

namespace nb = nanobind;

namespace robocache::python {

nb::object numpy_of(Array&& array) {
  const std::vector<std::size_t> shape(array.shape.begin(), array.shape.end());
  const nb::capsule owner(array.data.get(), [](void* memory) noexcept { delete[] static_cast<std::byte*>(memory); });
  std::byte* const data = array.data.release();
  const dlpack::DataType type = dlpack_type(array.dtype);
  return nb::cast(
      nb::ndarray<nb::numpy>(data, shape.size(), shape.data(), owner, nullptr, {type.code, type.bits, type.lanes}));
}

}  // namespace robocache::python
