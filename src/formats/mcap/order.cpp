#include "formats/mcap/order.h"

#include <set>

#include "core/interrupt.h"

namespace robocache::mcap {

namespace {

bool is_later(const std::unique_ptr<Run>& a, const std::unique_ptr<Run>& b) {
  return std::pair(a->time(), a->piece->offset) > std::pair(b->time(), b->piece->offset);
}

// How many letters must be changed, added or removed.
std::size_t edits_between(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  for (std::size_t k = 0; k < row.size(); ++k) row[k] = k;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = std::exchange(row[0], i);
    for (std::size_t k = 1; k <= b.size(); ++k) {
      const std::size_t changed = diagonal + (a[i - 1] == b[k - 1] ? 0 : 1);
      diagonal = std::exchange(row[k], std::min({row[k] + 1, row[k - 1] + 1, changed}));
    }
  }
  return row.back();
}

std::string near_topics(std::span<const Channel* const> channels, std::string_view topic) {
  constexpr std::size_t longest = 64, most = 3;
  std::set<std::string_view> topics;
  for (const Channel* const channel : channels) topics.insert(channel->topic);
  std::vector<std::pair<std::size_t, std::string_view>> near;
  for (const std::string_view other : topics) {
    const bool inside = !topic.empty() && other.find(topic) != std::string_view::npos;
    near.emplace_back(inside ? 0 : edits_between(topic.substr(0, longest), other.substr(0, longest)), other);
  }
  std::ranges::sort(near);
  std::string text;
  for (const auto& [edits, other] : std::span(near).first(std::min(near.size(), most))) {
    text += (text.empty() ? "" : ", ") + quote(other);
  }
  return text;
}

}  // namespace

Ordering::Ordering(InputFile& source, Contents& contents, const Selection& selection)
    : source_(source), contents_(contents), selection_(selection) {
  if (selection_.topics) {
    const std::vector<const Channel*> channels = contents_.declared.all_channels();
    for (const std::string& topic : *selection_.topics) {
      if (std::ranges::find(channels, topic, &Channel::topic) != channels.end()) continue;
      const std::string near = near_topics(channels, topic);
      throw Error(ErrorKind::value, concat(source_.bytes.name, ": has no topic ", quote(topic), "; ",
                                           near.empty() ? "it has no topics at all" : concat("near are ", near)));
    }
  }
  choose_pieces();
}

void Ordering::choose_pieces() {
  const auto in_range = [&](std::uint64_t start, std::uint64_t end) {
    return end >= selection_.start && (!selection_.end || start < *selection_.end);
  };
  for (const ChunkIndex& chunk : contents_.chunks) {
    if (!in_range(chunk.message_start_time, chunk.message_end_time) || !may_have_wanted(chunk)) continue;
    pieces_.push_back(
        {chunk.chunk_start_offset, chunk.chunk_length, chunk.message_start_time, chunk.message_end_time, true});
  }
  for (const LooseMessages& loose : contents_.loose) {
    if (!in_range(loose.message_start_time, loose.message_end_time)) continue;
    pieces_.push_back({loose.offset, loose.length, loose.message_start_time, loose.message_end_time, false});
  }
  const bool by_time = selection_.order == Order::log_time;
  std::ranges::sort(pieces_, {},
                    [&](const Piece& piece) { return std::pair(by_time ? piece.start : 0, piece.offset); });
}

bool Ordering::is_wanted(std::uint16_t channel) {
  if (channel >= wanted_.size()) wanted_.resize(channel + std::size_t{1});
  Wanted& wanted = wanted_[channel];
  if (wanted == Wanted::unknown || wanted == Wanted::undeclared) {
    const Channel* const found = contents_.declared.channel(channel);
    if (found == nullptr) {  // a later chunk may declare it
      if (std::exchange(wanted, Wanted::undeclared) == Wanted::unknown) {
        source_.warn("messages on channel ", channel, " are left out: nothing declares it");
      }
      return false;
    }
    const auto& topics = selection_.topics;
    wanted = !topics || std::ranges::find(*topics, found->topic) != topics->end() ? Wanted::yes : Wanted::no;
  }
  return wanted == Wanted::yes;
}

