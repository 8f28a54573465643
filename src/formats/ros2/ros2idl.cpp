// Parses the part of OMG IDL that rosidl writes: modules, structures, typedefs, enumerations and constants. Sections of other files
// follow lines of "=" and "IDL: package/msg/Type". Unions, maps, inheritance and expressions are refused.
#include <algorithm>
#include <charconv>
#include <map>
#include <optional>
#include <utility>

#include "formats/clouds/file_view.h"
#include "formats/ros2/definition.h"

namespace robocache::ros2 {

namespace {

bool is_word(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_'; }

// Splits the text into words and signs of one character. A scoped name is one word, and so is a literal. Comments, annotations
// and preprocessor lines are skipped.
class Words {
 public:
  explicit Words(std::string_view text) : text_(text) { advance(); }

  std::string_view peek() const { return word_; }  // empty: the end
  std::string_view next() {
    const std::string_view word = word_;
    advance();
    return word;
  }
  bool accept(std::string_view word) {
    if (word_ != word) return false;
    advance();
    return true;
  }
  void expect(std::string_view word) {
    if (!accept(word)) fail("expected ", quote(word), ", not ", word_.empty() ? "the end" : quote(word_));
  }

  template <class... Parts>
  [[noreturn]] void fail(const Parts&... parts) const {
    const auto line = 1 + std::count(text_.begin(), text_.begin() + static_cast<std::ptrdiff_t>(begin_), '\n');
    throw Error(ErrorKind::file, concat("line ", line, " of the schema: ", parts...));
  }

 private:
  bool at(std::string_view sign) const { return text_.substr(position_).starts_with(sign); }
  void skip_to(std::string_view sign) {
    const std::size_t found = text_.find(sign, position_);
    position_ = found == std::string_view::npos ? text_.size() : found + sign.size();
  }

  void advance() {
    read();
    while (word_ == "@") {  // an annotation: a name and maybe arguments
      read();
      read();
      if (word_ != "(") continue;
      for (int depth = 0; !word_.empty(); read()) {
        if (word_ == "(") ++depth;
        if (word_ == ")" && --depth == 0) break;
      }
      read();
    }
  }

  void read() {
    while (position_ < text_.size()) {
      const bool starts_line = position_ == 0 || text_[position_ - 1] == '\n';
      if (at("//") || at("#") || (starts_line && (at("===") || at("IDL:")))) {
        skip_to("\n");
      } else if (at("/*")) {
        position_ += 2;
        skip_to("*/");
      } else if (is_space(text_[position_])) {
        ++position_;
      } else {
        break;
      }
    }
    begin_ = position_;
    if (position_ < text_.size()) {
      const char first = text_[position_];
      if (is_word(first) || at("::")) {
        while (position_ < text_.size() && (is_word(text_[position_]) || at("::"))) position_ += at("::") ? 2 : 1;
      } else if (first == '"' || first == '\'') {
        ++position_;
        while (position_ < text_.size() && text_[position_] != first) position_ += text_[position_] == '\\' ? 2 : 1;
        position_ = std::min(position_ + 1, text_.size());
      } else {
        ++position_;
      }
    }
    word_ = text_.substr(begin_, position_ - begin_);
  }

  std::string_view text_, word_;
  std::size_t position_ = 0, begin_ = 0;
};

constexpr std::size_t max_modules = 8, max_name = 128;

class Parser {
 public:
  explicit Parser(std::string_view text) : size_(text.size()), words_(text) {}

  Definition parse(std::string_view name) {
    if (size_ > max_schema) words_.fail("it has ", size_, " bytes; at most ", max_schema, " are read");
    while (!words_.peek().empty()) parse_definition();
    return builder_.finish(short_name(name));
  }

 private:
  void parse_definition() {
    const std::string_view word = words_.next();
    if (word == "module") {
      parse_module();
    } else if (word == "struct") {
      parse_structure();
    } else if (word == "typedef") {
      const std::int32_t type = parse_type(0);
      do {
        const auto [name, full] = parse_declarator(type);
        builder_.alias(scoped(name), full);
      } while (words_.accept(","));
    } else if (word == "enum") {
      const std::string name = scoped(parse_name());
      words_.expect("{");
      while (!words_.accept("}")) {
        if (words_.next().empty()) words_.fail("the text ends inside ", quote(name));
      }
      builder_.alias(name, builder_.add({.kind = Kind::number, .dtype = DType::u32}));
    } else if (word == "const") {
      parse_constant();
    } else if (word == ";") {
      return;
    } else {
      words_.fail(quote(word), " is not read; expected module, struct, typedef, enum or const");
    }
    words_.expect(";");
  }

  void parse_module() {
    if (scope_.size() >= max_modules) words_.fail("modules are nested deeper than ", max_modules);
    scope_.emplace_back(parse_name());
    builder_.enter(scope());
    words_.expect("{");
    while (!words_.accept("}")) {
      if (words_.peek().empty()) words_.fail("the text ends inside module ", quote(scope_.back()));
      parse_definition();
    }
    scope_.pop_back();
    builder_.enter(scope());
  }

  void parse_structure() {
    structure_ = parse_name();
    Structure structure{scoped(structure_), {}};
    if (words_.peek() == ":") words_.fail(quote(structure.name), " has a base, which is not read");
    words_.expect("{");
    while (!words_.accept("}")) {
      const std::int32_t type = parse_type(0);
      do {
        auto [name, full] = parse_declarator(type);
        structure.members.push_back({std::string(name), full});
      } while (words_.accept(","));
      words_.expect(";");
    }
    builder_.define(std::move(structure));
    structure_ = {};
  }

  void parse_constant() {
    parse_type(0);
    const std::string name = joined(scope(), parse_name());
    words_.expect("=");
    const std::string_view value = words_.next();
    std::uint32_t number = 0;
    const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), number);
    if (error == std::errc{} && end == value.data() + value.size()) constants_[name] = number;
    while (words_.peek() != ";" && !words_.peek().empty()) words_.next();
  }

