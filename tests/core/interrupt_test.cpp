// A hook that throws ends every long call, and what the call works on can be used afterwards.
#include <gtest/gtest.h>
#include <robocache/align.h>
#include <robocache/attention.h>
#include <robocache/bytes.h>
#include <robocache/cache.h>
#include <robocache/interrupt.h>
#include <robocache/mcap.h>
#include <robocache/tsdf.h>
#include <robocache/voxelize.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <thread>

#include "core/interrupt.h"
#include "core/parallel.h"

namespace robocache {
namespace {

struct Stopped {};
std::atomic<int> asked = 0;

class Interrupt : public testing::Test {
 protected:
  void SetUp() override {
    path_ = std::filesystem::temp_directory_path() / ("robocache-interrupt-" + std::to_string(getpid()));
    std::filesystem::remove_all(path_);
    std::filesystem::create_directory(path_);
    asked = 0;
  }
  void TearDown() override {
    set_interrupt_hook(nullptr);
    std::filesystem::remove_all(path_);
  }
  // The hook is asked at most every 100 ms: wait until the next check in this thread asks it.
  static void arm() {
    set_interrupt_hook(nullptr);
    std::this_thread::sleep_for(std::chrono::milliseconds(150));
    set_interrupt_hook([] {
      ++asked;
      throw Stopped{};
    });
  }
  void write(CacheWriter& writer, const std::string& name) const {
    StreamInfo info{.name = "joints", .dtype = DType::f64, .shape = {2}};
    const std::vector<double> values{1, 2, 3, 4};
    const std::vector<std::int64_t> times{20, 10};  // sorted by end_episode
    writer.begin_episode({.name = name});
    writer.append(info, TensorView::contiguous(values.data(), DType::f64, std::vector<std::int64_t>{2, 2}), times,
                  times, {});
    writer.end_episode();
  }

