// The MCAP reader and writer: round trips, order in bounded memory, damage and hostile files. The conformance files, and
// the `mcap` package as the judge of what is written, are in tests/python/test_mcap.py.
#include <gtest/gtest.h>
#include <robocache/mcap.h>
#include <zlib.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <random>
#include <set>
#include <string>

#include "formats/mcap/chunks.h"
#include "formats/mcap/records.h"
#include "io/crc.h"

namespace robocache::mcap {
namespace {

// ---- files in memory

struct Sent {
  std::string topic;
  std::uint64_t time = 0;
  std::uint32_t sequence = 0;
  std::string data;
  bool operator==(const Sent&) const = default;
};

std::ostream& operator<<(std::ostream& out, const Sent& sent) {
  return out << sent.topic << " #" << sent.sequence << " at " << sent.time << " of " << sent.data.size();
}

std::string write(const std::vector<Sent>& messages, const WriteOptions& options = {}) {
  std::string file;
  Writer writer([&](Span bytes) { file += text_of(bytes); }, "test", options);
  const std::uint16_t schema = writer.add_schema("demo/Text", "text", "any");
  for (const Sent& sent : messages) {
    const std::uint16_t channel = writer.add_channel(sent.topic, "text", schema, {{"a", "b"}});
    writer.write(Message{channel, sent.sequence, sent.time, sent.time + 1, bytes_of(sent.data)});
  }
  writer.finish();
  return file;
}

struct Got {
  std::vector<Sent> messages;
  std::vector<std::string> warnings;
  bool is_indexed = false;
  std::string sentence;  // of the error that ended it
};

Got read(std::string_view file, const Selection& selection = {}, const ReadOptions& options = {}) {
  Got got;
  try {
    Reader reader(robocache::bytes_of(bytes_of(file), "test"), options);
    got.is_indexed = reader.is_indexed();
    got.warnings = reader.warnings();
    Messages messages = reader.messages(selection);
    while (const Message* message = messages.next()) {
      const Channel& channel = reader.channels().at(message->channel_id);
      got.messages.push_back(
          {channel.topic, message->log_time, message->sequence, std::string(text_of(message->data))});
    }
    EXPECT_EQ(messages.next(), nullptr);
    got.warnings = reader.warnings();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::file) << error.what();
    got.sentence = error.what();
    EXPECT_TRUE(got.sentence.starts_with("test: ")) << got.sentence;
  }
  for (const std::string& warning : got.warnings) EXPECT_TRUE(warning.starts_with("test: ")) << warning;
  return got;
}

// All records; whatever the bytes are, this ends.
std::pair<std::vector<Record>, std::vector<std::string>> records_of(std::string_view file, bool unpack = true,
                                                                    const ReadOptions& options = {}) {
  std::vector<Record> all;
  RecordReader reader(robocache::bytes_of(bytes_of(file), "test"), unpack, options);
  while (const Record* record = reader.next()) all.push_back(*record);
  return {std::move(all), reader.warnings()};
}

bool any_has(const std::vector<std::string>& sentences, std::string_view part) {
  return std::ranges::any_of(sentences, [&](const std::string& s) { return s.find(part) != std::string::npos; });
}

std::vector<Sent> in_order(int count) {
  std::vector<Sent> messages;
  for (int k = 0; k < count; ++k) {
    const auto time = static_cast<std::uint64_t>(1000 + 10 * k);
    messages.push_back({k % 3 == 0 ? "/a" : "/b", time, static_cast<std::uint32_t>(k), std::string(20 + k % 7, 'x')});
  }
  return messages;
}

// Times anywhere, many of them equal.
std::vector<Sent> out_of_order(int count, std::uint64_t range, unsigned seed = 1) {
  std::mt19937 random(seed);
  std::vector<Sent> messages = in_order(count);
  for (Sent& sent : messages) {
    sent.time = random() % range;
    sent.data.assign(random() % 60, static_cast<char>('a' + sent.time % 26));
  }
  return messages;
}

std::vector<Sent> sorted(std::vector<Sent> messages) {
  std::ranges::stable_sort(messages, {}, &Sent::time);
  return messages;
}

const Compression compressions[] = {Compression::none, Compression::zstd, Compression::lz4};

// ---- CRC

TEST(Mcap, CrcIsThatOfZlib) {
  std::mt19937 random(1);
  std::vector<std::byte> bytes(5000);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  for (std::size_t size = 0; size < bytes.size(); size += 1 + size / 16) {
    const auto before = static_cast<std::uint32_t>(size % 3 == 0 ? 0 : random());
    const std::size_t at = std::min<std::size_t>(size % 5, bytes.size() - size);
    EXPECT_EQ(io::crc32(before, {&bytes[at], size}),
              ::crc32_z(before, reinterpret_cast<const Bytef*>(&bytes[at]), size))
        << size;
  }
}

// ---- round trips

TEST(Mcap, WhatIsWrittenIsRead) {
  const std::vector<Sent> messages = in_order(300);
  for (const Compression compression : compressions) {
    for (const std::int64_t chunk_size : {1, 500, 1 << 20}) {
      WriteOptions options;
      options.compression = compression;
      options.chunk_size = chunk_size;
      const Got got = read(write(messages, options));
      EXPECT_EQ(got.messages, messages);
      EXPECT_TRUE(got.warnings.empty());
      EXPECT_TRUE(got.is_indexed);
    }
  }
  WriteOptions plain;
  plain.chunks = false;
  const Got got = read(write(messages, plain));
  EXPECT_EQ(got.messages, messages);
  EXPECT_TRUE(got.warnings.empty());
  EXPECT_FALSE(got.is_indexed);
}

// Every switch of the writer off, one by one and all: the same messages are read.
TEST(Mcap, NothingBesideTheMessagesIsNeeded) {
  const std::vector<Sent> messages = out_of_order(200, 100);
  bool WriteOptions::*const switches[] = {
      &WriteOptions::message_indexes,  &WriteOptions::schemas,         &WriteOptions::channels,
      &WriteOptions::statistics,       &WriteOptions::chunk_indexes,   &WriteOptions::attachment_indexes,
      &WriteOptions::metadata_indexes, &WriteOptions::summary_offsets, &WriteOptions::crcs};
  WriteOptions none;
  none.chunk_size = 700;
  for (const auto off : switches) {
    WriteOptions options;
    options.chunk_size = 700;
    options.*off = none.*off = false;
    for (const WriteOptions& written : {options, none}) {
      const Got got = read(write(messages, written));
      EXPECT_EQ(got.messages, sorted(messages));
      EXPECT_TRUE(got.warnings.empty()) << got.warnings[0];
    }
  }
}

TEST(Mcap, TheSummarySaysWhatIsThere) {
  std::string file;
  Writer writer([&](Span bytes) { file += text_of(bytes); }, "test");
  const std::uint16_t schema = writer.add_schema("demo/Text", "text", "any");
  EXPECT_EQ(writer.add_schema("demo/Text", "text", "any"), schema);
  const std::uint16_t a = writer.add_channel("/a", "text", schema), b = writer.add_channel("/b", "json");
  writer.write(Message{a, 1, 20, 20, {}});
  writer.write(Attachment{5, 6, "calibration.yaml", "text/yaml", bytes_of("k: 1"), 0});
  writer.flush();
  writer.write(Message{b, 1, 30, 30, {}});
  writer.write(Message{a, 2, 25, 30, {}});
  writer.write(Metadata{"robot", {{"name", "arm 7"}}});
  writer.finish();
  writer.finish();
  EXPECT_THROW(writer.flush(), Error);

  Reader reader(robocache::bytes_of(bytes_of(file), "test"));
  EXPECT_TRUE(reader.is_indexed());
  EXPECT_EQ(reader.header().library, "robocache");
  ASSERT_TRUE(reader.statistics());
  EXPECT_EQ(reader.statistics()->message_count, 3u);
  EXPECT_EQ(reader.statistics()->message_start_time, 20u);
  EXPECT_EQ(reader.statistics()->message_end_time, 30u);
  EXPECT_EQ(reader.statistics()->channel_message_counts, (ChannelMap{{a, 2}, {b, 1}}));
  EXPECT_EQ(reader.schema(reader.channels().at(a))->data, "any");
  EXPECT_EQ(reader.schema(reader.channels().at(b)), nullptr);
  ASSERT_EQ(reader.chunk_indexes().size(), 2u);
  const std::vector<MessageIndex> indexes = reader.message_indexes(reader.chunk_indexes()[1]);
  ASSERT_EQ(indexes.size(), 2u);
  EXPECT_EQ(indexes[0].channel_id, a);
  EXPECT_EQ(indexes[0].records[0].first, 25u);
  ASSERT_EQ(reader.attachment_indexes().size(), 1u);
  const Attachment attachment = reader.attachment(reader.attachment_indexes()[0]);
  EXPECT_EQ(text_of(attachment.data), "k: 1");
  EXPECT_EQ(attachment.name, "calibration.yaml");
  ASSERT_EQ(reader.metadata_indexes().size(), 1u);
  EXPECT_EQ(reader.metadata(reader.metadata_indexes()[0]).metadata, (StringMap{{"name", "arm 7"}}));

  // A scan finds the same.
  Reader scanned(robocache::bytes_of(bytes_of(std::string_view(file).substr(0, file.size() - 1)), "test"));
  EXPECT_FALSE(scanned.is_indexed());
  EXPECT_EQ(scanned.statistics()->message_count, 3u);
  EXPECT_EQ(scanned.statistics()->channel_message_counts, (ChannelMap{{a, 2}, {b, 1}}));
  ASSERT_EQ(scanned.chunk_indexes().size(), 2u);
  EXPECT_EQ(scanned.chunk_indexes()[1].message_index_offsets, reader.chunk_indexes()[1].message_index_offsets);
  EXPECT_EQ(scanned.chunk_indexes()[1].message_start_time, 25u);
  EXPECT_EQ(text_of(scanned.attachment(scanned.attachment_indexes()[0]).data), "k: 1");
  EXPECT_EQ(scanned.metadata(scanned.metadata_indexes()[0]).name, "robot");
}

// As the head of mcap.h has it.
TEST(Mcap, TheManualsProgramRuns) {
  const std::filesystem::path path = std::filesystem::path(testing::TempDir()) / "robocache_mcap_manual.mcap";
  const std::string text = "{}";
  {
    mcap::Writer writer(path);
    const auto schema = writer.add_schema("demo/Point", "jsonschema", text);
    const auto channel = writer.add_channel("/points", "json", schema);
    for (const std::uint64_t t : {7, 5, 6}) {
      writer.write({.channel_id = channel, .log_time = t, .publish_time = t, .data = bytes_of(text)});
    }
    writer.finish();
  }
  mcap::Reader reader(open_bytes(path));
  mcap::Messages messages = reader.messages({.topics = std::vector<std::string>{"/points"}, .start = 5, .end = 7});
  std::vector<std::uint64_t> times;
  while (const mcap::Message* message = messages.next()) {
    EXPECT_EQ(reader.channels().at(message->channel_id).topic, "/points");
    times.push_back(message->log_time);
  }
  EXPECT_EQ(times, (std::vector<std::uint64_t>{5, 6}));
  std::filesystem::remove(path);
}

TEST(Mcap, RecordsComeUnpackedOrNot) {
  const std::string file = write(in_order(5));
  const auto names = [](const std::vector<Record>& records) {
    std::string text;
    for (const Record& record : records) text += std::string(name_of(static_cast<Op>(record.index() + 1))) + " ";
    return text;
  };
  const std::string summary =
      "DataEnd Schema Channel Channel Statistics ChunkIndex SummaryOffset SummaryOffset SummaryOffset SummaryOffset "
      "Footer ";
  EXPECT_EQ(names(records_of(file).first),
            "Header Schema Channel Message Channel Message Message Message Message " + summary);
  EXPECT_EQ(names(records_of(file, false).first), "Header Chunk MessageIndex MessageIndex " + summary);
}

TEST(Mcap, MessagesOutsideChunksOfAnIndexedFileAreFound) {
  // A file with a chunk index, and a message between the chunk and the end of the data section.
  const std::string file = write(in_order(3));
  Reader reader(robocache::bytes_of(bytes_of(file), "test"));
  const ChunkIndex& chunk = reader.chunk_indexes().at(0);
  const std::uint64_t at = chunk.chunk_start_offset + chunk.chunk_length + chunk.message_index_length;
  std::string loose;
  append(loose, Message{1, 99, 1005, 1005, bytes_of("loose")});
  std::string changed = file.substr(0, at) + loose + file.substr(at);
  // The footer's offsets move; there are no CRCs of them any more.
  const std::size_t footer = changed.size() - magic.size() - footer_size;
  Footer old = parse<Footer>(bytes_of(changed).subspan(footer + head_size));
  std::string moved;
  append(moved, Footer{old.summary_start + loose.size(), 0, 0});
  changed.replace(footer, footer_size, moved);
  const Got got = read(changed);
  EXPECT_TRUE(got.is_indexed);
  std::vector<Sent> expected = in_order(3);
  expected.insert(expected.begin() + 1, {"/a", 1005, 99, "loose"});
  EXPECT_EQ(got.messages, expected);
}

// ---- order

TEST(Mcap, OrderIsThatOfAStableSort) {
  for (const unsigned seed : {1u, 2u}) {
    const std::vector<Sent> messages = out_of_order(2000, seed == 1 ? 300 : 1000000, seed);
    const std::vector<Sent> expected = sorted(messages);
    for (const Compression compression : compressions) {
      WriteOptions options;
      options.compression = compression;
      options.chunk_size = 3000;
      const std::string indexed = write(messages, options);
      options.chunks = false;
      for (const std::string& file : {indexed, indexed.substr(0, indexed.size() - 1), write(messages, options)}) {
        for (const std::int64_t buffer : {0, 1000, 20000, 1 << 26}) {
          ReadOptions reading;
          reading.buffer = buffer;
          EXPECT_EQ(read(file, {}, reading).messages, expected) << buffer;
          Selection by_file;
          by_file.order = Order::file;
          EXPECT_EQ(read(file, by_file, reading).messages, messages);
        }
      }
    }
  }
}

TEST(Mcap, TopicsAndTimesAreSelected) {
  const std::vector<Sent> messages = out_of_order(500, 100);
  WriteOptions options;
  options.chunk_size = 2000;
  for (const bool is_indexed : {true, false}) {
    options.message_indexes = is_indexed;
    const std::string file = write(messages, options);
    for (const auto& [start, end] : {std::pair<std::uint64_t, std::uint64_t>{0, 100}, {10, 11}, {20, 20}, {99, 500}}) {
      Selection selection;
      selection.topics = {"/a"};
      selection.start = start;
      selection.end = end;
      std::vector<Sent> expected;
      for (const Sent& sent : sorted(messages)) {
        if (sent.topic == "/a" && sent.time >= start && sent.time < end) expected.push_back(sent);
      }
      EXPECT_EQ(read(file, selection).messages, expected);
    }
    Selection none;
    none.topics.emplace();
    EXPECT_TRUE(read(file, none).messages.empty());
  }
}

TEST(Mcap, AnUnknownTopicIsToldWithTheNearOnes) {
  const std::string file = write(in_order(3));
  Reader reader(robocache::bytes_of(bytes_of(file), "test"));
  Selection selection;
  selection.topics = {"/c"};
  try {
    reader.messages(selection);
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::value);
    EXPECT_STREQ(error.what(), "test: has no topic \"/c\"; near are \"/a\", \"/b\"");
  }
}

