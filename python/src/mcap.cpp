// MCAP for robocache.mcap: records, messages in batches, a writer. Records are (type, fields) with the specification's
// names; strings that are not UTF-8 are shown, not refused.
#include "mcap.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>
#include <robocache/mcap.h>

#include <unordered_map>
#include <utility>

#include "errors.h"
#include "formats/mcap/records.h"
#include "mcap_message.h"
#include "source.h"
#include "turn.h"

namespace nb = nanobind;

namespace robocache::python {

namespace {

using mcap::Span;

nb::object bytes_object(Span bytes) { return nb::bytes(bytes.data(), bytes.size()); }

// ---- records as Python objects

nb::object value_of(std::uint64_t number) { return nb::int_(number); }
nb::object value_of(const std::string& text) { return text_from(text); }
nb::object value_of(Span bytes) { return bytes_object(bytes); }
nb::object value_of(const mcap::StringMap& map) {
  nb::dict dict;
  for (const auto& [key, value] : map) dict[text_from(key)] = text_from(value);
  return dict;
}
nb::object value_of(const mcap::ChannelMap& map) {
  nb::dict dict;
  for (const auto& [channel, value] : map) dict[nb::int_(channel)] = nb::int_(value);
  return dict;
}
nb::object value_of(const std::vector<std::pair<std::uint64_t, std::uint64_t>>& pairs) {
  nb::list list;
  for (const auto& [time, offset] : pairs) list.append(nb::make_tuple(time, offset));
  return list;
}

template <class T>
nb::dict fields_of(const T& record) {
  nb::dict fields;
  mcap::each_field(record, [&](const char* name, const auto& field) { fields[name] = value_of(field); });
  if constexpr (std::is_same_v<T, mcap::Attachment>) PyDict_DelItemString(fields.ptr(), "crc");  // it was checked
  if constexpr (std::is_same_v<T, mcap::Schema>) fields["data"] = bytes_object(mcap::bytes_of(record.data));
  return fields;
}

template <class Records>
nb::list list_of(const Records& records) {
  nb::list list;
  for (const auto& record : records) list.append(fields_of(record));
  return list;
}

nb::list texts_of(const std::vector<std::string>& texts, std::size_t from) {
  nb::list list;
  for (std::size_t k = std::min(from, texts.size()); k < texts.size(); ++k) list.append(text_from(texts[k]));
  return list;
}

// Calls make() without the GIL, because it reads the file.
template <class Make>
auto without_gil(const Make& make) {
  const nb::gil_scoped_release released;
  return make();
}

constexpr std::size_t most_bytes = 1 << 20;  // of data that a batch has before its last

template <class T>
void add_size(const T& record, std::size_t& bytes) {
  mcap::each_field(record, [&](const char*, const auto& field) {
    if constexpr (requires { field.size(); }) bytes += field.size();
  });
}

class Records {
 public:
  Records(nb::handle source, std::string name, bool unpack) : reader_(bytes_from(source, std::move(name)), unpack) {}

  // (type, fields) of the next records, few where they are large; none: that was all.
  nb::list take(std::size_t count) {
    const Turn turn(gate_, "mcap.records: this iterator");
    nb::list batch;
    std::size_t bytes = 0;
    for (std::size_t k = 0; k < count && bytes < most_bytes; ++k) {
      const mcap::Record* const record = without_gil([&] { return reader_.next(); });
      if (record == nullptr) break;
      const auto op = static_cast<mcap::Op>(record->index() + 1);
      const auto fields = std::visit([&](const auto& r) { return add_size(r, bytes), fields_of(r); }, *record);
      batch.append(nb::make_tuple(mcap::name_of(op).data(), fields));
    }
    return batch;
  }
  nb::list warnings(std::size_t from) const { return texts_of(reader_.warnings(), from); }

 private:
  mcap::RecordReader reader_;
  Gate gate_;
};

// ---- messages

class Reader {
 public:
  Reader(nb::handle source, std::string name, nb::object make_schema, nb::object make_channel)
      : make_schema_(std::move(make_schema)),
        make_channel_(std::move(make_channel)),
        reader_(open(bytes_from(source, std::move(name)))) {}

  mcap::Reader& reader() { return reader_; }

  // The objects of a channel, made once.
  const ChannelObjects& channel(std::uint16_t id) {
    const auto found = channels_.find(id);
    if (found != channels_.end()) return found->second;
    const mcap::Channel& channel = *reader_.channel(id);
    const mcap::Schema* const schema = reader_.schema(channel);
    ChannelObjects objects;
    objects.topic = text_from(channel.topic);
    objects.schema = schema == nullptr ? nb::none() : schema_object(*schema);
    objects.channel = make_channel_(id, objects.topic, text_from(channel.message_encoding), value_of(channel.metadata),
                                    objects.schema);
    return channels_.emplace(id, std::move(objects)).first->second;
  }
  nb::object schema_object(const mcap::Schema& schema) {
    const auto found = schemas_.find(schema.id);
    if (found != schemas_.end()) return found->second;
    nb::object made = make_schema_(schema.id, text_from(schema.name), text_from(schema.encoding),
                                   bytes_object(mcap::bytes_of(schema.data)));
    return schemas_.emplace(schema.id, std::move(made)).first->second;
  }

