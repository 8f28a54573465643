// Reads every record in file order.
#include "core/interrupt.h"
#include "formats/mcap/chunks.h"
#include "formats/mcap/contents.h"
#include "io/crc.h"

namespace robocache::mcap {

struct RecordReader::State {
  State(Bytes bytes, bool unpacks, const ReadOptions& options)
      : source(std::move(bytes), options), cursor(source, 0), unpack(unpacks) {
    take(magic.size());
  }

  const Record* next() {
    for (;;) {
      if (const Record* inner = next_in_chunk()) return inner;
      if (done) return nullptr;
      if (cursor.position() == source.size) {
        done = true;
        source.warn("ends without a footer: its writer did not finish it");
        return nullptr;
      }
      try {
        head = peek_head(cursor, source.size);
      } catch (const Damage& damage) {
        done = true;
        source.warn("its record at byte ", cursor.position(), " ", damage.what(), "; the last ",
                    source.size - cursor.position(), " bytes are lost");
        return nullptr;
      }
      check_interrupt();
      if (head.op == Op::data_end) data_end_crc = crc;
      const Span bytes = take(head_size + head.length);
      try {
        if (const Record* found = whole(bytes.subspan(head_size))) return found;
      } catch (const Damage& damage) {
        source.warn("its ", name_of(head.op), " at byte ", head.offset, " ", damage.what(), "; it is left out");
      }
    }
  }

  InputFile source;
  Record record;

 private:
  // The next bytes of the file, which are added to the CRC of the data section.
  Span take(std::uint64_t count) {
    const Span bytes = cursor.peek(count);
    cursor.skip(count);
    if (source.options.check_crc && !in_summary) crc = io::crc32(crc, bytes);
    return bytes;
  }

  const Record* whole(Span body) {
    if (unpack && head.op == Op::message_index) return nullptr;
    std::optional<Record> parsed = parse(head.op, body);
    if (!parsed) return nullptr;
    record = std::move(*parsed);
    if (const auto* chunk = std::get_if<Chunk>(&record); chunk != nullptr && unpack) {
      start = chunk->message_start_time;
      end = chunk->message_end_time;
      try {
        records = unpacker.unpack(source, *chunk, unpacked);
      } catch (const Damage& damage) {
        source.warn(chunk_text(head.offset, start, end), " ", damage.what(), "; it is left out");
      }
      return nullptr;
    }
    if (const auto* attachment = std::get_if<Attachment>(&record)) check_crc(source, *attachment, body);
    if (const auto* data_end = std::get_if<DataEnd>(&record)) {
      in_summary = true;
      if (source.options.check_crc && data_end->data_section_crc != 0 && data_end->data_section_crc != data_end_crc) {
        source.warn("its data section does not match its CRC");
      }
    }
    if (head.op == Op::footer) finish();
    return &record;
  }

  // The next record of the open chunk.
  const Record* next_in_chunk() {
    while (!records.empty()) {
      Span one;
      try {
        one = first_record(records);
      } catch (const Damage& damage) {
        records = {};
        source.warn("its chunk at byte ", head.offset, " ", damage.what(), "; what follows in it is left out");
        return nullptr;
      }
      records = records.subspan(one.size());
      const auto op = static_cast<Op>(one[0]);
      if (!belongs_in_chunk(op)) continue;
      try {
        record = *parse(op, one.subspan(head_size));
        return &record;
      } catch (const Damage& damage) {
        source.warn("a ", name_of(op), " ", damage.what(), "; it is left out");
      }
    }
    return nullptr;
  }

  void finish() {
    done = true;
    const std::uint64_t left = source.size - cursor.position();
    if (left < magic.size() || text_of(cursor.peek(magic.size())) != magic) {
      source.warn("does not end as an MCAP file does: ", left, " bytes follow its footer");
    } else if (left > magic.size()) {
      source.warn("goes on for ", left - magic.size(), " bytes after its end, which are not read");
    }
  }

  Cursor cursor;
  bool unpack;
  bool done = false, in_summary = false;
  std::uint32_t crc = 0, data_end_crc = 0;
  Head head;                         // of the record, or of the chunk that it is in
  Span records;                      // the rest of the chunk's records
  std::uint64_t start = 0, end = 0;  // of the chunk
  Unpacker unpacker;
  ReusedBuffer unpacked;
};

RecordReader::RecordReader(Bytes bytes, bool unpack, const ReadOptions& options)
    : state_(std::make_unique<State>(std::move(bytes), unpack, options)) {}
RecordReader::~RecordReader() = default;
RecordReader::RecordReader(RecordReader&&) noexcept = default;
RecordReader& RecordReader::operator=(RecordReader&&) noexcept = default;

const Record* RecordReader::next() { return state_->next(); }
std::vector<std::string> RecordReader::warnings() const { return state_->source.warnings(); }

}  // namespace robocache::mcap
