// A loop over [0, count) on all host threads.
//
//   parallel_for(rows, 16, [&](std::int64_t begin, std::int64_t end) { ... });
//
// The pieces are at least `grain` long and are handed out as threads become free; the calling thread works too. The
// first exception that a piece throws is thrown here, and pieces that have not begun are then left out. Ctrl-C is such
// an exception: the calling thread looks for it between pieces (core/interrupt.h). A call from inside a piece, or while
// another thread's loop has the pool, runs in the calling thread. The pool starts with the first loop that is longer
// than its grain, and again in a child process after fork(). A piece must not fork().
//
// A program whose own threads keep all cores busy calls stay_in_this_thread() in each of them: their loops then use no others.
#pragma once

#include <cstdint>
#include <memory>

namespace robocache {

using ParallelPiece = void (*)(const void* state, std::int64_t begin, std::int64_t end);
void run_in_parallel(std::int64_t count, std::int64_t grain, ParallelPiece piece, const void* state);

void stay_in_this_thread() noexcept;  // also num_threads() is 1 there

template <class F>
void parallel_for(std::int64_t count, std::int64_t grain, const F& f) {
  if (count <= 0) return;
  if (count <= grain) {
    f(std::int64_t{0}, count);
    return;
  }
  run_in_parallel(
      count, grain,
      [](const void* state, std::int64_t begin, std::int64_t end) { (*static_cast<const F*>(state))(begin, end); },
      std::addressof(f));
}

}  // namespace robocache
