// A schema and messages of any bytes: streams, or a sentence. Anything else is a bug.
//   ros2: a byte (odd: ros2idl), the type's name up to a newline, the schema up to a zero, messages
//   json: messages
// Each message has its size before it, 2 bytes, little endian.
#include <robocache/error.h>
#include <robocache/formats.h>

#include <cstring>
#include <string>
#include <string_view>

#include "batches.h"

namespace {

using robocache::fuzz::require;
using robocache::fuzz::visit;

#define ROBOCACHE_TEXT(word) #word
#define ROBOCACHE_NAME(word) ROBOCACHE_TEXT(word)
constexpr std::string_view format = ROBOCACHE_NAME(ROBOCACHE_FUZZ_FORMAT);

template <class F>
bool succeeds(const F& f) {
  try {
    f();
    return true;
  } catch (const robocache::Error& error) {
    const std::string_view text = error.what();
    require(error.kind() == robocache::ErrorKind::file && text.starts_with("\"/fuzz\": ") && text.size() < 1000);
    for (const char c : text) require(c >= ' ' && c <= '~');
    return false;
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  std::string_view input(reinterpret_cast<const char*>(data), size);
  robocache::Schema schema;
  if (format == "ros2") {
    const std::size_t name = input.find('\n'), end = input.find('\0', std::min<std::size_t>(1, size));
    if (name == std::string_view::npos || end == std::string_view::npos || end <= name || name < 1) return -1;
    schema = {std::string(input.substr(1, name - 1)), (input[0] & 1) != 0 ? "ros2idl" : "ros2msg",
              std::string(input.substr(name + 1, end - name - 1))};
    input.remove_prefix(end + 1);
  }
  succeeds([&] {
    robocache::Decoder decoder(schema, format == "ros2" ? "cdr" : "json", "/fuzz");
    // Half of the inputs are logged since 1970, the others since 0.
    std::int64_t time = size % 2 == 0 ? 0 : 1'700'000'000'000'000'000;
    while (input.size() >= 2) {
      const std::size_t length = static_cast<unsigned char>(input[0]) | static_cast<unsigned char>(input[1]) << 8;
      const std::string_view message = input.substr(2, length);
      input.remove_prefix(2 + message.size());
      // In a block of its own, so that a read past its end is seen.
      const std::vector<char> copy(message.begin(), message.end());
      const std::int64_t before = decoder.bytes();
      const bool added = succeeds([&] { decoder.add(std::as_bytes(std::span(copy)), time, time); });
      require(added || decoder.bytes() == before);
      if (++time % 5 == 0) {
        for (const robocache::StreamBatch& batch : decoder.take()) visit(batch);
      }
    }
    for (const robocache::StreamBatch& batch : decoder.take()) visit(batch);
    require(decoder.bytes() == 0 && decoder.take().empty());
  });
  return 0;
}