// What is read of the file, in bytes, by a selection.
std::uint64_t bytes_read(const std::string& file, const Selection& selection, const ReadOptions& options = {}) {
  std::uint64_t count = 0;
  Bytes bytes = robocache::bytes_of(bytes_of(file), "test");
  Bytes counted = bytes;
  counted.read = [&](std::int64_t offset, std::span<std::byte> to) {
    count += to.size();
    bytes.read(offset, to);
  };
  Reader reader(counted, options);
  const std::uint64_t opened = count;
  EXPECT_LT(opened, file.size() / 3 + (1 << 18));
  Messages messages = reader.messages(selection);
  while (messages.next() != nullptr) continue;
  return count - opened;
}

TEST(Mcap, OnlyChunksThatMayHaveTheMessagesAreRead) {
  std::vector<Sent> messages;
  for (std::uint32_t k = 0; k < 2000; ++k) messages.push_back({k < 1000 ? "/a" : "/b", k, k, std::string(100, 'x')});
  WriteOptions options;
  options.chunk_size = 2000;
  options.compression = Compression::none;
  const std::string file = write(messages, options);
  const std::uint64_t all = bytes_read(file, {});
  EXPECT_GT(all, file.size() / 2);
  Selection a;
  a.topics = {"/a"};
  EXPECT_LT(bytes_read(file, a), all * 6 / 10);
  Selection range;
  range.start = 500, range.end = 520;
  EXPECT_LT(bytes_read(file, range), all / 20);
}

