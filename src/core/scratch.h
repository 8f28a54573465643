// Uninitialised memory for the duration of a call. Some of it is kept for the next call: a robot makes the same call for every
// frame, and the first touch of fresh pages costs more than most of the work in them.
#pragma once

#include <cstddef>
#include <memory>
#include <type_traits>

namespace robocache {

void* take_scratch(std::size_t bytes);
void give_scratch(void* data, std::size_t bytes) noexcept;

struct GiveScratch {
  std::size_t bytes = 0;
  void operator()(void* data) const noexcept { give_scratch(data, bytes); }
};
template <class T>
using Scratch = std::unique_ptr<T[], GiveScratch>;

template <class T>
Scratch<T> make_scratch(std::size_t count) {
  static_assert(std::is_trivial_v<T>);
  const std::size_t bytes = count * sizeof(T);
  return Scratch<T>(static_cast<T*>(take_scratch(bytes)), GiveScratch{bytes});
}

}  // namespace robocache
