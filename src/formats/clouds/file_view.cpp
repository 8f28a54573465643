#include "formats/clouds/file_view.h"

#include <sys/mman.h>

#include <charconv>

namespace robocache::clouds {

void prefer_huge_pages(void* memory, std::int64_t bytes) {
  constexpr std::uintptr_t page = std::uintptr_t{1} << 21;
  const auto address = reinterpret_cast<std::uintptr_t>(memory);
  const std::uintptr_t begin = (address + page - 1) / page * page;
  const std::uintptr_t end = (address + static_cast<std::uintptr_t>(bytes)) / page * page;
  // This is advice; a failure does no harm.
  if (begin < end) madvise(static_cast<char*>(memory) + (begin - address), end - begin, MADV_HUGEPAGE);
}

std::int64_t parse_count(std::string_view word) {
  std::int64_t count = -1;
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), count);
  return error == std::errc{} && end == word.data() + word.size() && count >= 0 ? count : -1;
}

std::vector<std::string_view> words_of(std::string_view line) {
  std::vector<std::string_view> words;
  for (std::size_t k = 0; k < line.size();) {
    while (k < line.size() && is_space(line[k])) ++k;
    const std::size_t begin = k;
    while (k < line.size() && !is_space(line[k])) ++k;
    if (k > begin) words.push_back(line.substr(begin, k - begin));
  }
  return words;
}

std::string_view Lines::next() {
  const std::string_view left = rest();
  if (left.empty()) source_.fail("ends inside its header, after line ", number_);
  const std::size_t end = left.find('\n');
  ++number_;
  position_ += end == std::string_view::npos ? left.size() : end + 1;
  std::string_view line = left.substr(0, end);
  constexpr std::size_t longest = 1 << 16;
  if (line.size() > longest) fail("its header goes on for ", line.size(), " bytes; at most ", longest, " are read");
  if (line.ends_with('\r')) line.remove_suffix(1);
  return line;
}

}  // namespace robocache::clouds
