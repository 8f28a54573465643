#include "core/shared_facts.h"

#include <pthread.h>

namespace robocache {

namespace {

std::mutex mutex;

// The thread that calls fork() locks the mutex before, and unlocks it afterwards in the parent and in the child.
const bool survives_fork = pthread_atfork([] { mutex.lock(); }, [] { mutex.unlock(); }, [] { mutex.unlock(); }) == 0;

}  // namespace

std::unique_lock<std::mutex> lock_shared_facts() {
  static_cast<void>(survives_fork);
  return std::unique_lock(mutex);
}

}  // namespace robocache
