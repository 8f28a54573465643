// How the arrays of a call lie in memory: shapes, strides and dtypes, checked, and the methods of channels.
#pragma once

#include <robocache/align.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <string>
#include <vector>

#include "core/names.h"
#include "core/speaker.h"
#include "ops/align/plan.h"

namespace robocache::align_op {
namespace {

bool is_time(DType dtype) { return dtype == DType::i64 || dtype == DType::f64 || dtype == DType::f32; }

void check_times(const Speaker& speaker, const char* what, const TensorView& view) {
  if (is_time(view.dtype)) return;
  speaker.fail(ErrorKind::type, what, " are ", name_of(view.dtype),
               "; they must be int64 nanoseconds, or float64 or float32 seconds");
}

Stamps stamps_of(const TensorView& view, bool batched) {
  const auto last = static_cast<std::size_t>(view.rank - 1);
  return {view.data, batched ? view.strides[0] : 0, view.rank > 0 ? view.strides[last] : 0, view.dtype};
}

// Trailing dimensions from `lead` on, neighbours merged where strides allow.
Channels channels_of(const Speaker& speaker, const char* what, const TensorView& view, int lead) {
  Channels channels;
  for (int k = lead; k < view.rank; ++k) {
    const std::int64_t size = view.shape[static_cast<std::size_t>(k)];
    const std::int64_t stride = view.strides[static_cast<std::size_t>(k)];
    if (size == 1) continue;
    const int last = channels.rank - 1;
    if (last >= 0 && channels.stride[last] == size * stride) {
      channels.size[last] *= static_cast<std::int32_t>(size);
      channels.stride[last] = stride;
      continue;
    }
    if (channels.rank == max_channel_rank) {
      speaker.fail(ErrorKind::value, what, " of shape ", shape_text(view),
                   " has too many dimensions; make it contiguous");
    }
    channels.size[channels.rank] = static_cast<std::int32_t>(size);
    channels.stride[channels.rank++] = stride;
  }
  if (channels.rank == 0) {
    channels.rank = 1;
    channels.size[0] = 1;
    channels.stride[0] = 1;
  }
  return channels;
}

std::int64_t channel_count(const TensorView& view, int lead) {
  std::int64_t count = 1;
  for (int k = lead; k < view.rank; ++k) count *= view.shape[static_cast<std::size_t>(k)];
  return count;
}

// The address of element `offset`; nullptr for an array without memory, as one without elements may be.
void* element(const TensorView& view, std::int64_t offset) {
  return view.data != nullptr ? static_cast<char*>(view.data) + offset * size_of(view.dtype) : nullptr;
}

// How a stream lies in memory.
struct Layout {
  bool batched = false;       // it has rows: [B, S, ...], or packed
  int lead = 1;               // dimensions before the trailing shape
  std::int64_t segments = 1;  // rows in memory
  std::int64_t samples = 0;
  std::int64_t rows = 1;  // output rows that it gives, where batched
};

Layout layout_of(const Speaker& speaker, const Stream& stream) {
  const TensorView& values = stream.values;
  const TensorView& times = stream.times;
  if (!values || !times) speaker.fail(ErrorKind::value, "values and times are both needed");
  Layout layout;
  const char* guess = "";
  if (values.rank > 0 && times.rank > 1 && values.shape[0] == times.shape[0]) {
    if (times.rank == 2 && times.shape[1] == 1) {
      guess = "; did you mean times[:, 0]?";
    } else if (values.rank == 1) {
      guess = "; are values and times swapped?";
    }
  }
  const auto disagree = [&](const char* wanted) {
    speaker.fail(ErrorKind::value, "values of shape ", shape_text(values), " do not fit times of shape ",
                 shape_text(times), "; expected ", wanted, guess);
  };
  if (stream.offsets) {
    if (stream.lengths)
      speaker.fail(ErrorKind::value, "lengths are for padded rows and offsets for packed ones; give one");
    if (times.rank != 1 || values.rank < 1 || values.shape[0] != times.shape[0]) {
      disagree("values [N, ...] and times [N], because offsets are given");
    }
    if (stream.offsets.rank != 1 || stream.offsets.shape[0] < 1) {
      speaker.fail(ErrorKind::value, "offsets of shape ", shape_text(stream.offsets), "; expected [rows + 1]");
    }
    layout.batched = true;
    layout.samples = times.shape[0];
    layout.segments = stream.offsets.shape[0] - 1;
  } else if (times.rank == 2) {
    if (values.rank < 2 || values.shape[0] != times.shape[0] || values.shape[1] != times.shape[1]) {
      disagree("values [B, S, ...] and times [B, S]");
    }
    layout.batched = true;
    layout.lead = 2;
    layout.segments = times.shape[0];
    layout.samples = times.shape[1];
  } else if (times.rank == 1) {
    if (values.rank < 1 || values.shape[0] != times.shape[0]) {
      disagree(
          "values [S, ...] and times [S], or values [B, S, ...] and times [B, S]; expand times where rows share them");
    }
    if (stream.lengths || stream.rows) {
      speaker.fail(ErrorKind::value, stream.lengths ? "lengths" : "rows", " need a stream with rows: times [B, S]",
                   stream.lengths ? "" : " or offsets", ", not times of shape ", shape_text(times));
    }
    layout.samples = times.shape[0];
  } else {
    speaker.fail(ErrorKind::value, "times have ", times.rank, " dimensions; expected [S], [B, S], or [N] with offsets",
                 guess);
  }
  check_times(speaker, "times", times);
  if (stream.lengths && (stream.lengths.rank != 1 || stream.lengths.shape[0] != layout.segments)) {
    speaker.fail(ErrorKind::value, "lengths of shape ", shape_text(stream.lengths), " do not fit ", layout.segments,
                 " rows; expected [", layout.segments, "]");
  }
  if (stream.arrivals) {
    check_times(speaker, "arrivals", stream.arrivals);
    if (stream.arrivals.rank != times.rank ||
        !std::equal(times.shape.begin(), times.shape.begin() + times.rank, stream.arrivals.shape.begin())) {
      speaker.fail(ErrorKind::value, "arrivals of shape ", shape_text(stream.arrivals), " do not fit times of shape ",
                   shape_text(times));
    }
  }
  if (stream.rows && stream.rows.rank != 1) {
    speaker.fail(ErrorKind::value, "rows has shape ", shape_text(stream.rows), "; it must have one dimension");
  }
  layout.rows = stream.rows ? stream.rows.shape[0] : layout.segments;
  if (layout.rows > 0 && layout.segments == 0) {
    speaker.fail(ErrorKind::value, "rows ask for ", layout.rows, " rows of a stream that has none");
  }
  return layout;
}

// What error sentences call a stream: its name, or its position where there are several streams.
class Names {
 public:
  explicit Names(std::span<const Stream> streams) : streams_(streams) {}
  std::string_view operator[](std::size_t k) {
    if (!streams_[k].name.empty() || streams_.size() == 1) return streams_[k].name;
    const auto end = std::to_chars(positions_[k], positions_[k + 1], k).ptr;
    return {positions_[k], end};
  }

