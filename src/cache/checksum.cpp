#include "cache/checksum.h"

#include <span>

#include "io/hash.h"

namespace robocache::cache {

std::string hash_text(std::string_view before, std::string_view text) {
  io::Hash hash;
  for (const std::string_view part : {before, text}) hash.add(std::as_bytes(std::span(part)));
  return hash.text();
}

std::string sealed(std::string body, const Seal& seal) {
  const std::string hash = hash_text({}, body);
  body += seal.before;
  body += hash;
  return body += seal.after;
}

std::string_view said_checksum(std::string_view text, const Seal& seal) {
  const std::size_t length = seal.before.size() + hash_digits + seal.after.size();
  if (text.size() < length || !text.ends_with(seal.after)) return {};
  const std::string_view end = text.substr(text.size() - length);
  return end.starts_with(seal.before) ? end.substr(seal.before.size(), hash_digits) : std::string_view();
}

bool is_sealed(std::string_view text, const Seal& seal) {
  const std::string_view said = said_checksum(text, seal);
  if (said.empty()) return false;
  return hash_text({}, text.substr(0, text.size() - seal.before.size() - hash_digits - seal.after.size())) == said;
}

bool is_hash(std::string_view text) {
  return text.size() == hash_digits && text.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

}  // namespace robocache::cache
