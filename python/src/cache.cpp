// Caches: batches of any library's arrays go in, NumPy views of the mapped files come out.
#include "cache.h"

#include <nanobind/ndarray.h>
#include <nanobind/stl/array.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>
#include <robocache/cache.h>

#include <algorithm>
#include <array>
#include <memory>
#include <string>
#include <utility>

#include "argument.h"
#include "cache/episode_table.h"
#include "core/names.h"
#include "core/parallel.h"
#include "errors.h"
#include "messages.h"
#include "numpy.h"
#include "options.h"
#include "statistics/steps.h"
#include "tensor.h"

namespace nb = nanobind;

namespace robocache::python {

namespace {

using Integers = nb::ndarray<const std::int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Paths = std::vector<std::filesystem::path>;

std::string string_of(const nb::bytes& bytes) { return {bytes.c_str(), bytes.size()}; }

std::string utf8_of(nb::handle text) {
  Py_ssize_t length = 0;
  const char* const bytes = PyUnicode_AsUTF8AndSize(text.ptr(), &length);
  if (bytes == nullptr) throw nb::python_error();
  return {bytes, static_cast<std::size_t>(length)};
}

Paths paths_of(const nb::list& list) {
  Paths paths;
  for (const nb::handle item : list) paths.emplace_back(string_of(nb::cast<nb::bytes>(item)));
  return paths;
}

std::span<const std::int64_t> span_of(const Integers& numbers) { return {numbers.data(), numbers.size()}; }

// Calls f without the GIL.
template <class F>
auto unlocked(const F& f) {
  const nb::gil_scoped_release released;
  return f();
}

// ---- Writing

void append_batch(CacheWriter& writer, const nb::str& name, const nb::str& type, nb::handle values,
                  const Integers& times, const Integers& arrivals, const Argument& lengths, const nb::tuple& channels,
                  const Argument& method, bool ragged, const nb::dict& metadata, std::int64_t latency) {
  StreamInfo info;
  info.name = utf8_of(name);
  const Where where{"CacheWriter", info.name, 0};
  info.type = utf8_of(type);
  info.is_ragged = ragged;
  for (const nb::handle channel : channels) info.channels.push_back(utf8_of(channel));
  for (const auto [key, value] : metadata) info.metadata[utf8_of(key)] = utf8_of(value);
  Arrays arrays{BackendChoice{}};
  TensorView view;
  if (!arrays.view(where, "values", values.ptr(), Role::integers, view)) {
    fail(ErrorKind::type, where, "values have no memory of their own; a cache takes arrays in host memory");
  }
  if (view.rank < 1) fail(ErrorKind::value, where, "values have no dimension; expected [N, ...]");
  info.dtype = view.dtype;
  info.shape.assign(view.shape.begin() + 1, view.shape.begin() + view.rank);
  const Methods methods = parse_methods(where, method.ptr(), channels.size() == 0 ? Py_None : channels.ptr());
  info.methods = methods.ranges;
  if (methods.whole) {
    std::int64_t count = 1;
    for (const std::int64_t size : info.shape) count *= size;
    if (count > 0) info.methods = {{*methods.whole, 0, count}};
  }
  Integers rows;
  if (!lengths.is_none()) rows = nb::cast<Integers>(lengths);
  unlocked([&] {
    writer.append(info, view, span_of(times), span_of(arrivals),
                  lengths.is_none() ? std::span<const std::int64_t>() : span_of(rows), latency);
  });
}

// ---- Reading

nb::object view_of(const TensorView& view, const std::shared_ptr<const void>& memory) {
  if (!view) return nb::none();
  auto* const held = new std::shared_ptr<const void>(memory);
  const nb::capsule owner(held, [](void* p) noexcept { delete static_cast<std::shared_ptr<const void>*>(p); });
  // NumPy knows no bfloat16: its bits, which robocache._cache.cache gives their name.
  const dlpack::DataType type = dlpack_type(view.dtype == DType::bf16 ? DType::u16 : view.dtype);
  std::vector<std::size_t> shape;
  for (int k = 0; k < view.rank; ++k)
    shape.push_back(static_cast<std::size_t>(view.shape[static_cast<std::size_t>(k)]));
  return nb::cast(nb::ndarray<nb::numpy, nb::ro>(view.data, shape.size(), shape.data(), owner, nullptr,
                                                 {type.code, type.bits, type.lanes}));
}

nb::tuple arrays_of(const CachedStream& stream) {
  return nb::make_tuple(view_of(stream.values, stream.memory), view_of(stream.times, stream.memory),
                        view_of(stream.arrivals, stream.memory), view_of(stream.inner, stream.memory),
                        view_of(stream.offsets, stream.memory));
}

template <class Items>
const auto& item_of(const Items& items, std::int64_t k) {
  if (k < 0 || k >= static_cast<std::int64_t>(items.size())) throw nb::index_error();
  return items[static_cast<std::size_t>(k)];
}

nb::tuple describe_stream(const Cache& cache, std::int64_t k) {
  const StreamInfo& info = item_of(cache.streams(), k);
  nb::list shape, channels, methods;
  for (const std::int64_t size : info.shape) shape.append(size);
  for (const std::string& channel : info.channels) channels.append(text_from(channel));
  for (const MethodRange& range : info.methods) {
    methods.append(nb::make_tuple(word_of(range.method), range.begin, range.end));
  }
  return nb::make_tuple(text_from(info.name), text_from(info.type), name_of(info.dtype), nb::tuple(shape),
                        nb::tuple(channels), methods, info.is_ragged, dict_of(info.metadata));
}

nb::tuple describe_episode(const Cache& cache, std::int64_t k) {
  const CachedEpisode& episode = item_of(cache.episodes(), k);
  nb::list streams;
  for (const EpisodeStream& entry : episode.streams) {
    streams.append(nb::make_tuple(entry.stream, entry.samples, entry.backward, entry.latency));
  }
  return nb::make_tuple(text_from(episode.name), text_from(episode.task), episode.source, episode.number, episode.start,
                        episode.end, episode.group, episode.row, streams);
}

nb::dict metadata_of(const Cache& cache, std::int64_t episode, std::int64_t stream) {
  const auto& streams = item_of(cache.episodes(), episode).streams;
  const auto found = std::ranges::find(streams, stream, &EpisodeStream::stream);
  if (found == streams.end()) throw nb::index_error();
  return dict_of(*found->metadata);
}

nb::tuple describe_source(const Cache& cache, std::int64_t k) {
  const CacheSource& source = item_of(cache.sources(), k);
  return nb::make_tuple(text_from(source.path), source.size, source.mtime, text_from(source.hash),
                        text_from(source.options), source.is_complete);
}

nb::tuple statistics_of(const Cache& cache, std::int64_t stream, const std::vector<std::int64_t>& episodes,
                        const std::vector<double>& quantiles) {
  StreamStatistics found = unlocked([&] { return cache.statistics(stream, episodes, quantiles); });
  return nb::make_tuple(
      numpy_of(std::move(found.count)), numpy_of(std::move(found.nan)), numpy_of(std::move(found.positive_infinity)),
      numpy_of(std::move(found.negative_infinity)), numpy_of(std::move(found.mean)),
      numpy_of(std::move(found.deviation)), numpy_of(std::move(found.minimum)), numpy_of(std::move(found.maximum)),
      numpy_of(std::move(found.quantiles)), found.are_quantiles_exact, found.episodes, found.computed);
}

nb::tuple verify(const nb::bytes& path, bool repair, bool dry_run) {
  const std::filesystem::path place(string_of(path));
  const CacheReport report = unlocked([&] { return verify_cache(place, repair, dry_run); });
  nb::list problems, moved, dropped;
  for (const CacheProblem& problem : report.problems) {
    problems.append(nb::make_tuple(text_from(problem.file), text_from(problem.sentence), text_from(problem.repair)));
  }
  for (const CacheMove& move : report.moved) moved.append(nb::make_tuple(text_from(move.file), text_from(move.reason)));
  for (const std::string& episode : report.dropped) dropped.append(text_from(episode));
  return nb::make_tuple(problems, moved, dropped, text_from(report.quarantine), report.is_repaired, report.shards,
                        report.tensors, report.bytes, report.episodes, report.streams);
}

void bind_writer(nb::module_& m) {
  nb::class_<CacheWriter>(m, "CacheWriter", "robocache.CacheWriter is made of it.")
      .def(
          "__init__",
          [](CacheWriter* self, const nb::bytes& path, std::int64_t group_bytes) {
            const std::filesystem::path place(string_of(path));
            unlocked([&] { new (self) CacheWriter(place, {.group_bytes = group_bytes}); });
          },
          nb::arg("path"), nb::arg("group_bytes"))
      .def(
          "knows",
          [](CacheWriter& self, const nb::bytes& path, const nb::list& files, const nb::str& options) {
            const std::string name = string_of(path), with = utf8_of(options);
            const Paths all = paths_of(files);
            return unlocked([&] { return self.knows(name, all, with); });
          },
          nb::arg("path"), nb::arg("files"), nb::arg("options"),
          nb::sig("def knows(self, path: bytes, files: list[bytes], options: str) -> bool"))
      .def(
          "begin_source",
          [](CacheWriter& self, const nb::bytes& path, const nb::list& files, const nb::str& options,
             const std::vector<std::array<std::int64_t, 4>>& opened) {
            const std::string name = string_of(path), with = utf8_of(options);
            const Paths all = paths_of(files);
            std::vector<FileStamp> stamps;
            for (const auto& [device, inode, size, mtime] : opened) stamps.push_back({device, inode, size, mtime});
            return unlocked([&] { return self.begin_source(name, all, with, stamps); });
          },
          nb::arg("path"), nb::arg("files"), nb::arg("options"),
          nb::arg("opened") = std::vector<std::array<std::int64_t, 4>>(),
          "opened: (st_dev, st_ino, st_size, st_mtime_ns) of each file as it was opened; none: the files are looked at "
          "now",
          nb::sig("def begin_source(self, path: bytes, files: list[bytes], options: str, "
                  "opened: list[tuple[int, int, int, int]] = []) -> list[int]"))
      .def("end_source", &CacheWriter::end_source, nb::call_guard<nb::gil_scoped_release>())
      .def("leave_source", &CacheWriter::leave_source, nb::call_guard<nb::gil_scoped_release>())
      .def(
          "begin_episode",
          [](CacheWriter& self, const nb::str& name, const nb::str& task, std::int64_t number, bool replaces) {
            const CacheWriter::Episode episode{utf8_of(name), utf8_of(task), number, replaces};
            unlocked([&] { self.begin_episode(episode); });
          },
          nb::arg("name"), nb::arg("task"), nb::arg("number"), nb::arg("replaces"))
      .def(
          "append", &append_batch, nb::arg("name"), nb::arg("type"), nb::arg("values"), nb::arg("times"),
          nb::arg("arrivals"), nb::arg("lengths").none(), nb::arg("channels"), nb::arg("method").none(),
          nb::arg("ragged"), nb::arg("metadata"), nb::arg("latency"),
          nb::sig("def append(self, name: str, type: str, values: typing.Any, times: typing.Any, arrivals: typing.Any, "
                  "lengths: typing.Any, channels: tuple[str, ...], method: typing.Any, ragged: bool, "
                  "metadata: dict[str, str], latency: int) -> None"))
      .def("end_episode", &CacheWriter::end_episode, nb::call_guard<nb::gil_scoped_release>())
      .def("discard_episode", &CacheWriter::discard_episode, nb::call_guard<nb::gil_scoped_release>())
      .def("commit", &CacheWriter::commit, nb::call_guard<nb::gil_scoped_release>())
      .def("close", &CacheWriter::close, nb::call_guard<nb::gil_scoped_release>())
      .def("abandon", &CacheWriter::abandon, nb::call_guard<nb::gil_scoped_release>())
      .def("has_episode", &CacheWriter::has_episode)
      .def("committed_episodes", &CacheWriter::committed_episodes, nb::call_guard<nb::gil_scoped_release>())
      .def("waiting_episodes", &CacheWriter::waiting_episodes, nb::call_guard<nb::gil_scoped_release>())
      .def("is_forked", &CacheWriter::is_forked)
      .def("quarantine", [](const CacheWriter& self) { return self.quarantine().string(); });
}

// A row for each episode, [E, 4]: the first and the last stamp of a stream, minus its latency, whether its samples come all
// the time, and whether there is a sample.
nb::object reaches_of(const Cache& cache, const Integers& episodes, std::int64_t stream) {
  const auto count = static_cast<std::int64_t>(episodes.size());
  Array reaches = Array::zeros(DType::i64, {count, 4});
  for (std::int64_t k = 0; k < count; ++k) item_of(cache.episodes(), episodes.data()[k]);
  unlocked([&] {
    parallel_for(count, 64, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t k = begin; k < end; ++k) {
        const std::int64_t number = episodes.data()[k];
        const auto& has = cache.episodes()[static_cast<std::size_t>(number)].streams;
        const auto entry = std::ranges::find(has, stream, &EpisodeStream::stream);
        if (entry == has.end() || entry->samples == 0) continue;
        const CachedStream found = cache.read(number, stream);
        const std::span times(static_cast<const std::int64_t*>(found.times.data),
                              static_cast<std::size_t>(found.times.shape[0]));
        auto* const reach = reinterpret_cast<std::int64_t*>(reaches.data.get()) + 4 * k;
        reach[0] = times.front() - entry->latency;
        reach[1] = times.back() - entry->latency;
        reach[2] = statistics::come_all_the_time(times) ? 1 : 0;
        reach[3] = 1;
      }
    });
  });
  return numpy_of(std::move(reaches));
}

