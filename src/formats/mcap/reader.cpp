#include "formats/mcap/contents.h"
#include "formats/mcap/order.h"
#include "io/crc.h"

namespace robocache::mcap {

struct Reader::State {
  State(Bytes bytes, const ReadOptions& options) : source(std::move(bytes), options), contents(read_contents(source)) {}

  // The body of the record that an index points to, read into `buffer`. Throws Error(file) if it is not there.
  Span record(Op op, std::uint64_t offset, std::uint64_t length, ReusedBuffer& buffer) const {
    if (length < head_size || !source.contains(offset, length)) not_there(op, offset);
    const std::span<std::byte> bytes = buffer.room_for(length);
    source.read(offset, bytes);
    if (static_cast<Op>(bytes[0]) != op || load<std::uint64_t>(&bytes[1]) != length - head_size) not_there(op, offset);
    return bytes.subspan(head_size);
  }
  [[noreturn]] void not_there(Op op, std::uint64_t offset) const {
    source.fail("has no ", name_of(op), " at byte ", offset, ", where its index says");
  }

  InputFile source;
  Contents contents;
  ReusedBuffer attached;  // the memory of the last attachment()
};

Reader::Reader(Bytes bytes, const ReadOptions& options) : state_(std::make_unique<State>(std::move(bytes), options)) {}
Reader::~Reader() = default;
Reader::Reader(Reader&&) noexcept = default;
Reader& Reader::operator=(Reader&&) noexcept = default;

const Header& Reader::header() const noexcept { return state_->contents.header; }
bool Reader::is_indexed() const noexcept { return state_->contents.is_indexed; }
const std::map<std::uint16_t, Schema>& Reader::schemas() const noexcept { return state_->contents.declared.schemas; }
const std::map<std::uint16_t, Channel>& Reader::channels() const noexcept { return state_->contents.declared.channels; }
const Schema* Reader::schema(const Channel& channel) const {
  return state_->contents.declared.schema(channel.schema_id);
}
const Channel* Reader::channel(std::uint16_t id) const { return state_->contents.declared.channel(id); }
std::vector<const Channel*> Reader::all_channels() const { return state_->contents.declared.all_channels(); }
std::vector<const Schema*> Reader::all_schemas() const { return state_->contents.declared.all_schemas(); }
const std::optional<Statistics>& Reader::statistics() const noexcept { return state_->contents.statistics; }
const std::vector<ChunkIndex>& Reader::chunk_indexes() const noexcept { return state_->contents.chunks; }
const std::vector<AttachmentIndex>& Reader::attachment_indexes() const noexcept { return state_->contents.attachments; }
const std::vector<MetadataIndex>& Reader::metadata_indexes() const noexcept { return state_->contents.metadata; }
std::vector<std::string> Reader::warnings() const { return state_->source.warnings(); }

std::vector<MessageIndex> Reader::message_indexes(const ChunkIndex& chunk) {
  std::vector<MessageIndex> indexes;
  const std::uint64_t begin = chunk.chunk_start_offset + chunk.chunk_length;
  if (chunk.message_index_length == 0 || !state_->source.contains(begin, chunk.message_index_length)) return indexes;
  ReusedBuffer buffer;
  const std::span<std::byte> bytes = buffer.room_for(chunk.message_index_length);
  state_->source.read(begin, bytes);
  try {
    each_record(bytes, [&](Op op, Span body) {
      if (op == Op::message_index) indexes.push_back(parse<MessageIndex>(body));
    });
  } catch (const Damage& damage) {
    state_->source.warn("the message index at byte ", begin, " ", damage.what());
    indexes.clear();
  }
  return indexes;
}

Attachment Reader::attachment(const AttachmentIndex& index) {
  const Span body = state_->record(Op::attachment, index.offset, index.length, state_->attached);
  try {
    auto attachment = parse<Attachment>(body);
    check_crc(state_->source, attachment, body);
    return attachment;
  } catch (const Damage& damage) {
    state_->source.fail("its Attachment at byte ", index.offset, " ", damage.what());
  }
}

Metadata Reader::metadata(const MetadataIndex& index) {
  ReusedBuffer buffer;
  const Span body = state_->record(Op::metadata, index.offset, index.length, buffer);
  try {
    return parse<Metadata>(body);
  } catch (const Damage& damage) {
    state_->source.fail("its Metadata at byte ", index.offset, " ", damage.what());
  }
}

// ---- messages

struct Messages::State {
  State(InputFile& source, Contents& contents, const Selection& selection) : ordering(source, contents, selection) {}
  Ordering ordering;
};

Messages Reader::messages(const Selection& selection) {
  return Messages(std::make_unique<Messages::State>(state_->source, state_->contents, selection));
}

Messages::Messages(std::unique_ptr<State> state) : state_(std::move(state)) {}
Messages::~Messages() = default;
Messages::Messages(Messages&&) noexcept = default;
Messages& Messages::operator=(Messages&&) noexcept = default;

const Message* Messages::next() { return state_->ordering.next(); }
bool Messages::ready() const noexcept { return state_->ordering.ready(); }

}  // namespace robocache::mcap
