// xxHash (XXH3, 128 bits) of bytes as they come.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>

namespace robocache::cache {

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

}  // namespace robocache::cache
