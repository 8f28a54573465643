// Messages of a recording into streams, for robocache/_recordings/recording.py.
//
//   _core.Decoder(name: str, encoding: str, text: bytes, message_encoding: str, topic: str, time: str = "auto")
//       A topic: its schema (name "sensor_msgs/msg/Imu", encoding "ros2msg" | "ros2idl" | "jsonschema" | "", its text),
//       the encoding of its messages ("cdr" | "json"), time "auto" | "stamp" | "log" | "publish". Raises FileError where
//       the encoding is unknown or the schema cannot be understood.
//     .add(messages: list[tuple[bytes, int, int]]) -> tuple[int, str | None]
//       (data, log_time, publish_time) each. How many were broken and left out, and the sentence of the first of them.
//     .streams: list[info]                                  those that the schema defines; [] if only messages show them
//     .survey(messages, survey: ClockSurvey) -> None        their stamps; broken ones are left out
//     .bytes: int                                           what take() would hand out; call it at 1 to 4 MiB
//     .take() -> list[Piece]
//
//   Piece = (info, values, times, arrivals, lengths)        NumPy arrays that own their memory
//       values [N, *shape]; ragged [rows, *shape]; times, arrivals int64 [N]; lengths int64 [N] where ragged, else None
//   info  = (name: str, type: str, dtype: str, shape: tuple[int, ...], channels: tuple[str, ...],
//            methods: tuple[tuple[str, int, int], ...], ragged: bool, metadata: dict[str, str])
//       methods: (method, begin, end) over the flattened shape, all channels once; (): align's default.
//       Channels may be added from one piece of a stream to the next (earlier pieces: NaN there), never taken away.
//       metadata["time"]: "stamp", "log", "publish", or "varies": what "auto" chose. Pieces share their info.
//
//   _core.McapRecording(source: object, name: str, time: str = "auto")
//       source: made by robocache._recordings.bytes.source_of (source.h). Reads the summary, or the records if there is none,
//       but no message.
//     .summary() -> dict:  "topics": list[tuple[topic, type, message_encoding, schema_encoding, count | None]],
//                          "messages": int | None, "start": int | None, "end": int | None (log times, ns),
//                          "warnings": list[str], "latched": list[str] (topics)
//     .survey(survey: ClockSurvey, at_a_glance: bool) -> None
//     .pieces(topics: list[str] | None = None, start: int = 0, end: int | None = None) -> Iterator[Piece]
//                                                           one pass, bounded memory; pieces of 1 to 4 MiB; log times
//                                                           in [start, end), by the index where there is one
//                                                           with .problems: list[tuple[topic, count, sentence]]: what
//                                                           this pass found: topics that are skipped (count: 0) and
//                                                           broken messages (how many, the first one's sentence).
//                                                           Passes may run in several threads at once; threads that
//                                                           share one wait for each other
#include "messages.h"

#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>
#include <robocache/formats.h>

#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/names.h"
#include "errors.h"
#include "numpy.h"
#include "source.h"
#include "turn.h"

namespace nb = nanobind;

namespace robocache::python {

namespace {

TimeSource parse_time(const std::string& name) {
  if (name == "auto") return TimeSource::automatic;
  if (name == "stamp") return TimeSource::stamp;
  if (name == "log") return TimeSource::log;
  if (name == "publish") return TimeSource::publish;
  throw Error(ErrorKind::value, "time is \"" + name + "\"; expected \"auto\", \"stamp\", \"log\" or \"publish\"");
}

nb::object take(std::vector<std::int64_t>&& values) {
  auto* const memory = new std::vector<std::int64_t>(std::move(values));
  const nb::capsule owner(memory, [](void* p) noexcept { delete static_cast<std::vector<std::int64_t>*>(p); });
  const std::size_t shape[] = {memory->size()};
  return nb::cast(nb::ndarray<nb::numpy, std::int64_t>(memory->data(), 1, shape, owner));
}

template <class Items, class F>
nb::tuple tuple_of(const Items& items, const F& object) {
  nb::list list;
  for (const auto& item : items) list.append(object(item));
  return nb::tuple(list);
}

nb::tuple info_of(const StreamInfo& info) {
  return nb::make_tuple(
      text_from(info.name), text_from(info.type), name_of(info.dtype),
      tuple_of(info.shape, [](std::int64_t size) { return nb::int_(size); }),
      tuple_of(info.channels, [](const std::string& name) { return text_from(name); }),
      tuple_of(info.methods,
               [](const MethodRange& range) { return nb::make_tuple(word_of(range.method), range.begin, range.end); }),
      info.is_ragged, dict_of(info.metadata));
}

// The StreamInfo of nearly all batches of a stream is the same object, so its tuple is made once.
class StreamInfoTuples {
 public:
  nb::tuple of(const std::shared_ptr<const StreamInfo>& info) {
    auto& [known, tuple] = by_name_[info->name];
    if (known != info) {
      tuple = info_of(*info);
      known = info;
    }
    return tuple;
  }

