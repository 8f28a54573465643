// New arrays of the caller's library: memory from its own allocator first, the Python objects after the launch.
#pragma once

#include <nanobind/nanobind.h>
#include <robocache/tensor.h>

#include <cstddef>
#include <span>
#include <vector>

#include "tensor.h"

namespace robocache::python {

class Outputs {
 public:
  Outputs(const Where& where, const Arrays& arrays, std::size_t count);
  Outputs(const Outputs&) = delete;
  Outputs& operator=(const Outputs&) = delete;
  ~Outputs();

  // Memory for one more dense array.
  TensorView add(DType dtype, std::span<const std::int64_t> shape);

  // The arrays, in the order they were added; each once.
  nanobind::object take();

  // Scratch that is freed with this object, in stream order: for robocache::Workspace. Needs the exchange API.
  static void* allocate_scratch(void* self, std::size_t bytes);

 private:
  struct Output {
    dlpack::ManagedTensorVersioned* managed = nullptr;  // through the exchange API: not yet a Python object
    nanobind::object array;
    DType dtype = DType::f32;
  };
  dlpack::ManagedTensorVersioned* allocate(DType dtype, std::span<const std::int64_t> shape);
  void* add_numpy(Output& output, std::span<const std::int64_t> shape);
  void* add_viewed(Output& output, nanobind::object array);
  void* add_owned(Output& output, std::span<const std::int64_t> shape);

  Where where_;
  const Arrays& arrays_;
  Arrays views_{BackendChoice{Backend::reference}};  // of outputs that are Python objects already
  std::vector<Output> outputs_;
  std::vector<dlpack::ManagedTensorVersioned*> scratch_;
  std::size_t taken_ = 0;
};

}  // namespace robocache::python
