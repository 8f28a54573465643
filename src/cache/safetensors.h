// The shape of a shard: which tensors it has, and where.
#pragma once

#include <robocache/bytes.h>

#include "cache/manifest.h"

namespace robocache::cache {

// The header of a file, and nothing more. Throws Error(file), the file's name first.
ShardHeader read_header(const Bytes& bytes);

// The tensors of a shard in the order of the file; offsets are set.
std::vector<TensorEntry> lay_out(const StreamInfo& stream, const Shard& shard);

// Throws Error(file) where the tensors are not those that lay_out() gives: the manifest and the file disagree.
void check_header(const ShardHeader& header, const StreamInfo& stream, const Shard& shard, const std::string& name);

// [rows, ...], with the channels that the shard has.
std::vector<std::int64_t> values_shape(const StreamInfo& stream, const Shard& shard);

// Product of sizes and bytes of an element; nothing where it is over 2^62.
std::optional<std::int64_t> bytes_of_shape(DType dtype, std::span<const std::int64_t> shape);

std::int64_t channels_of(const StreamInfo& stream);  // of its flattened shape

}  // namespace robocache::cache
