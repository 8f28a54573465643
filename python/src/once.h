// A value that is looked up in Python at its first use and then kept.
#pragma once

#include <memory>

namespace robocache::python {

// It replaces a static variable of a function, which could deadlock. The lock of a static variable is held while its
// initialiser runs Python code, and Python code lets other threads take the GIL. Such a thread would then wait for the
// lock while it holds the GIL. Here the GIL is the only lock. Two threads may build a value each; the first one is kept.
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
