// The header of a shard: the safetensors JSON before the data, and in it the description of the shard's group.
#pragma once

#include <robocache/tensor.h>

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cache/manifest.h"

namespace robocache::cache {

inline constexpr std::int64_t max_header = 100'000'000;  // bytes; safetensors' own limit

struct TensorEntry {
  std::string name{};
  DType dtype = DType::u8;
  std::vector<std::int64_t> shape{};
  std::int64_t begin = 0, end = 0;  // bytes, from the end of the header
};

struct ShardHeader {
  std::vector<TensorEntry> tensors{};  // in the order of their bytes, without a gap
  std::int64_t data = 0;               // where in the file the first begins
  std::string description{};           // empty: this file is not of a cache

  const TensorEntry* find(std::string_view name) const;
};

// The JSON between the header's length and the data. `data_bytes`: how many bytes of data follow it.
ShardHeader parse_header(std::string_view text, std::int64_t data_bytes, const std::string& name);
std::string write_header(std::span<const TensorEntry> tensors, std::string_view description);

// The description in a shard: a manifest of its group that describes this shard and its stream, and only names the other
// streams. `bytes` of the shard counts its tensors alone. From version 2 on the text ends with a checksum of the text before
// it; a wrong one is an error.
Manifest parse_description(std::string_view text, const std::string& name);
std::string write_description(const Manifest& group, const Shard& shard);

}  // namespace robocache::cache
