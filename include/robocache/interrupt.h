// How a long call is stopped from outside, as Ctrl-C does.
//
// ```cpp
// static std::atomic<bool> stop_requested{false};  // set by a signal handler
// struct Stopped {};
// robocache::set_interrupt_hook([] {
//   if (stop_requested) throw Stopped();
// });
// ```
//
// A call that takes long runs the hook about ten times a second, in the thread that made the call: an op on the host, reading
// and indexing a log, hashing, sorting, committing and verifying a cache. To stop the call, the hook throws. The caller gets
// that very exception. Objects are then as after any other failure of that call: a writer may go on, and a cache holds
// what was committed before. The outputs of an op are then unspecified. A hook that returns lets the call go on.
//
// The hook must not call this library. Several threads may run it at the same time. Without a hook nothing is asked.
// RoboCache's Python module installs a hook that raises KeyboardInterrupt.
#pragma once

#pragma GCC visibility push(default)  // the shared library exports what follows

namespace robocache {

using InterruptHook = void (*)();

// For all calls of the process; nullptr: no hook. Any thread may set it.
void set_interrupt_hook(InterruptHook hook) noexcept;

}  // namespace robocache

#pragma GCC visibility pop