  std::string_view parse_name() {
    const std::string_view name = words_.next();
    if (name.empty() || !is_word(name[0])) words_.fail("expected a name, not ", quote(name));
    if (name.size() > max_name) words_.fail(quote(name), " has more than ", max_name, " characters");
    return name;
  }

  std::pair<std::string_view, std::int32_t> parse_declarator(std::int32_t type) {
    const std::string_view name = parse_name();
    std::vector<std::uint32_t> sizes;
    while (words_.accept("[")) {
      sizes.push_back(parse_size());
      words_.expect("]");
      if (sizes.size() > 8) words_.fail(quote(name), " has more than 8 dimensions");
    }
    for (std::size_t k = sizes.size(); k-- > 0;) {
      type = builder_.add({.kind = Kind::array, .of = type, .count = sizes[k]});
    }
    return {name, type};
  }

  std::uint32_t parse_size() {
    const std::string_view word = words_.next();
    std::uint32_t size = 0;
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), size);
    if (error != std::errc{} || end != word.data() + word.size()) size = find_constant(word);
    if (size == 0) words_.fail("the size ", quote(word), "; expected 1 to 4294967295");
    return size;
  }

  // IDL's rule: the name is looked up in the module it stands in, then in each module around that. Constants of a .msg
  // file are in a module of their own, "<Type>_Constants", which a size may leave out. 0 if there is no such constant.
  std::uint32_t find_constant(std::string_view word) const {
    const bool is_absolute = word.starts_with("::");
    std::string name;
    for (std::size_t k = is_absolute ? 2 : 0; k < word.size(); ++k) {
      if (word.substr(k).starts_with("::")) ++k;
      name += word[k] == ':' ? '/' : word[k];
    }
    const std::string module = is_absolute ? "" : scope();
    std::string_view around = module;
    while (true) {
      for (const std::string& inside : {std::string(around), joined(around, concat(structure_, "_Constants"))}) {
        const auto found = constants_.find(joined(inside, name));
        if (found != constants_.end()) return found->second;
      }
      if (around.empty()) return 0;
      const std::size_t last = around.rfind('/');
      around = around.substr(0, last == std::string_view::npos ? 0 : last);
    }
  }

  std::int32_t parse_type(int depth) {
    if (depth > max_depth) words_.fail("sequences are nested deeper than ", max_depth);
    const std::string_view word = words_.next();
    if (word == "string" || word == "wstring") {
      if (words_.accept("<")) {
        parse_size();
        words_.expect(">");
      }
      return builder_.add({.kind = word == "string" ? Kind::string : Kind::wstring});
    }
    if (word == "sequence") {
      words_.expect("<");
      const std::int32_t of = parse_type(depth + 1);
      const std::uint32_t bound = words_.accept(",") ? parse_size() : 0;
      words_.expect(">");
      return builder_.add({.kind = Kind::sequence, .of = of, .count = bound});
    }
    if (const std::optional<DType> dtype = parse_number(word)) {
      return builder_.add({.kind = Kind::number, .dtype = *dtype});
    }
    if (word.empty() || !(is_word(word[0]) || word.starts_with("::")))
      words_.fail("expected a type, not ", quote(word));
    return builder_.refer(word);
  }

  std::optional<DType> parse_number(std::string_view word) {
    static constexpr std::pair<std::string_view, DType> names[] = {
        {"boolean", DType::boolean}, {"octet", DType::u8},  {"char", DType::u8},    {"int8", DType::i8},
        {"uint8", DType::u8},        {"int16", DType::i16}, {"uint16", DType::u16}, {"int32", DType::i32},
        {"uint32", DType::u32},      {"int64", DType::i64}, {"uint64", DType::u64}, {"float", DType::f32},
        {"double", DType::f64},      {"short", DType::i16}};
    if (word == "unsigned") {
      if (words_.accept("short")) return DType::u16;
      words_.expect("long");
      return words_.accept("long") ? DType::u64 : DType::u32;
    }
    if (word == "long") {
      if (words_.peek() == "double") words_.fail("long double is not read");
      return words_.accept("long") ? DType::i64 : DType::i32;
    }
    const auto found = std::ranges::find(names, word, [](const auto& entry) { return entry.first; });
    return found == std::end(names) ? std::nullopt : std::optional(found->second);
  }

  static std::string joined(std::string_view scope, std::string_view name) {
    return scope.empty() ? std::string(name) : concat(scope, "/", name);
  }
  std::string scope() const {
    std::string result;
    for (const std::string_view part : scope_) result = joined(result, part);
    return result;
  }
  std::string scoped(std::string_view name) const { return short_name(concat(scope(), "/", name)); }

  std::size_t size_;
  Words words_;
  Builder builder_;
  std::vector<std::string_view> scope_;
  std::string_view structure_;                      // the name of the structure that is being read
  std::map<std::string, std::uint32_t> constants_;  // by "module/module/NAME"
};

}  // namespace

Definition parse_ros2idl(std::string_view name, std::string_view text) { return Parser(text).parse(name); }

}  // namespace robocache::ros2