// Chunks that all overlap: each is read again as often as the manual says, and not for every message.
TEST(Mcap, OverlappingChunksAreReadAFewTimes) {
  std::vector<Sent> messages;
  for (std::uint32_t chunk = 0; chunk < 40; ++chunk) {
    for (std::uint32_t k = 0; k < 200; ++k) messages.push_back({"/a", k * 40, k, std::string(1000, 'x')});
  }
  WriteOptions options;
  options.chunk_size = 200 * 1031 + 1;
  options.compression = Compression::none;
  const std::string file = write(messages, options);
  const std::uint64_t once = bytes_read(file, {});
  EXPECT_LT(once, file.size() + file.size() / 10);
  for (const int share : {4, 8}) {
    ReadOptions reading;
    reading.buffer = static_cast<std::int64_t>(file.size()) / share;
    EXPECT_LT(bytes_read(file, {}, reading), file.size() * static_cast<std::uint64_t>(2 * share + 3));
  }
}

// ---- damage

TEST(Mcap, EveryTruncationReadsWhatIsWhole) {
  const std::vector<Sent> messages = in_order(40);
  for (const Compression compression : compressions) {
    for (const bool chunks : {true, false}) {
      WriteOptions options;
      options.compression = compression;
      options.chunks = chunks;
      options.chunk_size = 300;
      const std::string file = write(messages, options);
      std::size_t most = 0;
      for (std::size_t size = 0; size < file.size(); ++size) {
        const std::string_view cut = std::string_view(file).substr(0, size);
        const Got got = read(cut);
        if (size < magic.size()) {
          EXPECT_FALSE(got.sentence.empty());
          continue;
        }
        ASSERT_EQ(got.sentence, "");
        EXPECT_FALSE(got.warnings.empty()) << size;
        ASSERT_LE(got.messages.size(), messages.size());
        EXPECT_TRUE(std::equal(got.messages.begin(), got.messages.end(), messages.begin()));
        EXPECT_GE(got.messages.size(), most);
        most = std::max(most, got.messages.size());
        if (size + footer_size + magic.size() > file.size()) {
          EXPECT_EQ(got.messages, messages);
        }
        EXPECT_FALSE(records_of(cut).second.empty());
      }
      EXPECT_EQ(most, messages.size());
    }
  }
}