  nb::dict channels() {
    nb::dict dict;
    for (const mcap::Channel* const known : reader_.all_channels()) {
      dict[nb::int_(known->id)] = channel(known->id).channel;
    }
    return dict;
  }
  nb::dict schemas() {
    nb::dict dict;
    for (const mcap::Schema* const schema : reader_.all_schemas()) dict[nb::int_(schema->id)] = schema_object(*schema);
    return dict;
  }
  nb::object statistics() const {
    return reader_.statistics() ? nb::object(fields_of(*reader_.statistics())) : nb::none();
  }
  nb::dict header() const { return fields_of(reader_.header()); }
  nb::list chunk_indexes() const { return list_of(reader_.chunk_indexes()); }
  nb::list attachment_indexes() const { return list_of(reader_.attachment_indexes()); }
  nb::list metadata_indexes() const { return list_of(reader_.metadata_indexes()); }
  nb::list message_indexes(std::size_t chunk) {
    if (chunk >= reader_.chunk_indexes().size()) throw nb::index_error("there is no such chunk");
    return list_of(without_gil([&] { return reader_.message_indexes(reader_.chunk_indexes()[chunk]); }));
  }
  nb::dict attachment(std::size_t place) {
    const Turn turn(attachments_, "mcap.Reader: its attachment()");
    if (place >= reader_.attachment_indexes().size()) throw nb::index_error("there is no such attachment");
    return fields_of(without_gil([&] { return reader_.attachment(reader_.attachment_indexes()[place]); }));
  }
  nb::dict metadata(std::size_t place) {
    if (place >= reader_.metadata_indexes().size()) throw nb::index_error("there is no such metadata");
    return fields_of(without_gil([&] { return reader_.metadata(reader_.metadata_indexes()[place]); }));
  }
  bool is_indexed() const { return reader_.is_indexed(); }
  nb::list warnings(std::size_t from) const { return texts_of(reader_.warnings(), from); }

 private:
  static mcap::Reader open(Bytes bytes) {
    const nb::gil_scoped_release released;
    return mcap::Reader(std::move(bytes));
  }

  nb::object make_schema_, make_channel_;
  mcap::Reader reader_;
  std::unordered_map<std::uint16_t, ChannelObjects> channels_;
  std::unordered_map<std::uint16_t, nb::object> schemas_;
  Gate attachments_;
};

class Messages {
 public:
  Messages(Reader& reader, std::optional<std::vector<std::string>> topics, std::uint64_t start,
           std::optional<std::uint64_t> end, bool in_order)
      : reader_(reader),
        messages_(reader.reader().messages(
            {std::move(topics), start, end, in_order ? mcap::Order::log_time : mcap::Order::file})) {}

  // The next messages: at most `count`, and few where they are large. None: that was all.
  nb::list take(std::size_t count) {
    const Turn turn(gate_, "mcap.messages: this iterator");
    nb::list batch;
    std::size_t bytes = 0;
    for (std::size_t k = 0; k < count && bytes < most_bytes; ++k) {
      const mcap::Message* const message =
          messages_.ready() ? messages_.next() : without_gil([&] { return messages_.next(); });
      if (message == nullptr) break;
      if (!channel_ || channel_id_ != message->channel_id) {
        channel_ = &reader_.channel(message->channel_id);
        channel_id_ = message->channel_id;
      }
      batch.append(make_message(*message, *channel_));
      bytes += message->data.size();
    }
    return batch;
  }

