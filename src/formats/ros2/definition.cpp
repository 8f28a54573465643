#include "formats/ros2/definition.h"

#include <algorithm>
#include <utility>

#include "formats/clouds/file_view.h"

namespace robocache::ros2 {

namespace {

// How deep the type nests: 1 for a number. Throws if a structure holds itself.
class Depths {
 public:
  explicit Depths(const Definition& definition)
      : definition_(definition), depths_(definition.structures.size(), unknown) {}

  int of_structure(std::int32_t index, int above) {
    const Structure& structure = definition_.structures[static_cast<std::size_t>(index)];
    int& known = depths_[static_cast<std::size_t>(index)];
    if (known == open) throw Error(ErrorKind::file, concat("type ", quote(structure.name), " holds itself"));
    if (known == unknown) {
      known = open;
      int deepest = 0;
      for (const Member& member : structure.members) deepest = std::max(deepest, of_type(member.type, above + 1));
      depths_[static_cast<std::size_t>(index)] = deepest + 1;
    }
    if (above + known > max_depth) {
      throw Error(ErrorKind::file,
                  concat("types are nested deeper than ", max_depth, ", inside ", quote(structure.name)));
    }
    return known;
  }

 private:
  static constexpr int unknown = -1, open = -2;

  int of_type(std::int32_t index, int above) {
    int wrapped = 0;
    while (true) {
      const Type& type = definition_.types[static_cast<std::size_t>(index)];
      if (above + wrapped > max_depth) {
        throw Error(ErrorKind::file, concat("types are nested deeper than ", max_depth));
      }
      if (type.kind == Kind::structure) return wrapped + of_structure(type.of, above + wrapped);
      if (type.kind != Kind::array && type.kind != Kind::sequence) return wrapped + 1;
      ++wrapped;
      index = type.of;
    }
  }

  const Definition& definition_;
  std::vector<int> depths_;
};

}  // namespace

std::string_view Definition::name_of(std::int32_t type) const {
  const Type& t = types[static_cast<std::size_t>(type)];
  if (t.kind != Kind::structure) return {};
  return structures[static_cast<std::size_t>(t.of)].name;
}

std::string short_name(std::string_view name) {
  std::string result;
  if (name.starts_with("::")) name.remove_prefix(2);
  if (name.starts_with('/')) name.remove_prefix(1);
  for (std::size_t k = 0; k < name.size(); ++k) {
    if (name.substr(k).starts_with("::")) {
      result += '/';
      ++k;
    } else {
      result += name[k];
    }
  }
  if (const std::size_t at = result.find("/msg/"); at != std::string::npos) result.erase(at, 4);
  return result;
}

std::int32_t Builder::refer(std::string_view name) {
  const std::int32_t type = add({.kind = Kind::structure});
  references_.push_back({type, scopes_.size() - 1, std::string(name)});
  return type;
}

void Builder::define(Structure structure) {
  // rosidl gives a structure without members this one; it is the byte that an empty message has.
  const bool is_empty =
      structure.members.size() == 1 && structure.members[0].name == "structure_needs_at_least_one_member";
  if (is_empty) structure.members.clear();
  definition_.structures.push_back(std::move(structure));
}

std::int32_t Builder::find(const Names& names, std::string_view name) {
  const auto found =
      std::ranges::lower_bound(names, name, {}, [](const auto& entry) -> std::string_view { return entry.first; });
  return found != names.end() && found->first == name ? found->second : -1;
}

std::int32_t Builder::find_structure(std::string_view name) {
  const std::int32_t found = find(structures_, name);
  if (found >= 0 || (name != "builtin_interfaces/Time" && name != "builtin_interfaces/Duration")) return found;
  const std::int32_t seconds = add({.kind = Kind::number, .dtype = DType::i32});
  const std::int32_t nanoseconds = add({.kind = Kind::number, .dtype = DType::u32});
  define({std::string(name), {{"sec", seconds}, {"nanosec", nanoseconds}}});
  const auto index = static_cast<std::int32_t>(definition_.structures.size()) - 1;
  structures_.emplace_back(name, index);
  std::ranges::sort(structures_);
  return index;
}

bool Builder::resolve(Reference& reference, std::string_view name, int depth) {
  const auto type_of = [&](std::int32_t index) -> Type& { return definition_.types[static_cast<std::size_t>(index)]; };
  if (const std::int32_t structure = find_structure(name); structure >= 0) {
    type_of(reference.type).of = structure;
    return true;
  }
  const std::int32_t alias = find(aliases_, name);
  if (alias < 0) return false;
  const auto other = std::ranges::lower_bound(references_, alias, {}, &Reference::type);
  if (depth > max_depth) throw Error(ErrorKind::file, concat("type ", quote(name), " is a name of itself"));
  if (other != references_.end() && other->type == alias) resolve(*other, depth + 1);
  type_of(reference.type) = type_of(alias);
  return true;
}

void Builder::resolve(Reference& reference, int depth) {
  if (reference.resolved) return;
  std::string_view scope = scopes_[reference.scope];
  while (true) {
    const std::string name = scope.empty() ? reference.name : concat(scope, "/", reference.name);
    reference.resolved = resolve(reference, short_name(name), depth);
    if (reference.resolved) return;
    if (scope.empty()) break;
    scope = scope.substr(0, scope.rfind('/') == std::string_view::npos ? 0 : scope.rfind('/'));
  }
  // as ROS 1 writes it
  reference.resolved = reference.name == "Header" && resolve(reference, "std_msgs/Header", depth);
  if (!reference.resolved) throw Error(ErrorKind::file, concat("type ", quote(reference.name), " is not defined"));
}

Definition Builder::finish(std::string_view root) {
  for (std::size_t k = 0; k < definition_.structures.size(); ++k) {
    structures_.emplace_back(definition_.structures[k].name, static_cast<std::int32_t>(k));
  }
  std::ranges::sort(structures_);
  std::ranges::stable_sort(aliases_, {}, [](const auto& entry) -> std::string_view { return entry.first; });
  for (Reference& reference : references_) resolve(reference, 0);
  definition_.root = find(structures_, root);
  if (definition_.root < 0) throw Error(ErrorKind::file, concat("type ", quote(root), " is not defined"));
  Depths(definition_).of_structure(definition_.root, 0);
  return std::move(definition_);
}

}  // namespace robocache::ros2
