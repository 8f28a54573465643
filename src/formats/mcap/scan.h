// A pass over the records of a file, or of a part of it.
#pragma once

#include "formats/mcap/contents.h"

namespace robocache::mcap {

class Scan {
 public:
  Scan(InputFile& source, Contents& into) : source_(source), into_(into) {}

  // Scans all records from `begin` to the end of the file, which may be damaged: warnings say what is lost. Makes statistics.
  void file(std::uint64_t begin);

  // Scans a gap of an indexed file. Returns false if it has a chunk, or records that are not whole.
  bool gap(std::uint64_t begin, std::uint64_t end);

 private:
  void record(Cursor& cursor, const Head& head);
  void chunk(const Head& head, Span body);
  void message_index(const Head& head, Span body);
  void loose_message(const Head& head, std::uint64_t log_time);
  void count(std::uint16_t channel, std::uint64_t log_time);
  void end_indexes();  // drops message indexes that lack a channel of their chunk
  void check_end(std::uint64_t end);

  InputFile& source_;
  Contents& into_;
  Unpacker unpacker_;
  ReusedBuffer unpacked_;
  bool indexes_follow_ = false;  // the record before was a chunk, or one of its message indexes
  std::vector<std::uint16_t> chunk_channels_;
  std::uint64_t messages_ = 0, start_ = 0, end_ = 0;
  std::vector<std::uint64_t> counts_;  // of messages, by channel
};

}  // namespace robocache::mcap
