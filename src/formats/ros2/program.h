// A compiled schema: a flat list of steps that read a message and fill the rows of its streams.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "formats/messages/output.h"
#include "formats/ros2/cdr.h"
#include "formats/ros2/definition.h"
#include "formats/ros2/numbers.h"

namespace robocache::ros2 {

// Limits for one message type; a schema that exceeds them is refused.
inline constexpr std::size_t max_channels = 1 << 16;
inline constexpr std::size_t max_steps = 1 << 17;
inline constexpr std::size_t max_names = std::size_t{16} << 20;  // bytes of all channels' names
inline constexpr std::size_t max_path = 1024;  // bytes of "position.x": every field below it copies the path

inline constexpr std::uint32_t no_stream = 0xffffffff;

enum class Code : std::uint8_t {
  copy,        // `count` numbers of `size` bytes to `out` in the row
  skip,        // `count` numbers
  stamp,       // the header's time
  frame,       // the header's frame_id
  string,      // a string, skipped
  wstring,     // a wide string, skipped
  collection,  // XCDR2 only: the size of an array of anything but numbers
  rows,        // a sequence of numbers: the rows of `stream`; no_stream: skipped
  begin,       // a sequence of anything else: for each element the steps up to `end`, which fill a row of `stream`
  end,
};

struct Step {
  Code code = Code::skip;
  std::uint8_t size = 1;
  DType dtype = DType::u8;
  std::uint32_t count = 1;  // of a sequence: the most it may have; 0: any number
  std::uint32_t out = 0;    // a channel; in a finished program, a byte of the row
  std::uint32_t stream = no_stream;
  std::uint32_t jump = 0;    // from begin to its end, from end to its begin
  std::size_t smallest = 1;  // the fewest bytes that an element takes
  Convert convert = nullptr;
};

struct Program {
  std::vector<Step> steps{};
  std::vector<StreamInfo> streams{};  // the dense one first, if there is one; then those of sequences
  bool has_dense = false, has_stamp = false, has_wstring = false;

  // Adds the rows of a message to the streams, without committing them. `character`: bytes of a character in a wide string.
  struct StampAndFrame {
    std::optional<std::int64_t> stamp{};
    std::string_view frame{};
  };
  StampAndFrame run(CdrReader& cursor, std::span<messages::StreamBuilder> to, std::size_t character) const;
};

// `type` and `topic`: of the streams.
Program compile(const Definition& definition, std::string_view type, std::string_view topic);

}  // namespace robocache::ros2
