#include "interrupt.h"

#include <pthread.h>
#include <robocache/interrupt.h>

namespace nb = nanobind;

namespace robocache::python {

namespace {

// Python runs signal handlers in its main thread only. Other threads do not take the GIL for this.
unsigned long main_thread = 0;

void check_signals() {
  if (PyThread_get_thread_ident() != main_thread) return;
  const nb::gil_scoped_acquire held;
  if (PyErr_CheckSignals() != 0) throw nb::python_error();  // KeyboardInterrupt, or what the user's handler raised
}

// In a child process the thread that called fork() is Python's main thread.
void stay_main_after_fork() { main_thread = PyThread_get_thread_ident(); }

}  // namespace

void bind_interrupt(nb::module_&) {
  main_thread = nb::cast<unsigned long>(nb::module_::import_("threading").attr("main_thread")().attr("ident"));
  pthread_atfork(nullptr, nullptr, stay_main_after_fork);
  set_interrupt_hook(check_signals);
}

}  // namespace robocache::python
