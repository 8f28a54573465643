// Arrays for tests that can live on the host or on a GPU.
#pragma once

#include <robocache/robocache.h>

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "ops/compare.h"
#include "robocache_config.h"
#if ROBOCACHE_WITH_CUDA
#include <cuda_runtime_api.h>
#endif

namespace robocache::test {

inline bool has_cuda() { return backends()[2].available; }

// The reason to skip a test. tools/summary.py counts all tests of "cuda: REASON" as one skip.
inline std::string no_cuda() { return "cuda: " + backends()[2].description; }

// Bytes in host memory, copied to the GPU on request and back.
class Array {
 public:
  Array() = default;
  Array(DType dtype, std::vector<std::int64_t> shape, std::vector<unsigned char> bytes)
      : dtype_(dtype), shape_(std::move(shape)), bytes_(std::move(bytes)) {}

  // The same bytes in memory of its own; a copy shares what is on the GPU.
  Array fresh() const { return {dtype_, shape_, bytes_}; }

  bool present() const { return present_; }
  void drop() { present_ = false; }
  const std::vector<unsigned char>& bytes() const { return bytes_; }

  TensorView view(DeviceKind where) {
    if (!present_) return {};
    void* data = bytes_.data();
#if ROBOCACHE_WITH_CUDA
    if (where == DeviceKind::cuda) {
      if (!device_) {
        void* memory = nullptr;
        cudaMalloc(&memory, bytes_.size() + 1);
        device_ = std::shared_ptr<void>(memory, [](void* p) { cudaFree(p); });
      }
      cudaMemcpy(device_.get(), bytes_.data(), bytes_.size(), cudaMemcpyHostToDevice);
      data = device_.get();
    }
#endif
    return TensorView::contiguous(data, dtype_, shape_, {where, 0});
  }

  void fetch() {
#if ROBOCACHE_WITH_CUDA
    if (device_) cudaMemcpy(bytes_.data(), device_.get(), bytes_.size(), cudaMemcpyDeviceToHost);
#endif
  }

 private:
  DType dtype_ = DType::f32;
  std::vector<std::int64_t> shape_{0};
  std::vector<unsigned char> bytes_;
  bool present_ = true;
  std::shared_ptr<void> device_;
};

// What a call has written, once it is done.
inline Bytes fetched(std::vector<Array>& arrays) {
  synchronize();
  Bytes bytes;
  for (Array& array : arrays) {
    array.fetch();
    bytes.push_back(array.bytes());
  }
  return bytes;
}

}  // namespace robocache::test
