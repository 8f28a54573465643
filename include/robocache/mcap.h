// MCAP, the container of timestamped messages that ROS 2 and others record into: a reader and a writer of all of version 0 of
// its specification (mcap.dev/spec).
//
// ```cpp
// const std::string text = R"({"x": 1.5})";
// robocache::mcap::Writer writer("example.mcap");
// const std::uint16_t schema = writer.add_schema("demo/Point", "jsonschema", R"({"type": "object"})");
// const std::uint16_t channel = writer.add_channel("/point", "json", schema);
// writer.write(robocache::mcap::Message{
//     .channel_id = channel, .log_time = 7, .publish_time = 7, .data = std::as_bytes(std::span(text))});
// writer.finish();
//
// robocache::mcap::Reader reader(robocache::open_bytes("example.mcap"));  // reads the summary, no message
// robocache::mcap::Messages messages = reader.messages({.topics = {{"/point"}}, .start = 0, .end = 10});
// while (const robocache::mcap::Message* message = messages.next()) {
//   std::printf("%s: %zu bytes\n", reader.channel(message->channel_id)->topic.c_str(), message->data.size());
// }
// for (const std::string& sentence : reader.warnings()) std::puts(sentence.c_str());
// ```
//
// What is read: chunked or not; no compression, zstd and lz4 frames; with or without summary and indexes. Unknown records,
// unknown fields at the end of records, and padding are skipped. A file that is no MCAP, or of another version, throws
// Error(file). Everything else that is wrong is a warning, and reading goes on with what is whole:
//   truncated         everything up to the last whole record is read; the warning says how many bytes are lost
//   damaged chunk     (its CRC, its compression, its size) is left out; the warning says which one, and its messages' times
//   damaged records   in a chunk: those before the damage are read
//   damaged summary   the file is scanned, as one without a summary is
//   unknown channel   messages on a channel that nothing declares are left out
//
// Limits. A file may be hostile: sizes are checked before memory is taken, nothing is unpacked past `max_chunk`, a chunk inside
// a chunk is refused, and an index may point anywhere.
//
// Callbacks. Bytes::read runs in the thread that asks the reader, and Writer::Sink in the thread that calls the writer. Both
// may throw; the caller gets that very exception. A read that failed may be tried again. After a sink has thrown, the file
// is not whole, and the writer refuses further calls with Error(file).
//
// Threads. Any number of Readers run beside each other. One Reader may be shared: any thread may ask it anything (but for
// channels(), schemas() and attachment(), see there) and have Messages of its own from it. A Messages, a RecordReader and a
// Writer are for one thread at a time. `Bytes::read` is then called by several threads at once: open_bytes and bytes_of allow
// it. After fork() a child may go on with what no other thread was using at that moment.
#pragma once

#include <robocache/bytes.h>
#include <robocache/error.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#pragma GCC visibility push(default)  // the shared library exports what follows

