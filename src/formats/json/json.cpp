// JSON messages: each number is a channel, named by its path, in the order in which paths first appear. No tree is built.
#include <robocache/error.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>

#include "formats/clouds/file_view.h"
#include "formats/json/images.h"
#include "formats/messages/output.h"

namespace robocache::messages {
namespace {

constexpr std::size_t max_depth = 64;
constexpr std::size_t max_channels = 4096;
constexpr std::size_t max_nodes = 1 << 16;
constexpr std::size_t max_elements = 1024;  // of an array; later ones are ignored
constexpr std::size_t max_name = 1024;

constexpr std::uint32_t none = 0xffffffff;

// The fields that may hold a message's time: the first of these that it has.
enum class Part : std::uint8_t { header, stamp, timestamp, body };

struct Unit {
  const char* name;
  std::int64_t nanoseconds;
};
constexpr Unit units[] = {{"s", 1'000'000'000}, {"ms", 1'000'000}, {"us", 1'000}, {"ns", 1}};
constexpr double latest = 4e18;  // nanoseconds; below time_limit

// The unit of a field, from the size of its first number that is not 0, whatever the log times are.
const Unit* unit_of(double value, bool is_integer) {
  constexpr double epoch = 1e18;  // nanoseconds: September 2001
  for (const Unit& unit : units) {
    const double time = std::abs(value) * static_cast<double>(unit.nanoseconds);
    if (time >= epoch && time < latest) return &unit;
  }
  // Not a time since 1970. No clock that starts at 0 is still below a millisecond when the first message is sent.
  return is_integer && std::abs(value) >= 1e6 ? &units[3] : &units[0];
}

constexpr std::string_view quoted_nan{"\0NaN", 4}, quoted_infinity{"\0+inf", 5}, quoted_minus_infinity{"\0-inf", 5};

// Python's json module writes NaN, Infinity and -Infinity, which JSON does not have. Replaces them by strings that no sensor
// sends; returns nothing if there are none.
std::optional<std::string> quote_non_finite(std::string_view text) {
  constexpr std::pair<std::string_view, std::string_view> words[] = {
      {"NaN", R"("\u0000NaN")"}, {"Infinity", R"("\u0000+inf")"}, {"-Infinity", R"("\u0000-inf")"}};
  std::string result;
  bool is_found = false, is_string = false;
  for (std::size_t k = 0; k < text.size(); ++k) {
    if (is_string && text[k] == '\\' && k + 1 < text.size()) {  // an escaped quote does not end the string
      (result += text[k]) += text[k + 1];
      ++k;
      continue;
    }
    if (text[k] == '"') is_string = !is_string;
    const auto* const word = is_string ? std::end(words) : std::ranges::find_if(words, [&](const auto& entry) {
      return text.substr(k).starts_with(entry.first);
    });
    if (word == std::end(words)) {
      result += text[k];
      continue;
    }
    is_found = true;
    result += word->second;
    k += word->first.size() - 1;
  }
  return is_found ? std::optional(std::move(result)) : std::nullopt;
}

// A place in the messages: an object's key or an array's element. It is created once and found again in later messages.
struct Node {
  std::string key{};
  std::uint32_t parent = none;
  std::uint32_t element = none;           // of an array; none: a key
  std::uint32_t channel = none;           // of the number at this place
  std::uint32_t place = 0;                // among its parent's children or elements
  std::uint32_t next = 0;                 // the child to expect next: messages tend to keep the order of their keys
  std::vector<std::uint32_t> children{};  // keys
  std::vector<std::uint32_t> elements{};
};

class JsonMessages : public MessageReader, private nlohmann::json_sax<nlohmann::json> {
 public:
  JsonMessages(const Schema& schema, std::string_view topic)
      : nodes_(1), stream_({.name = std::string(topic), .type = schema.name, .shape = {0}}) {}

