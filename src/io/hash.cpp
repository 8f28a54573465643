#define XXH_INLINE_ALL
#include "io/hash.h"

#include <xxhash.h>

#include "core/characters.h"

namespace robocache::io {

struct Hash::State {
  XXH3_state_t state;
};

Hash::Hash() : state_(std::make_unique<State>()) { XXH3_128bits_reset(&state_->state); }
Hash::~Hash() = default;
Hash::Hash(const Hash& other) : state_(std::make_unique<State>()) { *this = other; }
Hash& Hash::operator=(const Hash& other) {
  if (this != &other) XXH3_copyState(&state_->state, &other.state_->state);
  return *this;
}
Hash::Hash(Hash&&) noexcept = default;
Hash& Hash::operator=(Hash&&) noexcept = default;

void Hash::add(std::span<const std::byte> bytes) {
  if (!bytes.empty()) XXH3_128bits_update(&state_->state, bytes.data(), bytes.size());
}

std::string Hash::text() const {
  XXH128_canonical_t canonical;
  XXH128_canonicalFromHash(&canonical, XXH3_128bits_digest(&state_->state));
  std::string text;
  for (const unsigned char byte : canonical.digest) {
    text += hex_digits[byte >> 4];
    text += hex_digits[byte & 15];
  }
  return text;
}

}  // namespace robocache::io
