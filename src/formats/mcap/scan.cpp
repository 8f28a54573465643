#include "formats/mcap/scan.h"

#include "core/interrupt.h"

namespace robocache::mcap {

namespace {

constexpr std::uint64_t loose_bytes = 1 << 20;       // how much of messages outside chunks is read at once
constexpr std::uint64_t attachment_bytes = 1 << 16;  // enough for an attachment's fields before its data

// Extends a range of times; the first time begins it.
void extend(std::uint64_t& start, std::uint64_t& end, std::uint64_t time, bool first) {
  start = first ? time : std::min(start, time);
  end = first ? time : std::max(end, time);
}

}  // namespace

void Scan::file(std::uint64_t begin) {
  bool in_summary = false, footer = false;
  Cursor cursor(source_, begin);
  try {
    while (!footer && cursor.position() < source_.size) {
      const Head head = peek_head(cursor, source_.size);
      cursor.skip(head_size);
      footer = head.op == Op::footer;
      if (!in_summary) record(cursor, head);
      in_summary |= head.op == Op::data_end;
      cursor.skip(head.end() - cursor.position());
    }
    footer ? check_end(cursor.position()) : source_.warn("ends without a footer: its writer did not finish it");
  } catch (const Damage& damage) {
    source_.warn("its record at byte ", cursor.position(), " ", damage.what(), "; the last ",
                 source_.size - cursor.position(), " bytes are lost",
                 in_summary ? ", which are of its summary: no message is" : "");
  }
  end_indexes();

  Statistics statistics{messages_, 0, 0, 0, 0, 0, start_, end_, {}};
  statistics.schema_count = static_cast<std::uint16_t>(into_.declared.schemas.size());
  statistics.channel_count = static_cast<std::uint32_t>(into_.declared.channels.size());
  statistics.attachment_count = static_cast<std::uint32_t>(into_.attachments.size());
  statistics.metadata_count = static_cast<std::uint32_t>(into_.metadata.size());
  statistics.chunk_count = static_cast<std::uint32_t>(into_.chunks.size());
  for (std::size_t channel = 0; channel < counts_.size(); ++channel) {
    if (counts_[channel] == 0) continue;
    statistics.channel_message_counts.emplace_back(static_cast<std::uint16_t>(channel), counts_[channel]);
  }
  into_.statistics = std::move(statistics);
}

void Scan::check_end(std::uint64_t end) {
  const std::uint64_t left = source_.size - end;
  std::byte closing[magic.size()];
  const std::span<std::byte> bytes(closing, std::min<std::uint64_t>(left, magic.size()));
  source_.read(end, bytes);
  if (text_of(bytes) != magic) {
    source_.warn("does not end as an MCAP file does: ", left, " bytes follow its footer");
  } else if (left > magic.size()) {
    source_.warn("goes on for ", left - magic.size(), " bytes after its end, which are not read");
  }
}

bool Scan::gap(std::uint64_t begin, std::uint64_t end) {
  try {
    for (Cursor cursor(source_, begin); cursor.position() < end;) {
      const Head head = peek_head(cursor, end);
      cursor.skip(head_size);
      if (head.op == Op::chunk) return false;
      record(cursor, head);
      cursor.skip(head.end() - cursor.position());
    }
  } catch (const Damage&) {
    return false;
  }
  return true;
}

void Scan::record(Cursor& cursor, const Head& head) {
  check_interrupt();
  if (head.op != Op::message_index) end_indexes();
  try {
    switch (head.op) {
      case Op::schema:
      case Op::channel:
        into_.declared.learn(source_, head.op, cursor.peek(head.length));
        break;
      case Op::message: {
        const auto message = parse<Message>(cursor.peek(std::min(head.length, message_size)));
        loose_message(head, message.log_time);
        count(message.channel_id, message.log_time);
        break;
      }
      case Op::chunk:
        chunk(head, cursor.peek(head.length));
        break;
      case Op::message_index:
        if (indexes_follow_) message_index(head, cursor.peek(head.length));
        break;
      case Op::attachment: {
        AttachmentIndex index{head.offset, head_size + head.length, 0, 0, 0, {}, {}};
        Fields fields(cursor.peek(std::min(head.length, attachment_bytes)));
        fields.read(index.log_time);
        fields.read(index.create_time);
        fields.read(index.name);
        fields.read(index.media_type);
        fields.read(index.data_size);
        into_.attachments.push_back(std::move(index));
        break;
      }
      case Op::metadata:
        into_.metadata.push_back(
            {head.offset, head_size + head.length, parse<Metadata>(cursor.peek(head.length)).name});
        break;
      default:
        break;
    }
  } catch (const Damage& damage) {
    source_.warn("its ", name_of(head.op), " at byte ", head.offset, " ", damage.what(), "; it is left out");
  }
}

void Scan::chunk(const Head& head, Span body) {
  const Chunk chunk = parse<Chunk>(body);
  ChunkIndex index{0,
                   0,
                   head.offset,
                   head_size + head.length,
                   {},
                   0,
                   chunk.compression,
                   chunk.records.size(),
                   chunk.uncompressed_size};
  bool first = true;
  chunk_channels_.clear();
  Span records;
  try {
    records = unpacker_.unpack(source_, chunk, unpacked_);
  } catch (const Damage& damage) {
    source_.warn(chunk_text(head.offset, chunk.message_start_time, chunk.message_end_time), " ", damage.what(),
                 "; it is left out");
    return;
  }
  try {
    each_record(records, [&](Op op, Span inner) {
      if (op == Op::schema || op == Op::channel) {
        into_.declared.learn(source_, op, inner);
      } else if (op == Op::message) {
        const auto message = parse<Message>(inner);
        extend(index.message_start_time, index.message_end_time, message.log_time, first);
        first = false;
        if (chunk_channels_.empty() || chunk_channels_.back() != message.channel_id) {
          chunk_channels_.push_back(message.channel_id);
        }
        count(message.channel_id, message.log_time);
      }
    });
  } catch (const Damage& damage) {
    source_.warn("its chunk at byte ", head.offset, " ", damage.what(), "; what follows in it is left out");
  }
  std::ranges::sort(chunk_channels_);
  chunk_channels_.erase(std::unique(chunk_channels_.begin(), chunk_channels_.end()), chunk_channels_.end());
  into_.chunks.push_back(std::move(index));
  indexes_follow_ = true;
}

void Scan::message_index(const Head& head, Span body) {
  const auto index = parse<MessageIndex>(body);
  into_.chunks.back().message_index_offsets.emplace_back(index.channel_id, head.offset);
  into_.chunks.back().message_index_length += head_size + head.length;
}

void Scan::end_indexes() {
  if (!std::exchange(indexes_follow_, false)) return;
  ChannelMap& offsets = into_.chunks.back().message_index_offsets;
  std::vector<std::uint16_t> indexed(offsets.size());
  std::ranges::transform(offsets, indexed.begin(), &ChannelMap::value_type::first);
  std::ranges::sort(indexed);
  if (std::ranges::includes(indexed, chunk_channels_))
    return;  // both are sorted, and chunk_channels_ has no duplicates
  offsets.clear();
  into_.chunks.back().message_index_length = 0;
}

void Scan::loose_message(const Head& head, std::uint64_t log_time) {
  std::vector<LooseMessages>& loose = into_.loose;
  const bool first =
      loose.empty() || loose.back().offset + loose.back().length != head.offset || loose.back().length >= loose_bytes;
  if (first) loose.push_back({head.offset, 0, 0, 0});
  LooseMessages& run = loose.back();
  run.length = head.end() - run.offset;
  extend(run.message_start_time, run.message_end_time, log_time, first);
}

void Scan::count(std::uint16_t channel, std::uint64_t log_time) {
  extend(start_, end_, log_time, messages_ == 0);
  ++messages_;
  if (channel >= counts_.size()) counts_.resize(channel + std::size_t{1});
  ++counts_[channel];
}

}  // namespace robocache::mcap
