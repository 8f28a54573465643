#include "exported.h"

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <mutex>
#include <new>
#include <utility>
#include <vector>

#include "gpu/memory.h"
#include "tensor.h"

namespace nb = nanobind;

namespace robocache::python {

namespace {

constexpr std::size_t host_alignment = 64;  // what JAX needs to take memory over without a copy

std::size_t bytes_of(DType dtype, std::span<const std::int64_t> shape) {
  std::size_t bytes = static_cast<std::size_t>(size_of(dtype));
  for (const std::int64_t size : shape) bytes *= static_cast<std::size_t>(size);
  return std::max(host_alignment, (bytes + host_alignment - 1) / host_alignment * host_alignment);
}

// Memory on GPUs that JAX has released. A kernel on one of JAX's own streams may still read it, so a later call frees it,
// after a wait for the GPU.
struct ReleasedMemory {
  std::mutex mutex;
  std::vector<std::pair<int, void*>> blocks;  // device, memory
};
ReleasedMemory& released_memory() {
  static ReleasedMemory& made = *new ReleasedMemory;  // never destroyed: JAX may release memory after the statics
  return made;
}
void release_later(int device, void* data) noexcept {
  try {
    const std::scoped_lock lock(released_memory().mutex);
    released_memory().blocks.emplace_back(device, data);
  } catch (const std::bad_alloc&) {  // then it is never freed
  }
}
// Releases the GIL while it waits: the work may include a callback into Python.
void free_released_memory() {
  std::vector<std::pair<int, void*>> blocks;
  {
    const std::scoped_lock lock(released_memory().mutex);
    blocks.swap(released_memory().blocks);
  }
  if (blocks.empty()) return;
  const nb::gil_scoped_release released;
  std::ranges::sort(blocks);
  int waited = -1;
  for (const auto& [device, data] : blocks) {
    if (device != waited) cuda_wait(device);
    waited = device;
    cuda_free(device, data, nullptr);
  }
}

}  // namespace

struct Exported::Block {
  Block(Device on, std::size_t bytes) : device(on) {
    if (device.kind != DeviceKind::cpu) free_released_memory();
    data = device.kind == DeviceKind::cpu ? std::aligned_alloc(host_alignment, bytes)
                                          : cuda_allocate(device.index, bytes, nullptr);
    if (data == nullptr) throw std::bad_alloc();
  }
  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;
  ~Block() {
    if (device.kind == DeviceKind::cpu) {
      std::free(data);
    } else {
      release_later(device.index, data);
    }
  }
  Device device;
  void* data = nullptr;
};

Exported::Exported(DType dtype, Device device, std::span<const std::int64_t> shape)
    : block_(std::make_shared<Block>(device, bytes_of(dtype, shape))),
      dtype_(dtype),
      shape_(shape.begin(), shape.end()) {}

void* Exported::data() const { return block_->data; }

nb::tuple Exported::dlpack_device() const {
  const dlpack::Device device = python::dlpack_device(block_->device);
  return nb::make_tuple(device.type, device.index);
}

// The consumer's stream need not wait: an Exported is made only after its memory was written.
nb::capsule Exported::dlpack(const nb::kwargs&) const {
  struct Managed {
    dlpack::ManagedTensor header{};
    std::shared_ptr<Block> block;
    std::vector<std::int64_t> shape;
  };
  auto managed = std::make_unique<Managed>();
  managed->block = block_;
  managed->shape = shape_;
  managed->header.tensor = {block_->data,
                            python::dlpack_device(block_->device),
                            static_cast<std::int32_t>(shape_.size()),
                            dlpack_type(dtype_),
                            managed->shape.data(),
                            nullptr,
                            0};
  managed->header.owner = managed.get();
  managed->header.deleter = [](dlpack::ManagedTensor* self) { delete static_cast<Managed*>(self->owner); };
  PyObject* const capsule = PyCapsule_New(&managed->header, "dltensor", [](PyObject* unused) {
    if (PyCapsule_IsValid(unused, "dltensor") == 0) return;  // a consumer has renamed and taken it
    auto* const header = static_cast<dlpack::ManagedTensor*>(PyCapsule_GetPointer(unused, "dltensor"));
    header->deleter(header);
  });
  if (capsule == nullptr) throw nb::python_error();
  static_cast<void>(managed.release());  // the capsule's now
  return nb::steal<nb::capsule>(capsule);
}

void bind_exported(nb::module_& m) {
  nb::class_<Exported>(m, "Exported", "Memory on its way to another library.")
      .def("__dlpack__", &Exported::dlpack, nb::sig("def __dlpack__(self, **kwargs: object) -> object"))
      .def("__dlpack_device__", &Exported::dlpack_device, nb::sig("def __dlpack_device__(self) -> tuple[int, int]"));
}

}  // namespace robocache::python