  std::filesystem::path path_;
};

TEST_F(Interrupt, WithoutAHookNothingIsAsked) {
  check_interrupt();
  EXPECT_EQ(asked, 0);
}

TEST_F(Interrupt, AHookIsAskedAgainAndAgain) {
  arm();
  EXPECT_THROW(check_interrupt(), Stopped);
  EXPECT_NO_THROW(check_interrupt());  // so soon, nobody is asked
  while (asked < 3) {
    try {
      check_interrupt();
    } catch (const Stopped&) {
    }
  }
}

TEST_F(Interrupt, ACommitThatIsStoppedCanBeRepeated) {
  CacheWriter writer(path_ / "cache");
  write(writer, "one");
  arm();
  EXPECT_THROW(writer.commit(), Stopped);
  set_interrupt_hook(nullptr);
  EXPECT_EQ(Cache(path_ / "cache").episodes().size(), 0u);
  writer.close();
  EXPECT_EQ(Cache(path_ / "cache").episodes().size(), 1u);
}

TEST_F(Interrupt, AnEpisodeWhoseCommitIsStoppedIsLeftOut) {
  CacheWriter writer(path_ / "cache", {.group_bytes = 1});  // so that the end of an episode commits
  write(writer, "one");
  const std::vector<double> values{1, 2, 3, 4};
  const std::vector<std::int64_t> times{10, 20};
  writer.begin_episode({.name = "two"});
  writer.append({.name = "joints", .dtype = DType::f64, .shape = {2}},
                TensorView::contiguous(values.data(), DType::f64, std::vector<std::int64_t>{2, 2}), times, times, {});
  arm();
  set_interrupt_hook([] {  // first the statistics of the episode ask, then its commit
    if (++asked > 1) throw Stopped{};
    std::this_thread::sleep_for(std::chrono::milliseconds(150));
  });
  EXPECT_THROW(writer.end_episode(), Stopped);
  set_interrupt_hook(nullptr);
  EXPECT_FALSE(writer.has_episode("two"));
  EXPECT_EQ(writer.waiting_episodes(), 0);
  write(writer, "two");  // the name is free
  writer.close();
  EXPECT_EQ(Cache(path_ / "cache").episodes().size(), 2u);
  EXPECT_TRUE(verify_cache(path_ / "cache", false).problems.empty());
}

TEST_F(Interrupt, AnEpisodeWhoseStatisticsAreStoppedCanBeDiscarded) {
  CacheWriter writer(path_ / "cache");
  write(writer, "one");
  const std::vector<double> values{1, 2, 3, 4};
  const std::vector<std::int64_t> times{10, 20};
  writer.begin_episode({.name = "two"});
  writer.append({.name = "joints", .dtype = DType::f64, .shape = {2}},
                TensorView::contiguous(values.data(), DType::f64, std::vector<std::int64_t>{2, 2}), times, times, {});
  arm();
  EXPECT_THROW(writer.end_episode(), Stopped);
  set_interrupt_hook(nullptr);
  writer.discard_episode();
  write(writer, "two");
  writer.close();
  EXPECT_EQ(Cache(path_ / "cache").episodes().size(), 2u);
  EXPECT_TRUE(verify_cache(path_ / "cache", false).problems.empty());
}

TEST_F(Interrupt, AnEpisodeWhoseSortingIsStoppedIsLeftOut) {
  CacheWriter writer(path_ / "cache");
  write(writer, "one");
  StreamInfo info{.name = "joints", .dtype = DType::f64, .shape = {2}};
  const std::vector<double> values{1, 2, 3, 4};
  const std::vector<std::int64_t> times{20, 10};
  writer.begin_episode({.name = "two"});
  writer.append(info, TensorView::contiguous(values.data(), DType::f64, std::vector<std::int64_t>{2, 2}), times, times,
                {});
  arm();
  EXPECT_THROW(writer.end_episode(), Stopped);
  set_interrupt_hook(nullptr);
  writer.discard_episode();
  writer.close();
  const Cache cache(path_ / "cache");
  ASSERT_EQ(cache.episodes().size(), 1u);
  EXPECT_EQ(cache.episodes()[0].name, "one");
  EXPECT_TRUE(verify_cache(path_ / "cache", false).problems.empty());
}

TEST_F(Interrupt, VerifyAndRepairThatAreStoppedChangeNothing) {
  {
    CacheWriter writer(path_ / "cache");
    write(writer, "one");
    writer.close();
  }
  for (const bool repair : {false, true}) {
    arm();
    EXPECT_THROW(verify_cache(path_ / "cache", repair), Stopped);
    set_interrupt_hook(nullptr);
    EXPECT_EQ(Cache(path_ / "cache").episodes().size(), 1u);
  }
  CacheWriter writer(path_ / "cache");  // the lock was let go
  EXPECT_EQ(writer.committed_episodes(), 1);
}

TEST_F(Interrupt, HashingASourceIsStopped) {
  const std::filesystem::path file = path_ / "a.bin";
  std::ofstream(file) << "content";
  const std::vector<std::filesystem::path> files{file};
  CacheWriter writer(path_ / "cache");
  writer.begin_source("a", files, "");
  arm();
  EXPECT_THROW(writer.end_source(), Stopped);
  set_interrupt_hook(nullptr);
  EXPECT_FALSE(writer.knows("a", files, ""));
}

TEST_F(Interrupt, OpeningAFileWithoutAnIndexIsStopped) {
  const std::filesystem::path file = path_ / "a.mcap";
  {
    mcap::Writer writer(file);
    const auto channel = writer.add_channel("/a", "json", 0);
    writer.write({.channel_id = channel, .log_time = 1});
    writer.finish();
  }
  std::filesystem::resize_file(file, std::filesystem::file_size(file) - 9);  // without its end there is no index
  arm();
  EXPECT_THROW(static_cast<void>(mcap::Reader(open_bytes(file))), Stopped);
  set_interrupt_hook(nullptr);
  EXPECT_FALSE(mcap::Reader(open_bytes(file)).is_indexed());
}

// ---- operations

TEST_F(Interrupt, AParallelLoopIsStoppedByTheThreadThatCalledIt) {
  const int before = num_threads();
  set_num_threads(4);
  arm();
  std::atomic<int> ran = 0;
  const std::thread::id caller = std::this_thread::get_id();
  const auto piece = [&](std::int64_t, std::int64_t) {
    ++ran;
    // Without this wait the workers may finish all pieces before the calling thread gets its first one.
    while (asked == 0 && std::this_thread::get_id() != caller) std::this_thread::yield();
  };
  EXPECT_THROW(parallel_for(1 << 20, 1, piece), Stopped);
  EXPECT_EQ(asked, 1) << "a worker asked the hook";
  EXPECT_LT(ran, 4 * 8 * 8) << "pieces began after the loop was stopped";
  set_num_threads(1);
  arm();
  EXPECT_THROW(parallel_for(1 << 20, 1, [](std::int64_t, std::int64_t) {}), Stopped);
  set_num_threads(before);
}

TEST_F(Interrupt, OperationsAreStoppedOnEveryHostBackend) {
  const int before = num_threads();
  set_num_threads(1);  // with more, the workers may have finished before this thread gets its first piece
  const std::int64_t count = 1 << 16;
  std::vector<float> values(static_cast<std::size_t>(4 * count), 0.5f);
  std::vector<float> out(values.size());
  std::vector<std::int64_t> times(static_cast<std::size_t>(count));
  for (std::size_t k = 0; k < times.size(); ++k) times[k] = static_cast<std::int64_t>(k);
  std::vector<std::int32_t> counts(1 << 18);
  const auto view = [](auto& array, DType dtype, std::vector<std::int64_t> shape) {
    return TensorView::contiguous(array.data(), dtype, shape);
  };
  const Stream stream{.values = view(values, DType::f32, {count, 4}), .times = view(times, DType::i64, {count})};
  Attention attend;
  attend.queries = view(values, DType::f32, {1, 2, 1024, 64});
  attend.segments = {{attend.queries, attend.queries}};
  Clouds clouds;
  clouds.points = view(values, DType::f32, {count, 4});
  const Grid grid{.origin = {0, 0, 0}, .voxel_size = {0.1, 0.1, 0.1}, .shape = {64, 64, 64}};
  const VoxelOutput cells{Reduction::count, view(counts, DType::i32, {64, 64, 64})};
  const std::vector<float> intrinsics{100, 100, 128, 128};
  DepthImages images;
  images.depth = view(values, DType::f32, {256, 256});
  images.intrinsics = view(intrinsics, DType::f32, {4});
  std::vector<float> weights(1 << 18, 1.0f);
  std::vector<float> distances(1 << 18, 1.0f);

  for (const Backend backend : {Backend::reference, Backend::cpu}) {
    const Context context{.backend = backend};
    arm();
    EXPECT_THROW(resample(context, stream, view(times, DType::i64, {count}), {.check = false},
                          {.values = view(out, DType::f32, {count, 4})}),
                 Stopped);
    arm();
    EXPECT_THROW(align_backward(context, {&stream, 1}, view(times, DType::i64, {count}), {},
                                std::vector{view(values, DType::f32, {count, 4})},
                                std::vector{view(out, DType::f32, {count, 4})}),
                 Stopped);
    arm();
    EXPECT_THROW(attention(context, attend, view(out, DType::f32, {1, 2, 1024, 64})), Stopped);
    arm();
    EXPECT_THROW(voxelize(context, clouds, grid, {}, {&cells, 1}), Stopped);
    arm();
    EXPECT_THROW(tsdf_integrate(context, images, grid, 0.15, view(distances, DType::f32, {64, 64, 64}),
                                view(weights, DType::f32, {64, 64, 64})),
                 Stopped);
  }
  set_num_threads(before);
}

}  // namespace
}  // namespace robocache
