// Memory and order on a GPU, for arrays whose framework has no allocator that we may call (JAX). Each throws Error(cuda)
// or, in a build without CUDA, Error(unavailable).
#pragma once

#include <cstddef>

namespace robocache {

void* cuda_allocate(int device, std::size_t bytes, void* stream);
void cuda_free(int device, void* data, void* stream) noexcept;
void cuda_synchronize(int device, void* stream);

}  // namespace robocache
