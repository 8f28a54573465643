// Decodes MCAP messages into batches of bounded size.
#include <robocache/formats.h>
#include <robocache/mcap.h>

#include <algorithm>
#include <deque>
#include <limits>
#include <map>
#include <tuple>
#include <utility>

#include "formats/clouds/file_view.h"

namespace robocache {

namespace {

constexpr std::int64_t batch_bytes = std::int64_t{2} << 20;
constexpr std::int64_t held_bytes = std::int64_t{32} << 20;

std::int64_t time_of(std::uint64_t time) {
  return static_cast<std::int64_t>(std::min<std::uint64_t>(time, std::numeric_limits<std::int64_t>::max()));
}

}  // namespace

struct McapRecording::State {
  std::string name;
  TimeSource time;
  std::int64_t most;  // bytes that decoders may take, all together: 4 times the file and 128 MiB
  std::int64_t
      most_compiled;  // bytes that schemas may be compiled to, one after the other: 4 times the file and 512 MiB
  mcap::Reader reader;

  State(Bytes bytes, TimeSource source)
      : name(bytes.name),
        time(source),
        most(4 * bytes.size + (std::int64_t{128} << 20)),
        most_compiled(4 * bytes.size + (std::int64_t{512} << 20)),
        reader(std::move(bytes)) {}
};

struct McapBatches::State {
  // The decoder of a topic: for all of its channels with the same schema.
  struct TopicDecoder {
    std::string name;
    const mcap::Schema* schema = nullptr;
    std::string encoding;  // of its messages
    std::optional<Decoder> decoder{};
    std::int64_t bytes = 0;      // in the decoder
    std::int64_t footprint = 0;  // of the decoder
    std::size_t problem = 0;     // 0: none yet; otherwise 1 + the place of the problem that counts its broken messages
  };

  McapRecording::State& recording;
  mcap::Messages messages;
  std::deque<TopicDecoder> topics{};
  std::map<std::string, std::vector<TopicDecoder*>> by_topic{};
  std::vector<TopicDecoder*> of_channel{};                           // by id; nullptr: not seen yet
  std::map<std::string, const TopicDecoder*, std::less<>> owners{};  // of streams
  std::deque<StreamBatch> ready{};
  std::vector<Problem> problems{};
  std::int64_t held = 0, footprints = 0, compiled = 0;
  bool is_over = false;

  State(McapRecording::State& of, mcap::Messages selected) : recording(of), messages(std::move(selected)) {}

  TopicDecoder& topic_of(std::uint16_t id) {
    if (id >= of_channel.size()) of_channel.resize(std::size_t{id} + 1, nullptr);
    TopicDecoder*& known = of_channel[id];
    if (known == nullptr) known = &find(*recording.reader.channel(id));
    return *known;
  }

  TopicDecoder& find(const mcap::Channel& channel) {
    static const mcap::Schema none{};
    const mcap::Schema* schema = recording.reader.schema(channel);
    if (schema == nullptr) schema = &none;
    const auto same = [&](const TopicDecoder& topic) {
      return topic.name == channel.topic && topic.encoding == channel.message_encoding &&
             (topic.schema == schema ||
              (topic.schema->name == schema->name && topic.schema->encoding == schema->encoding &&
               topic.schema->data == schema->data));
    };
    std::vector<TopicDecoder*>& of_topic = by_topic[channel.topic];
    for (TopicDecoder* const known : of_topic) {
      if (same(*known)) return *known;
    }
    const bool is_second = !of_topic.empty();
    TopicDecoder& topic = topics.emplace_back();
    of_topic.push_back(&topic);
    topic.name = channel.topic;
    topic.schema = schema;
    topic.encoding = channel.message_encoding;
    try {
      if (is_second) {
        throw Error(ErrorKind::file, concat(quote(channel.topic), ": has messages of more than one type; those of ",
                                            quote(schema->name), " are left out"));
      }
      // A schema is compiled for each topic, so many topics with one large schema would make a small file costly.
      if (compiled > recording.most_compiled) {
        throw Error(ErrorKind::file, concat(quote(channel.topic), ": is left out: the schemas of the topics before it ",
                                            "take more than ", recording.most_compiled, " bytes"));
      }
      compiled += 8 * std::ssize(schema->data);  // compiling a byte of text takes as long as 8 bytes of the result
      topic.decoder.emplace(Schema{schema->name, schema->encoding, schema->data}, channel.message_encoding,
                            channel.topic, recording.time);
      compiled += topic.decoder->footprint();
    } catch (const Error& error) {
      problems.push_back({channel.topic, 0, concat(recording.name, ": ", error.what())});
    }
    return topic;
  }

