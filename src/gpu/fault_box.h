// How a kernel reports bad data: it writes one Fault into pinned host memory, and the next call of the same host thread
// throws it.
#pragma once

#include "core/fault.h"

namespace robocache {

// In pinned host memory, which the GPU can write.
struct FaultBox {
  int taken;  // set by the first GPU thread that found a fault; the others leave theirs out
  int ready;  // set once the fault is written whole
  Fault fault;
};

// The calling thread's box of a device, as a pointer that is valid on the host and on the device. If an earlier call of this
// thread left a fault in it, empties it and throws that fault. Throws Error(unavailable) where CUDA cannot run.
FaultBox* cuda_fault_box(int device);

#if defined(__CUDACC__)
__device__ inline void report(FaultBox* box, const Fault& fault) {
  if (atomicCAS(&box->taken, 0, 1) != 0) return;
  box->fault = fault;
  __threadfence_system();
  *static_cast<volatile int*>(&box->ready) = 1;
}
#endif

}  // namespace robocache
