// Where a call runs: the backend, the CUDA stream, the memory for scratch. And what this machine has.
//
// ```cpp
// for (const robocache::BackendInfo& backend : robocache::backends()) std::puts(backend.description.c_str());
// const robocache::Context context{.backend = robocache::Backend::cpu};  // {} picks the backend by where the tensors are
// robocache::set_num_threads(4);
// ```
//
// Threads. Any number of threads may make calls at the same time. One of them at a time has the pool of host threads; the
// others do their work alone, which is slower and gives the same bits. After fork() a child may go on with the host backends.
// Floating point. A call on the host computes in round-to-nearest with denormals, and puts the caller's settings back.
// CUDA. A thread's first call on a device takes a little page-locked memory, and CUDA may load a kernel at its first use: make
// a call once before a loop that must not be late. At most 64 devices.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#pragma GCC visibility push(default)  // the shared library exports what follows

namespace robocache {

enum class Backend {
  automatic,  // cpu for tensors in host memory, cuda for tensors on an NVIDIA GPU
  reference,  // plain scalar code in one thread: the truth that the others are compared with
  cpu,        // SIMD and threads; on a CPU that runs no SIMD target it runs the reference code
  cuda,
};

// Scratch memory on the device that a call runs on. Only operations whose header says so ask for any, and only on CUDA.
// `allocate` runs in the thread that makes the call, before the work that needs the memory is launched. It returns memory of
// at least that many bytes, aligned to 256 bytes, or throws; the caller gets the exception. The memory may be freed in
// stream order as soon as the call returns.
struct Workspace {
  void* (*allocate)(void* state, std::size_t bytes) = nullptr;  // nullptr: the library allocates and frees by itself
  void* state = nullptr;
};

struct Context {
  Backend backend = Backend::automatic;
  void* stream = nullptr;  // a cudaStream_t; nullptr is the default stream. Unused for host memory.
  Workspace workspace{};
};

struct BackendInfo {
  std::string name;         // "reference", "cpu", "cuda"
  bool available = false;   // it can run here, now
  std::string description;  // what it runs on ("avx512, 16 threads"; "NVIDIA H200, driver 13.0"), or why it cannot
};

// Does not fail where there is no GPU.
std::vector<BackendInfo> backends();

// Host threads that the cpu backend uses. Starts at the number of cores that this process may run on, or at the environment
// variable ROBOCACHE_THREADS. 1 to 4,096, else set_num_threads throws Error(value). Any thread may call these, also after
// fork().
int num_threads() noexcept;
void set_num_threads(int threads);

// The SIMD targets that are compiled in and run on this CPU, best first: "avx512", "avx2", "neon". May be empty.
std::vector<std::string> simd_targets();
// The target in use ("none" where the cpu backend runs the reference code). Starts at the best, or at the environment variable
// ROBOCACHE_SIMD.
std::string simd_target();
// For tests. Throws Error(value) for a target that does not run here.
void set_simd_target(const std::string& name);

// Waits for all work on the devices that were used, and throws what a check of the data on the GPU found, in any thread's
// call. Does nothing where no CUDA call was made.
void synchronize();

}  // namespace robocache

#pragma GCC visibility pop
