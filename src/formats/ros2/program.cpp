#include "formats/ros2/program.h"

#include <algorithm>
#include <array>
#include <utility>

#include "core/limits.h"
#include "core/text.h"

namespace robocache::ros2 {

namespace {

// Fields that make no channels: they describe how good other numbers are.
constexpr std::pair<std::string_view, std::string_view> covariances[] = {
    {"sensor_msgs/Imu", "orientation_covariance"},         {"sensor_msgs/Imu", "angular_velocity_covariance"},
    {"sensor_msgs/Imu", "linear_acceleration_covariance"}, {"sensor_msgs/MagneticField", "magnetic_field_covariance"},
    {"sensor_msgs/NavSatFix", "position_covariance"},      {"geometry_msgs/PoseWithCovariance", "covariance"},
    {"geometry_msgs/TwistWithCovariance", "covariance"},   {"geometry_msgs/AccelWithCovariance", "covariance"},
};

struct Channels {
  std::vector<std::string> names{};
  std::vector<Method> methods{};
  std::vector<DType> dtypes{};
  std::vector<std::string> left_out{};
  bool scalar = false;  // rows of a sequence of numbers
};

std::string element_of(const std::string& path, std::uint32_t k) { return path + "[" + std::to_string(k) + "]"; }

class Compiler {
 public:
  Compiler(const Definition& definition, std::string_view type, std::string_view topic)
      : definition_(definition), type_(type), topic_(topic), smallest_(definition.structures.size(), 0) {}

  Program compile() {
    channels_.emplace_back();
    names_.emplace_back(topic_);
    const Structure& root = definition_.structures[static_cast<std::size_t>(definition_.root)];
    if (root.members.empty()) emit_numbers(DType::u8, 1, "", no_stream);
    for (const Member& member : root.members) {
      if (is_header(member.type) && !program_.has_stamp) {
        emit_header(member.type);
      } else {
        emit_member(root, member, "", 0);
      }
    }
    finish();
    return std::move(program_);
  }

 private:
  const Type& type_of(std::int32_t index) const { return definition_.types[static_cast<std::size_t>(index)]; }
  const Structure& structure_of(const Type& type) const {
    return definition_.structures[static_cast<std::size_t>(type.of)];
  }
  bool is_header(std::int32_t type) const { return definition_.is(type, "std_msgs/Header"); }
  bool is_time(std::int32_t type) const {
    if (!definition_.is(type, "builtin_interfaces/Time")) return false;
    const Structure& time = structure_of(type_of(type));
    const auto is_word = [&](const Member& member) {
      const Type& t = type_of(member.type);
      return t.kind == Kind::number && (t.dtype == DType::i32 || t.dtype == DType::u32);
    };
    return time.members.size() == 2 && std::ranges::all_of(time.members, is_word);
  }
  bool is_quaternion(const Structure& structure) const {
    static constexpr std::string_view names[] = {"x", "y", "z", "w"};
    return structure.name == "geometry_msgs/Quaternion" &&
           std::ranges::equal(structure.members, names, {}, &Member::name) &&
           std::ranges::all_of(structure.members, [&](const Member& member) {
             const Type& t = type_of(member.type);
             return t.kind == Kind::number && t.dtype == DType::f64;
           });
  }

  // The fewest bytes that a value takes, without padding.
  std::size_t smallest(std::int32_t index) {
    const Type& type = type_of(index);
    constexpr auto most = static_cast<std::size_t>(size_limit);
    switch (type.kind) {
      case Kind::number:
        return static_cast<std::size_t>(size_of(type.dtype));
      case Kind::array: {
        const std::size_t each = smallest(type.of);
        return each > most / type.count ? most : each * type.count;
      }
      case Kind::structure: {
        std::size_t& known = smallest_[static_cast<std::size_t>(type.of)];
        if (known == 0) {
          std::size_t total = 0;
          for (const Member& member : structure_of(type).members) {
            total = std::min(most, total + std::min(most, smallest(member.type)));
          }
          smallest_[static_cast<std::size_t>(type.of)] = std::max<std::size_t>(total, 1);
        }
        return smallest_[static_cast<std::size_t>(type.of)];
      }
      default:
        return 4;
    }
  }

