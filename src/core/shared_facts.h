// One mutex for small facts that threads share and seldom write: the warnings of a reader, the channels that it found. Do
// nothing that waits while you hold it.
//
// fork() takes the mutex, so a child never finds it locked by a thread that the child does not have, nor a fact half written.
#pragma once

#include <mutex>

namespace robocache {

std::unique_lock<std::mutex> lock_shared_facts();

}  // namespace robocache
