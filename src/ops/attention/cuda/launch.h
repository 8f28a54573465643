// How the kernels of attention are launched.
#pragma once

#include "ops/attention/cuda/call.h"

namespace robocache::attention_op {

// Calls f(std::integral_constant<int, padded_head_dim>{}).
template <class F>
void with_head_dim(std::int64_t head_dim, const F& f) {
  switch (padded_head_dim(head_dim)) {
    case 32:
      return f(std::integral_constant<int, 32>{});
    case 48:
      return f(std::integral_constant<int, 48>{});
    case 64:
      return f(std::integral_constant<int, 64>{});
    case 80:
      return f(std::integral_constant<int, 80>{});
    case 96:
      return f(std::integral_constant<int, 96>{});
    case 128:
      return f(std::integral_constant<int, 128>{});
    case 192:
      return f(std::integral_constant<int, 192>{});
    default:
      return f(std::integral_constant<int, 256>{});
  }
}

// Allows a kernel all shared memory of a block, and clusters of 16 blocks.
inline void allow_large_blocks(const void* kernel, int device) {
  const CudaMachine& machine = cuda_machine(device);
  cuda_check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, machine.shared_bytes),
             "asking for shared memory");
  if (machine.major >= 9) {
    cuda_check(cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1), "asking for clusters");
  }
}

// Launches a kernel with `call` as its argument. cluster: blocks of a cluster.
template <auto kernel, class Call>
void launch(std::int64_t blocks, int threads, int shared_bytes, Call& call, int device, cudaStream_t stream,
            int cluster = 1) {
  static OncePerDevice once;
  if (blocks == 0) return;
  if (blocks >= std::int64_t{1} << 31) throw Error(ErrorKind::value, "attention: too many queries for one launch");
  const auto* const address = reinterpret_cast<const void*>(kernel);
  once(device, [&] { allow_large_blocks(address, device); });
  cuda_launch(address, blocks, threads, static_cast<std::size_t>(shared_bytes), &call, device, stream, "attention",
              cluster);
}

}  // namespace robocache::attention_op
