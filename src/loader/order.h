// Internal: the keyed bijection and the hashes behind the loader's order. docs/semantics.md has the formulas.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace robocache::loader {

// The finaliser of splitmix64.
constexpr std::uint64_t mix(std::uint64_t z) {
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EB;
  return z ^ (z >> 31);
}

// The key of a seed and the number of an epoch, a block or a position.
constexpr std::uint64_t key_of(std::uint64_t seed, std::uint64_t number) {
  return mix(mix(seed + 0x9E3779B97F4A7C15) ^ number);
}

// The 64-bit FNV-1a hash of "<stream>/<name>".
constexpr std::uint64_t hash_of(std::string_view stream, std::string_view name) {
  std::uint64_t hash = 0xCBF29CE484222325;
  const auto add = [&](std::string_view text) {
    for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001B3;
  };
  add(stream);
  add("/");
  add(name);
  return hash;
}

// floor(random * count / 2^64): a number below `count`, uniform to within one part in 2^64 / count.
constexpr std::uint64_t scaled(std::uint64_t random, std::uint64_t count) {
  __extension__ using Wide = unsigned __int128;
  return static_cast<std::uint64_t>((Wide{random} * count) >> 64);
}

// A permutation of 0 .. count - 1 for each key: a Feistel network over an even number of bits, walked until the value is in range.
class Bijection {
 public:
  Bijection(std::int64_t count, std::uint64_t key);

  // The values at first, first + 1, ..., which are below count.
  void values(std::int64_t first, std::span<std::int64_t> out) const;

 private:
  static constexpr std::size_t rounds = 8;
  static constexpr unsigned most_tabulated = 6;  // bits of a half: a table of its values fits into a cache line

  void tabulated_values(std::int64_t first, std::span<std::int64_t> out) const;

  std::uint64_t count_;
  unsigned half_;  // bits of a half
  std::array<std::uint64_t, rounds> keys_{};
};

}  // namespace robocache::loader