void bind_reader(nb::module_& m) {
  nb::class_<Cache>(m, "Cache", "robocache.Cache is made of it.")
      .def(
          "__init__",
          [](Cache* self, const nb::bytes& path, bool map) {
            const std::filesystem::path place(string_of(path));
            unlocked([&] { new (self) Cache(place, {.map = map}); });
          },
          nb::arg("path"), nb::arg("map") = true)
      .def(
          "counts",
          [](const Cache& self) {
            return nb::make_tuple(self.streams().size(), self.episodes().size(), self.sources().size(), self.bytes());
          },
          nb::sig("def counts(self) -> tuple[int, int, int, int]"))
      .def("torn_bytes", &Cache::torn_bytes)
      .def("unnamed_shards", &Cache::unnamed_shards)
      .def("stream", &describe_stream, nb::arg("stream"),
           nb::sig("def stream(self, stream: int) -> tuple[str, str, str, tuple[int, ...], tuple[str, ...], "
                   "list[tuple[str, int, int]], bool, dict[str, str]]"))
      .def("episode", &describe_episode, nb::arg("episode"),
           nb::sig("def episode(self, episode: int) -> tuple[str, str, int, int, int, int, int, int, "
                   "list[tuple[int, int, int, int]]]"))
      .def("metadata", &metadata_of, nb::arg("episode"), nb::arg("stream"),
           nb::sig("def metadata(self, episode: int, stream: int) -> dict[str, str]"))
      .def("source", &describe_source, nb::arg("source"),
           nb::sig("def source(self, source: int) -> tuple[str, int, int, str, str, bool]"))
      .def(
          "read",
          [](const Cache& self, std::int64_t episode, std::int64_t stream) {
            return arrays_of(unlocked([&] { return self.read(episode, stream); }));
          },
          nb::arg("episode"), nb::arg("stream"), "(values, times, arrivals, inner, None)",
          nb::sig("def read(self, episode: int, stream: int) -> tuple[typing.Any, ...]"))
      .def(
          "read_group",
          [](const Cache& self, std::int64_t group, std::int64_t stream) {
            return arrays_of(unlocked([&] { return self.read_group(group, stream); }));
          },
          nb::arg("group"), nb::arg("stream"), "(values, times, arrivals, inner, offsets)",
          nb::sig("def read_group(self, group: int, stream: int) -> tuple[typing.Any, ...]"))
      .def("reaches", &reaches_of, nb::arg("episodes"), nb::arg("stream"),
           "For each episode: first and last stamp minus latency, whether samples come all the time, whether there is "
           "one.",
           nb::sig("def reaches(self, episodes: typing.Any, stream: int) -> typing.Any"))
      .def("statistics", &statistics_of, nb::arg("stream"), nb::arg("episodes"), nb::arg("quantiles"),
           "(count, nan, positive_infinity, negative_infinity, mean, deviation, minimum, maximum, quantiles, "
           "are_quantiles_exact, episodes, computed)",
           nb::sig("def statistics(self, stream: int, episodes: list[int], quantiles: list[float]) -> "
                   "tuple[typing.Any, ...]"));
}

