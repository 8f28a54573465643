// The XXH3 hash (128 bits) of bytes that are added piece by piece.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>

namespace robocache::io {

class Hash {
 public:
  Hash();
  ~Hash();
  Hash(const Hash& other);
  Hash& operator=(const Hash& other);
  Hash(Hash&&) noexcept;
  Hash& operator=(Hash&&) noexcept;

  void add(std::span<const std::byte> bytes);
  std::string text() const;  // 32 hexadecimal digits

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace robocache::io
