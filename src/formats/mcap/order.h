// Messages in log-time order (or file order) from chunks that are held only while they are due. See Messages in mcap.h
// for what this promises.
#pragma once

#include "formats/mcap/contents.h"

namespace robocache::mcap {

// A chunk, or a run of messages outside chunks.
struct Piece {
  std::uint64_t offset = 0;
  std::uint64_t length = 0;
  std::uint64_t start = 0;  // of its messages' log times, as the file says: the first
  std::uint64_t end = 0;    // and the last
  bool is_chunk = false;
};

// A message: when it is due, and where its record is.
struct Entry {
  std::uint64_t time = 0;
  std::uint64_t place = 0;  // in the piece: what orders equal times
  std::uint64_t at = 0;     // in the run's bytes
  auto operator<=>(const Entry& other) const { return std::pair(time, place) <=> std::pair(other.time, other.place); }
  bool operator==(const Entry& other) const { return time == other.time && place == other.place; }
};

// A piece that is due, and of its messages those that are held, in order.
struct Run {
  const Piece* piece = nullptr;
  Buffer memory;
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
  Ordering(Source& source, Contents& contents, const Selection& selection);

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
  void settle() noexcept;  // the first run goes to its place in the heap
  void recycle(std::unique_ptr<Run> run);

  Source& source_;
  Contents& contents_;
  Selection selection_;
  std::vector<Wanted> wanted_;              // by channel
  std::vector<Piece> pieces_;               // in the order in which they are due
  std::size_t due_ = 0;                     // the first that is not begun
  std::vector<std::unique_ptr<Run>> heap_;  // the run with the next message is first
  std::unique_ptr<Run> spent_;              // holds the message that was handed out, where it was its run's last
  std::unique_ptr<Run> spare_;              // whose memory is used again
  std::size_t held_ = 0;                    // by the runs in the heap
  std::uint64_t last_time_ = 0;
  Message message_;
  Unpacker unpacker_;
  Buffer packed_;
};

}  // namespace robocache::mcap
