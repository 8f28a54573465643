// CRC-32, as zlib, PNG and MCAP define it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace robocache::io {

// Continues the checksum of the bytes before: crc32(crc32(0, a), b) is the checksum of a followed by b.
std::uint32_t crc32(std::uint32_t before, std::span<const std::byte> bytes) noexcept;

}  // namespace robocache::io