TEST(Mcap, ATruncationSaysHowMuchIsLost) {
  WriteOptions options;
  options.compression = Compression::none;
  options.chunk_size = 300;
  const std::string file = write(in_order(40), options);
  const std::uint64_t chunk = Reader(robocache::bytes_of(bytes_of(file), "test")).chunk_indexes()[1].chunk_start_offset;
  const Got got = read(std::string_view(file).substr(0, chunk + 100));
  ASSERT_EQ(got.warnings.size(), 1u);
  EXPECT_TRUE(got.warnings[0].starts_with("test: its record at byte " + std::to_string(chunk) + " is a Chunk of "))
      << got.warnings[0];
  EXPECT_TRUE(got.warnings[0].ends_with("cut off; the last 100 bytes are lost")) << got.warnings[0];
}

TEST(Mcap, AChunkThatDoesNotMatchItsCrcIsLeftOut) {
  WriteOptions options;
  options.compression = Compression::none;
  options.chunk_size = 300;
  const std::vector<Sent> messages = in_order(40);
  std::string file = write(messages, options);
  const std::vector<ChunkIndex> chunks = Reader(robocache::bytes_of(bytes_of(file), "test")).chunk_indexes();
  file[chunks[1].chunk_start_offset + chunks[1].chunk_length - 1] ^= 1;
  const Got got = read(file);
  std::vector<Sent> expected;
  for (const Sent& sent : messages) {
    if (sent.time < chunks[1].message_start_time || sent.time > chunks[1].message_end_time) expected.push_back(sent);
  }
  EXPECT_EQ(got.messages, expected);
  const std::string sentence = "test: its chunk at byte " + std::to_string(chunks[1].chunk_start_offset) +
                               ", with messages from " + std::to_string(chunks[1].message_start_time) + " to " +
                               std::to_string(chunks[1].message_end_time) + ", does not match its CRC; it is left out";
  EXPECT_EQ(got.warnings, std::vector<std::string>{sentence});
  EXPECT_EQ(records_of(file).second,
            (std::vector<std::string>{sentence, "test: its data section does not match its CRC"}));
  ReadOptions trusting;
  trusting.check_crc = false;
  EXPECT_EQ(read(file, {}, trusting).messages.size(), messages.size());
}

