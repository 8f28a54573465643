// Long loops call check_interrupt() so that Ctrl-C ends them.
//
// It costs about 5 ns: call it once for each block, record or chunk, so at least every 100 ms of work. It may throw
// anything. Python's hook takes the GIL, so never call it while you hold a mutex that another thread may wait for with
// the GIL held. parallel_for() calls it between pieces; its workers ignore interrupts, because the thread that called
// parallel_for() may hold the GIL while it waits for them.
#pragma once

namespace robocache {

void check_interrupt();
void ignore_interrupts_in_this_thread() noexcept;

}  // namespace robocache
