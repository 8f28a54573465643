#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <utility>

#include "formats/mcap/chunks.h"
#include "io/crc.h"
#include "io/descriptor.h"

namespace robocache::mcap {

namespace {

// The file that a Writer makes, which may also be a pipe or a device; or a directory, to sync it.
class OutputFile {
 public:
  OutputFile(const std::filesystem::path& path, int flags) : name_(path.string()), descriptor_(path, flags) {
    if (!descriptor_) fail("cannot be written", errno);
  }

  void write(Span bytes) const {
    if (const int error = descriptor_.append(bytes).error; error != 0) fail("cannot be written", error);
  }
  // Puts its bytes, or the names in a directory, on the disk. Pipes and some file systems cannot be synced, which is fine.
  void sync() const {
    if (io::retried([&] { return fsync(descriptor_.number()); }) == 0) return;
    if (errno == EINVAL || errno == ENOTSUP || errno == EROFS) return;
    fail("cannot be written to the disk", errno);
  }

 private:
  [[noreturn]] void fail(std::string_view what, int error) const {
    throw Error(ErrorKind::file, concat(name_, ": ", what, ": ", std::strerror(error)));
  }
  std::string name_;
  io::Descriptor descriptor_;
};

}  // namespace

struct Writer::State {
  State(Sink to, std::function<void()> sync, std::string called, const WriteOptions& with)
      : sink(std::move(to)),
        settle(std::move(sync)),
        name(std::move(called)),
        options(with),
        packer(with.compression, with.level) {
    if (with.chunk_size < 1) {
      throw Error(ErrorKind::value, concat(name, ": chunk_size is ", with.chunk_size, "; expected 1 or more"));
    }
    out += magic;
    append(out, Header{options.profile, options.library});
    send();
  }

  // ---- out

  // Sends the bytes since the last call to the sink.
  void send() {
    if (!is_mine()) {
      throw Error(ErrorKind::file, concat(name, ": another process opened it, before a fork; open another file here"));
    }
    if (options.crcs) crc = io::crc32(crc, bytes_of(out));
    const Span bytes = bytes_of(out);
    position += bytes.size();
    failed = true;
    sink(bytes);
    failed = false;
    out.clear();
  }
  // Only the process that opened the file writes it: a forked child has a copy of the unsent bytes and shares the position.
  bool is_mine() const { return getpid() == process; }
  void check_open() const {
    if (finished) throw Error(ErrorKind::value, concat(name, ": is finished; nothing more can be written"));
    if (failed) throw Error(ErrorKind::file, concat(name, ": could not be written before, and is not whole"));
  }
  // Where the next record begins.
  std::uint64_t here() const { return position + out.size(); }

  // ---- records

  // Adds a record to the chunk, or to the file if there are no chunks.
  template <class T>
  void add(const T& record) {
    append(options.chunks ? chunk : out, record);
  }
  void end_record() {
    constexpr std::size_t most = 1 << 18;
    if (options.chunks) {
      if (chunk.size() >= static_cast<std::size_t>(options.chunk_size)) end_chunk();
    } else if (out.size() >= most) {
      send();
    }
  }

  void declare(const Schema& schema) {
    if (schema.id == 0) throw Error(ErrorKind::value, concat(name, ": a schema has id 0; expected 1 to 65535"));
    const auto [found, is_new] = schemas.try_emplace(schema.id, schema);
    if (!is_new) {
      const Schema& old = found->second;
      if (old.name == schema.name && old.encoding == schema.encoding && old.data == schema.data) return;
      throw Error(ErrorKind::value, concat(name, ": schema ", schema.id, " is declared already, as ", quote(old.name)));
    }
    add(schema);
    ++statistics.schema_count;
    end_record();
  }

  void declare(const Channel& channel) {
    const auto [found, is_new] = channels.try_emplace(channel.id, channel);
    if (!is_new) {
      const Channel& old = found->second;
      if (old.schema_id == channel.schema_id && old.topic == channel.topic &&
          old.message_encoding == channel.message_encoding && old.metadata == channel.metadata) {
        return;
      }
      throw Error(ErrorKind::value,
                  concat(name, ": channel ", channel.id, " is declared already, as ", quote(old.topic)));
    }
    if (channel.schema_id != 0 && !schemas.contains(channel.schema_id)) {
      channels.erase(found);
      throw Error(ErrorKind::value, concat(name, ": channel ", channel.id, " names schema ", channel.schema_id,
                                           ", which is not declared"));
    }
    add(channel);
    ++statistics.channel_count;
    end_record();
  }