  void add(const mcap::Message& message) {
    TopicDecoder& topic = topic_of(message.channel_id);
    if (!topic.decoder) return;
    try {
      topic.decoder->add(message.data, time_of(message.log_time), time_of(message.publish_time));
    } catch (const Error& error) {
      if (topic.problem == 0) {
        problems.push_back({topic.name, 0, concat(recording.name, ": ", error.what())});
        topic.problem = problems.size();
      }
      ++problems[topic.problem - 1].messages;
      return;
    }
    const std::int64_t footprint = topic.decoder->footprint();
    footprints += footprint - std::exchange(topic.footprint, footprint);
    if (footprints > recording.most) return drop(topic);
    const std::int64_t bytes = topic.decoder->bytes();
    held += bytes - std::exchange(topic.bytes, bytes);
    if (bytes >= batch_bytes) {
      take(topic);
    } else if (held >= held_bytes) {
      // Take from the topics that hold at least half of the average; together they hold at least half of all.
      const std::int64_t least = held / (2 * std::ssize(topics));
      for (TopicDecoder& large : topics) {
        if (large.bytes > 0 && large.bytes >= least) take(large);
      }
    }
  }

  // Drops a topic's decoder: a file may have many topics that each need much memory.
  void drop(TopicDecoder& topic) {
    take(topic);
    topic.decoder.reset();
    footprints -= std::exchange(topic.footprint, 0);
    problems.push_back(
        {topic.name, 0,
         concat(recording.name, ": ", quote(topic.name), ": is left out from here on: all topics together ",
                "take more than ", recording.most, " bytes to decode")});
  }

