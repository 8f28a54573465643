// What a file holds, and where: from its summary, or by a scan.
#pragma once

#include "formats/mcap/chunks.h"

namespace robocache::mcap {

// Schemas and channels, wherever they are declared. Both maps are shared facts: they grow when a chunk is read that
// declares what was not known. An entry, once it is there, never changes.
struct Declarations {
  std::map<std::uint16_t, Schema> schemas;
  std::map<std::uint16_t, Channel> channels;

  // Takes a Schema or Channel record in; the first of an id stays. Where it cannot, a warning says so. Any thread may.
  void learn(Source& source, Op op, Span body);
  // nullptr: there is none, so far. Any thread may ask.
  const Schema* schema(std::uint16_t id) const;
  const Channel* channel(std::uint16_t id) const;
  std::vector<const Schema*> all_schemas() const;
  std::vector<const Channel*> all_channels() const;

 private:
  void learn_schema(Source& source, Span body);
  void learn_channel(Source& source, Span body);
  // The entry of an id, and whether it is new: then it is moved from `made`, and `bytes` are counted.
  template <class T>
  std::pair<const T*, bool> add(std::map<std::uint16_t, T>& to, T& made, const Source& source, std::uint64_t bytes);
  std::uint64_t bytes_ = 0;  // of all of them
};

// Messages outside chunks, with the schemas and channels between them: a run of records in the file.
struct LooseMessages {
  std::uint64_t offset = 0;
  std::uint64_t length = 0;
  std::uint64_t message_start_time = 0;
  std::uint64_t message_end_time = 0;
};

struct Contents {
  Header header;
  Declarations declared;
  std::optional<Statistics> statistics;
  std::vector<ChunkIndex> chunks;  // in file order; none reaches into another
  std::vector<AttachmentIndex> attachments;
  std::vector<MetadataIndex> metadata;
  std::vector<LooseMessages> loose;
  bool is_indexed = false;
};

Contents read_contents(Source& source);

// The words for a chunk in a sentence: `its chunk at byte 25, with messages from 10 to 20,`
std::string chunk_text(std::uint64_t offset, std::uint64_t start, std::uint64_t end);

}  // namespace robocache::mcap
