// A pass over the records of a file, or of a part of it.
#pragma once

#include "formats/mcap/contents.h"

namespace robocache::mcap {

class Scan {
 public:
  Scan(Source& source, Contents& into) : source_(source), into_(into) {}

  // All records from `begin` to the end of the file, which may be damaged: warnings say what is lost. Gives statistics.
  void file(std::uint64_t begin);

  // The records in a gap of an indexed file, where no chunk may be. False: they are not whole records, or there is one.
  bool gap(std::uint64_t begin, std::uint64_t end);

 private:
  void record(Cursor& cursor, const Head& head);
  void chunk(const Head& head, Span body);
  void message_index(const Head& head, Span body);
  void loose_message(const Head& head, std::uint64_t log_time);
  void count(std::uint16_t channel, std::uint64_t log_time);
  void end_indexes();  // a map that lacks a channel of its chunk is no map
  void check_end(std::uint64_t end);

  Source& source_;
  Contents& into_;
  Unpacker unpacker_;
  Buffer unpacked_;
  bool indexes_follow_ = false;  // the record before was a chunk, or one of its message indexes
  std::vector<std::uint16_t> chunk_channels_;
  std::uint64_t messages_ = 0, start_ = 0, end_ = 0;
  std::vector<std::uint64_t> counts_;  // of messages, by channel
};

}  // namespace robocache::mcap
