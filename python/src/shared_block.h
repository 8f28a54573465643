// One allocation of another library that several of its arrays share. It is freed with the last of them.
#pragma once

#include <robocache/tensor.h>

#include <array>
#include <atomic>
#include <cstddef>

#include "dlpack.h"
#include "tensor.h"

namespace robocache::python {

class SharedBlock {
 public:
  explicit SharedBlock(dlpack::ManagedTensorVersioned* memory) : memory_(memory) {}

  char* data() const { return static_cast<char*>(memory_->tensor.data) + memory_->tensor.byte_offset; }

  // A dense tensor inside the block, to hand to the library.
  dlpack::ManagedTensorVersioned* part(const TensorView& view) {
    auto* const part = new Part;
    part->block = this;
    part->shape = view.shape;
    part->strides = view.strides;
    part->managed.version = {dlpack::major_version, dlpack::minor_version};
    part->managed.owner = part;
    part->managed.deleter = [](dlpack::ManagedTensorVersioned* self) {
      auto* const dying = static_cast<Part*>(self->owner);
      dying->block->release();
      delete dying;
    };
    part->managed.tensor = {view.data,          dlpack_device(view.device), view.rank, dlpack_type(view.dtype),
                            part->shape.data(), part->strides.data(),       0};
    references_.fetch_add(1, std::memory_order_relaxed);
    return &part->managed;
  }

  // Called by the thread that drops an array; the last call frees the block.
  void release() {
    if (references_.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
    if (memory_->deleter != nullptr) memory_->deleter(memory_);
    delete this;
  }

 private:
  struct Part {
    dlpack::ManagedTensorVersioned managed{};
    std::array<std::int64_t, max_rank> shape{}, strides{};
    SharedBlock* block = nullptr;
  };
  ~SharedBlock() = default;

  dlpack::ManagedTensorVersioned* memory_;
  std::atomic<int> references_{1};  // the maker's, and one for each part
};

}  // namespace robocache::python
