// One mutex of the process, for small facts that threads share and seldom write: a reader's warnings, the channels that
// it has learned of. Whoever holds it does nothing that waits.
//
// fork() waits for it, so that a child never finds it held by a thread that is not there, or a fact half written.
#pragma once

#include <mutex>

namespace robocache {

std::unique_lock<std::mutex> lock_shared_facts();

}  // namespace robocache