  void add(std::span<const std::byte> message, const MessageTimes& times) override {
    const std::size_t nodes = nodes_.size(), channels = names_.size();
    const auto known = units_;
    try {
      parse(std::string_view(reinterpret_cast<const char*>(message.data()), message.size()));
      const std::optional<std::int64_t> stamp = stamp_of();
      if (names_.size() > channels) stream_.add_channels(std::span(names_).subspan(channels), methods_);
      if (names_.empty()) return;  // no number yet: there is no stream
      std::memcpy(stream_.rows(1, message.size()), row_.data(), row_.size() * sizeof(double));
      if (is_cut_) stream_.note(0, "left_out", "numbers past the first 1024 of an array, or 4096 of a message");
      if (times.source == TimeSource::automatic || times.source == TimeSource::stamp) note_units();
      added_ += stream_.commit(times, stamp);
    } catch (...) {
      units_ = known;
      forget(nodes, channels);
      stream_.discard();
      throw;
    }
  }
  void survey(std::string_view topic, std::span<const std::byte> message, std::int64_t log_time,
              ClockSurvey& to) override {
    const std::size_t nodes = nodes_.size(), channels = names_.size();
    const auto known = units_;
    try {
      parse(std::string_view(reinterpret_cast<const char*>(message.data()), message.size()));
      const std::optional<std::int64_t> stamp = stamp_of();
      if (!names_.empty()) to.add(topic, log_time, stamp);
    } catch (...) {
      units_ = known;
      forget(nodes, channels);
      throw;
    }
  }
  // After its first NaN a topic's messages are searched for more before they are parsed; other topics are parsed at once.
  void parse(std::string_view text) {
    if (has_non_finite_) {
      const std::optional<std::string> quoted = quote_non_finite(text);
      return read(quoted ? *quoted : text);
    }
    try {
      read(text);
    } catch (const Error&) {
      const std::optional<std::string> quoted = quote_non_finite(text);
      if (!quoted) throw;
      has_non_finite_ = true;
      read(*quoted);
    }
  }
  void read(std::string_view text) {
    std::ranges::fill(row_, std::numeric_limits<double>::quiet_NaN());
    stack_.clear();
    at_ = 0;
    ignored_ = 0;
    is_cut_ = false;
    part_ = Part::body;
    std::ranges::fill(stamps_, Stamp{});
    nlohmann::json_sax<nlohmann::json>* const sax = this;
    nlohmann::json::sax_parse(text.begin(), text.end(), sax);
  }
  std::int64_t bytes() const override { return added_; }
  std::int64_t footprint() const override {
    constexpr std::int64_t each = 2 * (sizeof(Node) + sizeof(std::string) + 64);  // here and in the index
    return std::ssize(nodes_) * each + stream_.footprint();
  }
  void take(std::vector<StreamBatch>& to) override {
    stream_.take(to);
    added_ = 0;
  }

 private:
  bool null() override { return place(); }
  bool boolean(bool value) override { return number(value ? 1 : 0, Method::hold); }
  bool number_integer(std::int64_t value) override { return number(static_cast<double>(value), Method::linear, value); }
  bool number_unsigned(std::uint64_t value) override {
    if (std::in_range<std::int64_t>(value)) return number_integer(static_cast<std::int64_t>(value));
    return number(static_cast<double>(value), Method::linear);
  }
  bool number_float(double value, const std::string&) override { return number(value, Method::linear); }
  bool string(std::string& value) override {
    constexpr double infinity = std::numeric_limits<double>::infinity();
    if (!has_non_finite_ || value.empty() || value[0] != '\0') return place();
    if (value == quoted_nan) return number(std::numeric_limits<double>::quiet_NaN(), Method::linear);
    if (value == quoted_infinity) return number(infinity, Method::linear);
    if (value == quoted_minus_infinity) return number(-infinity, Method::linear);
    return place();
  }
  bool binary(nlohmann::json::binary_t&) override { return place(); }

  bool start_object(std::size_t) override { return open(false); }
  bool end_object() override { return close(); }
  bool start_array(std::size_t) override { return open(true); }
  bool end_array() override { return close(); }
  bool key(std::string& name) override {
    if (ignored_ > 0) return true;
    Frame& frame = stack_.back();
    if (stack_.size() == 1) {
      part_ = name == "header"      ? Part::header
              : name == "stamp"     ? Part::stamp
              : name == "timestamp" ? Part::timestamp
                                    : Part::body;
    }
    at_ = child_of(frame.node, name);
    return true;
  }
  bool parse_error(std::size_t position, const std::string&, const nlohmann::json::exception& error) override {
    const std::string_view what = error.what();
    // "[json.exception.out_of_range.406] number overflow parsing '1e999'"
    const bool overflows = what.find(".406]") != std::string_view::npos;
    throw Error(ErrorKind::file, concat("a message is not JSON after byte ", position,
                                        overflows ? ": a number is past the range of float64" : ""));
  }

