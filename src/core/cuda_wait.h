// Waiting for a whole GPU, whatever streams its work is on. For memory that another framework uses on a stream that it
// does not tell (JAX).
#pragma once

namespace robocache {

void cuda_wait(int device) noexcept;  // a device that is gone has nothing to wait for

}  // namespace robocache
