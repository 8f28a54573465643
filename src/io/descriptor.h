// The owner of a file descriptor: nothing else in the library opens or closes one.
#pragma once

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <utility>

namespace robocache::io {

// Repeats a system call that a signal interrupted.
template <class Call>
auto retried(const Call& call) {
  auto result = call();
  while (result < 0 && errno == EINTR) result = call();
  return result;
}

class Descriptor {
 public:
  Descriptor() = default;
  // O_CLOEXEC is added to `flags`. Where the file cannot be opened the descriptor is empty, and errno says why.
  Descriptor(const std::filesystem::path& path, int flags) noexcept;
  Descriptor(Descriptor&& other) noexcept : number_(std::exchange(other.number_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(number_, other.number_);
    return *this;
  }
  ~Descriptor();

  explicit operator bool() const noexcept { return number_ >= 0; }
  int number() const noexcept { return number_; }

  // How many bytes were moved before the call ended. A read of less than was asked for, without an error, met the end of
  // the file.
  struct Transfer {
    std::size_t count = 0;
    int error = 0;  // errno; 0: none
  };
  Transfer read(std::int64_t offset, std::span<std::byte> to) const noexcept;
  Transfer write(std::int64_t offset, std::span<const std::byte> from) const noexcept;
  Transfer append(std::span<const std::byte> from) const noexcept;  // where the last append ended; also to a pipe

 private:
  int number_ = -1;
};

}  // namespace robocache::io