  void take(TopicDecoder& topic) {
    held -= std::exchange(topic.bytes, 0);
    if (!topic.decoder) return;
    for (StreamBatch& batch : topic.decoder->take()) {
      const auto [owner, is_new] = owners.try_emplace(batch.info->name, &topic);
      if (owner->second == &topic) {
        ready.push_back(std::move(batch));
      } else if (is_new || std::ranges::find(problems, batch.info->name, &Problem::topic) == problems.end()) {
        problems.push_back({batch.info->name, static_cast<std::int64_t>(batch.times.size()),
                            concat(recording.name, ": ", quote(topic.name), ": its stream ", quote(batch.info->name),
                                   " is left out: ", quote(owner->second->name), " has one of that name")});
      }
    }
  }
};

McapBatches::McapBatches(std::unique_ptr<State> state) : state_(std::move(state)) {}
McapBatches::~McapBatches() = default;
McapBatches::McapBatches(McapBatches&&) noexcept = default;
McapBatches& McapBatches::operator=(McapBatches&&) noexcept = default;

std::optional<StreamBatch> McapBatches::next() {
  State& state = *state_;
  while (state.ready.empty() && !state.is_over) {
    if (const mcap::Message* message = state.messages.next()) {
      state.add(*message);
    } else {
      state.is_over = true;
      for (State::TopicDecoder& topic : state.topics) state.take(topic);
    }
  }
  if (state.ready.empty()) return std::nullopt;
  StreamBatch batch = std::move(state.ready.front());
  state.ready.pop_front();
  return batch;
}

const std::vector<Problem>& McapBatches::problems() const noexcept { return state_->problems; }

McapRecording::McapRecording(Bytes bytes, TimeSource time) : state_(std::make_unique<State>(std::move(bytes), time)) {}
McapRecording::~McapRecording() = default;
McapRecording::McapRecording(McapRecording&&) noexcept = default;
McapRecording& McapRecording::operator=(McapRecording&&) noexcept = default;

McapBatches McapRecording::batches(std::optional<std::vector<std::string>> topics, std::uint64_t start,
                                   std::optional<std::uint64_t> end) {
  mcap::Messages messages = state_->reader.messages({.topics = std::move(topics), .start = start, .end = end});
  return McapBatches(std::make_unique<McapBatches::State>(*state_, std::move(messages)));
}

namespace {

// Log times [start, end).
struct Stretch {
  std::uint64_t start = 0, end = 0;
};

// Where to look at a glance: the beginning, the middle and the end of the file, and the first message of each topic.
// None: the index does not tell.
std::vector<Stretch> glance(mcap::Reader& reader) {
  constexpr std::uint64_t shortest = 20'000'000, longest = 1'000'000'000;
  const std::vector<mcap::ChunkIndex>& chunks = reader.chunk_indexes();
  if (!reader.is_indexed() || chunks.empty()) return {};
  std::uint64_t first = std::numeric_limits<std::uint64_t>::max(), last = 0;
  std::map<std::uint16_t, const mcap::ChunkIndex*> earliest;
  for (const mcap::ChunkIndex& chunk : chunks) {
    if (chunk.message_index_offsets.empty()) {
      if (chunk.message_start_time == 0 && chunk.message_end_time == 0) continue;  // no messages
      return {};
    }
    first = std::min(first, chunk.message_start_time);
    last = std::max(last, chunk.message_end_time);
    for (const auto& [channel, offset] : chunk.message_index_offsets) {
      const auto [entry, is_new] = earliest.try_emplace(channel, &chunk);
      if (!is_new && chunk.message_start_time < entry->second->message_start_time) entry->second = &chunk;
    }
  }
  if (earliest.empty()) return {};
  const std::uint64_t length = std::clamp((last - first) / 128, shortest, longest);
  const std::uint64_t middle = first + (last - first) / 2;
  std::vector<Stretch> stretches{
      {first, first + length}, {middle, middle + length}, {last - std::min(last, length), last + 1}};
  std::map<const mcap::ChunkIndex*, std::vector<mcap::MessageIndex>> indexes;
  for (const auto& [channel, chunk] : earliest) {
    const auto [entry, is_new] = indexes.try_emplace(chunk);
    if (is_new) entry->second = reader.message_indexes(*chunk);
    for (const mcap::MessageIndex& index : entry->second) {
      if (index.channel_id != channel || index.records.empty()) continue;
      const std::uint64_t at = std::ranges::min_element(index.records)->first;
      stretches.push_back({at, at + 1});
    }
  }
  std::ranges::sort(stretches, {}, &Stretch::start);
  std::vector<Stretch> merged;
  for (const Stretch& stretch : stretches) {
    if (!merged.empty() && stretch.start <= merged.back().end) {
      merged.back().end = std::max(merged.back().end, stretch.end);
    } else {
      merged.push_back(stretch);
    }
  }
  return merged;
}

}  // namespace

void McapRecording::survey(ClockSurvey& to, bool at_a_glance) {
  mcap::Reader& reader = state_->reader;
  std::vector<Stretch> stretches;
  if (at_a_glance) stretches = glance(reader);
  if (stretches.empty()) stretches.push_back({0, std::numeric_limits<std::uint64_t>::max()});
  McapBatches pass = batches({}, stretches.front().start, stretches.front().end);
  McapBatches::State& state = *pass.state_;
  for (std::size_t k = 0; k < stretches.size(); ++k) {
    if (k > 0) state.messages = reader.messages({.start = stretches[k].start, .end = stretches[k].end});
    while (const mcap::Message* message = state.messages.next()) {
      McapBatches::State::TopicDecoder& topic = state.topic_of(message->channel_id);
      if (!topic.decoder) continue;
      try {
        topic.decoder->survey(message->data, time_of(message->log_time), to);
      } catch (const Error&) {  // batches() reports it
      }
      const std::int64_t footprint = topic.decoder->footprint();
      state.footprints += footprint - std::exchange(topic.footprint, footprint);
      if (state.footprints > state_->most) topic.decoder.reset();
    }
  }
}

bool is_transient_local(std::string_view profiles) {
  // "durability: 1" and "durability: transient_local" mean latched; 2 and "volatile" do not.
  constexpr std::string_view key = "durability:";
  bool found = false;
  for (std::size_t at = profiles.find(key); at != std::string_view::npos; at = profiles.find(key, at)) {
    at += key.size();
    std::string_view value = profiles.substr(std::min(profiles.find_first_not_of(" \t\"'", at), profiles.size()));
    value = value.substr(0, value.find_first_of(" \t\r\n\"',}"));
    if (value != "1" && value != "transient_local") return false;
    found = true;
  }
  return found;
}

Discovery McapRecording::discover(const std::vector<std::string>& topics) {
  constexpr int most_silent = 1024;
  Discovery found;
  McapBatches pass = batches(topics);
  McapBatches::State& state = *pass.state_;
  std::map<std::string_view, int> waiting;  // how many messages of each topic gave no stream
  for (const std::string& topic : topics) waiting[topic] = 0;
  while (!waiting.empty()) {
    const mcap::Message* const message = state.messages.next();
    if (message == nullptr) break;
    McapBatches::State::TopicDecoder& topic = state.topic_of(message->channel_id);
    const auto wait = waiting.find(topic.name);
    if (wait == waiting.end() || !topic.decoder) continue;
    const std::int64_t broken = topic.problem == 0 ? 0 : state.problems[topic.problem - 1].messages;
    state.add(*message);
    state.take(topic);
    std::vector<std::string>& names = found.streams[topic.name];
    for (const StreamBatch& batch : state.ready) names.push_back(batch.info->name);
    state.ready.clear();
    const bool is_broken = topic.problem != 0 && state.problems[topic.problem - 1].messages > broken;
    if (names.empty() && (is_broken || topic.encoding == "json" || ++wait->second < most_silent)) continue;
    waiting.erase(wait);
    topic.decoder.reset();
    state.footprints -= std::exchange(topic.footprint, 0);
  }
  found.problems = std::move(state.problems);
  return found;
}

Summary McapRecording::summary() const {
  const mcap::Reader& reader = state_->reader;
  Summary summary;
  summary.warnings = reader.warnings();
  const std::optional<mcap::Statistics>& statistics = reader.statistics();
  std::map<std::uint16_t, std::uint64_t> counts;
  if (statistics) counts.insert(statistics->channel_message_counts.begin(), statistics->channel_message_counts.end());
  std::map<std::string, Topic> topics;
  std::map<std::string, bool> latched;
  for (const mcap::Channel* const known : reader.all_channels()) {
    const mcap::Channel& channel = *known;
    bool is_latched = false;
    for (const auto& [key, value] : channel.metadata) {
      if (key == "offered_qos_profiles") is_latched = is_transient_local(value);
      if (key == "latching") is_latched = value == "1" || value == "true";  // as converters from ROS 1 write them
    }
    bool& all = latched.try_emplace(channel.topic, true).first->second;
    all = all && is_latched;
    const auto [entry, is_new] = topics.try_emplace(channel.topic);
    Topic& topic = entry->second;
    if (is_new) {
      topic.name = channel.topic;
      topic.message_encoding = channel.message_encoding;
      if (const mcap::Schema* schema = reader.schema(channel)) {
        topic.type = schema->name;
        topic.schema_encoding = schema->encoding;
      }
    }
    if (statistics) topic.messages = topic.messages.value_or(0) + time_of(counts[channel.id]);
  }
  for (auto& [name, topic] : topics) summary.topics.push_back(std::move(topic));
  for (const auto& [name, is_latched] : latched) {
    if (is_latched) summary.latched.push_back(name);
  }
  if (statistics) {
    summary.messages = time_of(statistics->message_count);
    if (statistics->message_count > 0) {
      summary.start = time_of(statistics->message_start_time);
      summary.end = time_of(statistics->message_end_time);
    }
    return summary;
  }
  for (const mcap::ChunkIndex& chunk : reader.chunk_indexes()) {
    if (chunk.message_index_offsets.empty() && chunk.message_start_time == 0 && chunk.message_end_time == 0) continue;
    const std::int64_t start = time_of(chunk.message_start_time), end = time_of(chunk.message_end_time);
    summary.start = std::min(start, summary.start.value_or(start));
    summary.end = std::max(end, summary.end.value_or(end));
  }
  return summary;
}

}  // namespace robocache
