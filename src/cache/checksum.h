// Checksums in a cache's documents: manifest.json and a shard's description end with one, and so does each line's beginning
// in the journal.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace robocache::cache {

inline constexpr std::size_t hash_digits = 32;
bool is_hash(std::string_view text);  // 32 hexadecimal digits

// The hash of two texts, one after the other.
std::string hash_text(std::string_view before, std::string_view text);

// How a document ends: the text before and after its checksum, which is the hash of all text before the seal.
struct Seal {
  std::string_view before, after;
};
std::string sealed(std::string body, const Seal& seal);
bool is_sealed(std::string_view text, const Seal& seal);

// The checksum that the document ends with, right or wrong; empty if it does not end with a seal.
std::string_view said_checksum(std::string_view text, const Seal& seal);

}  // namespace robocache::cache