  std::uint32_t here() const { return static_cast<std::uint32_t>(program_.steps.size()); }
  void count_step() {
    if (++steps_ > max_steps) {
      throw Error(ErrorKind::file, concat("type ", quote(type_), " has more than ", max_steps, " fields"));
    }
  }
  Step& emit(const Step& step) {
    count_step();
    program_.steps.push_back(step);
    return program_.steps.back();
  }

  // A member of the structure of a top-level std_msgs/Header.
  void emit_header(std::int32_t type) {
    for (const Member& member : structure_of(type_of(type)).members) {
      if (member.name == "stamp" && is_time(member.type)) {
        emit({.code = Code::stamp});
        program_.has_stamp = true;
      } else if (member.name == "frame_id" && type_of(member.type).kind == Kind::string) {
        emit({.code = Code::frame});
      } else {
        emit_type(member.type, "", no_stream);
      }
    }
  }

  void emit_member(const Structure& of, const Member& member, const std::string& path, std::uint32_t stream) {
    const bool is_covariance = std::ranges::find(covariances, std::pair<std::string_view, std::string_view>(
                                                                  of.name, member.name)) != std::end(covariances);
    const std::string inner = path.empty() ? member.name : path + "." + member.name;
    if (inner.size() > max_path) {
      throw Error(ErrorKind::file, concat("the field ", quote(std::string_view(inner).substr(0, 40)),
                                          "... has a name of more than ", max_path, " bytes"));
    }
    emit_type(member.type, inner, is_covariance || is_header(member.type) ? no_stream : stream);
  }

  // `stream`: the stream of the channels; 0 is the dense one, no_stream makes none.
  void emit_type(std::int32_t index, const std::string& path, std::uint32_t stream) {
    count_step();
    const Type& type = type_of(index);
    switch (type.kind) {
      case Kind::number:
        return emit_numbers(type.dtype, 1, path, stream);
      case Kind::string:
        emit({.code = Code::string});
        return;
      case Kind::wstring:
        program_.has_wstring = true;
        emit({.code = Code::wstring});
        return;
      case Kind::structure: {
        const Structure& structure = structure_of(type);
        if (structure.members.empty()) emit_numbers(DType::u8, 1, path, no_stream);
        const bool rotates = stream != no_stream && is_quaternion(structure);
        for (const Member& member : structure.members) emit_member(structure, member, path, stream);
        if (rotates) {
          std::vector<Method>& methods = channels_[stream].methods;
          std::fill(methods.end() - 4, methods.end(), Method::slerp);
        }
        return;
      }
      case Kind::array:
        return emit_array(type, path, stream);
      case Kind::sequence:
        return emit_sequence(type, path, stream);
    }
  }

  void emit_array(const Type& type, const std::string& path, std::uint32_t stream) {
    const Type& element = type_of(type.of);
    if (element.kind == Kind::number) return emit_numbers(element.dtype, type.count, path, stream, true);
    emit({.code = Code::collection});
    for (std::uint32_t k = 0; k < type.count; ++k) {
      emit_type(type.of, stream == no_stream ? path : element_of(path, k), stream);
    }
  }