void bind_table(nb::module_& m) {
  nb::class_<cache::EpisodeTable>(m, "EpisodeTable",
                                  "Where streams of a Cache lie, for align_episodes; any threads may share it.")
      .def(nb::init<const Cache&, std::vector<std::int64_t>, bool>(), nb::keep_alive<1, 2>(), nb::arg("cache"),
           nb::arg("streams"), nb::arg("keep"),
           "keep: what was found is kept, and its shards stay mapped; of a cache that is mapped",
           nb::sig("def __init__(self, cache: Cache, streams: list[int], keep: bool) -> None"));
}

}  // namespace

void bind_cache(nb::module_& m) {
  bind_writer(m);
  bind_reader(m);
  bind_table(m);
  m.def(
      "come_all_the_time", [](const Integers& times) { return statistics::come_all_the_time(span_of(times)); },
      nb::arg("times"), "Whether samples with these times come all the time, and not only on change.",
      nb::sig("def come_all_the_time(times: typing.Any) -> bool"));
  m.def(
      "are_regular",
      [](const Integers& given) {
        std::vector<std::int64_t> steps(given.data(), given.data() + given.size());
        return statistics::are_regular(steps);
      },
      nb::arg("steps"), "Whether steps, those of 0 left out, are those of a regular stream.",
      nb::sig("def are_regular(steps: typing.Any) -> bool"));
  m.def("verify_cache", &verify, nb::arg("path"), nb::arg("repair"), nb::arg("dry_run"),
        "(problems, moved, dropped, quarantine, repaired, shards, tensors, bytes, episodes, streams) of "
        "robocache.verify_cache.",
        nb::sig("def verify_cache(path: bytes, repair: bool, dry_run: bool) -> tuple[list[tuple[str, str, str]], "
                "list[tuple[str, str]], list[str], str, bool, int, int, int, int, int]"));
}

}  // namespace robocache::python
