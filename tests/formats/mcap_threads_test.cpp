// One Reader, one McapRecording, shared by threads. Built with -fsanitize=thread (the preset tsan) this sees every race.
#include <gtest/gtest.h>
#include <robocache/formats.h>
#include <robocache/mcap.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <functional>
#include <optional>
#include <string>
#include <thread>

#include "formats/mcap/records.h"
#include "sanitizers.h"

namespace robocache::mcap {
namespace {

constexpr int chunks = 64, threads = 8;

std::string topic_of(int k) { return "/" + std::to_string(k); }

// A chunk for each channel, which only that chunk declares: the summary knows the first one. Every chunk also has a
// message on a channel that nothing declares, which is a warning.
std::string file_that_declares_as_it_goes() {
  std::string file(magic), summary;
  append(file, Header{});
  for (int k = 0; k < chunks; ++k) {
    const auto id = static_cast<std::uint16_t>(k + 1);
    std::string records;
    const Schema schema{id, "demo/Number", "jsonschema", "{}"};
    const Channel channel{id, id, topic_of(k), "json", {{"k", "v"}}};
    append(records, schema);
    append(records, channel);
    for (std::uint64_t time = 0; time < 10; ++time) {
      const std::string text = "{\"x\": " + std::to_string(100 * k + static_cast<int>(time)) + "}";
      append(records, Message{id, 0, time, time, bytes_of(text)});
    }
    append(records, Message{static_cast<std::uint16_t>(10'000 + k), 0, 5, 5, bytes_of("{}")});
    const std::uint64_t begin = file.size();
    append(file, Chunk{0, 9, records.size(), 0, "", bytes_of(records)});
    append(summary, ChunkIndex{0, 9, begin, file.size() - begin, {}, 0, "", records.size(), records.size()});
    if (k == 0) {
      append(summary, schema);
      append(summary, channel);
    }
  }
  append(file, DataEnd{});
  const std::uint64_t begin = file.size();
  file += summary;
  append(file, Footer{begin, 0, 0});
  return file + std::string(magic);
}

void run(const std::function<void(int)>& work) {
  std::vector<std::thread> running;
  std::atomic<int> ready = 0;
  for (int k = 0; k < threads; ++k) {
    running.emplace_back([&, k] {
      ++ready;
      while (ready < threads) std::this_thread::yield();
      work(k);
    });
  }
  for (std::thread& thread : running) thread.join();
}

TEST(McapThreads, EachReadsMessagesOfOneReader) {
  const std::string file = file_that_declares_as_it_goes();
  Reader reader(robocache::bytes_of(bytes_of(file), "test"));
  ASSERT_TRUE(reader.is_indexed());
  ASSERT_EQ(reader.channels().size(), 1);
  std::atomic<int> messages = 0, wrong = 0;
  run([&](int k) {
    Messages mine = reader.messages({.order = k % 2 == 0 ? Order::log_time : Order::file});
    while (const Message* message = mine.next()) {
      const Channel* const channel = reader.channel(message->channel_id);
      if (channel == nullptr || channel->topic != topic_of(message->channel_id - 1)) ++wrong;
      if (channel != nullptr && reader.schema(*channel) == nullptr) ++wrong;
      const std::string text = "{\"x\": " + std::to_string(100 * (message->channel_id - 1) + message->log_time) + "}";
      if (text_of(message->data) != text) ++wrong;
      if (reader.all_channels().size() > chunks || reader.all_schemas().empty()) ++wrong;
      ++messages;
    }
    if (reader.warnings().empty()) ++wrong;
  });
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(messages, threads * chunks * 10);
  EXPECT_EQ(reader.channels().size(), chunks);
  EXPECT_EQ(reader.warnings().size(), chunks);  // each sentence once
}

TEST(McapThreads, EachReadsBatchesOfOneRecording) {
  const std::string file = file_that_declares_as_it_goes();
  McapRecording recording(robocache::bytes_of(bytes_of(file), "test"));
  std::atomic<int> samples = 0, wrong = 0;
  run([&](int) {
    McapBatches batches = recording.batches();
    while (const std::optional<StreamBatch> batch = batches.next()) {
      const int k = std::stoi(batch->info->name.substr(1));
      const auto* const values = static_cast<const double*>(batch->values.view().data);
      for (std::size_t i = 0; i < batch->times.size(); ++i) {
        if (values[i] != 100 * k + static_cast<double>(batch->times[i])) ++wrong;
      }
      samples += static_cast<int>(batch->times.size());
      if (recording.summary().topics.empty()) ++wrong;
    }
    if (!batches.problems().empty()) ++wrong;
  });
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(samples, threads * chunks * 10);
}

TEST(McapThreads, AChildGoesOnWhileTheParentsThreadsRead) {
  if (under_thread_sanitizer || under_address_sanitizer) GTEST_SKIP() << "a sanitizer does not follow this fork";
  const std::string file = file_that_declares_as_it_goes();
  std::atomic<bool> stop = false;
  Reader reader(robocache::bytes_of(bytes_of(file), "test"));
  std::vector<std::thread> running;
  for (int k = 0; k < 3; ++k) {
    running.emplace_back([&] {
      while (!stop) {
        Reader again(robocache::bytes_of(bytes_of(file), "test"));
        for (Messages mine = again.messages(); mine.next() != nullptr;) static_cast<void>(again.warnings());
      }
    });
  }
  for (int k = 0; k < 50; ++k) {
    const pid_t child = fork();
    if (child == 0) {
      alarm(20);  // a child that hangs dies
      int count = 0;
      for (Messages mine = reader.messages(); mine.next() != nullptr;) ++count;
      _exit(count == chunks * 10 && reader.warnings().size() == chunks ? 0 : 1);
    }
    int status = -1;
    waitpid(child, &status, 0);
    EXPECT_EQ(status, 0);
  }
  stop = true;
  for (std::thread& thread : running) thread.join();
}

// A read that fails once loses nothing: whoever goes on gets every message.
TEST(McapThreads, AReadThatFailedMayBeTriedAgain) {
  const std::string file = file_that_declares_as_it_goes();
  for (const std::int64_t buffer : {std::int64_t{1}, std::int64_t{64} << 20}) {
    Bytes bytes = robocache::bytes_of(bytes_of(file), "test");
    int reads = 0, failures = 0;
    bool fails = false;
    bytes.read = [&, read = bytes.read](std::int64_t offset, std::span<std::byte> to) {
      if (fails && ++reads % 3 == 0) throw Error(ErrorKind::file, "test: Input/output error");
      read(offset, to);
    };
    Reader reader(bytes, {.buffer = buffer});
    fails = true;
    int messages = 0;
    std::uint64_t last = 0;
    for (Messages all = reader.messages();;) {
      try {
        const Message* const message = all.next();
        if (message == nullptr) break;
        EXPECT_GE(message->log_time, last);
        last = message->log_time;
        ++messages;
      } catch (const Error&) {
        ++failures;
      }
    }
    EXPECT_EQ(messages, chunks * 10);
    EXPECT_GE(failures, 10);
  }
}

}  // namespace
}  // namespace robocache::mcap
