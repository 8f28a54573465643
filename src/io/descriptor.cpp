#include "io/descriptor.h"

#include <fcntl.h>
#include <unistd.h>

namespace robocache::io {

namespace {

// Calls move(bytes left) until all bytes are moved, a call fails, or one moves nothing.
template <class Byte, class Move>
Descriptor::Transfer transfer(std::span<Byte> bytes, const Move& move) {
  std::size_t moved = 0;
  while (moved < bytes.size()) {
    const ssize_t count = retried([&] { return move(bytes.subspan(moved), static_cast<std::int64_t>(moved)); });
    if (count < 0) return {moved, errno};
    if (count == 0) break;
    moved += static_cast<std::size_t>(count);
  }
  return {moved, 0};
}

// A write that moves nothing means that the disk is full.
Descriptor::Transfer whole(Descriptor::Transfer written, std::size_t size) {
  if (written.error == 0 && written.count < size) written.error = ENOSPC;
  return written;
}

}  // namespace

Descriptor::Descriptor(const std::filesystem::path& path, int flags) noexcept
    : number_(retried([&] { return open(path.c_str(), flags | O_CLOEXEC, 0666); })) {}

Descriptor::~Descriptor() {
  if (number_ >= 0) close(number_);
}

Descriptor::Transfer Descriptor::read(std::int64_t offset, std::span<std::byte> to) const noexcept {
  return transfer(to, [&](std::span<std::byte> left, std::int64_t done) {
    return pread(number_, left.data(), left.size(), offset + done);
  });
}

Descriptor::Transfer Descriptor::write(std::int64_t offset, std::span<const std::byte> from) const noexcept {
  return whole(
      transfer(from, [&](std::span<const std::byte> left,
                         std::int64_t done) { return pwrite(number_, left.data(), left.size(), offset + done); }),
      from.size());
}

Descriptor::Transfer Descriptor::append(std::span<const std::byte> from) const noexcept {
  return whole(transfer(from, [&](std::span<const std::byte> left,
                                  std::int64_t /*done*/) { return ::write(number_, left.data(), left.size()); }),
               from.size());
}

}  // namespace robocache::io
