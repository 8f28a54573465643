// What a file holds, and where, from its summary or from a scan.
#pragma once

#include "formats/mcap/chunks.h"

namespace robocache::mcap {

// The schemas and channels that were found so far. Both maps are guarded by lock_shared_facts(): they grow when a chunk is
// read that declares new ones. An entry never changes.
struct Declarations {
  std::map<std::uint16_t, Schema> schemas;
  std::map<std::uint16_t, Channel> channels;

  // Adds a Schema or Channel record; the first one of an id stays. Warns if it cannot. Any thread may call it.
  void learn(InputFile& source, Op op, Span body);
  // nullptr if there is none so far. Any thread may call it.
  const Schema* schema(std::uint16_t id) const;
  const Channel* channel(std::uint16_t id) const;
  std::vector<const Schema*> all_schemas() const;
  std::vector<const Channel*> all_channels() const;

 private:
  void learn_schema(InputFile& source, Span body);
  void learn_channel(InputFile& source, Span body);
  // The entry of an id, and whether it is new. A new one is moved from `made`, and its `bytes` are counted.
  template <class T>
  std::pair<const T*, bool> add(std::map<std::uint16_t, T>& to, T& made, const InputFile& source, std::uint64_t bytes);
  std::uint64_t bytes_ = 0;  // of all entries
};

// A run of records outside chunks: messages, with the schemas and channels between them.
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
  std::vector<ChunkIndex> chunks;  // in file order, without overlaps
  std::vector<AttachmentIndex> attachments;
  std::vector<MetadataIndex> metadata;
  std::vector<LooseMessages> loose;
  bool is_indexed = false;
};

Contents read_contents(InputFile& source);

// A chunk's name in a sentence: `its chunk at byte 25, with messages from 10 to 20,`
std::string chunk_text(std::uint64_t offset, std::uint64_t start, std::uint64_t end);

}  // namespace robocache::mcap
