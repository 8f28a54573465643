// Threads that share a Cache, for ThreadSanitizer.
#include <gtest/gtest.h>
#include <robocache/align.h>
#include <robocache/cache.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <thread>
#include <vector>

#include "cache/episode_table.h"
#include "sanitizers.h"

namespace robocache {
namespace {

constexpr std::int64_t episodes = 24;

std::filesystem::path make_cache() {
  const auto path = std::filesystem::temp_directory_path() / ("robocache-threads-" + std::to_string(getpid()));
  std::filesystem::remove_all(path);
  CacheWriter writer(path);
  const StreamInfo info{.name = "joints", .dtype = DType::i64, .shape = {}};
  for (std::int64_t k = 0; k < episodes; ++k) {
    const std::vector<std::int64_t> numbers{k, k + 1, k + 2};
    writer.begin_episode({.name = std::to_string(k)});
    writer.append(info, TensorView::contiguous(numbers.data(), DType::i64, {3}), numbers, numbers, {});
    writer.end_episode();
    if (k % 3 == 2) writer.commit();
  }
  writer.close();
  return path;
}

bool is_right(const Cache& cache, std::int64_t k) {
  const CachedStream stream = cache.read(k, 0);
  const auto* const values = static_cast<const std::int64_t*>(stream.values.data);
  return stream.values.shape[0] == 3 && values[0] == k && values[2] == k + 2;
}

class CacheThreads : public testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(Maps, CacheThreads, testing::Bool());

TEST_P(CacheThreads, ReadOneCache) {
  const auto path = make_cache();
  std::atomic<int> wrong = 0;
  for (int turn = 0; turn < 5; ++turn) {
    const Cache cache(path, {.map = GetParam()});
    std::vector<std::thread> threads;
    for (int t = 0; t < 6; ++t) {
      threads.emplace_back([&, t] {
        for (std::int64_t k = 0; k < episodes; ++k) wrong += is_right(cache, (k * (2 * t + 1)) % episodes) ? 0 : 1;
        const Cache other(path, {.map = GetParam()});  // what is kept open is shared by all caches of a process
        wrong += is_right(other, t) ? 0 : 1;
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
  EXPECT_EQ(wrong, 0);
  std::filesystem::remove_all(path);
}

// The last sample of these episodes, each aligned in place, by threads that read and keep the same episodes.
TEST_P(CacheThreads, AlignByOneTable) {
  const auto path = make_cache();
  const Cache cache(path, {.map = GetParam()});
  std::atomic<int> wrong = 0;
  for (int turn = 0; turn < 5; ++turn) {
    cache::EpisodeTable table(cache, {0}, GetParam());
    std::vector<std::thread> threads;
    for (int t = 0; t < 6; ++t) {
      threads.emplace_back([&, t] {
        std::vector<std::int64_t> numbers, times;
        for (std::int64_t k = 0; k < episodes; ++k) {
          numbers.push_back((k * (2 * t + 1) + t) % episodes);
          times.push_back(numbers.back() + 9);
        }
        std::vector<std::int64_t> values(numbers.size()), age(numbers.size()), index(numbers.size());
        const auto valid = std::make_unique<bool[]>(numbers.size());
        const std::vector<std::int64_t> shape{episodes, 1};
        const Stream stream{.values = TensorView::contiguous(nullptr, DType::i64, {0}),
                            .times = TensorView::contiguous(nullptr, DType::i64, {0}),
                            .arrivals = TensorView::contiguous(nullptr, DType::i64, {0})};
        const Aligned aligned{.values = TensorView::contiguous(values.data(), DType::i64, shape),
                              .valid = TensorView::contiguous(valid.get(), DType::boolean, shape),
                              .age = TensorView::contiguous(age.data(), DType::i64, shape),
                              .index = TensorView::contiguous(index.data(), DType::i64, shape)};
        cache::EpisodeTable::Rows rows;
        if (!table.find(numbers, rows)) table.load(numbers, rows);
        const Targets targets(TensorView::contiguous(times.data(), DType::i64, shape));
        align_op::align_segments({}, {&stream, 1}, targets, {}, rows.segments(), {&aligned, 1});
        for (std::size_t b = 0; b < numbers.size(); ++b) {
          wrong += values[b] == numbers[b] + 2 && age[b] == 7 && index[b] == 2 ? 0 : 1;
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    cache::EpisodeTable::Rows rows;
    EXPECT_THROW(table.load(std::vector<std::int64_t>{episodes}, rows), Error);
  }
  EXPECT_EQ(wrong, 0);
  std::filesystem::remove_all(path);
}

// A child never finds the mutex locked by a thread that it does not have.
TEST(CacheFork, AChildReadsWhileThreadsDid) {
  if (under_thread_sanitizer || under_address_sanitizer) GTEST_SKIP() << "a sanitizer does not follow this fork";
  const auto path = make_cache();
  const Cache cache(path);
  std::atomic<bool> stop = false;
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([&] {
      while (!stop) {
        const Cache other(path);
        for (std::int64_t k = 0; k < episodes; ++k) static_cast<void>(other.read(k, 0));
      }
    });
  }
  for (int turn = 0; turn < 20; ++turn) {
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      bool is_fine = true;
      for (std::int64_t k = 0; k < episodes; ++k) is_fine = is_fine && is_right(cache, k);
      std::_Exit(is_fine ? 0 : 1);
    }
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  }
  stop = true;
  for (std::thread& thread : threads) thread.join();
  std::filesystem::remove_all(path);
}

}  // namespace
}  // namespace robocache
