#include <robocache/error.h>

#include <string>
#include <utility>

#include "core/limits.h"
#include "formats/clouds/file_view.h"
#include "formats/messages/output.h"

namespace robocache {

struct Decoder::State {
  std::string topic;
  TimeSource time;
  std::unique_ptr<messages::MessageReader> messages;

  [[noreturn]] void fail(const std::string& what) const {
    throw Error(ErrorKind::file, concat(quote(topic), ": ", what));
  }
};

Decoder::Decoder(const Schema& schema, std::string_view message_encoding, std::string_view topic, TimeSource time)
    : state_(std::make_unique<State>(State{std::string(topic), time, nullptr})) {
  try {
    if (message_encoding == "json") {
      state_->messages = messages::make_json(schema, topic);
    } else if (message_encoding == "cdr" && (schema.encoding == "ros2msg" || schema.encoding == "ros2idl")) {
      state_->messages = messages::make_ros2(schema, topic, time);
    }
  } catch (const Error& error) {
    state_->fail(error.what());
  }
  if (!state_->messages) {
    state_->fail(concat("messages of encoding ", quote(message_encoding), " with a schema of encoding ",
                        quote(schema.encoding), " cannot be read; expected cdr with ros2msg or ros2idl, or json"));
  }
}

Decoder::~Decoder() = default;
Decoder::Decoder(Decoder&&) noexcept = default;
Decoder& Decoder::operator=(Decoder&&) noexcept = default;

void Decoder::add(std::span<const std::byte> message, std::int64_t log_time, std::int64_t publish_time) {
  if (!is_in_time_limit(log_time) || !is_in_time_limit(publish_time)) {
    state_->fail(concat("a message has a time past ", limit_in_words(time_limit), " ns"));
  }
  try {
    state_->messages->add(message, {state_->time, log_time, publish_time});
  } catch (const Error& error) {
    state_->fail(error.what());
  }
}

void Decoder::survey(std::span<const std::byte> message, std::int64_t log_time, ClockSurvey& to) {
  try {
    state_->messages->survey(state_->topic, message, log_time, to);
  } catch (const Error& error) {
    state_->fail(error.what());
  }
}

std::vector<StreamInfo> Decoder::streams() const { return state_->messages->streams(); }

std::int64_t Decoder::bytes() const noexcept { return state_->messages->bytes(); }

std::int64_t Decoder::footprint() const noexcept { return state_->messages->footprint(); }

std::vector<StreamBatch> Decoder::take() {
  std::vector<StreamBatch> batches;
  state_->messages->take(batches);
  return batches;
}

}  // namespace robocache
