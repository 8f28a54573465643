#include "formats/mcap/records.h"

namespace robocache::mcap {

std::string_view name_of(Op op) noexcept {
  static constexpr std::string_view names[] = {"",           "Header",        "Footer",          "Schema",
                                               "Channel",    "Message",       "Chunk",           "MessageIndex",
                                               "ChunkIndex", "Attachment",    "AttachmentIndex", "Statistics",
                                               "Metadata",   "MetadataIndex", "SummaryOffset",   "DataEnd"};
  const auto place = static_cast<std::size_t>(op);
  return place < std::size(names) ? names[place] : "";
}

template <>
Message parse<Message>(Span body) {
  if (body.size() < message_size) throw Damage("ends inside a message's fields");
  const std::byte* const from = body.data();
  return {load<std::uint16_t>(from), load<std::uint32_t>(from + 2), load<std::uint64_t>(from + 6),
          load<std::uint64_t>(from + 14), body.subspan(message_size)};
}

std::optional<Record> parse(Op op, Span body) {
  std::optional<Record> record;
  const auto parse_as = [&]<class T>(const T*) {
    if (op == op_of<T>) record = parse<T>(body);
  };
  [&]<class... Types>(const std::variant<Types...>*) {
    (parse_as(static_cast<const Types*>(nullptr)), ...);
  }(static_cast<const Record*>(nullptr));
  return record;
}

template <>
void append<Message>(std::string& out, const Message& message) {
  Appender to(out);
  to.write(static_cast<std::uint8_t>(Op::message));
  to.write(std::uint64_t{message_size + message.data.size()});
  to.write(message.channel_id);
  to.write(message.sequence);
  to.write(message.log_time);
  to.write(message.publish_time);
  to.raw(message.data);
}

}  // namespace robocache::mcap
