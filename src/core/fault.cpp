#include "core/fault.h"

#include <pthread.h>

#include <charconv>
#include <cmath>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <string>

#include "core/argument_names.h"
#include "core/limits.h"

namespace robocache {
namespace {

struct Names {
  std::mutex mutex;
  std::deque<std::string> list;  // elements never move
  std::map<std::string_view, std::uint32_t> numbers;
};
Names& names() {
  static Names* const all = [] {
    auto* const fresh = new Names;  // outlives every thread
    fresh->list.emplace_back();     // number 0: no name
    // A child of fork() must not find the lock in the hands of a thread that it does not have.
    pthread_atfork([] { names().mutex.lock(); }, [] { names().mutex.unlock(); }, [] { names().mutex.unlock(); });
    return fresh;
  }();
  return *all;
}

double seconds_in(std::int64_t raw) {
  double seconds = 0;
  std::memcpy(&seconds, &raw, sizeof seconds);
  return seconds;
}

std::string number(DType dtype, std::int64_t raw) {
  if (dtype == DType::i64) return std::to_string(raw);
  char text[32];
  const auto end = std::to_chars(text, text + sizeof text, seconds_in(raw)).ptr;
  return std::string(text, end) + " s";
}

// Seconds past the year 30,000 are nanoseconds that became floats.
bool looks_like_nanoseconds(const Fault& fault) {
  if (fault.dtype == DType::i64) return false;
  const double size = std::fabs(seconds_in(fault.value));
  return size > 1e12 && std::isfinite(size);
}

}  // namespace

AttentionNames& attention_names() noexcept {
  static AttentionNames names;
  return names;
}

std::uint32_t intern(std::string_view name) {
  Names& all = names();
  const std::scoped_lock lock(all.mutex);
  if (const auto found = all.numbers.find(name); found != all.numbers.end()) return found->second;
  all.list.emplace_back(name);
  const auto number = static_cast<std::uint32_t>(all.list.size() - 1);
  all.numbers.emplace(all.list.back(), number);
  return number;
}

const char* name_of(Operation operation) noexcept {
  switch (operation) {
    case Operation::resample:
      return "resample";
    case Operation::align:
      return "align";
    case Operation::fuse:
      return "fuse";
    case Operation::align_backward:
      return "align_backward";
    case Operation::image:
      return "image";
    case Operation::voxelize:
      return "voxelize";
    case Operation::voxelize_depth:
      return "voxelize_depth";
    case Operation::voxel_downsample:
      return "voxel_downsample";
    case Operation::tsdf:
      return "tsdf";
    case Operation::attention:
      return "attention";
    case Operation::attention_backward:
      return "attention_backward";
  }
  return "";
}

std::string describe(const Fault& fault) {
  std::string name;
  {
    Names& all = names();
    const std::scoped_lock lock(all.mutex);
    if (fault.name < all.list.size()) name = all.list[fault.name];
  }
  std::string prefix = std::string(name_of(fault.operation)) + ": ";
  if (!name.empty()) prefix += "stream \"" + name + "\": ";
  const auto element = [&](const char* array, std::int64_t index) {
    const std::string row = fault.row >= 0 ? "[" + std::to_string(fault.row) + "]" : "";
    return array + row + "[" + std::to_string(index) + "]";
  };
  const std::string value = number(fault.dtype, fault.value);
  const std::string other = number(fault.dtype, fault.other);
  const auto assigned = [&](const char* array) { return element(array, fault.index) + " = " + value; };
  const bool of_attention = fault.operation >= Operation::attention;
  const bool of_clouds = fault.operation >= Operation::voxelize && !of_attention;
  const bool of_keys = fault.code == FaultCode::key_offset_outside || fault.code == FaultCode::key_offsets_decrease;
  const AttentionNames& arguments = attention_names();
  const char* const offsets = of_keys ? arguments.key_offsets : (of_attention ? arguments.query_offsets : "offsets");
  const std::string usable = std::string(" is not a time: it must be a number below ") + time_limit_in_words() +
                             (looks_like_nanoseconds(fault) ? "; these look like nanoseconds: make them int64" : "");
  const char* const precise =
      " is too large for float32: its step there is over a millisecond; give float64 seconds or int64 nanoseconds";
  switch (fault.code) {
    case FaultCode::none:
      return "";
    case FaultCode::times_decrease:
      return prefix + assigned("times") + " is before " + element("times", fault.index - 1) + " = " + other +
             "; times must not decrease";
    case FaultCode::time_unusable:
      return prefix + assigned("times") + usable;
    case FaultCode::arrival_unusable:
      return prefix + assigned("arrivals") + usable;
    case FaultCode::float32_too_far:
      return prefix + assigned("times") + precise;
    case FaultCode::arrival_float32_too_far:
      return prefix + assigned("arrivals") + precise;
    case FaultCode::targets_decrease:
      return prefix + assigned("targets") + " is before " + element("targets", fault.index - 1) + " = " + other +
             "; targets must not decrease for mean, max, min and last";
    case FaultCode::target_unusable:
      return prefix + assigned("targets") + usable;
    case FaultCode::target_float32_too_far:
      return prefix + assigned("targets") + precise;
    case FaultCode::start_unusable:
      return prefix + "the timeline's " + assigned("start") + usable;
    case FaultCode::start_float32_too_far:
      return prefix + "the timeline's " + assigned("start") + precise;
    case FaultCode::as_of_unusable:
      return prefix + assigned("as_of") + usable;
    case FaultCode::as_of_float32_too_far:
      return prefix + assigned("as_of") + precise;
    case FaultCode::length_outside:
      return prefix + assigned("lengths") + " is outside 0.." + other +
             (of_attention ? ", the keys that the cache has room for, less those that are appended"
              : of_clouds  ? ", the points that a cloud has room for"
                           : ", the samples that a row has room for");
    case FaultCode::offset_outside:
    case FaultCode::key_offset_outside:
      return prefix + assigned(offsets) + " is outside 0.." + other + ", the number of packed " +
             (of_keys        ? "keys"
              : of_attention ? "queries"
              : of_clouds    ? "points"
                             : "samples");
    case FaultCode::offsets_decrease:
    case FaultCode::key_offsets_decrease:
      return prefix + assigned(offsets) + " is below " + element(offsets, fault.index - 1) + " = " + other +
             "; offsets must not decrease";
    case FaultCode::row_outside:
      return prefix + assigned("rows") + " is outside 0.." + other +
             (fault.operation == Operation::image ? ", the frames that there are" : ", the rows that the stream has");
    case FaultCode::into_outside:
      return prefix + assigned("into") + " is outside 0.." + other + ", the grids that there are";
    case FaultCode::pose_not_rigid:
      return prefix + element("pose", fault.index) +
             " is not rigid: its 3x3 part must be a rotation and its last row (0, 0, 0, 1), both to 0.001";
    case FaultCode::crop_offset_outside:
      return prefix + assigned("crop_offsets") + " is outside 0.." + other + ", where the crop lies inside the frame";
  }
  return prefix;
}

}  // namespace robocache
