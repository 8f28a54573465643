// How a long call is stopped from outside, as Ctrl-C does.
//
//   robocache::set_interrupt_hook([] {
//     if (stop_requested) throw Stopped();
//   });
//
// Long calls run the hook about ten times a second, in the thread that made the call: opening a file that has no index,
// hashing the files of a source, sorting, committing and verifying a cache. To stop the call, the hook throws. The
// exception leaves the call unchanged, and the objects are then as after any other failure of that call: a writer may
// go on, a cache holds what was committed before. A hook that returns lets the call go on.
//
// The hook must not call this library, and it is run by any thread that makes a long call. Without a hook nothing is
// asked. robocache's Python module installs one that raises KeyboardInterrupt.
#pragma once

#pragma GCC visibility push(default)  // the shared library exports what follows

namespace robocache {

using InterruptHook = void (*)();

// For all calls of the process; nullptr: no hook.
void set_interrupt_hook(InterruptHook hook) noexcept;

}  // namespace robocache

#pragma GCC visibility pop
