// Any bytes, as an MCAP file: read in every way, or refused with a sentence. Anything else is a bug. What a reader finds
// in file order it also finds in log-time order, in whatever little memory.
#include <robocache/mcap.h>

#include <cstdlib>
#include <string_view>

namespace {

using namespace robocache::mcap;

void require(bool holds) {
  if (!holds) std::abort();
}

void check_sentence(std::string_view text) {
  require(text.starts_with("fuzz: ") && text.size() < 1000);
  for (const char c : text) require(c >= ' ' && c <= '~');
}

// Every byte is there: the sum is taken so that the sanitizers see each of them.
void visit(std::span<const std::byte> bytes) {
  unsigned sum = 0;
  for (const std::byte byte : bytes) sum += static_cast<unsigned>(byte);
  volatile unsigned sink = sum;
  static_cast<void>(sink);
}

void read_records(const robocache::Bytes& bytes, bool unpack, const ReadOptions& options) {
  RecordReader reader(bytes, unpack, options);
  while (const Record* record = reader.next()) {
    if (const auto* message = std::get_if<Message>(record)) visit(message->data);
    if (const auto* chunk = std::get_if<Chunk>(record)) visit(chunk->records);
    if (const auto* attachment = std::get_if<Attachment>(record)) visit(attachment->data);
  }
  for (const std::string& warning : reader.warnings()) check_sentence(warning);
}

std::size_t read_messages(Reader& reader, Order order) {
  Selection selection;
  selection.order = order;
  std::size_t count = 0;
  Messages messages = reader.messages(selection);
  while (const Message* message = messages.next()) {
    require(reader.channels().contains(message->channel_id));
    visit(message->data);
    ++count;
  }
  return count;
}

void read_all(const robocache::Bytes& bytes, const ReadOptions& options) {
  Reader reader(bytes, options);
  const std::size_t count = read_messages(reader, Order::file);
  require(read_messages(reader, Order::log_time) == count);
  for (const ChunkIndex& chunk : reader.chunk_indexes()) reader.message_indexes(chunk);
  for (const AttachmentIndex& index : reader.attachment_indexes()) {
    try {
      visit(reader.attachment(index).data);
    } catch (const robocache::Error& error) {
      check_sentence(error.what());
    }
  }
  for (const MetadataIndex& index : reader.metadata_indexes()) {
    try {
      reader.metadata(index);
    } catch (const robocache::Error& error) {
      check_sentence(error.what());
    }
  }
  require(reader.warnings().size() <= 101);
  for (const std::string& warning : reader.warnings()) check_sentence(warning);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const robocache::Bytes bytes = robocache::bytes_of(std::as_bytes(std::span(data, size)), "fuzz");
  ReadOptions options;
  options.max_chunk = 1 << 18;
  options.check_crc = false;  // a fuzzer does not guess them
  try {
    read_records(bytes, true, options);
    read_records(bytes, false, options);
    for (const std::int64_t buffer : {0, 300, 1 << 20}) {
      options.buffer = buffer;
      read_all(bytes, options);
    }
  } catch (const robocache::Error& error) {
    require(error.kind() == robocache::ErrorKind::file);
    check_sentence(error.what());
  }
  return 0;
}