 private:
  std::unordered_map<std::string, std::pair<std::shared_ptr<const StreamInfo>, nb::tuple>> by_name_{};
};

nb::tuple piece_of(StreamBatch&& batch, StreamInfoTuples& infos) {
  return nb::make_tuple(infos.of(batch.info), numpy_of(std::move(batch.values)), take(std::move(batch.times)),
                        take(std::move(batch.arrivals)),
                        batch.info->is_ragged ? take(std::move(batch.lengths)) : nb::none());
}

struct TopicDecoder {
  Decoder decoder;
  StreamInfoTuples infos{};
};

TopicDecoder make_decoder(const std::string& name, const std::string& encoding, const nb::bytes& text,
                          const std::string& message_encoding, const std::string& topic, const std::string& time) {
  const Schema schema{name, encoding, std::string(text.c_str(), text.size())};
  return {.decoder = {schema, message_encoding, topic, parse_time(time)}};
}

// MCAP counts unsigned: what an int64 cannot hold is past every time that the decoder takes, and it says so.
std::int64_t saturated(PyObject* number) {
  int overflow = 0;
  const std::int64_t value = PyLong_AsLongLongAndOverflow(number, &overflow);
  if (overflow == 0) return value;
  return overflow > 0 ? std::numeric_limits<std::int64_t>::max() : std::numeric_limits<std::int64_t>::min();
}

// Calls `call` with (data, log time, publish time) of each message. If it throws an Error(file), calls `broken` with it.
template <class F, class G>
void for_each(const nb::list& messages, const F& call, const G& broken) {
  const Py_ssize_t count = PyList_Size(messages.ptr());
  for (Py_ssize_t k = 0; k < count; ++k) {
    PyObject* const message = PyList_GetItem(messages.ptr(), k);
    if (message == nullptr || PyTuple_Check(message) == 0 || PyTuple_Size(message) != 3) {
      PyErr_Clear();
      throw Error(ErrorKind::type, "Decoder.add: expected a list of (bytes, log time, publish time)");
    }
    char* data = nullptr;
    Py_ssize_t size = 0;
    if (PyBytes_AsStringAndSize(PyTuple_GetItem(message, 0), &data, &size) != 0) throw nb::python_error();
    const std::int64_t log = saturated(PyTuple_GetItem(message, 1));
    const std::int64_t publish = saturated(PyTuple_GetItem(message, 2));
    if (PyErr_Occurred() != nullptr) throw nb::python_error();
    try {
      call(std::span(reinterpret_cast<const std::byte*>(data), static_cast<std::size_t>(size)), log, publish);
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::file) throw;
      broken(error);
    }
  }
}

nb::tuple add(TopicDecoder& topic, const nb::list& messages) {
  std::int64_t broken = 0;
  nb::object first = nb::none();
  for_each(
      messages,
      [&](std::span<const std::byte> data, std::int64_t log, std::int64_t publish) {
        topic.decoder.add(data, log, publish);
      },
      [&](const Error& error) {
        if (broken++ == 0) first = text_from(error.what());
      });
  return nb::make_tuple(broken, first);
}

void survey(TopicDecoder& topic, const nb::list& messages, ClockSurvey& to) {
  for_each(
      messages,
      [&](std::span<const std::byte> data, std::int64_t log, std::int64_t) { topic.decoder.survey(data, log, to); },
      [](const Error&) {});
}

nb::list take_pieces(TopicDecoder& topic) {
  nb::list pieces;
  for (StreamBatch& batch : topic.decoder.take()) pieces.append(piece_of(std::move(batch), topic.infos));
  return pieces;
}

// One pass over a recording, and what it found.
struct Pieces {
  nb::object owner;  // of the recording
  std::optional<McapBatches> batches;
  std::vector<Problem> problems{};
  StreamInfoTuples infos{};
  Gate gate{};
};

nb::dict summary_of(const McapRecording& recording) {
  const Summary summary = recording.summary();
  nb::dict result;
  nb::list topics, warnings;
  for (const Topic& topic : summary.topics) {
    topics.append(nb::make_tuple(text_from(topic.name), text_from(topic.type), text_from(topic.message_encoding),
                                 text_from(topic.schema_encoding), nb::cast(topic.messages)));
  }
  for (const std::string& warning : summary.warnings) warnings.append(text_from(warning));
  result["topics"] = topics;
  result["messages"] = nb::cast(summary.messages);
  result["start"] = nb::cast(summary.start);
  result["end"] = nb::cast(summary.end);
  result["warnings"] = warnings;
  nb::list latched;
  for (const std::string& topic : summary.latched) latched.append(text_from(topic));
  result["latched"] = latched;
  return result;
}

nb::list problems_of(const std::vector<Problem>& problems) {
  nb::list list;
  for (const Problem& problem : problems) {
    list.append(nb::make_tuple(text_from(problem.topic), problem.messages, text_from(problem.sentence)));
  }
  return list;
}

nb::object next_piece(Pieces& pieces) {
  const Turn turn(pieces.gate, "this pass over a recording");
  std::optional<StreamBatch> batch;
  if (pieces.batches) {
    const nb::gil_scoped_release released;
    batch = pieces.batches->next();
  }
  if (pieces.batches) pieces.problems = pieces.batches->problems();
  if (!batch) {
    pieces.batches.reset();
    throw nb::stop_iteration();
  }
  return piece_of(std::move(*batch), pieces.infos);
}

}  // namespace