bool Ordering::may_have_wanted(const ChunkIndex& chunk) {
  if (!selection_.topics || chunk.message_index_offsets.empty()) return true;
  return std::ranges::any_of(chunk.message_index_offsets, [&](const auto& entry) {
    const Wanted known = entry.first < wanted_.size() ? wanted_[entry.first] : Wanted::unknown;
    if (known == Wanted::yes || known == Wanted::no) return known == Wanted::yes;
    return contents_.declared.channel(entry.first) == nullptr || is_wanted(entry.first);
  });
}

// ---- pieces into runs

// Reads the piece's records into the run's memory.
void Ordering::read(const Piece& piece, Run& run) {
  if (!piece.is_chunk) {
    run.bytes = run.memory.room_for(piece.length);
    source_.read(piece.offset, run.memory.first(piece.length));
    return;
  }
  const std::span<std::byte> record = packed_.room_for(piece.length);
  source_.read(piece.offset, record);
  if (record.size() < head_size || static_cast<Op>(record[0]) != Op::chunk ||
      load<std::uint64_t>(&record[1]) != piece.length - head_size) {
    throw Damage("is not where the index says");
  }
  const auto chunk = parse<Chunk>(record.subspan(head_size));
  run.bytes = unpacker_.unpack(source_, chunk, run.memory);
  if (chunk.compression.empty()) std::swap(packed_, run.memory);  // the bytes are there
}

void Ordering::find_entries(const Piece& piece, Run& run) {
  run.entries.clear();
  const std::byte* const begin = run.bytes.data();
  try {
    each_record(run.bytes, [&](Op op, Span body) {
      if (op == Op::message) {
        const auto time = load<std::uint64_t>(&body[6]);
        if (time < selection_.start || (selection_.end && time >= *selection_.end)) return;
        if (!is_wanted(load<std::uint16_t>(body.data()))) return;
        const auto at = static_cast<std::uint64_t>(body.data() - begin) - head_size;
        run.entries.push_back({time, at, at});
      } else if (op == Op::schema || op == Op::channel) {
        contents_.declared.learn(source_, op, body);
      }
    });
  } catch (const Damage& damage) {
    source_.warn("its chunk at byte ", piece.offset, " ", damage.what(), "; what follows in it is left out");
  }
  if (selection_.order == Order::log_time && !std::ranges::is_sorted(run.entries)) std::ranges::sort(run.entries);
}

// nullptr if the piece has no wanted messages.
std::unique_ptr<Run> Ordering::take_in(const Piece& piece, const Entry* from) {
  std::unique_ptr<Run> run = spare_ ? std::move(spare_) : std::make_unique<Run>();
  run->piece = &piece;
  run->next = 0;
  run->rest.reset();
  try {
    read(piece, *run);
    find_entries(piece, *run);
  } catch (const Damage& damage) {
    source_.warn(chunk_text(piece.offset, piece.start, piece.end), " ", damage.what(), "; it is left out");
    run->entries.clear();
  }
  if (from != nullptr) {
    run->next = static_cast<std::size_t>(std::ranges::lower_bound(run->entries, *from) - run->entries.begin());
  }
  if (run->has_message()) return run;
  recycle(std::move(run));
  return nullptr;
}

void Ordering::start(const Piece& piece) {
  std::unique_ptr<Run> run = take_in(piece, nullptr);
  if (!run) return;
  if (selection_.order == Order::log_time && run->time() < piece.start && run->time() < last_time_) {
    source_.warn("its chunk at byte ", piece.offset, " has messages from ", run->time(),
                 " on, and its index says from ", piece.start, "; they come late");
  }
  if (!heap_.empty()) make_room(run->held());
  if (!heap_.empty() && held_ + run->held() > budget()) shrink(*run, share());
  push(std::move(run));
}

// Reads the next messages of the first run, which holds none.
void Ordering::refill() {
  std::unique_ptr<Run> old = pop();
  std::unique_ptr<Run> run;
  try {
    run = take_in(*old->piece, &*old->rest);
  } catch (...) {  // so that a failed read may be tried again
    push(std::move(old));
    throw;
  }
  if (!run) return;
  make_room(share());
  shrink(*run, budget() - std::min(held_, budget() - share()), 1);
  push(std::move(run));
}