  void add(const Message& message) {
    if (!channels.contains(message.channel_id)) {
      throw Error(ErrorKind::value,
                  concat(name, ": a message names channel ", message.channel_id, ", which is not declared"));
    }
    const std::uint64_t time = message.log_time;
    if (options.chunks) {
      if (options.message_indexes) indexes[message.channel_id].emplace_back(time, chunk.size());
      chunk_start = chunk_messages == 0 ? time : std::min(chunk_start, time);
      chunk_end = chunk_messages == 0 ? time : std::max(chunk_end, time);
      ++chunk_messages;
    }
    append(options.chunks ? chunk : out, message);
    Statistics& s = statistics;
    s.message_start_time = s.message_count == 0 ? time : std::min(s.message_start_time, time);
    s.message_end_time = s.message_count == 0 ? time : std::max(s.message_end_time, time);
    ++s.message_count;
    ++counts[message.channel_id];
    end_record();
  }

  void add_attachment(const Attachment& given) {
    Attachment attachment = given;
    attachment.crc = 0;
    const std::uint64_t offset = here();
    const std::size_t begin = out.size();
    append(out, attachment);
    if (options.crcs) {
      const std::uint32_t sum =
          io::crc32(0, bytes_of(out).subspan(begin + head_size, out.size() - begin - head_size - 4));
      io::store(&out[out.size() - 4], sum);
    }
    attachment_indexes.push_back(
        {offset, here() - offset, given.log_time, given.create_time, given.data.size(), given.name, given.media_type});
    ++statistics.attachment_count;
    send();
  }

  void add_metadata(const Metadata& metadata) {
    const std::uint64_t offset = here();
    append(out, metadata);
    metadata_indexes.push_back({offset, here() - offset, metadata.name});
    ++statistics.metadata_count;
    send();
  }

  void end_chunk() {
    if (chunk.empty()) return;
    const Span records = bytes_of(chunk);
    Chunk record{chunk_start,
                 chunk_end,
                 chunk.size(),
                 options.crcs ? io::crc32(0, records) : 0,
                 std::string(packer.name()),
                 packer.pack(records)};
    ChunkIndex index{chunk_start, chunk_end, here(), 0, {}, 0, record.compression, record.records.size(), chunk.size()};
    append(out, record);
    index.chunk_length = here() - index.chunk_start_offset;
    for (auto& [channel, entries] : indexes) {
      if (entries.empty()) continue;
      index.message_index_offsets.emplace_back(channel, here());
      const std::uint64_t offset = here();
      append(out, MessageIndex{channel, entries});
      index.message_index_length += here() - offset;
      entries.clear();
    }
    if (options.chunk_indexes) chunk_indexes.push_back(std::move(index));
    ++statistics.chunk_count;
    chunk.clear();
    chunk_messages = chunk_start = chunk_end = 0;
    send();
  }

  // ---- the end

  // The records of one kind in the summary, and where they are.
  template <class Records, class Get>
  void group(bool wanted, const Records& records, std::vector<SummaryOffset>& groups, const Get& get) {
    if (!wanted || records.empty()) return;
    const std::uint64_t begin = here();
    for (const auto& entry : records) append(out, get(entry));
    groups.push_back({static_cast<std::uint8_t>(op_of<std::remove_cvref_t<decltype(get(*records.begin()))>>), begin,
                      here() - begin});
  }

  void finish() {
    if (finished) return;
    check_open();
    end_chunk();
    send();
    append(out, DataEnd{options.crcs ? crc : 0});
    send();

    crc = 0;
    const std::uint64_t begin = here();
    std::vector<SummaryOffset> groups;
    const auto second = [](const auto& entry) -> const auto& { return entry.second; };
    const auto self = [](const auto& entry) -> const auto& { return entry; };
    const std::vector<Statistics> all{take_statistics()};
    group(options.schemas, schemas, groups, second);
    group(options.channels, channels, groups, second);
    group(options.statistics, all, groups, self);
    group(options.chunk_indexes, chunk_indexes, groups, self);
    group(options.attachment_indexes, attachment_indexes, groups, self);
    group(options.metadata_indexes, metadata_indexes, groups, self);
    Footer footer{groups.empty() ? 0 : begin, 0, 0};
    if (options.summary_offsets && !groups.empty()) {
      footer.summary_offset_start = here();
      for (const SummaryOffset& offset : groups) append(out, offset);
    }
    append(out, footer);
    if (options.crcs) {
      const std::uint32_t sum = io::crc32(0, bytes_of(out).first(out.size() - 4));
      io::store(&out[out.size() - 4], sum);
    }
    out += magic;
    send();
    failed = true;
    if (settle) settle();
    failed = false;
    finished = true;
    sink = nullptr;  // closes the file
    settle = nullptr;
  }

  const Statistics& take_statistics() {
    statistics.channel_message_counts.assign(counts.begin(), counts.end());
    return statistics;
  }

  Sink sink;
  std::function<void()> settle;  // puts the file on the disk; empty: the sink is the caller's
  std::string name;
  const pid_t process = getpid();
  std::atomic<bool> is_used = false;
  WriteOptions options;
  Packer packer;
  std::string out;             // not yet sent
  std::uint64_t position = 0;  // bytes sent so far
  std::uint32_t crc = 0;       // of the bytes sent so far
  bool finished = false, failed = false;

