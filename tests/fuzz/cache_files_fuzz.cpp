// Any damage to one file of a small cache. The first byte of the input says which: the manifest, the journal, or a shard. Where
// the second byte is even, the rest takes the place of the file; where it is odd, the rest are changes to it, of 3 bytes each:
// an offset, and what a byte there is combined with by exclusive or; what is left over cuts the file. The cache is then read,
// verified and repaired. It opens or is refused with a sentence; after a repair it opens, a second repair finds nothing to do,
// and no file is gone: what is not in the cache any more is in its quarantine.
#include <robocache/cache.h>
#include <robocache/error.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <set>
#include <string>
#include <string_view>

namespace {

using namespace robocache;
namespace fs = std::filesystem;

void require(bool holds) {
  if (!holds) std::abort();
}

std::string content_of(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// Two episodes in a group each: a stream of numbers, and a ragged one.
void write_cache(const fs::path& path) {
  CacheWriter writer(path);
  for (std::int64_t k = 0; k < 2; ++k) {
    writer.begin_episode({.name = "e" + std::to_string(k)});
    const std::vector<std::int64_t> times{10 * k, 10 * k + 1, 10 * k + 2}, lengths{1, 0, 2};
    const std::vector<float> numbers{1, 2, 3, 4, 5, 6};
    const std::vector<std::uint8_t> bytes{7, 8, 9};
    const StreamInfo joints{.name = "joints", .dtype = DType::f32, .shape = {2}, .channels = {"a", "b"}};
    writer.append(joints, TensorView::contiguous(numbers.data(), DType::f32, {3, 2}), times, times, {});
    const StreamInfo image{.name = "image", .dtype = DType::u8, .is_ragged = true};
    writer.append(image, TensorView::contiguous(bytes.data(), DType::u8, {3}), times, times, lengths);
    writer.end_episode();
    writer.commit();
  }
  writer.abandon();  // so that the journal stays
}

struct Fixture {
  fs::path folder, original, damaged;
  std::vector<fs::path> files{};  // within the cache, in a fixed order

  Fixture() {
    std::string made = (fs::exists("/dev/shm") ? "/dev/shm" : fs::temp_directory_path().string()) + "/robocache-XXXXXX";
    require(mkdtemp(made.data()) != nullptr);
    folder = made;
    original = folder / "original";
    damaged = folder / "damaged";
    write_cache(original);
    for (const auto& entry : fs::recursive_directory_iterator(original)) {
      if (entry.is_regular_file() && entry.path().filename() != "lock")
        files.push_back(entry.path().lexically_relative(original));
    }
    std::ranges::sort(files);
  }
  ~Fixture() { fs::remove_all(folder); }
};

void check_sentence(const Error& error) {
  const std::string_view text = error.what();
  require(error.kind() == ErrorKind::file && !text.empty() && text.size() < 2000);
}

void read_all(const fs::path& path, bool map) {
  const Cache cache(path, {.map = map});
  for (std::size_t e = 0; e < cache.episodes().size(); ++e) {
    for (const EpisodeStream& entry : cache.episodes()[e].streams) {
      try {
        const CachedStream stream = cache.read(static_cast<std::int64_t>(e), entry.stream);
        require(stream.times.shape[0] == entry.samples && stream.arrivals.shape[0] == entry.samples);
      } catch (const Error& error) {
        check_sentence(error);
      }
    }
  }
  std::vector<std::int64_t> all;
  for (std::size_t e = 0; e < cache.episodes().size(); ++e) all.push_back(static_cast<std::int64_t>(e));
  for (std::size_t k = 0; k < cache.streams().size(); ++k) {
    try {
      const double quantiles[] = {0.1, 0.9};
      static_cast<void>(cache.statistics(static_cast<std::int64_t>(k), all, quantiles));
    } catch (const Error& error) {
      check_sentence(error);
    }
  }
}

std::string damage(std::string content, std::string_view input) {
  if (input.empty() || input[0] % 2 == 0) return std::string(input.substr(std::min<std::size_t>(1, input.size())));
  const auto number = [](char c) { return static_cast<std::size_t>(static_cast<unsigned char>(c)); };
  for (input.remove_prefix(1); input.size() >= 3 && !content.empty(); input.remove_prefix(3)) {
    char& byte = content[(number(input[0]) << 8 | number(input[1])) % content.size()];
    byte = static_cast<char>(byte ^ input[2]);
  }
  if (!input.empty() && !content.empty()) content.resize(number(input[0]) * content.size() / 256);
  return content;
}

// The content of every file below a folder, wherever it lies.
std::multiset<std::string> contents(const fs::path& path) {
  std::multiset<std::string> found;
  for (const auto& entry : fs::recursive_directory_iterator(path)) {
    if (entry.is_regular_file()) found.insert(content_of(entry.path()));
  }
  return found;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const Fixture fixture;
  if (size == 0) return -1;
  fs::remove_all(fixture.damaged);
  fs::copy(fixture.original, fixture.damaged, fs::copy_options::recursive);
  const fs::path file = fixture.damaged / fixture.files[data[0] % fixture.files.size()];
  const std::string damaged = damage(content_of(file), {reinterpret_cast<const char*>(data) + 1, size - 1});
  std::ofstream(file, std::ios::binary) << damaged;
  const std::multiset<std::string> before = contents(fixture.damaged / "shards");
  for (const bool map : {true, false}) {
    try {
      read_all(fixture.damaged, map);
    } catch (const Error& error) {
      check_sentence(error);
    }
  }
  CacheReport plan;
  try {
    plan = verify_cache(fixture.damaged, true, true);
  } catch (const Error& error) {  // of a later version, for example: there is nothing to repair
    check_sentence(error);
    return 0;
  }
  // Once there is a plan, nothing may throw.
  const CacheReport done = verify_cache(fixture.damaged, true);
  require(plan.moved.size() == done.moved.size() && plan.dropped == done.dropped);
  require(verify_cache(fixture.damaged, true).problems.empty());
  read_all(fixture.damaged, true);
  const std::multiset<std::string> after = contents(fixture.damaged);
  for (const std::string& content : before) require(after.count(content) >= before.count(content));
  return 0;
}
