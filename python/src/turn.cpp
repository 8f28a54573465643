#include "turn.h"

#include <nanobind/nanobind.h>
#include <pthread.h>
#include <robocache/error.h>

#include <string>

namespace nb = nanobind;

namespace robocache::python {

namespace {

int forks = 0;  // a child counts one more than its parent
const bool counts_forks = pthread_atfork(nullptr, nullptr, [] { ++forks; }) == 0;

}  // namespace

Turn::Turn(Gate& gate, const char* what) : gate_(gate) {
  static_cast<void>(counts_forks);
  const unsigned long self = PyThread_get_thread_ident();
  if (gate.owner_ != 0 && gate.forks_ != forks) {
    throw Error(ErrorKind::unavailable, std::string(what) +
                                            " was in use by another thread when this process was forked; open it "
                                            "again in the child");
  }
  if (gate.owner_ == self) {
    throw Error(ErrorKind::unavailable, std::string(what) + " is already in use by this thread");
  }
  if (!gate.mutex_.try_lock()) {
    const nb::gil_scoped_release released;
    gate.mutex_.lock();
  }
  gate.owner_ = self;
  gate.forks_ = forks;
}

Turn::~Turn() {
  gate_.owner_ = 0;
  gate_.mutex_.unlock();
}

}  // namespace robocache::python