  void emit_sequence(const Type& type, const std::string& path, std::uint32_t outer) {
    const Type& element = type_of(type.of);
    const bool is_inner = outer != no_stream && outer != 0;
    if (is_inner) channels_[outer].left_out.push_back(path);
    std::uint32_t stream = no_stream;
    if (outer == 0) {
      stream = static_cast<std::uint32_t>(channels_.size());
      channels_.emplace_back();
      names_.push_back(concat(topic_, "/", path));
      count_names(names_.back());
    }
    if (element.kind == Kind::number) {
      const int size = size_of(element.dtype);
      emit({.code = Code::rows,
            .size = static_cast<std::uint8_t>(size),
            .dtype = element.dtype,
            .count = type.count,
            .stream = stream,
            .smallest = static_cast<std::size_t>(size)});
      if (stream != no_stream) {
        channels_[stream].dtypes = {element.dtype};
        channels_[stream].scalar = true;
      }
      return;
    }
    const std::uint32_t begin = here();
    emit({.code = Code::begin, .count = type.count, .stream = stream, .smallest = smallest(type.of)});
    barrier_ = here();
    emit_type(type.of, stream == no_stream ? path : "", stream);
    program_.steps[begin].jump = here();
    emit({.code = Code::end, .jump = begin});
    barrier_ = here();
  }

  void emit_numbers(DType dtype, std::uint32_t count, const std::string& path, std::uint32_t stream,
                    bool is_array = false) {
    const auto size = static_cast<std::uint8_t>(size_of(dtype));
    Step step{.code = Code::skip, .size = size, .dtype = dtype, .count = count};
    if (stream != no_stream) {
      step.code = Code::copy;
      step.stream = stream;
      step.out = static_cast<std::uint32_t>(channels_[stream].names.size());
      add_channels(dtype, count, path, channels_[stream], is_array);
    }
    // Consecutive numbers of one kind are one step.
    if (here() > barrier_) {
      Step& last = program_.steps.back();
      const bool follows = last.code == step.code && last.size == size && last.stream == stream &&
                           (stream == no_stream || last.dtype == dtype);
      if (follows && last.count <= 0xffffffff - count) {
        last.count += count;
        return;
      }
    }
    emit(step);
  }

  void count_names(std::string_view name) {
    name_bytes_ += name.size() + 1;
    if (name_bytes_ > max_names) throw Error(ErrorKind::file, concat("the names of its fields are too long"));
  }

  void add_channels(DType dtype, std::uint32_t count, const std::string& path, Channels& to, bool is_array) {
    total_ += count;
    if (total_ > max_channels) {
      throw Error(ErrorKind::file,
                  concat("field ", quote(path), ": the type has more than ", max_channels, " numbers"));
    }
    for (std::uint32_t k = 0; k < count; ++k) {
      to.names.push_back(is_array ? element_of(path, k) : path);
      count_names(to.names.back());
    }
    to.methods.insert(to.methods.end(), count, is_float(dtype) ? Method::linear : Method::hold);
    to.dtypes.insert(to.dtypes.end(), count, dtype);
  }

  void finish() {
    // Streams without channels are removed; the remaining one says what they left out.
    std::vector<std::uint32_t> place(channels_.size(), no_stream);
    std::vector<std::string> left_out;
    for (std::size_t k = 0; k < channels_.size(); ++k) {
      Channels& channels = channels_[k];
      if (channels.dtypes.empty()) {
        for (const std::string& path : channels.left_out)
          left_out.push_back(names_[k].substr(topic_.size() + 1) + "[]." + path);
        continue;
      }
      place[k] = static_cast<std::uint32_t>(program_.streams.size());
      program_.streams.push_back(info_of(channels, names_[k], k > 0));
      program_.has_dense |= k == 0;
    }
    if (!left_out.empty() && program_.has_dense) program_.streams[0].metadata["left_out"] = joined(left_out);
    for (Step& step : program_.steps) {
      if (step.stream == no_stream) continue;
      step.stream = place[step.stream];
      if (step.stream == no_stream || step.code == Code::begin) continue;
      const DType to = program_.streams[step.stream].dtype;
      step.out *= static_cast<std::uint32_t>(size_of(to));
      step.convert = converter(step.dtype, to);
    }
  }

