// Device memory and synchronisation, for arrays whose framework has no allocator that we may call (JAX), and for scratch.
// Compiled with and without nvcc: in a build without CUDA the functions that can throw throw Error(unavailable). Errors of
// the CUDA runtime are Error(cuda).
#pragma once

#include <cstddef>

namespace robocache {

void* cuda_allocate(int device, std::size_t bytes, void* stream);
void cuda_free(int device, void* data, void* stream) noexcept;
void cuda_synchronize(int device, void* stream);

// Waits for all work of a device, whatever streams it is on: a framework may use memory on a stream that it does not name
// (JAX). A device that is gone has nothing to wait for.
void cuda_wait(int device) noexcept;

}  // namespace robocache
