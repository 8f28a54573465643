// Sketches of many values: keys that stand for equal shares of the values.
//
// Each block of 65,536 values gives 512 keys (if at most 4,096 of its values are finite: all their keys). Several blocks
// are merged into 2,048 keys. The number of values below any x is then off by at most 1/800 of all values.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace robocache::statistics {

inline constexpr std::int64_t sketch_block = 65536;
inline constexpr std::uint64_t most_keys = 4096;  // of a sketch

class Sketch {
 public:
  // `keys`: the keys of the finite values of a block, in any order. Overwrites `keys` and `scratch`.
  void add_block(std::vector<std::uint64_t>& keys, std::vector<std::uint64_t>& scratch, int key_bits);
  std::vector<std::uint64_t> finish();

 private:
  struct Entry {
    std::uint64_t key, weight;
  };
  std::vector<Entry> entries_;
  std::uint64_t count_ = 0;
  int blocks_ = 0;
};

}  // namespace robocache::statistics