  StreamInfo info_of(Channels& channels, const std::string& name, bool is_ragged) const {
    StreamInfo info{.name = name, .type = std::string(type_), .is_ragged = is_ragged};
    const bool equal = std::ranges::all_of(channels.dtypes, [&](DType dtype) { return dtype == channels.dtypes[0]; });
    info.dtype = equal ? channels.dtypes[0] : DType::f64;
    if (is_ragged) {
      const auto count = static_cast<std::int64_t>(channels.dtypes.size());
      info.methods = {{Method::hold, 0, count}};
    } else {
      info.methods = messages::ranges(channels.methods, info.dtype);
    }
    if (!channels.scalar) info.shape = {static_cast<std::int64_t>(channels.names.size())};
    info.channels = std::move(channels.names);
    if (!channels.left_out.empty()) info.metadata["left_out"] = joined(channels.left_out);
    return info;
  }

  static std::string joined(const std::vector<std::string>& names) {
    std::string text;
    for (const std::string& name : names) {
      if (text.size() > 1000) return text + ", ...";
      (text += text.empty() ? "" : ", ") += name;
    }
    return text;
  }

  const Definition& definition_;
  std::string_view type_, topic_;
  std::vector<std::size_t> smallest_;  // by structure; 0: not known yet
  Program program_;
  std::vector<Channels> channels_;  // by stream
  std::vector<std::string> names_;
  std::size_t steps_ = 0, total_ = 0, name_bytes_ = 0;
  std::uint32_t barrier_ = 0;  // no step before this one is extended
};

struct Loop {
  std::uint32_t left = 0;
  std::byte* outer = nullptr;
  std::size_t stride = 0;
};

}  // namespace

Program compile(const Definition& definition, std::string_view type, std::string_view topic) {
  return Compiler(definition, type, topic).compile();
}

Program::StampAndFrame Program::run(CdrReader& cursor, std::span<messages::StreamBuilder> to,
                                    std::size_t character) const {
  StampAndFrame header;
  std::array<Loop, max_depth + 1> loops{};
  std::size_t depth = 0;
  std::byte* row = has_dense ? to[0].rows(1, cursor.size()) : nullptr;
  const bool swapped = cursor.swapped();
  const std::size_t count = steps.size();
  for (std::size_t k = 0; k < count; ++k) {
    const Step& step = steps[k];
    switch (step.code) {
      case Code::copy: {
        const char* const from = cursor.numbers(step.size, step.count);
        step.convert(from, row + step.out, step.count, swapped);
        break;
      }
      case Code::skip:
        cursor.numbers(step.size, step.count);
        break;
      case Code::stamp: {
        const char* const at = cursor.numbers(4, 2);
        const auto seconds = io::load<std::int32_t>(at, swapped);
        const auto nanoseconds = io::load<std::uint32_t>(at + 4, swapped);
        header.stamp = std::int64_t{seconds} * 1'000'000'000 + nanoseconds;
        break;
      }
      case Code::frame:
        header.frame = cursor.string();
        break;
      case Code::string:
        cursor.string();
        break;
      case Code::wstring:
        cursor.wstring(character);
        break;
      case Code::collection:
        cursor.collection();
        break;
      case Code::rows: {
        const std::uint32_t n = cursor.count(step.count, step.smallest);
        const char* const from = cursor.numbers(step.size, n);
        if (step.stream != no_stream) step.convert(from, to[step.stream].rows(n, cursor.size()), n, swapped);
        break;
      }
      case Code::begin: {
        cursor.collection();
        const std::uint32_t n = cursor.count(step.count, step.smallest);
        if (n == 0) {
          k = step.jump;
          break;
        }
        loops[depth++] = {n, row, 0};
        if (step.stream != no_stream) {
          row = to[step.stream].rows(n, cursor.size());
          loops[depth - 1].stride = to[step.stream].row_bytes();
        }
        break;
      }
      case Code::end: {
        Loop& loop = loops[depth - 1];
        if (--loop.left == 0) {
          row = loop.outer;
          --depth;
        } else {
          row += loop.stride;
          k = step.jump;
        }
        break;
      }
    }
  }
  return header;
}

}  // namespace robocache::ros2