 private:
  Reader& reader_;
  mcap::Messages messages_;
  Gate gate_;
  const ChannelObjects* channel_ = nullptr;  // of the message before
  std::uint16_t channel_id_ = 0;
};

// ---- writing

struct View {
  explicit View(nb::handle object) {
    if (PyObject_GetBuffer(object.ptr(), &buffer, PyBUF_SIMPLE) != 0) throw nb::python_error();
  }
  View(const View&) = delete;
  View& operator=(const View&) = delete;
  ~View() { PyBuffer_Release(&buffer); }
  Span bytes() const { return {static_cast<const std::byte*>(buffer.buf), static_cast<std::size_t>(buffer.len)}; }
  Py_buffer buffer{};
};

mcap::StringMap map_from(const nb::dict& dict) {
  mcap::StringMap map;
  for (const auto& [key, value] : dict) map.emplace_back(nb::cast<std::string>(key), nb::cast<std::string>(value));
  return map;
}

mcap::WriteOptions options_from(const nb::dict& given) {
  mcap::WriteOptions options;
  const auto compression = nb::cast<std::string>(given["compression"]);
  options.compression = compression == "zstd"  ? mcap::Compression::zstd
                        : compression == "lz4" ? mcap::Compression::lz4
                                               : mcap::Compression::none;
  options.profile = nb::cast<std::string>(given["profile"]);
  options.library = nb::cast<std::string>(given["library"]);
  options.level = nb::cast<int>(given["level"]);
  options.chunk_size = nb::cast<std::int64_t>(given["chunk_size"]);
  const std::pair<const char*, bool*> switches[] = {{"chunks", &options.chunks},
                                                    {"message_indexes", &options.message_indexes},
                                                    {"schemas", &options.schemas},
                                                    {"channels", &options.channels},
                                                    {"statistics", &options.statistics},
                                                    {"chunk_indexes", &options.chunk_indexes},
                                                    {"attachment_indexes", &options.attachment_indexes},
                                                    {"metadata_indexes", &options.metadata_indexes},
                                                    {"summary_offsets", &options.summary_offsets},
                                                    {"crcs", &options.crcs}};
  for (const auto& [name, value] : switches) *value = nb::cast<bool>(given[name]);
  return options;
}

class Writer {
 public:
  // `to`: the bytes of a path, or a function that takes bytes.
  Writer(const nb::object& to, const std::string& name, const nb::dict& options)
      : writer_(open(to, name, options_from(options))) {}

  std::uint16_t add_schema(const std::string& name, const std::string& encoding, nb::handle data) {
    const Turn turn(gate_, turn_of);
    return writer_.add_schema(name, encoding, mcap::text_of(View(data).bytes()));
  }
  std::uint16_t add_channel(const std::string& topic, const std::string& encoding, std::uint16_t schema,
                            const nb::dict& metadata) {
    const Turn turn(gate_, turn_of);
    return writer_.add_channel(topic, encoding, schema, map_from(metadata));
  }
  void declare_schema(std::uint16_t id, std::string name, std::string encoding, nb::handle data) {
    const Turn turn(gate_, turn_of);
    writer_.write(
        mcap::Schema{id, std::move(name), std::move(encoding), std::string(mcap::text_of(View(data).bytes()))});
  }
  void declare_channel(std::uint16_t id, std::uint16_t schema, std::string topic, std::string encoding,
                       const nb::dict& metadata) {
    const Turn turn(gate_, turn_of);
    writer_.write(mcap::Channel{id, schema, std::move(topic), std::move(encoding), map_from(metadata)});
  }
  void write(std::uint16_t channel, nb::handle data, std::uint64_t log_time, std::uint64_t publish_time,
             std::uint32_t sequence) {
    const View view(data);
    const Turn turn(gate_, turn_of);
    writer_.write(mcap::Message{channel, sequence, log_time, publish_time, view.bytes()});
  }
  void attach(std::string name, std::string media_type, nb::handle data, std::uint64_t log_time,
              std::uint64_t create_time) {
    const View view(data);
    const Turn turn(gate_, turn_of);
    writer_.write(mcap::Attachment{log_time, create_time, std::move(name), std::move(media_type), view.bytes(), 0});
  }
  void add_metadata(std::string name, const nb::dict& metadata) {
    const Turn turn(gate_, turn_of);
    writer_.write(mcap::Metadata{std::move(name), map_from(metadata)});
  }
  void flush() {
    const Turn turn(gate_, turn_of);
    writer_.flush();
  }
  void finish() {
    const Turn turn(gate_, turn_of);
    writer_.finish();
  }
  nb::dict statistics() {
    const Turn turn(gate_, turn_of);
    return fields_of(writer_.statistics());
  }