// ---- memory

std::size_t Ordering::budget() const noexcept {
  return static_cast<std::size_t>(std::max<std::int64_t>(source_.options.buffer, 0));
}

// How much each run may hold if all of them do not fit: they share half of the buffer, and the other half is for later ones.
std::size_t Ordering::share() const noexcept { return budget() / (2 * (heap_.size() + 1)); }

void Ordering::make_room(std::size_t size) {
  if (held_ + size <= budget()) return;
  const std::size_t each = share();
  held_ = 0;
  for (const std::unique_ptr<Run>& run : heap_) {
    shrink(*run, each);
    held_ += run->held();
  }
}

// Reduces a run to its next messages: at most `share` bytes, but at least `least` messages, copied to their own memory.
void Ordering::shrink(Run& run, std::size_t share, std::size_t least) {
  if (run.held() <= share) return;
  std::size_t size = 0, count = 0;
  for (; run.next + count < run.entries.size(); ++count) {
    const std::size_t length = first_record(run.bytes.subspan(run.entries[run.next + count].at)).size();
    if (count >= least && size + length + (count + 1) * sizeof(Entry) > share) break;
    size += length;
  }
  Run kept;
  kept.piece = run.piece;
  kept.rest = run.next + count < run.entries.size() ? std::optional(run.entries[run.next + count]) : run.rest;
  kept.entries.reserve(count);
  const std::span<std::byte> to = kept.memory.room_for(size);
  kept.bytes = to;
  std::size_t at = 0;
  for (std::size_t k = run.next; k < run.next + count; ++k) {
    const Span record = first_record(run.bytes.subspan(run.entries[k].at));
    std::memcpy(&to[at], record.data(), record.size());
    kept.entries.push_back({run.entries[k].time, run.entries[k].place, at});
    at += record.size();
  }
  std::swap(run, kept);
  recycle(std::make_unique<Run>(std::move(kept)));
}

void Ordering::push(std::unique_ptr<Run> run) {
  held_ += run->held();
  heap_.push_back(std::move(run));
  std::ranges::push_heap(heap_, is_later);
}

std::unique_ptr<Run> Ordering::pop() {
  std::unique_ptr<Run> run = std::exchange(heap_.front(), std::move(heap_.back()));
  heap_.pop_back();
  settle();
  held_ -= run->held();
  return run;
}

void Ordering::settle() noexcept {
  for (std::size_t at = 0, child = 1; child < heap_.size(); child = 2 * at + 1) {
    if (child + 1 < heap_.size() && is_later(heap_[child], heap_[child + 1])) ++child;
    if (!is_later(heap_[at], heap_[child])) return;
    std::swap(heap_[at], heap_[child]);
    at = child;
  }
}

void Ordering::recycle(std::unique_ptr<Run> run) {
  if (run && (!spare_ || spare_->memory.capacity() < run->memory.capacity())) spare_ = std::move(run);
}

// ---- messages out

bool Ordering::is_due() const noexcept {
  if (due_ == pieces_.size()) return false;
  if (heap_.empty()) return true;
  return selection_.order == Order::log_time && pieces_[due_].start <= heap_.front()->time();
}

bool Ordering::ready() const noexcept { return !is_due() && !heap_.empty() && heap_.front()->has_message(); }

const Message* Ordering::next() {
  recycle(std::move(spent_));
  for (;;) {
    if (is_due()) {
      check_interrupt();  // before anything changes, so that a caller who continues after an interrupt misses no message
      start(pieces_[due_]);
      ++due_;  // only now, so that a failed read may be tried again
    } else if (heap_.empty()) {
      return nullptr;
    } else if (!heap_.front()->has_message()) {
      refill();
    } else {
      break;
    }
  }
  Run& run = *heap_.front();
  const Entry entry = run.entries[run.next++];
  const std::byte* const record = &run.bytes[entry.at];
  message_ = parse<Message>({record + head_size, load<std::uint64_t>(record + 1)});
  last_time_ = entry.time;
  if (!run.has_message() && !run.rest) {
    spent_ = pop();
  } else {
    settle();
  }
  return &message_;
}

}  // namespace robocache::mcap
