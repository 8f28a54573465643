#include "core/parallel.h"

#include <pthread.h>
#include <robocache/context.h>
#include <robocache/error.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <system_error>
#include <thread>

#include "core/float_environment.h"
#include "core/interrupt.h"

#if defined(__linux__)
#include <sched.h>
#endif

namespace robocache {
namespace {

constexpr int most_threads = 4096;
constexpr int spins = 400;  // waking a worker takes microseconds, so it looks for work that long before it sleeps
constexpr std::int64_t shares_per_thread = 8;  // so that a late thread delays the loop by an eighth of its work
constexpr std::int64_t pieces_per_share = 8;   // so that a loop of a minute looks for Ctrl-C each second

void pause() {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Static, without a destructor or memory of its own: workers may outlive main(), and a forked child only has to reset it.
// The thread that set `busy` owns all members that are not atomic.
struct Pool {  // NOLINT(clang-analyzer-optin.performance.Padding): `next` has a cache line of its own
  std::atomic<bool> busy{false};
  bool survives_fork = false;  // the handler below is registered
  int workers = 0;             // threads that were started

  // The loop. It is written while no worker is inside, and published by `open`.
  ParallelPiece piece = nullptr;
  const void* state = nullptr;
  std::int64_t count = 0, share = 0, length = 0;  // a thread takes a share at a time, in pieces of this length
  std::exception_ptr* error = nullptr;

  std::atomic<std::uint32_t> round{0};  // what idle workers wait for: it changes with each loop
  std::atomic<bool> open{false};        // workers may join
  std::atomic<int> seats{0};            // how many more workers may join
  std::atomic<int> inside{0};           // how many workers have joined
  alignas(64) std::atomic<std::int64_t> next{0};
  std::atomic<bool> failed{false};
};
constinit Pool pool;

constinit std::atomic<int> threads_wanted{0};  // 0: not asked for yet
constinit thread_local bool stays_in_this_thread = false;

int threads_by_default() noexcept {
  if (const char* text = std::getenv("ROBOCACHE_THREADS"); text != nullptr && *text != '\0') {
    char* end = nullptr;
    const long threads = std::strtol(text, &end, 10);
    if (*end == '\0' && threads >= 1) return static_cast<int>(std::min<long>(threads, most_threads));
    std::fprintf(stderr, "robocache: ROBOCACHE_THREADS is \"%s\"; it must be a number from 1 on, so it is ignored\n",
                 text);
  }
#if defined(__linux__)
  cpu_set_t cores;
  if (sched_getaffinity(0, sizeof(cores), &cores) == 0) return std::max(1, CPU_COUNT(&cores));
#endif
  return static_cast<int>(std::clamp(std::thread::hardware_concurrency(), 1u, unsigned{most_threads}));
}

// Takes shares until none are left.
void work() {
  for (;;) {
    const std::int64_t begin = pool.next.fetch_add(pool.share, std::memory_order_relaxed);
    const std::int64_t end = std::min(begin + pool.share, pool.count);
    try {
      for (std::int64_t at = begin; at < end; at += pool.length) {
        if (pool.failed.load(std::memory_order_relaxed)) return;
        check_interrupt();
        pool.piece(pool.state, at, std::min(at + pool.length, end));
      }
    } catch (...) {
      if (!pool.failed.exchange(true)) *pool.error = std::current_exception();
    }
    if (end >= pool.count) return;
  }
}

// A worker sets `inside` before it reads `open`, and the owner clears `open` before it reads `inside`. So at least one of them
// sees the other, and no worker reads a loop that has ended.
void join_loop() {
  pool.inside.fetch_add(1);
  if (pool.open.load() && pool.seats.fetch_sub(1, std::memory_order_relaxed) > 0) work();
  if (pool.inside.fetch_sub(1) == 1) pool.inside.notify_one();
}

void worker(std::uint32_t seen) {
  const FloatEnvironment environment;
  ignore_interrupts_in_this_thread();
  for (;;) {
    for (int k = 0; k < spins && pool.round.load(std::memory_order_relaxed) == seen; ++k) pause();
    pool.round.wait(seen);
    seen = pool.round.load();
    join_loop();
  }
}

// The child has only the thread that called fork(), so a loop that was running there will never end.
void forget_after_fork() {
  pool.workers = 0;
  pool.open.store(false);
  pool.inside.store(0);
  pool.busy.store(false);
}

void start_workers(int wanted) {
  if (!pool.survives_fork) {
    if (pthread_atfork(nullptr, nullptr, forget_after_fork) != 0) return;
    pool.survives_fork = true;
  }
  // Signals are for the program's own threads.
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  try {
    while (pool.workers < wanted) {
      std::thread(worker, pool.round.load()).detach();
      ++pool.workers;
    }
  } catch (const std::system_error&) {
    // The system starts no more threads: the existing ones do the work.
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

}  // namespace

void stay_in_this_thread() noexcept { stays_in_this_thread = true; }

int num_threads() noexcept {
  if (stays_in_this_thread) return 1;
  int threads = threads_wanted.load(std::memory_order_relaxed);
  if (threads == 0) {
    const int chosen = threads_by_default();
    if (threads_wanted.compare_exchange_strong(threads, chosen)) threads = chosen;
  }
  return threads;
}

void set_num_threads(int threads) {
  if (threads < 1 || threads > most_threads) {
    throw Error(ErrorKind::value, "set_num_threads: " + std::to_string(threads) + " threads; it must be 1 to " +
                                      std::to_string(most_threads));
  }
  threads_wanted.store(threads);
}

void run_in_parallel(std::int64_t count, std::int64_t grain, ParallelPiece piece, const void* state) {
  const std::int64_t threads = num_threads();
  const std::int64_t fair = count / (threads * shares_per_thread) + 1;
  const std::int64_t length = std::max({grain, fair / pieces_per_share, std::int64_t{1}});
  const std::int64_t share = ((fair - 1) / length + 1) * length;
  const std::int64_t shares = (count - 1) / share + 1;
  const int helpers = static_cast<int>(std::min(threads, shares)) - 1;
  if (helpers < 1 || pool.busy.exchange(true, std::memory_order_acquire)) {
    for (std::int64_t at = 0; at < count; at += length) {
      check_interrupt();
      piece(state, at, std::min(at + length, count));
    }
    return;
  }
  if (pool.workers < helpers) start_workers(static_cast<int>(threads) - 1);

  std::exception_ptr error;
  pool.piece = piece;
  pool.state = state;
  pool.count = count;
  pool.share = share;
  pool.length = length;
  pool.error = &error;
  pool.next.store(0, std::memory_order_relaxed);
  pool.failed.store(false, std::memory_order_relaxed);
  pool.seats.store(helpers, std::memory_order_relaxed);
  pool.open.store(true);
  pool.round.fetch_add(1);
  if (helpers >= pool.workers) {
    pool.round.notify_all();
  } else {
    for (int k = 0; k < helpers; ++k) pool.round.notify_one();
  }

  work();

  pool.open.store(false);
  for (int k = 0; k < spins && pool.inside.load() != 0; ++k) pause();
  for (int left = pool.inside.load(); left != 0; left = pool.inside.load()) pool.inside.wait(left);
  pool.busy.store(false, std::memory_order_release);
  if (error != nullptr) std::rethrow_exception(error);
}

}  // namespace robocache
