#include "cache/directory.h"

#include <robocache/error.h>

#include <algorithm>
#include <set>

#include "core/text.h"

namespace robocache::cache {

namespace {

constexpr std::int64_t max_manifest = std::int64_t{1} << 31;  // bytes

std::vector<std::string> names_in(const Path& directory) {
  std::vector<std::string> names;
  std::error_code error;
  for (std::filesystem::directory_iterator it(directory, error), end; !error && it != end; it.increment(error)) {
    names.push_back(it->path().filename().string());
  }
  if (error && error != std::errc::no_such_file_or_directory) {
    fail_errno(directory, "cannot be listed", error.value());
  }
  std::ranges::sort(names);
  return names;
}

bool starts_with_group(std::string_view name) {
  const std::size_t digits = std::min(name.find_first_not_of("0123456789"), name.size());
  return digits >= 1 && digits < name.size() && name[digits] == '-';
}

}  // namespace

std::string read_manifest(const Path& cache) {
  const Path path = manifest_path(cache);
  if (!std::filesystem::exists(path)) {
    if (!std::filesystem::exists(cache))
      throw Error(ErrorKind::file, concat(cache.string(), ": there is no such cache"));
    if (std::ranges::any_of(names_in(shards_path(cache)), is_shard_name)) {
      throw Error(ErrorKind::file, concat(path.string(),
                                          ": is missing, but there are shards; `robocache verify --repair` "
                                          "makes it anew from them"));
    }
    throw Error(ErrorKind::file, concat(cache.string(), ": this is no cache: it has no manifest.json"));
  }
  return read_text(path, max_manifest);
}

Manifest load_manifest(const Path& cache) {
  try {
    return parse_manifest(read_manifest(cache), manifest_path(cache).string());
  } catch (const NewerVersion&) {
    throw;
  } catch (const Error& error) {
    const std::string words = error.what();
    if (words.find("verify") != std::string::npos || !words.starts_with(manifest_path(cache).string())) throw;
    throw Error(ErrorKind::file, words + "; `robocache verify --repair` makes it anew from the shards");
  }
}

std::vector<Path> find_leftovers(const Path& cache, const Manifest& manifest) {
  std::set<std::string_view> known;
  for (const Shard& shard : manifest.shards) known.insert(shard.file);
  std::vector<Path> found;
  if (std::filesystem::exists(cache / "manifest.json.tmp")) found.emplace_back("manifest.json.tmp");
  for (const std::string& name : names_in(shards_path(cache))) {
    const bool ours = is_shard_name(name) || (starts_with_group(name) && name.ends_with(".tmp"));
    if (ours && !known.contains(name)) found.push_back(Path("shards") / name);
  }
  return found;
}

bool is_shard_name(std::string_view name) {
  const auto plain = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-' || c == '_' || c == '.';
  };
  return starts_with_group(name) && name.size() < 200 && name.ends_with(".safetensors") &&
         std::ranges::all_of(name, plain);
}

std::string shard_stem(std::int64_t group, std::string_view stream) {
  constexpr std::size_t longest = 60;
  std::string stem = std::to_string(group);
  stem.insert(0, stem.size() < 6 ? 6 - stem.size() : 0, '0');
  const std::size_t prefix = stem.size();
  for (const char c : stream) {
    const char lower = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
    const bool plain = (lower >= 'a' && lower <= 'z') || (lower >= '0' && lower <= '9') || lower == '_' || lower == '.';
    if (plain) {
      if (stem.size() == prefix) stem += '-';
      stem += lower;
    } else if (stem.back() != '-') {
      stem += '-';
    }
    if (stem.size() > prefix + longest) break;
  }
  while (stem.back() == '-' || stem.back() == '.') stem.pop_back();
  return stem.size() == prefix ? stem + "-stream" : stem;
}

}  // namespace robocache::cache
