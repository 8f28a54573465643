// The cache from C++, under the sanitizers too. Most cases and every sentence are in tests/python/test_cache.py.
#include <gtest/gtest.h>
#include <robocache/cache.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>

#include <unistd.h>

#include "sentence.h"

namespace robocache {
namespace {

using test::sentence;

using Numbers = std::vector<std::int64_t>;

class CacheTest : public testing::Test {
 protected:
  void SetUp() override {
    path_ = std::filesystem::temp_directory_path() /
            ("robocache-" + std::string(testing::UnitTest::GetInstance()->current_test_info()->name()) + "-" +
             std::to_string(getpid()));
    std::filesystem::remove_all(path_);
  }
  void TearDown() override { std::filesystem::remove_all(path_); }
  std::filesystem::path path_;
};

template <class T>
StreamBatch batch(const StreamInfo& info, const std::vector<T>& values, Numbers times, Numbers lengths = {}) {
  StreamBatch made;
  made.info = std::make_shared<StreamInfo>(info);
  made.values.dtype = info.dtype;
  std::int64_t width = 1;
  for (const std::int64_t size : info.shape) width *= size;
  made.values.shape = {static_cast<std::int64_t>(values.size()) / width};
  made.values.shape.insert(made.values.shape.end(), info.shape.begin(), info.shape.end());
  made.values.data = std::make_unique<std::byte[]>(values.size() * sizeof(T));
  if (!values.empty()) std::memcpy(made.values.data.get(), values.data(), values.size() * sizeof(T));
  made.arrivals = times;
  made.times = std::move(times);
  made.lengths = std::move(lengths);
  return made;
}

template <class T>
std::vector<T> numbers(const TensorView& view) {
  const T* const data = static_cast<const T*>(view.data);
  return {data, data + view.size()};
}

StreamInfo joints(std::vector<std::string> channels) {
  const auto width = static_cast<std::int64_t>(channels.size());
  return {.name = "joints", .dtype = DType::f32, .shape = {width}, .channels = std::move(channels)};
}
const StreamInfo cloud{.name = "/cloud", .dtype = DType::u8, .shape = {}, .is_ragged = true};

TEST_F(CacheTest, RoundTrip) {
  {
    CacheWriter writer(path_);
    writer.begin_episode({.name = "one", .task = "pick"});
    writer.append(batch<float>(joints({"a", "b"}), {1, 2, 3, 4}, {10, 20}), 3);
    writer.append(batch<std::uint8_t>(cloud, {1, 2, 3, 4, 5}, {7, 5, 6}, {2, 0, 3}));
    writer.append(batch<float>(joints({"a", "b"}), {5, 6}, {30}), 3);
    writer.end_episode();
    writer.begin_episode({.name = "two"});
    writer.append(batch<float>(joints({"b", "c"}), {8, 9}, {1}));
    writer.end_episode();
    writer.close();
  }
  const Cache cache(path_);
  ASSERT_EQ(cache.episodes().size(), 2U);
  ASSERT_EQ(cache.streams().size(), 2U);
  EXPECT_EQ(cache.episodes()[0].task, "pick");
  EXPECT_EQ(cache.episodes()[0].start, 5);
  EXPECT_EQ(cache.episodes()[0].end, 27);
  EXPECT_EQ(cache.episodes()[0].streams[1].backward, 1);
  const CachedStream first = cache.read(0, 0);
  const std::vector<float> values = numbers<float>(first.values);
  EXPECT_EQ((std::vector<float>{values[0], values[1], values[3], values[4], values[6], values[7]}),
            (std::vector<float>{1, 2, 3, 4, 5, 6}));
  EXPECT_TRUE(std::isnan(values[2]) && std::isnan(values[5]) && std::isnan(values[8]));
  EXPECT_EQ(numbers<std::int64_t>(first.times), (Numbers{10, 20, 30}));
  const CachedStream rows = cache.read(0, 1);
  EXPECT_EQ(numbers<std::int64_t>(rows.times), (Numbers{5, 6, 7}));
  EXPECT_EQ(numbers<std::int64_t>(rows.inner), (Numbers{0, 0, 3, 5}));
  EXPECT_EQ(numbers<std::uint8_t>(rows.values), (std::vector<std::uint8_t>{3, 4, 5, 1, 2}));
  const std::vector<float> second = numbers<float>(cache.read(1, 0).values);
  EXPECT_TRUE(std::isnan(second[0]));
  EXPECT_EQ(second[1], 8);
  EXPECT_EQ(second[2], 9);
  EXPECT_NE(sentence([&] { cache.read(1, 1); }).find("has no stream"), std::string::npos);
  EXPECT_EQ(numbers<std::int64_t>(cache.read_group(0, 1).offsets), (Numbers{0, 3, 3}));
  EXPECT_TRUE(verify_cache(path_, false).problems.empty());
}

TEST_F(CacheTest, ShardsStayMappedAfterTheirViews) {
  CacheWriter writer(path_);
  writer.begin_episode({.name = "one"});
  writer.append(batch<float>(joints({"a"}), {1, 2}, {10, 20}));
  writer.end_episode();
  writer.close();
  const Cache cache(path_);
  cache.read(0, 0);
  std::filesystem::remove_all(path_);  // whoever maps it again finds nothing
  EXPECT_EQ(numbers<float>(cache.read(0, 0).values), (std::vector<float>{1, 2}));
}

TEST_F(CacheTest, ReadersShareTheShardsThatStayMapped) {
  constexpr std::int64_t streams = 600;
  CacheWriter writer(path_);
  writer.begin_episode({.name = "one"});
  for (std::int64_t k = 0; k < streams; ++k) {
    StreamInfo info = joints({"a"});
    info.name = std::to_string(k);
    writer.append(batch<float>(info, {1}, {10}));
  }
  writer.end_episode();
  writer.close();
  const auto count_maps = [&] {
    std::ifstream maps("/proc/self/maps");
    std::int64_t count = 0;
    for (std::string line; std::getline(maps, line);) count += line.find(path_.string()) != std::string::npos ? 1 : 0;
    return count;
  };
  {
    std::vector<Cache> caches;
    for (int reader = 0; reader < 3; ++reader) {
      const Cache& cache = caches.emplace_back(path_);
      for (std::int64_t k = 0; k < streams; ++k) cache.read(0, k);
    }
    EXPECT_EQ(count_maps(), 1024);
  }
  EXPECT_EQ(count_maps(), 0);
}

TEST_F(CacheTest, MetadataAreEachEpisodesOwn) {
  {
    CacheWriter writer(path_);
    for (const char* const width : {"640", "320", "640"}) {
      StreamInfo info = cloud;
      info.metadata = {{"encoding", "mono8"}, {"width", width}};
      writer.begin_episode({.name = std::to_string(writer.waiting_episodes())});
      writer.append(batch<std::uint8_t>(info, {1}, {5}, {1}));
      writer.end_episode();
    }
    writer.close();
  }
  const Cache cache(path_);
  EXPECT_EQ(cache.streams()[0].metadata, (Metadata{{"encoding", "mono8"}, {"width", "varies"}}));
  const auto width = [&](std::size_t k) { return cache.episodes()[k].streams[0].metadata->at("width"); };
  EXPECT_EQ(width(0), "640");
  EXPECT_EQ(width(1), "320");
  EXPECT_EQ(cache.episodes()[2].streams[0].metadata, cache.episodes()[0].streams[0].metadata);
}

TEST_F(CacheTest, DiscardedEpisodesAndFailedAppendsLeaveNothing) {
  CacheWriter writer(path_);
  writer.begin_episode({.name = "one"});
  writer.append(batch<float>(joints({"a"}), {1}, {1}));
  EXPECT_NE(sentence([&] {
              writer.append(batch<float>(joints({"a"}), {1, 2}, {1}));
            }).find("2 values, but 1 times"),
            std::string::npos);
  EXPECT_NE(sentence([&] { writer.commit(); }).find("has not ended"), std::string::npos);
  writer.end_episode();
  writer.begin_episode({.name = "two"});
  writer.append(batch<float>(joints({"a", "b"}), {3, 4}, {2}));
  writer.append(batch<std::uint8_t>(cloud, {1}, {7}, {1}));
  writer.discard_episode();
  writer.begin_episode({.name = "three"});
  writer.append(batch<float>(joints({"a"}), {5}, {3}));
  writer.end_episode();
  writer.close();
  const Cache cache(path_);
  ASSERT_EQ(cache.episodes().size(), 2U);
  EXPECT_EQ(cache.streams().size(), 1U);
  EXPECT_EQ(numbers<float>(cache.read(0, 0).values)[0], 1);
  EXPECT_EQ(numbers<float>(cache.read(1, 0).values)[0], 5);
  EXPECT_TRUE(verify_cache(path_, false).problems.empty());
}

// What the reader would refuse, the writer refuses at the call; the cache stays as it was.
TEST_F(CacheTest, WhatCannotBeReadIsNotWritten) {
  CacheWriter writer(path_);
  const auto has = [](const std::string& words, const char* part) { return words.find(part) != std::string::npos; };
  for (const std::int64_t number : {std::int64_t{-1}, (std::int64_t{1} << 48) + 1}) {
    EXPECT_TRUE(
        has(sentence([&] { writer.begin_episode({.name = "one", .number = number}); }), "the number of an episode"));
  }
  constexpr std::int64_t year_2026 = 1'770'000'000'000'000'000;
  writer.begin_episode({.name = "one", .number = std::int64_t{1} << 48});
  EXPECT_TRUE(
      has(sentence([&] { writer.append(batch<float>(joints({"a"}), {1}, {year_2026}), -4'000'000'000'000'000'000); }),
          "with the latency taken off must be below 2^62"));
  StreamInfo wide{.name = "wide", .dtype = DType::u8, .shape = {0, (std::int64_t{1} << 48) + 1}};
  StreamBatch none;
  none.info = std::make_shared<StreamInfo>(wide);
  none.values.dtype = DType::u8;
  none.values.shape = {0, 0, (std::int64_t{1} << 48) + 1};
  EXPECT_TRUE(has(sentence([&] { writer.append(none); }), "are too large"));
  writer.append(batch<float>(joints({"a"}), {1}, {year_2026}), -1'000'000'000'000'000'000);
  // The latency of the last batch holds for all of a stream's samples.
  writer.append(batch<float>(joints({"a"}), {1}, {10}), -4'000'000'000'000'000'000);
  EXPECT_TRUE(has(sentence([&] { writer.end_episode(); }), "with the latency taken off must be below 2^62"));
  writer.discard_episode();
  writer.begin_episode({.name = "two"});
  writer.append(batch<float>(joints({"a"}), {1}, {1}));
  writer.end_episode();
  writer.close();
  ASSERT_EQ(Cache(path_).episodes().size(), 1U);
  EXPECT_TRUE(verify_cache(path_, false).problems.empty());
}

void put(const std::filesystem::path& file, std::size_t at, char byte) {
  std::fstream out(file, std::ios::binary | std::ios::in | std::ios::out);
  out.seekp(static_cast<std::streamoff>(at));
  out.put(byte);
}

// Every byte of the manifest and of a shard's header, changed: read as it stands, or refused with a sentence.
TEST_F(CacheTest, DamagedBytesGetASentence) {
  {
    CacheWriter writer(path_);
    for (const char* const name : {"one", "two"}) {
      StreamInfo info = cloud;
      info.metadata = {{"frame", name}};
      writer.begin_episode({.name = name});
      writer.append(batch<std::uint8_t>(info, {1, 2, 3}, {5, 6, 7}, {1, 0, 2}));
      writer.end_episode();
    }
    writer.close();
  }
  const std::filesystem::path shard = std::filesystem::directory_iterator(path_ / "shards")->path();
  for (const std::filesystem::path& file : {path_ / "manifest.json", shard}) {
    std::string content;
    {
      std::ifstream in(file, std::ios::binary);
      content.assign(std::istreambuf_iterator<char>(in), {});
    }
    ASSERT_FALSE(content.empty());
    for (std::size_t k = 0; k < content.size(); ++k) {
      for (const char replacement : {'\0', '"', '9'}) {
        put(file, k, replacement);
        const std::string words = sentence([&] {
          const Cache cache(path_);
          for (std::size_t e = 0; e < cache.episodes().size(); ++e) {
            for (const EpisodeStream& entry : cache.episodes()[e].streams) {
              const CachedStream stream = cache.read(static_cast<std::int64_t>(e), entry.stream);
              EXPECT_EQ(numbers<std::int64_t>(stream.times).size(), static_cast<std::size_t>(entry.samples));
            }
          }
        });
        EXPECT_TRUE(words == "no error" || words.starts_with(path_.string())) << words;
        if (k % 50 == 0) {
          EXPECT_LT(verify_cache(path_, false).problems.size(), 4U);
        }
      }
      put(file, k, content[k]);
    }
  }
  EXPECT_TRUE(verify_cache(path_, false).problems.empty());
}

}  // namespace
}  // namespace robocache