TEST(Mcap, EveryChangedByteIsReadOrRefused) {
  for (const Compression compression : compressions) {
    for (const bool crcs : {true, false}) {
      WriteOptions options;
      options.compression = compression;
      options.chunk_size = 200;
      options.crcs = crcs;
      const std::string file = write(in_order(12), options);
      ReadOptions small;
      small.max_chunk = 1 << 20;
      for (std::size_t at = 0; at < file.size(); ++at) {
        for (const char change : {'\x01', '\x80', '\xff'}) {
          std::string changed = file;
          changed[at] = static_cast<char>(changed[at] ^ change);
          read(changed, {}, small);
          if (at < magic.size()) continue;
          records_of(changed, true, small);
          records_of(changed, false, small);
        }
      }
    }
  }
}

TEST(Mcap, WhatIsNoMcapIsToldSo) {
  EXPECT_EQ(read("").sentence, "test: is empty; expected an MCAP file");
  EXPECT_EQ(read("#ROSBAG V2.0\n").sentence,
            "test: is not an MCAP file: it begins with \"#ROSBAG \"; expected \"\\x89MCAP0\\x0d\\x0a\"");
  EXPECT_EQ(read("\x89MCAP1\r\n").sentence, "test: is MCAP version \"1\"; expected \"0\"");
  EXPECT_EQ(read("\x89MC").sentence,
            "test: is not an MCAP file: it begins with \"\\x89MC\"; expected \"\\x89MCAP0\\x0d\\x0a\"");
  EXPECT_TRUE(is_mcap(bytes_of("\x89MCAP1")));
  EXPECT_FALSE(is_mcap(bytes_of("\x89MCA")));
  const Got missing = [] {
    Got got;
    try {
      Reader reader(open_bytes("/no/such/file.mcap"));
    } catch (const Error& error) {
      got.sentence = error.what();
    }
    return got;
  }();
  EXPECT_EQ(missing.sentence, "/no/such/file.mcap: No such file or directory");
}

