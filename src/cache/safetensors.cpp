#include "cache/safetensors.h"

#include <robocache/error.h>

#include <algorithm>
#include <cstring>

#include "core/limits.h"
#include "core/text.h"

namespace robocache::cache {

std::optional<std::int64_t> bytes_of_shape(DType dtype, std::span<const std::int64_t> shape) {
  std::int64_t bytes = size_of(dtype);
  bool is_empty = false;
  for (const std::int64_t size : shape) {
    if (size < 0) return std::nullopt;
    is_empty = is_empty || size == 0;
    if (size > 0 && bytes > size_limit / size) return std::nullopt;
    if (size > 0) bytes *= size;
  }
  return is_empty ? 0 : bytes;
}

std::int64_t channels_of(const StreamInfo& stream) {
  std::int64_t count = 1;
  for (const std::int64_t size : stream.shape) count *= size;
  return count;
}

std::vector<std::int64_t> values_shape(const StreamInfo& stream, const Shard& shard) {
  std::vector<std::int64_t> shape{shard.rows};
  shape.insert(shape.end(), stream.shape.begin(), stream.shape.end());
  if (channels_of(stream) != shard.channels && shape.size() == 2) shape[1] = shard.channels;
  return shape;
}

std::vector<TensorEntry> lay_out(const StreamInfo& stream, const Shard& shard) {
  std::vector<TensorEntry> tensors;
  std::int64_t at = 0;
  const auto add = [&](const char* name, DType dtype, std::vector<std::int64_t> shape) {
    const std::int64_t bytes = bytes_of_shape(dtype, shape).value_or(0);
    tensors.push_back({name, dtype, std::move(shape), at, at + bytes});
    at += bytes;
  };
  add("values", stream.dtype, values_shape(stream, shard));
  if (at % 8 != 0) add("padding", DType::u8, {8 - at % 8});
  add("times", DType::i64, {shard.samples});
  add("arrivals", DType::i64, {shard.samples});
  add("offsets", DType::i64, {shard.episodes + 1});
  if (stream.is_ragged) add("inner", DType::i64, {shard.samples + 1});
  return tensors;
}

ShardHeader read_header(const Bytes& bytes) {
  const auto fail = [&](const auto&... parts) { throw Error(ErrorKind::file, concat(bytes.name, ": ", parts...)); };
  if (bytes.size < 8) fail("has ", bytes.size, " bytes; a safetensors file has at least 8");
  std::uint64_t length = 0;
  bytes.read(0, std::as_writable_bytes(std::span(&length, 1)));
  if (length > static_cast<std::uint64_t>(std::min(bytes.size - 8, max_header))) {
    fail("its header should have ", length, " bytes, but ", bytes.size - 8, " follow; it is damaged or truncated");
  }
  std::string text(length, '\0');
  bytes.read(8, std::as_writable_bytes(std::span(text)));
  const auto data = static_cast<std::int64_t>(8 + length);
  ShardHeader header = parse_header(text, bytes.size - data, bytes.name);
  header.data = data;
  return header;
}

void check_header(const ShardHeader& header, const StreamInfo& stream, const Shard& shard, const std::string& name) {
  for (const TensorEntry& expected : lay_out(stream, shard)) {
    const TensorEntry* const found = header.find(expected.name);
    if (found == nullptr) {
      throw Error(ErrorKind::file, concat(name, ": the tensor ", quote(expected.name), " is missing"));
    }
    if (found->dtype != expected.dtype || found->shape != expected.shape) {
      throw Error(ErrorKind::file,
                  concat(name, ": ", expected.name, " is ", name_of(found->dtype), " ", shape_text(found->shape),
                         ", but the manifest says ", name_of(expected.dtype), " ", shape_text(expected.shape)));
    }
    if ((header.data + found->begin) % size_of(found->dtype) != 0) {
      throw Error(ErrorKind::file, concat(name, ": ", expected.name, " does not lie at a multiple of its elements"));
    }
  }
}

}  // namespace robocache::cache