namespace robocache::mcap {

// ---- Records: names and fields as in the specification -------------------------------------------------------------

// Maps keep the order of the file. Spans point into the reader that handed the record out.
using StringMap = std::vector<std::pair<std::string, std::string>>;
using ChannelMap = std::vector<std::pair<std::uint16_t, std::uint64_t>>;  // channel id -> count or offset

struct Header {
  std::string profile{};  // "ros2"
  std::string library{};
};
struct Footer {
  std::uint64_t summary_start = 0;  // 0: there is none
  std::uint64_t summary_offset_start = 0;
  std::uint32_t summary_crc = 0;  // 0, here and in every CRC: not available
};
struct Schema {
  std::uint16_t id = 0;    // never 0
  std::string name{};      // "sensor_msgs/msg/Imu"
  std::string encoding{};  // "ros2msg"
  std::string data{};      // any bytes; text for ros2msg
};
struct Channel {
  std::uint16_t id = 0;
  std::uint16_t schema_id = 0;  // 0: none
  std::string topic{};
  std::string message_encoding{};  // "cdr"
  StringMap metadata{};
};
struct Message {
  std::uint16_t channel_id = 0;
  std::uint32_t sequence = 0;
  std::uint64_t log_time = 0;  // times are nanoseconds
  std::uint64_t publish_time = 0;
  std::span<const std::byte> data{};
};
struct Chunk {
  std::uint64_t message_start_time = 0;
  std::uint64_t message_end_time = 0;
  std::uint64_t uncompressed_size = 0;
  std::uint32_t uncompressed_crc = 0;
  std::string compression{};             // "", "zstd", "lz4"
  std::span<const std::byte> records{};  // compressed
};
struct MessageIndex {
  std::uint16_t channel_id = 0;
  std::vector<std::pair<std::uint64_t, std::uint64_t>> records{};  // log time, offset in the unpacked chunk
};
struct ChunkIndex {
  std::uint64_t message_start_time = 0;
  std::uint64_t message_end_time = 0;
  std::uint64_t chunk_start_offset = 0;
  std::uint64_t chunk_length = 0;
  ChannelMap message_index_offsets{};
  std::uint64_t message_index_length = 0;
  std::string compression{};
  std::uint64_t compressed_size = 0;
  std::uint64_t uncompressed_size = 0;
};
struct Attachment {
  std::uint64_t log_time = 0;
  std::uint64_t create_time = 0;
  std::string name{};
  std::string media_type{};
  std::span<const std::byte> data{};
  std::uint32_t crc = 0;
};
struct AttachmentIndex {
  std::uint64_t offset = 0;
  std::uint64_t length = 0;
  std::uint64_t log_time = 0;
  std::uint64_t create_time = 0;
  std::uint64_t data_size = 0;
  std::string name{};
  std::string media_type{};
};
struct Statistics {
  std::uint64_t message_count = 0;
  std::uint16_t schema_count = 0;
  std::uint32_t channel_count = 0;
  std::uint32_t attachment_count = 0;
  std::uint32_t metadata_count = 0;
  std::uint32_t chunk_count = 0;
  std::uint64_t message_start_time = 0;
  std::uint64_t message_end_time = 0;
  ChannelMap channel_message_counts{};
};
struct Metadata {
  std::string name{};
  StringMap metadata{};
};
struct MetadataIndex {
  std::uint64_t offset = 0;
  std::uint64_t length = 0;
  std::string name{};
};
struct SummaryOffset {
  std::uint8_t group_opcode = 0;
  std::uint64_t group_start = 0;
  std::uint64_t group_length = 0;
};
struct DataEnd {
  std::uint32_t data_section_crc = 0;
};

// A record's place in the list is its opcode less 1: Header is 0x01.
using Record = std::variant<Header, Footer, Schema, Channel, Message, Chunk, MessageIndex, ChunkIndex, Attachment,
                            AttachmentIndex, Statistics, Metadata, MetadataIndex, SummaryOffset, DataEnd>;

// ---- Reading -------------------------------------------------------------------------------------------------------

struct ReadOptions {
  // A chunk that unpacks to more bytes is left out. 0: 4 times the file and 256 MiB.
  std::int64_t max_chunk = 0;
  // Unpacked chunks that Messages holds at once; the chunk that is being unpacked comes on top.
  std::int64_t buffer = std::int64_t{64} << 20;
  // CRCs of chunks, attachments and the summary; a RecordReader also checks the data section's. The cost is small.
  bool check_crc = true;
};

// Every record in file order. With `unpack`, a chunk's records come in place of the chunk, and the MessageIndex records that
// follow it, which point into it, are left out; else Chunk and MessageIndex records come as they lie in the file. Memory: the
// largest record, and one chunk unpacked. Damage is skipped, with a warning, as above; the warning about a data section that
// does not match its CRC comes at its end.
class RecordReader {
 public:
  explicit RecordReader(Bytes bytes, bool unpack = true, const ReadOptions& options = {});
  ~RecordReader();
  RecordReader(RecordReader&&) noexcept;
  RecordReader& operator=(RecordReader&&) noexcept;

  const Record* next();  // nullptr: that was all. The record and its spans are valid until the next call
  std::vector<std::string> warnings() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

enum class Order : std::uint8_t {
  log_time,  // equal times in file order
  file,      // as they lie in the file: each chunk is unpacked once, and nothing is sorted
};

struct Selection {
  std::optional<std::vector<std::string>> topics{};  // none: all. A topic that the file does not have: Error(value)
  std::uint64_t start = 0;                           // log times [start, end)
  std::optional<std::uint64_t> end{};                // none: to the last
  Order order = Order::log_time;
};

// Messages of a Reader, which must outlive it (moving the Reader is fine).
//
// Log-time order in bounded memory: a chunk is unpacked when its earliest message is due, and dropped after its last one. If
// the file is in order, one chunk is in memory. Chunks whose times overlap are held together up to ReadOptions::buffer. Beyond
// that, each keeps only its next messages, as many bytes as its share, and is unpacked again after those: where overlapping
// chunks are n times the buffer, each is unpacked about 2 n times, and no message is lost. Messages outside chunks are read in
// pieces of 1 MiB that count as chunks. Chunks outside the range are not read, nor those that have no selected channel by
// their index. Where messages are earlier than their chunk's index says, they come as soon as the chunk is read, with a warning.
class Messages {
 public:
  ~Messages();
  Messages(Messages&&) noexcept;
  Messages& operator=(Messages&&) noexcept;

  // nullptr: that was all. The message and its data are valid until the next call; nothing is copied per message.
  const Message* next();
  // Whether next() has its message ready; if not, it reads and unpacks first. For callers who hold a lock.
  bool ready() const noexcept;

