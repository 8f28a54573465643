#include "formats/mcap/input_file.h"

#include "core/shared_facts.h"

namespace robocache::mcap {

namespace {

constexpr std::size_t version_at = 5;  // in the magic

}  // namespace

bool is_mcap(std::span<const std::byte> beginning) noexcept {
  return text_of(beginning).starts_with(magic.substr(0, version_at));
}

InputFile::InputFile(Bytes from, const ReadOptions& with)
    : bytes(std::move(from)), options(with), size(static_cast<std::uint64_t>(bytes.size)) {
  max_chunk = with.max_chunk > 0 ? static_cast<std::uint64_t>(with.max_chunk) : 4 * size + (std::uint64_t{256} << 20);
  std::byte first[magic.size()];
  const std::span<std::byte> beginning(first, std::min<std::uint64_t>(size, magic.size()));
  read(0, beginning);
  const std::string_view text = text_of(beginning);
  if (text == magic) return;
  if (size == 0) fail("is empty; expected an MCAP file");
  if (!is_mcap(beginning)) fail("is not an MCAP file: it begins with ", quote(text), "; expected ", quote(magic));
  if (text.size() <= version_at) fail("ends inside the first bytes of an MCAP file");
  if (text[version_at] != magic[version_at]) {
    fail("is MCAP version ", quote(text.substr(version_at, 1)), "; expected \"0\"");
  }
  fail("begins with ", quote(text), "; expected ", quote(magic),
       text.size() < magic.size() ? "" : "; was it converted as text?");
}

void InputFile::add_warning(std::string sentence) {
  constexpr std::size_t most = 100;
  const auto locked = lock_shared_facts();
  if (std::ranges::find(warnings_, sentence) != warnings_.end()) return;
  if (warnings_.size() < most) {
    warnings_.push_back(std::move(sentence));
    return;
  }
  ++not_shown_;
  warnings_.resize(most);
  warnings_.push_back(concat(bytes.name, ": and ", not_shown_, " more warnings"));
}

std::vector<std::string> InputFile::warnings() const {
  const auto locked = lock_shared_facts();
  return warnings_;
}

Span Cursor::peek(std::uint64_t count) {
  constexpr std::uint64_t block = 1 << 18;
  if (position_ < begin_ || position_ + count > end_) {
    const std::uint64_t wanted = std::min(std::max(count, block), source_.size - position_);
    begin_ = end_ = 0;
    source_.read(position_, buffer_.room_for(wanted));
    begin_ = position_;
    end_ = position_ + wanted;
  }
  return buffer_.first(end_ - begin_).subspan(position_ - begin_, count);
}

Head peek_head(Cursor& cursor, std::uint64_t end) {
  const std::uint64_t left = end - cursor.position();
  if (left < head_size) throw Damage("is cut off");
  const Span bytes = cursor.peek(head_size);
  const Head head{static_cast<Op>(bytes[0]), cursor.position(), load<std::uint64_t>(&bytes[1])};
  if (head.op == Op{}) throw Damage("is of type 0, which does not exist");
  if (head.length > left - head_size) {
    const std::string_view name = name_of(head.op);
    throw Damage(concat("is ", name.empty() ? "one" : concat("a ", name), " of ", head.length, " bytes, cut off"));
  }
  return head;
}

}  // namespace robocache::mcap