 private:
  static mcap::Writer open(const nb::object& to, const std::string& name, const mcap::WriteOptions& options) {
    if (PyBytes_Check(to.ptr()) != 0) {
      const auto path = nb::borrow<nb::bytes>(to);
      return mcap::Writer(std::filesystem::path(std::string(path.c_str(), path.size())), options);
    }
    return mcap::Writer([to](Span bytes) { to(bytes_object(bytes)); }, name, options);
  }
  static constexpr const char* turn_of = "mcap.Writer: this writer";
  mcap::Writer writer_;
  Gate gate_;
};

}  // namespace

void bind_mcap(nb::module_& m) {
  bind_mcap_message(m);
  nb::class_<Records>(m, "McapRecords")
      .def(nb::init<nb::handle, std::string, bool>(), nb::arg("source"), nb::arg("name"), nb::arg("unpack"))
      .def("take", &Records::take, nb::arg("count"),
           nb::sig("def take(self, count: int) -> list[tuple[str, dict[str, typing.Any]]]"))
      .def("warnings", &Records::warnings, nb::arg("start"), nb::sig("def warnings(self, start: int) -> list[str]"));
  nb::class_<Reader>(m, "McapReader")
      .def(nb::init<nb::handle, std::string, nb::object, nb::object>(), nb::arg("source"), nb::arg("name"),
           nb::arg("make_schema"), nb::arg("make_channel"))
      .def_prop_ro("header", &Reader::header, nb::sig("def header(self) -> dict[str, str]"))
      .def_prop_ro("is_indexed", &Reader::is_indexed)
      .def("channels", &Reader::channels, nb::sig("def channels(self) -> dict[int, typing.Any]"))
      .def("schemas", &Reader::schemas, nb::sig("def schemas(self) -> dict[int, typing.Any]"))
      .def("statistics", &Reader::statistics, nb::sig("def statistics(self) -> dict[str, typing.Any] | None"))
      .def("chunk_indexes", &Reader::chunk_indexes, nb::sig("def chunk_indexes(self) -> list[dict[str, typing.Any]]"))
      .def("attachment_indexes", &Reader::attachment_indexes,
           nb::sig("def attachment_indexes(self) -> list[dict[str, typing.Any]]"))
      .def("metadata_indexes", &Reader::metadata_indexes,
           nb::sig("def metadata_indexes(self) -> list[dict[str, typing.Any]]"))
      .def("message_indexes", &Reader::message_indexes, nb::arg("chunk"),
           nb::sig("def message_indexes(self, chunk: int) -> list[dict[str, typing.Any]]"))
      .def("attachment", &Reader::attachment, nb::arg("place"),
           nb::sig("def attachment(self, place: int) -> dict[str, typing.Any]"))
      .def("metadata", &Reader::metadata, nb::arg("place"),
           nb::sig("def metadata(self, place: int) -> dict[str, typing.Any]"))
      .def("warnings", &Reader::warnings, nb::arg("start"), nb::sig("def warnings(self, start: int) -> list[str]"));
  nb::class_<Messages>(m, "McapMessages")
      .def(nb::init<Reader&, std::optional<std::vector<std::string>>, std::uint64_t, std::optional<std::uint64_t>,
                    bool>(),
           nb::keep_alive<1, 2>(), nb::arg("reader"), nb::arg("topics").none(), nb::arg("start"), nb::arg("end").none(),
           nb::arg("in_order"))
      .def("take", &Messages::take, nb::arg("count"), nb::sig("def take(self, count: int) -> list[typing.Any]"));
  nb::class_<Writer>(m, "McapWriter")
      .def(nb::init<const nb::object&, const std::string&, const nb::dict&>(), nb::arg("to"), nb::arg("name"),
           nb::arg("options"),
           nb::sig("def __init__(self, to: object, name: str, options: dict[str, typing.Any]) -> None"))
      .def("add_schema", &Writer::add_schema, nb::arg("name"), nb::arg("encoding"), nb::arg("data"))
      .def("add_channel", &Writer::add_channel, nb::arg("topic"), nb::arg("message_encoding"), nb::arg("schema_id"),
           nb::arg("metadata"),
           nb::sig("def add_channel(self, topic: str, message_encoding: str, schema_id: int, "
                   "metadata: dict[str, str]) -> int"))
      .def("declare_schema", &Writer::declare_schema, nb::arg("id"), nb::arg("name"), nb::arg("encoding"),
           nb::arg("data"))
      .def("declare_channel", &Writer::declare_channel, nb::arg("id"), nb::arg("schema_id"), nb::arg("topic"),
           nb::arg("message_encoding"), nb::arg("metadata"),
           nb::sig("def declare_channel(self, id: int, schema_id: int, topic: str, message_encoding: str, "
                   "metadata: dict[str, str]) -> None"))
      .def("write", &Writer::write, nb::arg("channel_id"), nb::arg("data"), nb::arg("log_time"),
           nb::arg("publish_time"), nb::arg("sequence"))
      .def("attach", &Writer::attach, nb::arg("name"), nb::arg("media_type"), nb::arg("data"), nb::arg("log_time"),
           nb::arg("create_time"))
      .def("add_metadata", &Writer::add_metadata, nb::arg("name"), nb::arg("metadata"),
           nb::sig("def add_metadata(self, name: str, metadata: dict[str, str]) -> None"))
      .def("flush", &Writer::flush)
      .def("finish", &Writer::finish)
      .def("statistics", &Writer::statistics, nb::sig("def statistics(self) -> dict[str, typing.Any]"));
}

}  // namespace robocache::python
