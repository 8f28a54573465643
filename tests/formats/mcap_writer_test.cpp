// What becomes of an mcap::Writer's file when the writer is assigned to, forked, or shared by threads.
#include <gtest/gtest.h>
#include <robocache/mcap.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <latch>
#include <string>
#include <thread>
#include <vector>

namespace robocache::mcap {
namespace {

using Span = std::span<const std::byte>;

Span bytes_of(std::string_view text) { return std::as_bytes(std::span(text)); }

// The messages of a file that must be whole: with a summary.
std::vector<std::string> messages_of(const Bytes& bytes) {
  Reader reader(bytes);
  EXPECT_TRUE(reader.is_indexed());
  EXPECT_TRUE(reader.warnings().empty());
  std::vector<std::string> found;
  Messages messages = reader.messages();
  while (const Message* message = messages.next()) {
    found.emplace_back(reinterpret_cast<const char*>(message->data.data()), message->data.size());
  }
  return found;
}

Writer make(std::string& file, std::string_view data) {
  Writer writer([&file](Span bytes) { file.append(reinterpret_cast<const char*>(bytes.data()), bytes.size()); },
                "test");
  writer.write(Message{writer.add_channel("/a", "text"), 0, 1, 1, bytes_of(data)});
  return writer;
}

TEST(McapWriter, AssignmentFinishesTheOldFile) {
  std::string first, second;
  Writer writer = make(first, "first");
  writer = make(second, "second");
  EXPECT_EQ(messages_of(robocache::bytes_of(bytes_of(first), "first")), std::vector<std::string>{"first"});
  Writer& same = writer;
  writer = std::move(same);
  writer.finish();
  EXPECT_EQ(messages_of(robocache::bytes_of(bytes_of(second), "second")), std::vector<std::string>{"second"});
}

TEST(McapWriter, AForkedChildLeavesTheFileAlone) {
  const std::filesystem::path path = std::filesystem::path(testing::TempDir()) / "robocache_mcap_fork.mcap";
  WriteOptions options;
  options.chunk_size = 1;  // every message goes out at once
  Writer writer(path, options);
  const std::uint16_t channel = writer.add_channel("/a", "text");
  writer.write(Message{channel, 0, 1, 1, bytes_of("before")});
  const pid_t child = fork();
  if (child == 0) {
    int refused = 0;
    try {
      writer.write(Message{channel, 0, 2, 2, bytes_of("child")});
    } catch (const Error& error) {
      refused = std::string(error.what()).find("another process") != std::string::npos ? 1 : 0;
    }
    { const Writer ended = std::move(writer); }
    _exit(refused == 1 ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  writer.write(Message{channel, 0, 3, 3, bytes_of("after")});
  writer.finish();
  EXPECT_EQ(messages_of(open_bytes(path)), (std::vector<std::string>{"before", "after"}));
  std::filesystem::remove(path);
}

TEST(McapWriter, ThreadsThatShareItGetASentence) {
  std::string file;
  WriteOptions options;
  options.chunk_size = 200;
  std::atomic<int> written = 0;
  {
    Writer writer([&file](Span bytes) { file.append(reinterpret_cast<const char*>(bytes.data()), bytes.size()); },
                  "test", options);
    const std::uint16_t channel = writer.add_channel("/a", "text");
    std::latch together(4);
    std::vector<std::thread> threads;
    for (std::uint32_t thread = 0; thread < 4; ++thread) {
      threads.emplace_back([&, thread] {
        together.arrive_and_wait();
        for (std::uint64_t k = 0; k < 20'000; ++k) {
          try {
            writer.write(Message{channel, thread, k, k, bytes_of("message")});
            ++written;
          } catch (const Error& error) {
            EXPECT_EQ(std::string(error.what()),
                      "test: another thread is writing to it; use one thread at a time, or a lock of your own");
          }
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
  EXPECT_EQ(messages_of(robocache::bytes_of(bytes_of(file), "test")).size(), static_cast<std::size_t>(written));
}

}  // namespace
}  // namespace robocache::mcap