 private:
  friend class Reader;
  struct State;
  explicit Messages(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

// A file's content. Opening it costs its summary: no chunk is read. Where there is no summary, or it is damaged, lacks
// channels, chunks or their place, the file is scanned: one pass that unpacks every chunk and keeps none.
class Reader {
 public:
  explicit Reader(Bytes bytes, const ReadOptions& options = {});
  ~Reader();
  Reader(Reader&&) noexcept;
  Reader& operator=(Reader&&) noexcept;

  const Header& header() const noexcept;
  bool is_indexed() const noexcept;  // false: it was scanned; what follows is then what the scan saw
  // By id. Both grow when a chunk declares what the summary does not have; references to entries stay valid. Do not call these
  // while another thread reads messages of this Reader; use channel(), schema(), all_channels() and all_schemas() then.
  const std::map<std::uint16_t, Schema>& schemas() const noexcept;
  const std::map<std::uint16_t, Channel>& channels() const noexcept;
  const Channel* channel(std::uint16_t id) const;      // nullptr if no channel has the id
  const Schema* schema(const Channel& channel) const;  // nullptr: the channel has none
  std::vector<const Channel*> all_channels() const;    // as they are now, by id
  std::vector<const Schema*> all_schemas() const;
  const std::optional<Statistics>& statistics() const noexcept;   // none: the summary has none
  const std::vector<ChunkIndex>& chunk_indexes() const noexcept;  // in file order
  const std::vector<AttachmentIndex>& attachment_indexes() const noexcept;
  const std::vector<MetadataIndex>& metadata_indexes() const noexcept;

  // Where a chunk's messages are, by channel, without unpacking it; empty: the file does not say.
  std::vector<MessageIndex> message_indexes(const ChunkIndex& chunk);
  // Throws Error(file) where the attachment is not there or does not match its CRC. Its data is valid until the next call, so
  // one thread at a time may ask for attachments.
  Attachment attachment(const AttachmentIndex& index);
  Metadata metadata(const MetadataIndex& index);

  Messages messages(const Selection& selection = {});

  // Sentences that begin with the file's name: at most 100, and then one that counts the others. Reading adds to them.
  std::vector<std::string> warnings() const;

 private:
  friend class Messages;
  struct State;
  std::unique_ptr<State> state_;
};

// Whether these are the first bytes of an MCAP file of any version; 6 are enough.
bool is_mcap(std::span<const std::byte> beginning) noexcept;

// ---- Writing -------------------------------------------------------------------------------------------------------

enum class Compression : std::uint8_t { none, zstd, lz4 };

struct WriteOptions {
  std::string profile{};
  std::string library = "robocache";
  Compression compression = Compression::zstd;
  int level = 1;                                    // of zstd
  std::int64_t chunk_size = std::int64_t{4} << 20;  // a chunk is written when its records reach this many bytes
  // What is written beside the messages; each may be left out.
  bool chunks = true;           // without, there is no compression and no message index either
  bool message_indexes = true;  // after each chunk
  bool schemas = true;          // repeated in the summary, as are the channels
  bool channels = true;
  bool statistics = true;
  bool chunk_indexes = true;
  bool attachment_indexes = true;
  bool metadata_indexes = true;
  bool summary_offsets = true;
  bool crcs = true;  // of chunks, attachments, the data section and the summary
};

// Writes from the first byte to the last, never back: a chunk is written when it is full, and a file that was cut off can be
// read up to its last whole chunk. Throws Error(file) where it cannot write, and then writes nothing more; Error(value)
// where a channel or schema is unknown, or an id is declared twice and differs.
//
// A file that the writer opened is on the disk, with its name, when finish() returns (fsync). After a crash before that, the
// file may be missing, or lack any part; the reader gives the messages of the chunks that are whole, and warns.
// One thread at a time: a call beside another one throws Error(value). After a fork the file stays the parent's: a child's
// copy of the writer throws Error(file) where it would write, and its destructor does nothing.
class Writer {
 public:
  using Sink = std::function<void(std::span<const std::byte>)>;  // takes all of it, or throws

  explicit Writer(const std::filesystem::path& path, const WriteOptions& options = {});  // replaces the file
  Writer(Sink sink, std::string name, const WriteOptions& options = {});
  ~Writer();  // finishes the file where finish() was not called; an error is then lost
  Writer(Writer&&) noexcept;
  Writer& operator=(Writer&&) noexcept;  // finishes the file that was open, as the destructor does

  // Ids from 1 on. The same schema or channel again gives its id again.
  std::uint16_t add_schema(std::string_view name, std::string_view encoding, std::string_view data);
  std::uint16_t add_channel(std::string_view topic, std::string_view message_encoding, std::uint16_t schema_id = 0,
                            const StringMap& metadata = {});
  // With an id of the caller's own.
  void write(const Schema& schema);
  void write(const Channel& channel);

  void write(const Message& message);
  void write(const Attachment& attachment);  // the crc is computed
  void write(const Metadata& metadata);

  void flush();   // ends the chunk and writes it out; it is on the disk only after finish()
  void finish();  // ends the file; then nothing more can be written. A second call does nothing
  const Statistics& statistics() const noexcept;  // of what was written

 private:
  struct State;
  class Use;
  std::unique_ptr<State> state_;
};

}  // namespace robocache::mcap

#pragma GCC visibility pop
