// RoboCache inside a shared library: messages go through an MCAP in memory, so that zstd, lz4 and zlib are linked in.
#include <robocache/robocache.h>

#include "expect.h"

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <span>
#include <string>
#include <vector>

namespace rc = robocache;

namespace {

const std::string text(200, '-');

std::vector<std::byte> write(rc::mcap::Compression compression) {
  std::vector<std::byte> file;
  const auto append = [&](std::span<const std::byte> bytes) { file.insert(file.end(), bytes.begin(), bytes.end()); };
  rc::mcap::Writer writer(append, "memory", {.compression = compression});
  const std::uint16_t channel = writer.add_channel("/text", "json");
  for (std::uint64_t k = 0; k < 1000; ++k) {
    writer.write(rc::mcap::Message{.channel_id = channel, .log_time = k, .data = std::as_bytes(std::span(text))});
  }
  writer.finish();
  return file;
}

void check(rc::mcap::Compression compression) {
  const std::vector<std::byte> file = write(compression);
  expect(file.size() < 1000 * text.size(), "repeated text is compressed");
  rc::mcap::Reader reader(rc::bytes_of(file, "memory"));
  rc::mcap::Messages messages = reader.messages();
  std::size_t count = 0;
  while (messages.next() != nullptr) ++count;
  expect(count == 1000, "every message that was written is read");
}

}  // namespace

extern "C" int run_component() {
  try {
    check(rc::mcap::Compression::zstd);
    check(rc::mcap::Compression::lz4);
  } catch (const rc::Error& error) {
    std::fprintf(stderr, "consumer: %s\n", error.what());
    return 1;
  }
  try {
    rc::mcap::Reader(rc::bytes_of(std::as_bytes(std::span(text)), "no MCAP"));
    expect(false, "a file that is no MCAP must be refused");
  } catch (const rc::Error& error) {
    expect(error.kind() == rc::ErrorKind::file, "a file that is no MCAP is an Error of the kind file");
  }
  return mismatches == 0 ? 0 : 1;
}