  std::string chunk;  // its records
  std::uint64_t chunk_messages = 0, chunk_start = 0, chunk_end = 0;
  std::map<std::uint16_t, std::vector<std::pair<std::uint64_t, std::uint64_t>>> indexes;  // of the chunk, by channel

  std::map<std::uint16_t, Schema> schemas;
  std::map<std::uint16_t, Channel> channels;
  std::map<std::uint16_t, std::uint64_t> counts;
  Statistics statistics;
  std::vector<ChunkIndex> chunk_indexes;
  std::vector<AttachmentIndex> attachment_indexes;
  std::vector<MetadataIndex> metadata_indexes;
};

Writer::Writer(const std::filesystem::path& path, const WriteOptions& options) {
  const auto file = std::make_shared<const OutputFile>(path, O_WRONLY | O_CREAT | O_TRUNC);
  const auto settle = [file, path] {
    file->sync();
    const std::filesystem::path folder = path.has_parent_path() ? path.parent_path() : ".";
    OutputFile(folder, O_RDONLY | O_DIRECTORY).sync();
  };
  state_ = std::make_unique<State>([file](Span bytes) { file->write(bytes); }, settle, path.string(), options);
}
Writer::Writer(Sink sink, std::string name, const WriteOptions& options)
    : state_(std::make_unique<State>(std::move(sink), nullptr, std::move(name), options)) {}
Writer::Writer(Writer&&) noexcept = default;
Writer& Writer::operator=(Writer&& other) noexcept {
  Writer taken(std::move(other));
  std::swap(state_, taken.state_);
  return *this;  // `taken` finishes what this writer had open
}
Writer::~Writer() {
  if (!state_ || state_->failed || !state_->is_mine()) return;
  try {
    state_->finish();
  } catch (...) {  // only finish() can report it
  }
}

// Every call holds one. A second thread gets an error instead of mixing its bytes with those of the first.
class Writer::Use {
 public:
  explicit Use(State& state) : state_(state) {
    if (state.is_used.exchange(true, std::memory_order_acquire)) {
      throw Error(
          ErrorKind::value,
          concat(state.name, ": another thread is writing to it; use one thread at a time, or a lock of your own"));
    }
  }
  Use(const Use&) = delete;
  Use& operator=(const Use&) = delete;
  ~Use() { state_.is_used.store(false, std::memory_order_release); }

 private:
  State& state_;
};

namespace {

// The id of an equal record, or the first free one.
template <class T, class Same>
std::uint16_t find_id(const std::string& name, const std::map<std::uint16_t, T>& records, const Same& same) {
  std::uint32_t free = 1;
  for (const auto& [id, record] : records) {
    if (same(record)) return id;
    if (id == free) ++free;
  }
  if (free > 0xffff)
    throw Error(ErrorKind::value, concat(name, ": has 65535 ", name_of(op_of<T>), " records; there are no more ids"));
  return static_cast<std::uint16_t>(free);
}

}  // namespace

std::uint16_t Writer::add_schema(std::string_view name, std::string_view encoding, std::string_view data) {
  const Use use(*state_);
  state_->check_open();
  const std::uint16_t id = find_id(state_->name, state_->schemas, [&](const Schema& schema) {
    return schema.name == name && schema.encoding == encoding && schema.data == data;
  });
  state_->declare(Schema{id, std::string(name), std::string(encoding), std::string(data)});
  return id;
}

std::uint16_t Writer::add_channel(std::string_view topic, std::string_view message_encoding, std::uint16_t schema_id,
                                  const StringMap& metadata) {
  const Use use(*state_);
  state_->check_open();
  const std::uint16_t id = find_id(state_->name, state_->channels, [&](const Channel& channel) {
    return channel.topic == topic && channel.message_encoding == message_encoding && channel.schema_id == schema_id &&
           channel.metadata == metadata;
  });
  state_->declare(Channel{id, schema_id, std::string(topic), std::string(message_encoding), metadata});
  return id;
}

void Writer::write(const Schema& schema) {
  const Use use(*state_);
  state_->check_open();
  state_->declare(schema);
}
void Writer::write(const Channel& channel) {
  const Use use(*state_);
  state_->check_open();
  state_->declare(channel);
}
void Writer::write(const Message& message) {
  const Use use(*state_);
  state_->check_open();
  state_->add(message);
}
void Writer::write(const Attachment& attachment) {
  const Use use(*state_);
  state_->check_open();
  state_->add_attachment(attachment);
}
void Writer::write(const Metadata& metadata) {
  const Use use(*state_);
  state_->check_open();
  state_->add_metadata(metadata);
}
void Writer::flush() {
  const Use use(*state_);
  state_->check_open();
  state_->end_chunk();
  state_->send();
}
void Writer::finish() {
  const Use use(*state_);
  state_->finish();
}
const Statistics& Writer::statistics() const noexcept { return state_->statistics; }

}  // namespace robocache::mcap
