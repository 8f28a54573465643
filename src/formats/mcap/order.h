// Delivers messages in log-time order, or in file order, and holds a chunk only while its messages are due. mcap.h says what
// Messages promises.
#pragma once

#include "formats/mcap/contents.h"

namespace robocache::mcap {

// A chunk, or a run of messages outside chunks.
struct Piece {
  std::uint64_t offset = 0;
  std::uint64_t length = 0;
  std::uint64_t start = 0;  // the first log time of its messages, as the file says
  std::uint64_t end = 0;    // the last one
  bool is_chunk = false;
};

// A message: its log time, and the place of its record.
struct Entry {
  std::uint64_t time = 0;
  std::uint64_t place = 0;  // in the piece; orders messages of equal times
  std::uint64_t at = 0;     // in the run's bytes
  auto operator<=>(const Entry& other) const { return std::pair(time, place) <=> std::pair(other.time, other.place); }
  bool operator==(const Entry& other) const { return time == other.time && place == other.place; }
};

// A piece that is due, with those of its messages that are held, in order.
struct Run {
  const Piece* piece = nullptr;
  ReusedBuffer memory;
  Span bytes;  // part of the memory
  std::vector<Entry> entries;
  std::size_t next = 0;
  std::optional<Entry> rest;  // the first message that is not held

  bool has_message() const noexcept { return next < entries.size(); }
  std::uint64_t time() const noexcept { return has_message() ? entries[next].time : rest->time; }
  std::size_t held() const noexcept { return memory.capacity() + entries.capacity() * sizeof(Entry); }
};

class Ordering {
 public:
  Ordering(InputFile& source, Contents& contents, const Selection& selection);

  const Message* next();
  bool ready() const noexcept;

 private:
  enum class Wanted : std::uint8_t { unknown, yes, no, undeclared };

  void choose_pieces();
  bool is_wanted(std::uint16_t channel);
  bool may_have_wanted(const ChunkIndex& chunk);
  bool is_due() const noexcept;
  std::unique_ptr<Run> take_in(const Piece& piece, const Entry* from);
  void read(const Piece& piece, Run& run);
  void find_entries(const Piece& piece, Run& run);
  void start(const Piece& piece);
  void refill();
  void shrink(Run& run, std::size_t share, std::size_t least = 0);
  void make_room(std::size_t size);
  std::size_t share() const noexcept;
  std::size_t budget() const noexcept;
  void push(std::unique_ptr<Run> run);
  std::unique_ptr<Run> pop();
  void settle() noexcept;  // moves the first run to its place in the heap
  void recycle(std::unique_ptr<Run> run);

  InputFile& source_;
  Contents& contents_;
  Selection selection_;
  std::vector<Wanted> wanted_;              // by channel
  std::vector<Piece> pieces_;               // in the order of their first messages
  std::size_t due_ = 0;                     // the first piece that is not begun
  std::vector<std::unique_ptr<Run>> heap_;  // the run with the next message is first
  std::unique_ptr<Run> spent_;              // keeps the last message of a run alive while the caller uses it
  std::unique_ptr<Run> spare_;              // memory that is used again
  std::size_t held_ = 0;                    // bytes, by the runs in the heap
  std::uint64_t last_time_ = 0;
  Message message_;
  Unpacker unpacker_;
  ReusedBuffer packed_;
};

}  // namespace robocache::mcap
