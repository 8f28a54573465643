// The fields of records: little-endian numbers, strings, maps. Reading checks every length; writing appends.
#pragma once

#include <robocache/mcap.h>

#include <cstring>
#include <limits>
#include <stdexcept>
#include <type_traits>

#include "io/endian.h"

namespace robocache::mcap {

using io::load;
using Span = std::span<const std::byte>;

inline std::string_view text_of(Span bytes) { return {reinterpret_cast<const char*>(bytes.data()), bytes.size()}; }
inline Span bytes_of(std::string_view text) { return std::as_bytes(std::span(text)); }

// Thrown where a record cannot be understood; what() is the end of a sentence. It never leaves the reader.
class Damage : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

class Fields {
 public:
  explicit Fields(Span bytes) : left_(bytes) {}

  template <class T>
  T number() {
    return load<T>(take(sizeof(T)).data());
  }
  void read(std::uint8_t& value) { value = number<std::uint8_t>(); }
  void read(std::uint16_t& value) { value = number<std::uint16_t>(); }
  void read(std::uint32_t& value) { value = number<std::uint32_t>(); }
  void read(std::uint64_t& value) { value = number<std::uint64_t>(); }
  void read(std::string& value) { value = text_of(take(number<std::uint32_t>())); }
  void read(Span& value) { value = take(number<std::uint64_t>()); }
  void read(StringMap& map) {
    constexpr std::size_t most = 1 << 20;  // an entry of 8 bytes takes 64 in memory
    for (Fields entries(take(number<std::uint32_t>())); !entries.left_.empty();) {
      if (map.size() == most) throw Damage("has a map of more than 1048576 entries");
      auto& [key, value] = map.emplace_back();
      entries.read(key);
      entries.read(value);
    }
  }
  template <class Key>
  void read(std::vector<std::pair<Key, std::uint64_t>>& map) {
    const Span bytes = take(number<std::uint32_t>());
    constexpr std::size_t entry = sizeof(Key) + sizeof(std::uint64_t);
    if (bytes.size() % entry != 0) throw Damage("has a map that ends inside an entry");
    map.reserve(bytes.size() / entry);
    for (std::size_t at = 0; at < bytes.size(); at += entry) {
      map.emplace_back(load<Key>(&bytes[at]), load<std::uint64_t>(&bytes[at] + sizeof(Key)));
    }
  }

 private:
  Span take(std::uint64_t count) {
    if (count > left_.size()) throw Damage("ends inside a field");
    const Span taken = left_.first(count);
    left_ = left_.subspan(count);
    return taken;
  }
  Span left_;
};

class Appender {
 public:
  explicit Appender(std::string& out) : out_(out) {}

  template <class T>
  requires std::is_unsigned_v<T>
  void write(T value) { io::append(out_, value); }
  void write(std::string_view text) {
    write(length_of<std::uint32_t>(text.size()));
    out_ += text;
  }
  void write(const std::string& text) { write(std::string_view(text)); }
  void write(Span bytes) {
    write(std::uint64_t{bytes.size()});
    raw(bytes);
  }
  void write(const StringMap& map) {
    std::uint64_t size = 0;
    for (const auto& [key, value] : map) size += 8 + key.size() + value.size();
    write(length_of<std::uint32_t>(size));
    for (const auto& [key, value] : map) {
      write(key);
      write(value);
    }
  }
  template <class Key>
  void write(const std::vector<std::pair<Key, std::uint64_t>>& map) {
    write(length_of<std::uint32_t>(map.size() * (sizeof(Key) + sizeof(std::uint64_t))));
    for (const auto& [key, value] : map) {
      write(key);
      write(value);
    }
  }
  void raw(Span bytes) { out_ += text_of(bytes); }

 private:
  template <class T>
  static T length_of(std::uint64_t size) {
    if (size > std::numeric_limits<T>::max()) {
      throw Error(ErrorKind::value, "mcap: a text or map of 4 GiB or more does not fit into a record");
    }
    return static_cast<T>(size);
  }
  std::string& out_;
};

}  // namespace robocache::mcap
