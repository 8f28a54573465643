// Tensors in host memory that own it.
//
// ```cpp
// const robocache::Array positions = robocache::Array::zeros(robocache::DType::f32, {500, 7});
// const robocache::TensorView view = positions.view();  // what every call takes
// static_cast<float*>(view.data)[0] = 0.5F;
//
// // Memory of your own. The lambda keeps it alive as long as the array lives.
// auto stamps = std::make_shared<std::vector<std::int64_t>>(500);
// const robocache::Array times = robocache::Array::adopt(stamps->data(), robocache::DType::i64, {500}, [stamps] {});
// ```
//
// An array is dense and row-major. It can be moved, not copied; its elements stay where they are when it is moved, so views of
// it stay valid. A const array can be written through its view, as a const std::unique_ptr lets one write.
// Threads. Any number of threads may read one array at the same time.
// Limits. max_rank dimensions, and fewer than 2^63 bytes.
#pragma once

#include <robocache/tensor.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#pragma GCC visibility push(default)  // the shared library exports what follows

namespace robocache {

// Gives an array's memory back: delete[], or what adopt() was given.
class ArrayRelease {
 public:
  ArrayRelease() = default;
  ArrayRelease(std::default_delete<std::byte[]>) {}  // so that a std::unique_ptr<std::byte[]> can be assigned
  explicit ArrayRelease(std::function<void()> release) : release_(std::move(release)) {}

  void operator()(std::byte* memory) noexcept {
    if (release_) {
      release_();
    } else {
      delete[] memory;
    }
  }

 private:
  std::function<void()> release_{};
};

struct Array {
  DType dtype = DType::f32;
  std::vector<std::int64_t> shape{};
  std::unique_ptr<std::byte[], ArrayRelease> data{};  // from zeros() and from readers: aligned for any dtype

  TensorView view() const { return TensorView::contiguous(data.get(), dtype, shape); }

  // All elements are zero. Throws Error(value) where the rank is over max_rank, or a size is negative or too large, and
  // std::bad_alloc where there is no memory.
  static Array zeros(DType dtype, std::vector<std::int64_t> shape);

  // Memory of the caller's: dense, row-major, aligned for the dtype. `release` is called once, in the thread that destroys
  // the array, and must not throw; without it the memory must outlive the array. Throws as zeros() does; `release` is then
  // not called.
  static Array adopt(void* memory, DType dtype, std::vector<std::int64_t> shape, std::function<void()> release = {});
};

}  // namespace robocache

#pragma GCC visibility pop
