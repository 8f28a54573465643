// Memory of our own that another library takes over: an object with __dlpack__ and __dlpack_device__.
#pragma once

#include <nanobind/nanobind.h>
#include <robocache/tensor.h>

#include <memory>
#include <span>
#include <vector>

#include "dlpack.h"

namespace robocache::python {

class Exported {
 public:
  Exported(DType dtype, Device device, std::span<const std::int64_t> shape);

  void* data() const;
  nanobind::capsule dlpack(const nanobind::kwargs&) const;
  nanobind::tuple dlpack_device() const;

 private:
  struct Block;  // freed when the last of this object and the capsules is gone
  std::shared_ptr<Block> block_;
  DType dtype_;
  std::vector<std::int64_t> shape_;
};

void bind_exported(nanobind::module_& m);

}  // namespace robocache::python
