// New arrays of the caller's library: memory from its own allocator first, the Python objects after the launch.
#pragma once

#include <nanobind/nanobind.h>
#include <robocache/tensor.h>

#include <cstddef>
#include <span>
#include <vector>

#include "tensor.h"

namespace robocache::python {

class SharedBlock;

class Outputs {
 public:
  Outputs(const Where& where, const Arrays& arrays, std::size_t count);
  Outputs(const Outputs&) = delete;
  Outputs& operator=(const Outputs&) = delete;
  ~Outputs();

  // One more dense array is wanted. It has no memory yet.
  void add(DType dtype, std::span<const std::int64_t> shape);

  // Gets memory for all of them. Small ones share a block where the library has the exchange API: an allocation on CUDA
  // takes longer than the rest of a call.
  void allocate();

  const TensorView& operator[](std::size_t k) const { return outputs_[k].view; }

  // The arrays, in the order they were added; each once.
  nanobind::object take();

  // Scratch that is freed with this object, in stream order: for robocache::Workspace. Needs the exchange API.
  static void* allocate_scratch(void* self, std::size_t bytes);

 private:
  struct Output {
    TensorView view;
    nanobind::object array;                             // where the library makes Python objects only
    dlpack::ManagedTensorVersioned* managed = nullptr;  // through the exchange API: not yet a Python object
    bool shared = false;                                // its memory is part of shared_
  };
  dlpack::ManagedTensorVersioned* allocate(DType dtype, std::span<const std::int64_t> shape);
  void allocate_exchange();
  void* view_array(Output& output, nanobind::object array);

  Where where_;
  const Arrays& arrays_;
  Arrays views_{BackendChoice{Backend::reference}};  // of outputs that are Python objects already
  std::vector<Output> outputs_;
  SharedBlock* shared_ = nullptr;
  std::vector<dlpack::ManagedTensorVersioned*> scratch_;
  std::size_t taken_ = 0;
};

}  // namespace robocache::python
