// Where a call runs: the backend, the stream, the memory for scratch. And what this machine has.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#pragma GCC visibility push(default)  // the shared library exports what follows

namespace robocache {

enum class Backend {
  automatic,  // cpu for tensors in host memory, cuda for tensors on an NVIDIA GPU
  reference,  // plain scalar code: the truth that the others are compared with, bit for bit
  cpu,        // SIMD and threads; on a CPU that runs no SIMD target it runs the reference code
  cuda,
};

// Scratch memory on the device that a call runs on; it may be freed as soon as the call returns, in stream order.
// Only operations whose header says so ask for any.
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

// Never throws and never fails where there is no GPU.
std::vector<BackendInfo> backends();

// Host threads that the cpu backend uses. Starts at the number of cores this process may run on, or the environment
// variable ROBOCACHE_THREADS. Safe to call and to use after fork().
int num_threads() noexcept;
void set_num_threads(int threads);

// The SIMD targets that are compiled in and run on this CPU, best first: "avx512", "avx2", "neon". May be empty.
std::vector<std::string> simd_targets();
// The one in use ("none" where the cpu backend runs the reference code). Starts at the best, or ROBOCACHE_SIMD.
std::string simd_target();
// For tests: every target gives the same bits. Throws Error(value) for one that does not run here.
void set_simd_target(const std::string& name);

// Waits for all CUDA work and raises what a data check on the GPU found. A no-op where no CUDA call was made.
void synchronize();

}  // namespace robocache

#pragma GCC visibility pop
