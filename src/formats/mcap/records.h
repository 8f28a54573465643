// Records as they are in a file: an opcode, a length, the fields.
#pragma once

#include "formats/mcap/fields.h"

namespace robocache::mcap {

enum class Op : std::uint8_t {
  header = 1,
  footer,
  schema,
  channel,
  message,
  chunk,
  message_index,
  chunk_index,
  attachment,
  attachment_index,
  statistics,
  metadata,
  metadata_index,
  summary_offset,
  data_end,
};

inline constexpr std::string_view magic("\x89MCAP0\r\n", 8);
inline constexpr std::uint64_t head_size = 9;      // of every record
inline constexpr std::uint64_t message_size = 22;  // of a message's fields before its data
inline constexpr std::uint64_t footer_size = head_size + 20;
inline constexpr std::uint64_t footer_crc_size = footer_size - 4;  // how much of the footer its CRC covers
inline constexpr std::uint64_t data_end_size = head_size + 4;

// Calls f with the name and value of each field of a record, in the order of the specification: f("profile",
// record.profile)... The data of a Message has no length field, so it comes last. T may be const.
template <class T, class F>
void each_field(T& record, const F& f) {
  using R = std::remove_const_t<T>;
  if constexpr (std::is_same_v<R, Header>) {
    f("profile", record.profile), f("library", record.library);
  } else if constexpr (std::is_same_v<R, Footer>) {
    f("summary_start", record.summary_start), f("summary_offset_start", record.summary_offset_start);
    f("summary_crc", record.summary_crc);
  } else if constexpr (std::is_same_v<R, Schema>) {
    f("id", record.id), f("name", record.name), f("encoding", record.encoding), f("data", record.data);
  } else if constexpr (std::is_same_v<R, Channel>) {
    f("id", record.id), f("schema_id", record.schema_id), f("topic", record.topic);
    f("message_encoding", record.message_encoding), f("metadata", record.metadata);
  } else if constexpr (std::is_same_v<R, Message>) {
    f("channel_id", record.channel_id), f("sequence", record.sequence), f("log_time", record.log_time);
    f("publish_time", record.publish_time), f("data", record.data);
  } else if constexpr (std::is_same_v<R, Chunk>) {
    f("message_start_time", record.message_start_time), f("message_end_time", record.message_end_time);
    f("uncompressed_size", record.uncompressed_size), f("uncompressed_crc", record.uncompressed_crc);
    f("compression", record.compression), f("records", record.records);
  } else if constexpr (std::is_same_v<R, MessageIndex>) {
    f("channel_id", record.channel_id), f("records", record.records);
  } else if constexpr (std::is_same_v<R, ChunkIndex>) {
    f("message_start_time", record.message_start_time), f("message_end_time", record.message_end_time);
    f("chunk_start_offset", record.chunk_start_offset), f("chunk_length", record.chunk_length);
    f("message_index_offsets", record.message_index_offsets), f("message_index_length", record.message_index_length);
    f("compression", record.compression), f("compressed_size", record.compressed_size);
    f("uncompressed_size", record.uncompressed_size);
  } else if constexpr (std::is_same_v<R, Attachment>) {
    f("log_time", record.log_time), f("create_time", record.create_time), f("name", record.name);
    f("media_type", record.media_type), f("data", record.data), f("crc", record.crc);
  } else if constexpr (std::is_same_v<R, AttachmentIndex>) {
    f("offset", record.offset), f("length", record.length), f("log_time", record.log_time);
    f("create_time", record.create_time), f("data_size", record.data_size), f("name", record.name);
    f("media_type", record.media_type);
  } else if constexpr (std::is_same_v<R, Statistics>) {
    f("message_count", record.message_count), f("schema_count", record.schema_count);
    f("channel_count", record.channel_count), f("attachment_count", record.attachment_count);
    f("metadata_count", record.metadata_count), f("chunk_count", record.chunk_count);
    f("message_start_time", record.message_start_time), f("message_end_time", record.message_end_time);
    f("channel_message_counts", record.channel_message_counts);
  } else if constexpr (std::is_same_v<R, Metadata>) {
    f("name", record.name), f("metadata", record.metadata);
  } else if constexpr (std::is_same_v<R, MetadataIndex>) {
    f("offset", record.offset), f("length", record.length), f("name", record.name);
  } else if constexpr (std::is_same_v<R, SummaryOffset>) {
    f("group_opcode", record.group_opcode), f("group_start", record.group_start);
    f("group_length", record.group_length);
  } else {
    static_assert(std::is_same_v<R, DataEnd>);
    f("data_section_crc", record.data_section_crc);
  }
}

namespace detail {
template <class T, class... Types>
consteval std::uint8_t opcode_in(const std::variant<Types...>* /*of*/) {
  std::uint8_t opcode = 1;
  bool found = false;
  ((found = found || std::is_same_v<T, Types>, opcode = static_cast<std::uint8_t>(opcode + (found ? 0 : 1))), ...);
  return opcode;
}
}  // namespace detail
template <class T>
inline constexpr Op op_of{detail::opcode_in<T>(static_cast<const Record*>(nullptr))};
static_assert(op_of<Header> == Op::header && op_of<Attachment> == Op::attachment && op_of<DataEnd> == Op::data_end);

// "MessageIndex"; "" for an unknown opcode.
std::string_view name_of(Op op) noexcept;

// Parses the fields of one record; bytes after them are padding. Throws Damage. Spans point into `body`.
template <class T>
T parse(Span body) {
  T record;
  Fields fields(body);
  each_field(record, [&](const char*, auto& field) { fields.read(field); });
  return record;
}
template <>
Message parse<Message>(Span body);
// Nothing if the specification has no record of this opcode.
std::optional<Record> parse(Op op, Span body);

// Appends a whole record.
template <class T>
void append(std::string& out, const T& record) {
  Appender to(out);
  const std::size_t begin = out.size();
  to.write(static_cast<std::uint8_t>(op_of<T>));
  to.write(std::uint64_t{0});
  each_field(record, [&](const char*, const auto& field) { to.write(field); });
  const std::uint64_t length = out.size() - begin - head_size;
  io::store(&out[begin + 1], length);
}
template <>
void append<Message>(std::string& out, const Message& message);

inline bool belongs_in_chunk(Op op) { return op == Op::schema || op == Op::channel || op == Op::message; }

// The first record of a chunk's or a summary's records, with its head. Throws Damage if it is not whole, is a chunk, or is a
// message too short for its fields.
inline Span first_record(Span records) {
  if (records.size() < head_size) throw Damage("ends inside the head of a record");
  const auto op = static_cast<Op>(records[0]);
  const auto length = load<std::uint64_t>(&records[1]);
  if (op == Op{}) throw Damage("has a record of type 0");
  if (op == Op::chunk) throw Damage("holds a chunk");
  if (length > records.size() - head_size) throw Damage("ends inside a record");
  if (op == Op::message && length < message_size) throw Damage("has a message that is too short");
  return records.first(head_size + length);
}

// Calls f(op, body) for each record. Throws Damage as first_record() does, after the calls for the records before.
template <class F>
void each_record(Span records, const F& f) {
  while (!records.empty()) {
    const Span record = first_record(records);
    f(static_cast<Op>(record[0]), record.subspan(head_size));
    records = records.subspan(record.size());
  }
}

}  // namespace robocache::mcap