// ---- hostile files

// A file of one chunk with these fields, and nothing after it.
std::string with_chunk(const Chunk& chunk) {
  std::string file(magic);
  append(file, Header{});
  append(file, chunk);
  return file;
}

std::string some_records() {
  std::string records;
  append(records, Channel{1, 0, "/a", "text", {}});
  append(records, Message{1, 0, 5, 5, bytes_of("data")});
  return records;
}

TEST(Mcap, AChunkInAChunkIsRefused) {
  std::string records = some_records();
  append(records, Chunk{0, 0, 0, 0, "", {}});
  append(records, Message{1, 1, 6, 6, {}});
  const std::string file = with_chunk({5, 5, records.size(), 0, "", bytes_of(records)});
  const Got got = read(file);
  EXPECT_EQ(got.messages.size(), 1u);
  EXPECT_TRUE(any_has(got.warnings, "holds a chunk; what follows in it is left out"));
  EXPECT_TRUE(any_has(records_of(file).second, "holds a chunk; what follows in it is left out"));
}

TEST(Mcap, SizesThatLieAreRefusedBeforeMemoryIsTaken) {
  const std::string records = some_records();
  for (const Compression compression : {Compression::zstd, Compression::lz4}) {
    Packer packer(compression, 1);
    const Span packed = packer.pack(bytes_of(records));
    const std::string name(packer.name());
    const auto warning = [&](std::uint64_t size, Span bytes) {
      const Got got = read(with_chunk({5, 5, size, 0, name, bytes}));
      EXPECT_TRUE(got.messages.empty());
      return got.warnings.empty() ? "" : got.warnings[0];
    };
    EXPECT_EQ(read(with_chunk({5, 5, records.size(), 0, name, packed})).messages.size(), 1u);
    EXPECT_NE(warning(records.size() - 1, packed).find("its chunk at byte 25"), std::string::npos);
    EXPECT_NE(warning(records.size() + 1, packed).find("unpacks to "), std::string::npos);
    EXPECT_NE(warning(~std::uint64_t{0}, packed).find("at most "), std::string::npos);
    EXPECT_NE(warning(1 << 28, packed).find("cannot unpack from "), std::string::npos);
    EXPECT_NE(warning(records.size(), packed.first(packed.size() - 1)).find("its chunk at byte 25"), std::string::npos);
    EXPECT_NE(warning(records.size(), {}).find("its chunk at byte 25"), std::string::npos);
  }
  EXPECT_TRUE(any_has(read(with_chunk({5, 5, records.size() + 1, 0, "", bytes_of(records)})).warnings, " and says "));
  EXPECT_TRUE(any_has(read(with_chunk({5, 5, 1, 0, "brotli", bytes_of(records)})).warnings,
                      "is compressed with \"brotli\"; expected zstd, lz4 or nothing"));
}

