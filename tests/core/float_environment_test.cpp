#include "core/float_environment.h"

#include <gtest/gtest.h>
#include <robocache/context.h>

#include <atomic>
#include <cfenv>
#include <thread>

#include "core/parallel.h"

namespace robocache {
namespace {

// Read at run time, so that no compiler folds what depends on the environment.
volatile float smallest_normal = 0x1p-126f;
volatile float half = 0.5f;
volatile float one = 1.0f;
volatile float tiny = 0x1p-30f;

bool keeps_denormals() { return smallest_normal * half != 0.0f && (smallest_normal * half) * 2.0f == smallest_normal; }
bool rounds_to_nearest() { return one + tiny == 1.0f && one - tiny == 1.0f; }

// The environment that torch.set_flush_denormal(True) and a careless fesetround leave behind.
void spoil() {
  std::fesetround(FE_UPWARD);
#if defined(__x86_64__)
  _mm_setcsr(_mm_getcsr() | 0x8040u);  // flush to zero, denormals are zero
#elif defined(__aarch64__)
  std::uint64_t control = 0;
  asm volatile("mrs %0, fpcr" : "=r"(control));
  asm volatile("msr fpcr, %0" : : "r"(control | std::uint64_t{1} << 24));
#endif
}

TEST(FloatEnvironment, IsTheDefaultInsideAndTheCallersAfterwards) {
  std::thread([] {  // a thread of its own, so that the tests after this one are not spoilt
    spoil();
    EXPECT_FALSE(rounds_to_nearest());
#if defined(__x86_64__) || defined(__aarch64__)
    EXPECT_FALSE(keeps_denormals());
#endif
    {
      const FloatEnvironment environment;
      EXPECT_TRUE(rounds_to_nearest());
      EXPECT_TRUE(keeps_denormals());
    }
    EXPECT_FALSE(rounds_to_nearest());
#if defined(__x86_64__) || defined(__aarch64__)
    EXPECT_FALSE(keeps_denormals());
#endif
  })
      .join();
}

// Workers start in whatever environment the thread has that needs them first.
TEST(FloatEnvironment, IsTheDefaultInWorkers) {
  const int before = num_threads();
  set_num_threads(before + 3);  // more than were ever started, so that some are started below
  std::atomic<int> wrong{0};
  std::thread([&] {
    spoil();
    const auto caller = std::this_thread::get_id();
    parallel_for(1000, 1, [&](std::int64_t, std::int64_t) {
      if (std::this_thread::get_id() != caller && !(rounds_to_nearest() && keeps_denormals())) ++wrong;
      std::this_thread::yield();
    });
  }).join();
  set_num_threads(before);
  EXPECT_EQ(wrong, 0);
}

}  // namespace
}  // namespace robocache
