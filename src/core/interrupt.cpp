#include "core/interrupt.h"

#include <robocache/interrupt.h>

#include <atomic>
#include <cstdint>
#include <ctime>
#include <limits>

namespace robocache {

namespace {

constexpr std::int64_t interval = 100'000'000;  // nanoseconds between two runs of the hook in one thread

constinit std::atomic<InterruptHook> installed{nullptr};
constinit thread_local std::int64_t next_run = 0;  // on the clock below

// A clock that is read without a system call. Its steps of 1 to 10 ms are fine enough here.
std::int64_t coarse_now() noexcept {
#if defined(CLOCK_MONOTONIC_COARSE)
  constexpr clockid_t clock = CLOCK_MONOTONIC_COARSE;
#else
  constexpr clockid_t clock = CLOCK_MONOTONIC;
#endif
  timespec time{};
  clock_gettime(clock, &time);
  return std::int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec;
}

}  // namespace

void set_interrupt_hook(InterruptHook hook) noexcept { installed.store(hook); }

void check_interrupt() {
  const InterruptHook hook = installed.load(std::memory_order_relaxed);
  if (hook == nullptr) return;
  const std::int64_t now = coarse_now();
  if (now < next_run) return;
  next_run = now + interval;
  hook();
}

void ignore_interrupts_in_this_thread() noexcept { next_run = std::numeric_limits<std::int64_t>::max(); }

}  // namespace robocache