TEST(Mcap, ABombIsNotUnpacked) {
  const std::string zeros(std::size_t{8} << 20, '\0');
  Packer packer(Compression::zstd, 19);
  const Span packed = packer.pack(bytes_of(zeros));
  ASSERT_LT(packed.size(), 2000u);
  const std::string file = with_chunk({0, 0, zeros.size(), 0, "zstd", packed});
  ReadOptions options;
  options.max_chunk = 1 << 20;
  EXPECT_TRUE(any_has(read(file, {}, options).warnings, "unpacks to 8388608 bytes; at most 1048576 are read"));
  EXPECT_TRUE(any_has(read(file).warnings, "has a record of type 0"));
}

TEST(Mcap, SchemasOfManyChunksAreBounded) {
  WriteOptions options;
  options.schemas = options.channels = options.statistics = options.chunk_indexes = false;  // so that it is scanned
  std::string file;
  Writer writer([&](Span bytes) { file += text_of(bytes); }, "test", options);
  const std::string zeros(std::size_t{40} << 20, '\0');
  for (int k = 0; k < 8; ++k) {
    const std::uint16_t schema = writer.add_schema("s" + std::to_string(k), "ros2msg", zeros);
    const std::uint16_t channel = writer.add_channel("/t" + std::to_string(k), "cdr", schema);
    writer.write(Message{channel, 0, 1, 1, bytes_of("x")});
  }
  writer.finish();
  ASSERT_LT(file.size(), std::size_t{1} << 20);
  EXPECT_EQ(read(file).sentence, "test: its schemas and channels are too large");
}

TEST(Mcap, AnIndexMayPointAnywhere) {
  WriteOptions options;
  options.chunk_size = 300;
  options.crcs = false;
  const std::vector<Sent> messages = in_order(30);
  const std::string file = write(messages, options);
  const std::vector<Record> records = records_of(file).first;
  const Footer footer = std::get<Footer>(records.back());
  // The summary again, with chunk indexes that lie.
  const auto rewritten = [&](const auto& change) {
    std::string changed = file.substr(0, footer.summary_start);
    bool in_summary = false;
    for (Record record : records) {
      if (std::holds_alternative<DataEnd>(record)) in_summary = true;
      if (!in_summary || std::holds_alternative<DataEnd>(record) || std::holds_alternative<SummaryOffset>(record))
        continue;
      if (auto* chunk = std::get_if<ChunkIndex>(&record)) change(*chunk);
      if (auto* end = std::get_if<Footer>(&record)) *end = {footer.summary_start, 0, 0};
      std::visit([&](const auto& r) { append(changed, r); }, record);
    }
    return changed.append(magic);
  };
  EXPECT_TRUE(read(rewritten([](ChunkIndex&) {})).is_indexed);
  const std::uint64_t far = ~std::uint64_t{0};
  for (const std::uint64_t lie : {std::uint64_t{0}, std::uint64_t{26}, std::uint64_t{500}, file.size(), far - 8, far}) {
    for (const auto field :
         {&ChunkIndex::chunk_start_offset, &ChunkIndex::chunk_length, &ChunkIndex::message_index_length,
          &ChunkIndex::uncompressed_size, &ChunkIndex::compressed_size}) {
      const Got got = read(rewritten([&](ChunkIndex& chunk) { chunk.*field = lie; }));
      EXPECT_EQ(got.sentence, "");
      EXPECT_EQ(got.messages, messages) << lie;  // where the index cannot be true, a scan finds them
    }
    const Got got = read(rewritten([&](ChunkIndex& chunk) {
      chunk.message_index_offsets = {{7, lie}};
      chunk.compression = "lz4";
    }));
    EXPECT_EQ(got.messages, messages);
  }
  // Times that lie: everything comes, and the warning says that it may come late.
  const Got late = read(rewritten([](ChunkIndex& chunk) { chunk.message_start_time = chunk.message_end_time; }));
  EXPECT_EQ(late.messages.size(), messages.size());
}

