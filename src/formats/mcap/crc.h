// CRC-32, the one of zlib and PNG, as MCAP has it.
#pragma once

#include <cstdint>
#include <span>

namespace robocache::mcap {

// Of all bytes so far, given that of those before: crc32(crc32(0, a), b) is that of a and b.
std::uint32_t crc32(std::uint32_t before, std::span<const std::byte> bytes) noexcept;

}  // namespace robocache::mcap
