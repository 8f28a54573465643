// Temporary memory of a call on a GPU. For nvcc only.
#pragma once

#include <robocache/context.h>

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "core/integers.h"
#include "gpu/memory.h"

namespace robocache {

// From the caller's workspace where there is one, else from the device's memory pool. data() is nullptr for 0 bytes.
class CudaScratch {
 public:
  CudaScratch(const Workspace& workspace, int device, std::size_t bytes, cudaStream_t stream)
      : owned_(workspace.allocate == nullptr && bytes > 0), device_(device), stream_(stream) {
    if (bytes > 0) {
      data_ = owned_ ? cuda_allocate(device, bytes, stream) : workspace.allocate(workspace.state, bytes);
    }
  }
  ~CudaScratch() {
    if (owned_) cuda_free(device_, data_, stream_);
  }
  CudaScratch(const CudaScratch&) = delete;
  CudaScratch& operator=(const CudaScratch&) = delete;
  void* data() const { return data_; }

 private:
  bool owned_;
  int device_;
  cudaStream_t stream_;
  void* data_ = nullptr;
};

// Cuts one block of memory into aligned arrays. Made without memory it only counts the bytes.
class BumpAllocator {
 public:
  explicit BumpAllocator(char* data) : data_(data) {}
  template <class T>
  void allocate(T*& array, std::int64_t count) {
    if (data_ != nullptr) array = reinterpret_cast<T*>(data_ + used_);
    used_ += divide_up(count * static_cast<std::int64_t>(sizeof(T)), 256) * 256;
  }
  std::int64_t used() const { return used_; }  // bytes

 private:
  char* data_;
  std::int64_t used_ = 0;
};

// Scratch with arrays in it. place(BumpAllocator&) allocates them: it runs once to count the bytes, and once with memory.
class PlacedScratch {
 public:
  template <class Place>
  PlacedScratch(const Workspace& workspace, int device, cudaStream_t stream, const Place& place)
      : scratch_(workspace, device, bytes_of(place), stream) {
    BumpAllocator arrays(static_cast<char*>(scratch_.data()));
    place(arrays);
  }
  void* data() const { return scratch_.data(); }

 private:
  template <class Place>
  static std::size_t bytes_of(const Place& place) {
    BumpAllocator needed(nullptr);
    place(needed);
    return static_cast<std::size_t>(needed.used());
  }

  CudaScratch scratch_;
};

}  // namespace robocache
