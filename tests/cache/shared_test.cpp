// A writer and readers of one cache that several threads share, for ThreadSanitizer.
#include <gtest/gtest.h>
#include <robocache/cache.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <latch>
#include <string>
#include <thread>
#include <vector>

namespace robocache {
namespace {

constexpr int episodes = 40;

void add(CacheWriter& writer, int number) {
  const StreamInfo info{.name = "joints", .dtype = DType::f32, .shape = {}};
  const std::vector<float> values(8, static_cast<float>(number));
  std::vector<std::int64_t> times(values.size());
  for (std::size_t k = 0; k < times.size(); ++k) times[k] = static_cast<std::int64_t>(k);
  TensorView view;
  view.data = const_cast<float*>(values.data());
  view.rank = 1;
  view.shape[0] = static_cast<std::int64_t>(values.size());
  view.strides[0] = 1;
  writer.begin_episode({.name = std::to_string(number)});
  writer.append(info, view, times, times, {});
  writer.end_episode();
}

void check(const Cache& cache, std::size_t k) {
  const CachedStream stream = cache.read(static_cast<std::int64_t>(k), 0);
  const auto* const values = static_cast<const float*>(stream.values.data);
  for (std::int64_t i = 0; i < stream.values.shape[0]; ++i) {
    ASSERT_EQ(std::to_string(static_cast<int>(values[i])), cache.episodes()[k].name);
  }
}

TEST(SharedCache, OneThreadAddsOthersCommitAndRead) {
  const std::filesystem::path path =
      std::filesystem::temp_directory_path() / ("robocache-shared-" + std::to_string(getpid()));
  std::filesystem::remove_all(path);
  CacheWriter writer(path);
  add(writer, 0);
  writer.commit();
  const Cache shared(path);
  std::latch together(6);
  std::atomic<bool> is_done = false;
  std::vector<std::thread> threads;
  threads.emplace_back([&] {
    together.arrive_and_wait();
    for (int number = 1; number < episodes; ++number) add(writer, number);
    is_done = true;
  });
  for (int thread = 0; thread < 2; ++thread) {
    threads.emplace_back([&] {
      together.arrive_and_wait();
      while (!is_done) {
        try {
          writer.commit();
        } catch (const Error& error) {  // between two calls of the thread that adds
          EXPECT_NE(std::string(error.what()).find("has not ended"), std::string::npos) << error.what();
        }
        EXPECT_LE(writer.waiting_episodes(), episodes);
        EXPECT_TRUE(writer.has_episode("0"));
      }
    });
  }
  for (int thread = 0; thread < 3; ++thread) {
    threads.emplace_back([&] {
      together.arrive_and_wait();
      while (!is_done) {
        check(shared, 0);
        const Cache now(path);
        for (std::size_t k = 0; k < now.episodes().size(); ++k) check(now, k);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  writer.close();
  const Cache cache(path);
  EXPECT_EQ(cache.episodes().size(), static_cast<std::size_t>(episodes));
  for (std::size_t k = 0; k < cache.episodes().size(); ++k) check(cache, k);
  EXPECT_TRUE(verify_cache(path, false).problems.empty());
  std::filesystem::remove_all(path);
}

}  // namespace
}  // namespace robocache
