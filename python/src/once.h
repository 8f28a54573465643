// What is looked up in Python at the first use, and kept.
#pragma once

#include <memory>

namespace robocache::python {

// In place of a static variable of a function: the lock of one is held while Python code runs, and whoever runs Python
// code lets other threads have the GIL. A thread that then came to the lock would wait for it with the GIL in hand, for
// ever. Here the GIL is the only lock. Two threads may build one each; the first to be ready stays.
template <class T>
class Once {
 public:
  const T& operator()() {
    if (kept_ == nullptr) {
      auto built = std::make_unique<const T>();
      if (kept_ == nullptr) kept_ = built.release();  // never destroyed: the interpreter may be gone before
    }
    return *kept_;
  }

 private:
  const T* kept_ = nullptr;
};

}  // namespace robocache::python