  struct Frame {
    std::uint32_t node;
    bool is_array;
    std::uint32_t count = 0;
  };

  // Moves to the next element if the value is one.
  bool place() {
    if (ignored_ > 0 || stack_.empty() || !stack_.back().is_array) return true;
    Frame& frame = stack_.back();
    at_ = element_of(frame.node, frame.count++);
    return true;
  }

  bool open(bool is_array) {
    if (stack_.size() + ignored_ >= max_depth) {
      throw Error(ErrorKind::file, concat("a message is nested deeper than ", max_depth));
    }
    place();
    if (ignored_ > 0 || at_ == none) {
      ++ignored_;
    } else {
      stack_.push_back({at_, is_array});
      nodes_[at_].next = 0;
    }
    return true;
  }
  bool close() {
    if (ignored_ > 0) {
      --ignored_;
    } else {
      stack_.pop_back();
    }
    return true;
  }

  bool number(double value, Method method, std::optional<std::int64_t> integer = {}) {
    place();
    if (ignored_ > 0 || at_ == none) return true;
    if (part_ != Part::body && method != Method::hold && is_stamp(value, integer)) return true;
    if (part_ == Part::header) return true;
    Node& node = nodes_[at_];
    if (node.channel == none) {
      if (names_.size() >= max_channels) {
        is_cut_ = true;
        return true;
      }
      std::string name = name_of(at_);
      if (name.size() > max_name) {
        throw Error(ErrorKind::file, concat("a message has a field whose name has ", name.size(), " bytes"));
      }
      node.channel = static_cast<std::uint32_t>(names_.size());
      names_.push_back(std::move(name));
      methods_.push_back(method);
      row_.push_back(0);
    }
    row_[node.channel] = value;
    return true;
  }

  struct Stamp {
    std::optional<std::int64_t> number{};
    bool is_doubtful = false;
    bool has_seconds = false;
    double seconds = 0, nanoseconds = 0;
  };

  // Takes a number that is the message's time, or a half of it: stamp, or stamp.sec and .nanosec, or their synonyms.
  bool is_stamp(double value, std::optional<std::int64_t> integer) {
    const Node& node = nodes_[at_];
    Stamp& stamp = stamps_[static_cast<std::size_t>(part_)];
    const std::size_t depth = part_ == Part::header ? 2 : 1;
    if (stack_.size() == depth && (part_ != Part::header || node.key == "stamp")) {
      if (!std::isfinite(value)) return true;  // no time: try the next field, then the log time
      stamp.number = time_of(value, integer, stamp.is_doubtful);
      return stamp.number.has_value();
    }
    if (stack_.size() != depth + 1 || (part_ == Part::header && nodes_[node.parent].key != "stamp")) return false;
    constexpr std::string_view parts[] = {"sec", "secs", "nanosec", "nsec", "nsecs"};
    if (!std::isfinite(value)) return std::ranges::find(parts, node.key) != std::end(parts);
    if (node.key == "sec" || node.key == "secs") {
      stamp.has_seconds = true;
      stamp.seconds = value;
      return true;
    }
    if (node.key == "nanosec" || node.key == "nsec" || node.key == "nsecs") {
      stamp.nanoseconds = value;
      return true;
    }
    return false;
  }
  // The number as a time of the field that is being read; nothing if it is past 4e9 seconds.
  std::optional<std::int64_t> time_of(double value, std::optional<std::int64_t> integer, bool& is_doubtful) {
    const Unit*& known = units_[static_cast<std::size_t>(part_)];
    const Unit& unit = known != nullptr ? *known : *unit_of(value, integer.has_value());
    const double time = value * static_cast<double>(unit.nanoseconds);
    const bool is_time = std::abs(time) < latest;
    is_doubtful = known != nullptr && (!is_time || (unit.nanoseconds == 1 && std::trunc(value) != value));
    if (!is_time) return {};
    if (value != 0) known = &unit;
    return integer ? *integer * unit.nanoseconds : std::llrint(time);
  }
  // Notes about the field that gave the message its time, and about the earlier fields that should have given it.
  void note_units() {
    for (std::size_t k = 0; k < stamps_.size(); ++k) {
      const Stamp& stamp = stamps_[k];
      if (stamp.is_doubtful) stream_.note(2, "stamp_doubt", "some stamps are not in the unit of the first");
      if (stamp.number && units_[k] != nullptr) stream_.note(1, "stamp_unit", units_[k]->name);
      if (stamp.number || stamp.has_seconds) return;
    }
  }
  std::optional<std::int64_t> stamp_of() const {
    constexpr double most = 4e9;  // seconds; below time_limit
    for (const Stamp& stamp : stamps_) {
      if (stamp.number) return stamp.number;
      if (!stamp.has_seconds) continue;
      if (!(std::abs(stamp.seconds) < most && std::abs(stamp.nanoseconds) < most)) {
        throw Error(ErrorKind::file, "a message has a stamp past 4e9 seconds");
      }
      return static_cast<std::int64_t>(stamp.seconds) * 1'000'000'000 + static_cast<std::int64_t>(stamp.nanoseconds);
    }
    return {};
  }

