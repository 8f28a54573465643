// Writes drive.mcap, the log that the C++ guide reads: a joint at 125 Hz and a gripper at 10 Hz.
#include <robocache/mcap.h>

#include <cmath>
#include <cstdint>
#include <span>
#include <string>

int main() {
  robocache::mcap::Writer writer("drive.mcap");
  const std::uint16_t joint = writer.add_channel("/joint", "json"), gripper = writer.add_channel("/gripper", "json");
  const auto write = [&](std::uint16_t channel, std::int64_t stamp, const std::string& members) {
    const std::string text = R"({"stamp": {"sec": )" + std::to_string(stamp / 1'000'000'000) + R"(, "nanosec": )" +
                             std::to_string(stamp % 1'000'000'000) + "}, " + members + "}";
    const auto logged = static_cast<std::uint64_t>(stamp + 2'000'000);
    writer.write(robocache::mcap::Message{
        .channel_id = channel, .log_time = logged, .publish_time = logged, .data = std::as_bytes(std::span(text))});
  };
  for (std::int64_t k = 0; k < 500; ++k) {
    const std::int64_t stamp = 1'700'000'000'000'000'000 + 8'000'000 * k;
    const double seconds = 0.008 * static_cast<double>(k);
    write(joint, stamp,
          R"("angle": )" + std::to_string(seconds) + R"(, "torque": )" + std::to_string(std::sin(seconds)));
    if (k % 12 == 0) write(gripper, stamp, R"("open": )" + std::to_string(k % 24 == 0));
  }
  writer.finish();
}
