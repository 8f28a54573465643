#include "core/parallel.h"

#include <gtest/gtest.h>
#include <robocache/context.h>
#include <robocache/error.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <mutex>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#if defined(__SANITIZE_THREAD__)
#define ROBOCACHE_TEST_THREAD_SANITIZER
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define ROBOCACHE_TEST_THREAD_SANITIZER
#endif
#endif

namespace robocache {
namespace {

// Sets the number of threads for one test.
class Threads {
 public:
  explicit Threads(int threads) : before_(num_threads()) { set_num_threads(threads); }
  ~Threads() { set_num_threads(before_); }
  Threads(const Threads&) = delete;
  Threads& operator=(const Threads&) = delete;

 private:
  int before_;
};

// How often each of [0, count) was visited, as a sentence where it was not once.
std::string visits(std::int64_t count, std::int64_t grain) {
  std::vector<std::atomic<int>> seen(static_cast<std::size_t>(count));
  std::atomic<bool> bad_piece{false};
  parallel_for(count, grain, [&](std::int64_t begin, std::int64_t end) {
    if (begin < 0 || begin >= end || end > count) bad_piece = true;
    for (std::int64_t k = begin; k < end; ++k) ++seen[static_cast<std::size_t>(k)];
  });
  if (bad_piece) return "a piece outside the range";
  for (std::int64_t k = 0; k < count; ++k) {
    const int times = seen[static_cast<std::size_t>(k)];
    if (times != 1) return std::to_string(k) + " was visited " + std::to_string(times) + " times";
  }
  return "";
}

TEST(Parallel, VisitsEverythingOnce) {
  for (const int threads : {1, 2, 3, 8}) {
    const Threads set(threads);
    for (const std::int64_t count : {0, 1, 2, 7, 8, 9, 1000, 100003}) {
      for (const std::int64_t grain : {1, 3, 64, 1 << 20}) {
        EXPECT_EQ(visits(count, grain), "") << threads << " threads, " << count << " by " << grain;
      }
    }
  }
}

TEST(Parallel, UsesSeveralThreads) {
  const Threads set(4);
  std::mutex guard;
  std::set<std::thread::id> workers;
  parallel_for(64, 1, [&](std::int64_t, std::int64_t) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    const std::lock_guard lock(guard);
    workers.insert(std::this_thread::get_id());
  });
  EXPECT_GT(workers.size(), 1u);
  EXPECT_LE(workers.size(), 4u);
}

TEST(Parallel, SmallLoopsStayInTheCallingThread) {
  const Threads set(4);
  parallel_for(100, 100, [&, caller = std::this_thread::get_id()](std::int64_t begin, std::int64_t end) {
    EXPECT_EQ(std::this_thread::get_id(), caller);
    EXPECT_EQ(begin, 0);
    EXPECT_EQ(end, 100);
  });
}

TEST(Parallel, PiecesAreAtLeastTheGrain) {
  const Threads set(3);
  parallel_for(1000, 30, [](std::int64_t begin, std::int64_t end) { EXPECT_TRUE(end - begin >= 30 || end == 1000); });
}

TEST(Parallel, Nests) {
  const Threads set(4);
  std::atomic<std::int64_t> sum{0};
  parallel_for(50, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t k = begin; k < end; ++k) {
      parallel_for(100, 1, [&](std::int64_t inner_begin, std::int64_t inner_end) { sum += inner_end - inner_begin; });
    }
  });
  EXPECT_EQ(sum, 5000);
}

TEST(Parallel, ManyCallersAtOnce) {
  const Threads set(3);
  std::vector<std::string> results(8);
  std::vector<std::thread> callers;
  callers.reserve(results.size());
  for (std::string& result : results) {
    callers.emplace_back([&result] {
      for (int k = 0; k < 200 && result.empty(); ++k) result = visits(997, 1);
    });
  }
  for (std::thread& caller : callers) caller.join();
  for (const std::string& result : results) EXPECT_EQ(result, "");
}

TEST(Parallel, TheNumberOfThreadsMayChangeMeanwhile) {
  const Threads set(2);
  std::thread changer([] {
    for (int k = 0; k < 200; ++k) set_num_threads(1 + k % 5);
  });
  for (int k = 0; k < 200; ++k) ASSERT_EQ(visits(500, 1), "");
  changer.join();
}

TEST(Parallel, ExceptionsReachTheCaller) {
  const Threads set(4);
  for (int round = 0; round < 100; ++round) {
    std::atomic<int> after{0};
    try {
      parallel_for(1000, 1, [&](std::int64_t begin, std::int64_t end) {
        if (begin <= 500 && 500 < end) throw std::runtime_error("piece 500");
        ++after;
      });
      FAIL() << "nothing was thrown";
    } catch (const std::runtime_error& error) {
      EXPECT_STREQ(error.what(), "piece 500");
    }
    ASSERT_EQ(visits(300, 1), "");
  }
  EXPECT_THROW(parallel_for(1000, 1, [](std::int64_t, std::int64_t) { throw std::logic_error("all"); }),
               std::logic_error);
}

TEST(Parallel, RefusesFewerThanOneThread) {
  for (const int threads : {0, -1}) {
    try {
      set_num_threads(threads);
      FAIL();
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::value);
      EXPECT_NE(std::string(error.what()).find(std::to_string(threads) + " threads"), std::string::npos);
    }
  }
  EXPECT_GE(num_threads(), 1);
}

#if !defined(ROBOCACHE_TEST_THREAD_SANITIZER)  // which refuses threads in a child of a process that has some

// Forks, runs the loop in the child, and gives the child's exit status; an alarm ends a child that hangs.
int status_of_child() {
  const pid_t child = fork();
  if (child == 0) {
    alarm(60);
    const bool fine = visits(5000, 1).empty() && visits(5000, 1).empty() && visits(10, 1).empty();
    _exit(fine ? 0 : 1);
  }
  int status = -1;
  waitpid(child, &status, 0);
  return status;
}

TEST(Parallel, WorksInAChildProcess) {
  const Threads set(4);
  ASSERT_EQ(visits(5000, 1), "");  // the pool has started
  for (int k = 0; k < 10; ++k) ASSERT_EQ(status_of_child(), 0);
  EXPECT_EQ(visits(5000, 1), "");
}

TEST(Parallel, WorksInAChildThatWasForkedWhileAnotherThreadHadThePool) {
  const Threads set(4);
  std::atomic<bool> stop{false};
  std::thread other([&] {
    while (!stop) parallel_for(100, 1, [](std::int64_t, std::int64_t) { std::this_thread::yield(); });
  });
  for (int k = 0; k < 20; ++k) EXPECT_EQ(status_of_child(), 0);
  stop = true;
  other.join();
  EXPECT_EQ(visits(5000, 1), "");
}

TEST(Parallel, WorksInAChildOfAChild) {
  const Threads set(2);
  ASSERT_EQ(visits(1000, 1), "");
  const pid_t child = fork();
  if (child == 0) {
    alarm(60);
    const bool fine = visits(1000, 1).empty();
    _exit(fine && status_of_child() == 0 ? 0 : 1);
  }
  int status = -1;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
}

#endif

}  // namespace
}  // namespace robocache