nb::dict dict_of(const Metadata& metadata) {
  nb::dict made;
  for (const auto& [key, value] : metadata) made[text_from(key)] = text_from(value);
  return made;
}

void bind_messages(nb::module_& m) {
  m.def("is_transient_local", [](const std::string& profiles) { return is_transient_local(profiles); });

  nb::class_<TopicDecoder>(m, "Decoder", "The messages of one topic into pieces of streams.")
      .def(nb::new_(&make_decoder), nb::arg("name"), nb::arg("encoding"), nb::arg("text"), nb::arg("message_encoding"),
           nb::arg("topic"), nb::arg("time") = "auto")
      .def("add", &add, nb::arg("messages"),
           nb::sig("def add(self, messages: list[tuple[bytes, int, int]]) -> tuple[int, str | None]"))
      .def("survey", &survey, nb::arg("messages"), nb::arg("to"),
           nb::sig("def survey(self, messages: list[tuple[bytes, int, int]], to: ClockSurvey) -> None"))
      .def_prop_ro(
          "streams",
          [](const TopicDecoder& topic) {
            nb::list infos;
            for (const StreamInfo& info : topic.decoder.streams()) infos.append(info_of(info));
            return infos;
          },
          nb::sig("def streams(self) -> list[typing.Any]"))
      .def_prop_ro("bytes", [](const TopicDecoder& topic) { return topic.decoder.bytes(); })
      .def("take", &take_pieces, nb::sig("def take(self) -> list[typing.Any]"));

  nb::class_<Pieces>(m, "Pieces", "One pass over a recording.")
      .def(
          "__iter__", [](nb::handle self) { return nb::borrow(self); },
          nb::sig("def __iter__(self) -> typing.Iterator[typing.Any]"))
      .def("__next__", &next_piece, nb::sig("def __next__(self) -> typing.Any"))
      .def_prop_ro(
          "problems",
          [](Pieces& pieces) {
            const Turn turn(pieces.gate, "this pass over a recording");
            return problems_of(pieces.problems);
          },
          nb::sig("def problems(self) -> list[tuple[str, int, str]]"));

  nb::class_<McapRecording>(m, "McapRecording", "An MCAP file as streams.")
      .def(nb::new_([](nb::handle source, const std::string& name, const std::string& time) {
             Bytes bytes = bytes_from(source, name);
             const TimeSource chosen = parse_time(time);
             const nb::gil_scoped_release released;
             return new McapRecording(std::move(bytes), chosen);
           }),
           nb::arg("source"), nb::arg("name"), nb::arg("time") = "auto")
      .def("summary", &summary_of, nb::sig("def summary(self) -> dict[str, typing.Any]"))
      .def(
          "survey",
          [](McapRecording& recording, ClockSurvey& to, bool at_a_glance) {
            const nb::gil_scoped_release released;
            recording.survey(to, at_a_glance);
          },
          nb::arg("to"), nb::arg("at_a_glance") = false)
      .def(
          "pieces",
          [](nb::handle self, std::optional<std::vector<std::string>> topics, std::uint64_t start,
             std::optional<std::uint64_t> end) {
            auto* const recording = nb::cast<McapRecording*>(self);
            return new Pieces{nb::borrow(self), recording->batches(std::move(topics), start, end)};
          },
          nb::arg("topics").none() = nb::none(), nb::arg("start") = 0, nb::arg("end").none() = nb::none(),
          nb::rv_policy::take_ownership)
      .def(
          "discover",
          [](McapRecording& recording, const std::vector<std::string>& topics) {
            Discovery found;
            {
              const nb::gil_scoped_release released;
              found = recording.discover(topics);
            }
            nb::dict streams;
            for (const auto& [topic, names] : found.streams) {
              nb::list list;
              for (const std::string& name : names) list.append(text_from(name));
              streams[text_from(topic)] = list;
            }
            return nb::make_tuple(streams, problems_of(found.problems));
          },
          nb::arg("topics"),
          nb::sig("def discover(self, topics: list[str]) -> tuple[dict[str, list[str]], list[tuple[str, int, str]]]"));
}

}  // namespace robocache::python