  std::uint32_t child_of(std::uint32_t index, const std::string& key) {
    Node& node = nodes_[index];
    if (node.next < node.children.size() && nodes_[node.children[node.next]].key == key) {
      return node.children[node.next++];
    }
    const auto found = index_.find({index, key});
    if (found == index_.end()) return make({.key = key, .parent = index}, false);
    node.next = nodes_[found->second].place + 1;
    return found->second;
  }
  std::uint32_t element_of(std::uint32_t index, std::uint32_t element) {
    const Node& node = nodes_[index];
    if (element < node.elements.size()) return node.elements[element];
    if (element >= max_elements) {
      is_cut_ = true;
      return none;
    }
    return make({.parent = index, .element = element}, true);
  }
  std::uint32_t make(Node node, bool is_element) {
    if (nodes_.size() >= max_nodes || node.key.size() > max_name) {
      is_cut_ = true;
      return none;
    }
    const auto made = static_cast<std::uint32_t>(nodes_.size());
    const std::uint32_t parent = node.parent;
    std::vector<std::uint32_t>& siblings = is_element ? nodes_[parent].elements : nodes_[parent].children;
    node.place = static_cast<std::uint32_t>(siblings.size());
    siblings.push_back(made);
    if (!is_element) index_.emplace(std::pair(parent, node.key), made);
    nodes_.push_back(std::move(node));
    return made;
  }
  std::string name_of(std::uint32_t index) const {
    std::vector<std::uint32_t> path;
    for (; nodes_[index].parent != none; index = nodes_[index].parent) path.push_back(index);
    std::string name;
    for (std::size_t k = path.size(); k-- > 0;) {
      const Node& node = nodes_[path[k]];
      if (node.element != none) {
        name += concat("[", node.element, "]");
      } else {
        (name += name.empty() ? "" : ".") += node.key;
      }
    }
    return name.empty() ? "value" : name;
  }

  // Undoes what a broken message added.
  void forget(std::size_t nodes, std::size_t channels) {
    while (nodes_.size() > nodes) {
      const Node& last = nodes_.back();
      (last.element == none ? nodes_[last.parent].children : nodes_[last.parent].elements).pop_back();
      if (last.element == none) index_.erase({last.parent, last.key});
      nodes_.pop_back();
    }
    for (Node& node : nodes_) {
      if (node.channel != none && node.channel >= channels) node.channel = none;
    }
    names_.resize(channels);
    methods_.resize(channels);
    row_.resize(channels);
  }

  std::vector<Node> nodes_;
  std::map<std::pair<std::uint32_t, std::string>, std::uint32_t> index_{};  // of keys, by parent
  std::vector<std::string> names_{};                                        // of the channels
  std::vector<Method> methods_{};
  std::vector<double> row_{};
  std::array<const Unit*, 3> units_{};  // by Part; null before the first number that is not 0
  StreamBuilder stream_;
  std::int64_t added_ = 0;
  bool has_non_finite_ = false;  // a message had a NaN, Infinity or -Infinity

  // About the message that is being read
  std::vector<Frame> stack_{};
  std::uint32_t at_ = 0;
  std::size_t ignored_ = 0;  // how deep inside a value that is ignored
  bool is_cut_ = false;
  Part part_ = Part::body;
  std::array<Stamp, 3> stamps_{};  // by Part
};

}  // namespace

std::unique_ptr<MessageReader> make_json(const Schema& schema, std::string_view topic) {
  if (std::unique_ptr<MessageReader> image = make_json_image(schema, topic)) return image;
  return std::make_unique<JsonMessages>(schema, topic);
}

}  // namespace robocache::messages
