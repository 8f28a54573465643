// The layout of a shard: which tensors it has, and where.
#pragma once

#include <robocache/bytes.h>

#include "cache/manifest.h"
#include "cache/shard_header.h"

namespace robocache::cache {

// Reads the header of a file, and nothing more. Throws Error(file), the file's name first.
ShardHeader read_header(const Bytes& bytes);

// The tensors of a shard in the order of the file, with their offsets.
std::vector<TensorEntry> lay_out(const StreamInfo& stream, const Shard& shard);

// Throws Error(file) if the tensors are not those of lay_out(): the manifest and the file disagree.
void check_header(const ShardHeader& header, const StreamInfo& stream, const Shard& shard, const std::string& name);

// [rows, ...], with the channels of the shard.
std::vector<std::int64_t> values_shape(const StreamInfo& stream, const Shard& shard);

// The product of the sizes and the bytes of an element; nothing if it is over size_limit.
std::optional<std::int64_t> bytes_of_shape(DType dtype, std::span<const std::int64_t> shape);

std::int64_t channels_of(const StreamInfo& stream);  // the size of its flattened sample

}  // namespace robocache::cache
