// Objects that are for one thread at a time, shared by Python's threads: each call has its turn.
//
//   class Thing {
//     Gate gate_;
//     void call() { const Turn turn(gate_, "robocache.mcap: this writer"); ... }
//   };
//
// A second thread waits, without the GIL, so that whoever is inside may take it. A thread that comes back while it is
// inside (a file object whose read() uses the reader that reads it) gets an Error, and so does a forked child where
// another thread was inside when it was forked: what it was doing will never be finished.
#pragma once

#include <mutex>

namespace robocache::python {

class Gate {
 public:
  Gate() = default;
  Gate(const Gate&) = delete;
  Gate& operator=(const Gate&) = delete;

 private:
  friend class Turn;
  std::mutex mutex_;
  unsigned long owner_ = 0;  // the thread that is inside; read and written with the GIL
  int forks_ = 0;            // of this process before it went in
};

// Both with the GIL held. what: begins the sentence.
class Turn {
 public:
  Turn(Gate& gate, const char* what);
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;
  ~Turn();

 private:
  Gate& gate_;
};

}  // namespace robocache::python