 private:
  std::span<const Stream> streams_;
  char positions_[max_streams + 1][2];
};

struct TargetShape {
  bool batched = false;
  std::int64_t rows = 1, count = 0;
};

TargetShape target_shape(const Speaker& speaker, const Targets& targets) {
  if (!targets.timeline) {
    check_times(speaker, "targets", targets.times);
    if (targets.times.rank == 1) return {false, 1, targets.times.shape[0]};
    if (targets.times.rank == 2) return {true, targets.times.shape[0], targets.times.shape[1]};
    speaker.fail(ErrorKind::value, "targets have shape ", shape_text(targets.times), "; expected [T] or [B, T]");
  }
  const Timeline& line = *targets.timeline;
  if (!(line.rate > 0) || !std::isfinite(line.rate)) {
    speaker.fail(ErrorKind::value, "the timeline's rate is ", line.rate, "; it must be a positive number of hertz");
  }
  if (line.count < 0)
    speaker.fail(ErrorKind::value, "the timeline's count is ", line.count, "; it must not be negative");
  const double reach = std::max(std::abs(static_cast<double>(line.first)),
                                std::abs(static_cast<double>(line.first) + static_cast<double>(line.count))) +
                       1;
  if (!(reach * 1e9 / line.rate < static_cast<double>(span_limit))) {
    speaker.fail(ErrorKind::value, "a timeline of ", line.count, " steps at ", line.rate,
                 " Hz is longer than 73 years");
  }
  if (!line.starts) {
    if (line.start <= -time_limit || line.start >= time_limit) {
      speaker.fail(ErrorKind::value, "the timeline starts at ", line.start, " ns; it must be within ",
                   limit_in_words(time_limit), " ns of 0");
    }
    // Both lie within 2^61 ns of the start, so that nothing overflows here.
    const auto step = [&](std::int64_t k) {
      return line.start + std::llrint(static_cast<double>(line.first + k) * 1e9 / line.rate);
    };
    if (line.count > 0 && (step(0) <= -time_limit || step(line.count - 1) >= time_limit)) {
      speaker.fail(ErrorKind::value, "the timeline goes from ", step(0), " to ", step(line.count - 1),
                   " ns; it must stay within ", limit_in_words(time_limit), " ns of 0");
    }
    return {false, 1, line.count};
  }
  check_times(speaker, "the timeline's starts", line.starts);
  if (line.starts.rank != 1) {
    speaker.fail(ErrorKind::value, "the timeline's start has shape ", shape_text(line.starts),
                 "; expected one number or [B]");
  }
  return {true, line.starts.shape[0], line.count};
}

// Fills Batch from the shapes; layouts go to `layouts`.
Batch batch_of(Operation operation, std::span<const Stream> streams, const Targets& targets, Layout* layouts) {
  const Speaker speaker{operation};
  if (streams.empty() || streams.size() > max_streams) {
    speaker.fail(ErrorKind::value, streams.size(), " streams; expected 1 to ", max_streams);
  }
  const TargetShape shape = target_shape(speaker, targets);
  Batch result;
  result.targets = shape.count;
  if (shape.batched) result.rows = shape.rows;
  Names names(streams);
  std::size_t setter = streams.size();  // the stream that gave the number of rows
  for (std::size_t k = 0; k < streams.size(); ++k) {
    const Speaker here{operation, names[k]};
    layouts[k] = layout_of(here, streams[k]);
    if (!layouts[k].batched) continue;
    if (!result.rows) {
      result.rows = layouts[k].rows;
      setter = k;
    } else if (*result.rows != layouts[k].rows) {
      const std::string other =
          setter == streams.size() ? "the targets have " : concat("stream \"", names[setter], "\" has ");
      here.fail(ErrorKind::value, "has ", layouts[k].rows, " rows, but ", other, *result.rows);
    }
  }
  return result;
}

Method default_method(DType dtype) { return is_float(dtype) ? Method::linear : Method::hold; }

// Neighbours of one method are merged, unless each is to be judged by itself (on_nan = skip).
void append_ranges(const Speaker& speaker, const Stream& stream, std::int64_t channels, bool merge,
                   std::vector<Range>& ranges) {
  const DType dtype = stream.values.dtype;
  if (stream.methods.empty()) {
    ranges.push_back({0, static_cast<std::int32_t>(channels), default_method(dtype)});
    return;
  }
  std::vector<MethodRange> sorted(stream.methods);
  std::stable_sort(sorted.begin(), sorted.end(), [](const auto& a, const auto& b) { return a.begin < b.begin; });
  const std::size_t first = ranges.size();
  std::int64_t covered = 0;
  const MethodRange* previous = nullptr;
  for (const MethodRange& range : sorted) {
    const char* const name = word_of(range.method);
    if (range.begin < 0 || range.end < range.begin || range.end > channels) {
      speaker.fail(ErrorKind::value, "method ", name, " for channels ", range.begin, "..", range.end,
                   " is outside the stream's ", channels, " channels");
    }
    if (range.begin < covered) {
      speaker.fail(ErrorKind::value, "methods overlap: ", word_of(previous->method), " for channels ", previous->begin,
                   "..", previous->end, " and ", name, " for channels ", range.begin, "..", range.end);
    }
    if (range.begin > covered) {
      speaker.fail(ErrorKind::value, "channels ", covered, "..", range.begin, " have no method");
    }
    if (!is_float(dtype) &&
        (range.method <= Method::linear || (range.method >= Method::slerp && range.method <= Method::mean))) {
      speaker.fail(ErrorKind::type, "method ", name, " needs floating-point values, not ", name_of(dtype),
                   "; integers and bool have hold, nearest, last, max and min");
    }
    if (range.method == Method::slerp && (range.end - range.begin) % 4 != 0) {
      speaker.fail(ErrorKind::value, "slerp takes groups of 4 channels (a quaternion), and ", range.begin, "..",
                   range.end, " are ", range.end - range.begin);
    }
    covered = range.end;
    previous = &range;
    if (range.end == range.begin && channels > 0) continue;
    if (merge && ranges.size() > first && ranges.back().method == range.method) {
      ranges.back().end = static_cast<std::int32_t>(range.end);
    } else {
      ranges.push_back({static_cast<std::int32_t>(range.begin), static_cast<std::int32_t>(range.end), range.method});
    }
  }
  if (covered < channels) speaker.fail(ErrorKind::value, "channels ", covered, "..", channels, " have no method");
}

// Whether every value of `from` is a value of `to`, or `to` is a float to round into.
bool can_hold(DType to, DType from) {
  if (to == from || is_float(to)) return true;
  if (is_float(from) || to == DType::boolean) return false;
  const bool is_signed = to >= DType::i8;
  if (from == DType::boolean) return true;
  if (from >= DType::i8) return is_signed && size_of(to) >= size_of(from);
  return is_signed ? size_of(to) > size_of(from) : size_of(to) >= size_of(from);
}

void check_device(const Speaker& speaker, const char* what, const TensorView& view, Device device) {
  robocache::check_device(speaker, what, view, device, "the first stream's values");
}

}  // namespace
}  // namespace robocache::align_op
