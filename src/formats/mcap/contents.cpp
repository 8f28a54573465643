#include "formats/mcap/contents.h"

#include "core/shared_facts.h"
#include "formats/mcap/scan.h"
#include "io/crc.h"

namespace robocache::mcap {

// ---- schemas and channels

void Declarations::learn(InputFile& source, Op op, Span body) {
  try {
    op == Op::schema ? learn_schema(source, body) : learn_channel(source, body);
  } catch (const Damage& damage) {
    source.warn("a ", name_of(op), " ", damage.what(), "; it is left out");
  }
}

template <class T>
std::pair<const T*, bool> Declarations::add(std::map<std::uint16_t, T>& to, T& made, const InputFile& source,
                                            std::uint64_t bytes) {
  const auto locked = lock_shared_facts();
  const auto found = to.find(made.id);
  if (found != to.end()) return {&found->second, false};
  // Schemas in compressed chunks may be many times as large as the file.
  if (bytes_ + bytes > 4 * source.size + (std::uint64_t{256} << 20)) {
    source.fail("its schemas and channels are too large");
  }
  const std::uint16_t id = made.id;
  const T& entry = to.emplace(id, std::move(made)).first->second;
  bytes_ += bytes;
  return {&entry, true};
}

void Declarations::learn_schema(InputFile& source, Span body) {
  auto schema = parse<Schema>(body);
  if (schema.id == 0) throw Damage("has id 0");
  const auto [entry, is_new] = add(schemas, schema, source, body.size());
  if (!is_new && (entry->name != schema.name || entry->encoding != schema.encoding || entry->data != schema.data)) {
    source.warn("declares schema ", schema.id, " twice, as ", quote(entry->name), " and differently as ",
                quote(schema.name), "; the first counts");
  }
}

void Declarations::learn_channel(InputFile& source, Span body) {
  auto channel = parse<Channel>(body);
  const std::uint64_t bytes = body.size() + channel.metadata.size() * sizeof(StringMap::value_type);
  const auto [entry, is_new] = add(channels, channel, source, bytes);
  if (!is_new && (entry->topic != channel.topic || entry->schema_id != channel.schema_id ||
                  entry->message_encoding != channel.message_encoding || entry->metadata != channel.metadata)) {
    source.warn("declares channel ", channel.id, " twice, as ", quote(entry->topic), " and differently as ",
                quote(channel.topic), "; the first counts");
  }
}

namespace {

template <class T>
const T* entry_of(const std::map<std::uint16_t, T>& map, std::uint16_t id) {
  const auto locked = lock_shared_facts();
  const auto found = map.find(id);
  return found == map.end() ? nullptr : &found->second;
}

template <class T>
std::vector<const T*> entries_of(const std::map<std::uint16_t, T>& map) {
  const auto locked = lock_shared_facts();
  std::vector<const T*> entries;
  entries.reserve(map.size());
  for (const auto& [id, entry] : map) entries.push_back(&entry);
  return entries;
}

}  // namespace

const Schema* Declarations::schema(std::uint16_t id) const { return entry_of(schemas, id); }
const Channel* Declarations::channel(std::uint16_t id) const { return entry_of(channels, id); }
std::vector<const Schema*> Declarations::all_schemas() const { return entries_of(schemas); }
std::vector<const Channel*> Declarations::all_channels() const { return entries_of(channels); }

std::string chunk_text(std::uint64_t offset, std::uint64_t start, std::uint64_t end) {
  return concat("its chunk at byte ", offset, ", with messages from ", start, " to ", end, ",");
}

namespace {

struct Range {
  std::uint64_t offset = 0, length = 0;
};

// The place of the summary; nothing if the file has none, or lacks its end.
std::optional<Footer> find_footer(const InputFile& source) {
  constexpr std::uint64_t size = footer_size + magic.size();
  if (source.size < magic.size() + size) return {};
  std::byte bytes[size];
  source.read(source.size - size, bytes);
  const bool whole = static_cast<Op>(bytes[0]) == Op::footer &&
                     load<std::uint64_t>(bytes + 1) == footer_size - head_size &&
                     text_of(Span(bytes).subspan(footer_size)) == magic;
  if (!whole) return {};
  const auto footer = parse<Footer>(Span(bytes).subspan(head_size));
  return footer.summary_start == 0 ? std::nullopt : std::optional(footer);
}

void take_summary_records(InputFile& source, Contents& contents, Span records) {
  std::size_t chunks = 0, attachments = 0, metadata = 0;  // count first, so that no vector grows
  each_record(records, [&](Op op, Span) {
    chunks += op == Op::chunk_index ? 1 : 0;
    attachments += op == Op::attachment_index ? 1 : 0;
    metadata += op == Op::metadata_index ? 1 : 0;
  });
  contents.chunks.reserve(chunks);
  contents.attachments.reserve(attachments);
  contents.metadata.reserve(metadata);
  each_record(records, [&](Op op, Span body) {
    if (op == Op::schema || op == Op::channel) contents.declared.learn(source, op, body);
    if (op == Op::statistics) contents.statistics = parse<Statistics>(body);
    if (op == Op::chunk_index) contents.chunks.push_back(parse<ChunkIndex>(body));
    if (op == Op::attachment_index) contents.attachments.push_back(parse<AttachmentIndex>(body));
    if (op == Op::metadata_index) contents.metadata.push_back(parse<MetadataIndex>(body));
  });
}

// Whether the summary lists everything in the file, so that no scan is needed.
bool is_complete(const Contents& contents) {
  const Declarations& declared = contents.declared;
  if (contents.statistics) {
    const Statistics& counts = *contents.statistics;
    // libmcap counts only the channels that have messages.
    if (counts.chunk_count != contents.chunks.size() || counts.channel_count > declared.channels.size() ||
        counts.schema_count > declared.schemas.size()) {
      return false;
    }
    if (counts.message_count > 0 && contents.chunks.empty()) return false;
  } else if (contents.chunks.empty()) {
    return false;
  }
  for (const auto& [id, channel] : declared.channels) {
    if (channel.schema_id != 0 && !declared.schemas.contains(channel.schema_id)) return false;
  }
  for (const ChunkIndex& chunk : contents.chunks) {
    if (declared.channels.empty()) return false;
    for (const auto& [channel, offset] : chunk.message_index_offsets) {
      if (!declared.channels.contains(channel)) return false;
    }
  }
  return true;
}

// The parts of the data section that the summary lists, in order. Throws Damage if one lies outside the section, or two
// overlap.
std::vector<Range> indexed_ranges(const Contents& contents, std::uint64_t begin, std::uint64_t end) {
  std::vector<Range> ranges;
  ranges.reserve(2 * contents.chunks.size() + contents.attachments.size() + contents.metadata.size());
  for (const ChunkIndex& chunk : contents.chunks) {
    ranges.push_back({chunk.chunk_start_offset, chunk.chunk_length});
    if (chunk.message_index_length == 0) continue;
    ranges.push_back({chunk.chunk_start_offset + chunk.chunk_length, chunk.message_index_length});
  }
  for (const AttachmentIndex& attachment : contents.attachments)
    ranges.push_back({attachment.offset, attachment.length});
  for (const MetadataIndex& metadata : contents.metadata) ranges.push_back({metadata.offset, metadata.length});
  std::ranges::sort(ranges, {}, &Range::offset);
  for (const Range& range : ranges) {
    if (range.offset < begin || range.offset > end || range.length > end - range.offset || range.length < head_size) {
      throw Damage("its indexes point outside its data section, or twice to the same place");
    }
    begin = range.offset + range.length;
  }
  return ranges;
}

// Between the indexed parts there should be at most the DataEnd; anything more is scanned. Returns false if the indexes
// cannot be complete.
bool look_between(InputFile& source, Contents& contents, std::uint64_t begin, std::uint64_t end) {
  std::uint64_t unknown = end - begin;
  std::vector<Range> ranges = indexed_ranges(contents, begin, end);
  for (const Range& range : ranges) unknown -= range.length;
  if (unknown <= data_end_size) return true;
  Scan scan(source, contents);
  ranges.push_back({end, 0});
  for (const Range& range : ranges) {
    if (range.offset > begin && !scan.gap(begin, range.offset)) return false;
    begin = range.offset + range.length;
  }
  return true;
}

// Returns nothing if there is no summary, or it cannot be used.
std::optional<Contents> read_summary(InputFile& source, std::uint64_t data_begin) {
  const std::optional<Footer> footer = find_footer(source);
  if (!footer) return {};
  const std::uint64_t footer_offset = source.size - magic.size() - footer_size;
  try {
    const std::uint64_t begin = footer->summary_start;
    if (begin < data_begin || begin > footer_offset) throw Damage("its footer points outside it");
    ReusedBuffer buffer;
    const std::span<std::byte> bytes = buffer.room_for(footer_offset + footer_crc_size - begin);
    source.read(begin, bytes);
    if (source.options.check_crc && footer->summary_crc != 0 && io::crc32(0, bytes) != footer->summary_crc) {
      throw Damage("its summary does not match its CRC");
    }
    Contents contents;
    take_summary_records(source, contents, bytes.first(footer_offset - begin));
    if (!is_complete(contents)) return {};
    std::ranges::sort(contents.chunks, {}, &ChunkIndex::chunk_start_offset);
    if (!look_between(source, contents, data_begin, begin)) return {};
    contents.is_indexed = true;
    return contents;
  } catch (const Damage& damage) {
    source.warn(damage.what(), "; all of the file is scanned instead");
    return {};
  }
}

}  // namespace

Contents read_contents(InputFile& source) {
  Header header;
  std::uint64_t data_begin = magic.size();
  try {
    Cursor cursor(source, data_begin);
    const Head head = peek_head(cursor, source.size);
    if (head.op != Op::header) throw Damage("");
    cursor.skip(head_size);
    header = parse<Header>(cursor.peek(head.length));
    data_begin = head.end();
  } catch (const Damage&) {
    source.warn("does not begin with a Header record");
  }
  std::optional<Contents> contents = read_summary(source, data_begin);
  if (!contents) {
    contents.emplace();
    Scan(source, *contents).file(data_begin);
  }
  contents->header = std::move(header);
  return std::move(*contents);
}

}  // namespace robocache::mcap
