// Tensors in host memory that own it.
#pragma once

#include <robocache/tensor.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#pragma GCC visibility push(default)  // the shared library exports what follows

namespace robocache {

// A dense row-major tensor in host memory, and the memory.
struct Array {
  DType dtype = DType::f32;
  std::vector<std::int64_t> shape{};
  std::unique_ptr<std::byte[]> data{};

  TensorView view() const { return TensorView::contiguous(data.get(), dtype, shape); }
};

}  // namespace robocache

#pragma GCC visibility pop