TEST(Mcap, UndeclaredChannelsAndWarningsAreCounted) {
  std::string records;
  for (std::uint16_t channel = 0; channel < 300; ++channel) append(records, Message{channel, 0, 5, 5, {}});
  const Got got = read(with_chunk({5, 5, records.size(), 0, "", bytes_of(records)}));
  EXPECT_TRUE(got.messages.empty());
  EXPECT_EQ(got.warnings.size(), 101u);
  EXPECT_TRUE(any_has(got.warnings, "messages on channel 7 are left out: nothing declares it"));
  EXPECT_TRUE(any_has(got.warnings, "and 201 more warnings"));
}

// ---- writing

TEST(Mcap, TheWriterRefusesWhatNobodyCouldRead) {
  Writer writer([](Span) {}, "test");
  const auto sentence = [](const auto& call) -> std::string {
    try {
      call();
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::value);
      return error.what();
    }
    return "";
  };
  EXPECT_EQ(sentence([&] { writer.write(Message{}); }), "test: a message names channel 0, which is not declared");
  EXPECT_EQ(sentence([&] { writer.add_channel("/a", "", 3); }),
            "test: channel 1 names schema 3, which is not declared");
  EXPECT_EQ(sentence([&] { writer.write(Schema{}); }), "test: a schema has id 0; expected 1 to 65535");
  writer.write(Schema{4, "a", "", ""});
  writer.write(Schema{4, "a", "", ""});
  EXPECT_EQ(sentence([&] { writer.write(Schema{4, "b", "", ""}); }), "test: schema 4 is declared already, as \"a\"");
  EXPECT_EQ(writer.add_schema("b", "", ""), 1);
}

TEST(Mcap, ADiskThatIsFullIsTold) {
  int calls = 0;
  std::string file;
  const std::vector<Sent> messages = in_order(100);
  const auto sink = [&](Span bytes) {
    if (++calls > 3) throw Error(ErrorKind::file, "test: cannot be written: No space left on device");
    file += text_of(bytes);
  };
  {
    WriteOptions options;
    options.chunk_size = 500;
    Writer writer(sink, "test", options);
    const std::uint16_t channel = writer.add_channel("/a", "text");
    EXPECT_THROW(
        {
          for (const Sent& sent : messages)
            writer.write(Message{channel, sent.sequence, sent.time, 0, bytes_of(sent.data)});
        },
        Error);
    EXPECT_THROW(writer.flush(), Error);
    EXPECT_THROW(writer.finish(), Error);
  }
  EXPECT_EQ(calls, 4);  // and nothing after that
  EXPECT_GT(read(file).messages.size(), 10u);
}

TEST(Mcap, FilesAreWrittenAndRead) {
  const std::filesystem::path path = std::filesystem::path(testing::TempDir()) / "robocache_mcap_test.mcap";
  {
    Writer writer(path);
    const std::uint16_t channel = writer.add_channel("/a", "text");
    writer.write(Message{channel, 0, 1, 1, bytes_of("hello")});
  }  // the destructor ends the file
  Reader reader(open_bytes(path));
  EXPECT_TRUE(reader.is_indexed());
  Messages messages = reader.messages();
  const Message* const message = messages.next();
  ASSERT_NE(message, nullptr);
  EXPECT_EQ(text_of(message->data), "hello");
  std::filesystem::remove(path);
  EXPECT_THROW(Writer("/no/such/folder/file.mcap"), Error);
}

}  // namespace
}  // namespace robocache::mcap
