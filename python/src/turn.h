// Objects that only one thread at a time may use, shared by Python's threads: each call locks the object.
//
//   class Thing {
//     Gate gate_;
//     void call() { const Turn turn(gate_, "robocache.mcap: this writer"); ... }
//   };
//
// A second thread waits without the GIL, so that the thread inside can take it. A thread that calls the object again from
// inside (a file object whose read() uses the reader that reads it) gets an Error. So does a forked child if another thread
// was inside when it was forked, because that call will never end.
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
