// One clock for a recording, for robocache/_recordings/clock.py.
//
//   _core.ClockSurvey(log_unit: int = 1)
//     .add(stream: str, log_times, stamps)                  int64 [N]; a stamp of 0 means: not stamped
//     .add_clock(log_times, times)                          int64 [N]: messages of /clock
//     .runs_with_log_time(static: list[str]) -> bool
//     .log_unit() -> int
//     .first_log_times() -> dict[str, int]
//   _core.find_clock(survey, static: list[str]) -> RecordingClock
//     .carries: bool                                        False: times and arrivals are as they should be
//     .episodes: list[tuple[int | None, int | None]]        log times [start, end)
//     .carry(episode: int, stream: str, told: str, times, arrivals) -> tuple[times, arrivals]
//                                                           told: the times are "stamp" or "log"; anything else: mixed
//     .at(episode: int, log_times) -> times
//     .log_range(episode, start: int | None, end: int | None) -> tuple[int | None, int | None]
//                                                           log times that hold all arrivals in [start, end)
//     .describe() -> dict[str, Any]
#include "clock.h"

#include <nanobind/ndarray.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>
#include <robocache/clock.h>
#include <robocache/error.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "errors.h"

namespace nb = nanobind;

namespace robocache::python {

namespace {

using Times = nb::ndarray<const std::int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

std::span<const std::int64_t> span_of(const Times& times) { return {times.data(), times.shape(0)}; }

nb::object array_of(std::vector<std::int64_t>&& values) {
  auto* const memory = new std::vector<std::int64_t>(std::move(values));
  const nb::capsule owner(memory, [](void* p) noexcept { delete static_cast<std::vector<std::int64_t>*>(p); });
  const std::size_t shape[] = {memory->size()};
  return nb::cast(nb::ndarray<nb::numpy, std::int64_t>(memory->data(), 1, shape, owner));
}

void check_lengths(const char* call, const Times& a, const Times& b) {
  if (a.shape(0) == b.shape(0)) return;
  throw Error(ErrorKind::value, std::string(call) + ": the arrays differ in length");
}

const RecordingClock::Episode& episode_of(const RecordingClock& clock, std::size_t episode) {
  if (episode < clock.episodes.size()) return clock.episodes[episode];
  throw Error(ErrorKind::value, "RecordingClock: there is no episode " + std::to_string(episode));
}

nb::object bound(std::int64_t at) {
  constexpr std::int64_t limit = std::numeric_limits<std::int64_t>::max();
  return at == limit || at == -limit ? nb::object(nb::none()) : nb::object(nb::int_(at));
}

nb::dict description_of(const RecordingClock& clock) {
  nb::dict streams, made;
  const char* const sources[] = {"log", "recording", "own"};
  for (const auto& [name, stream] : clock.streams) {
    nb::dict one;
    one["source"] = sources[static_cast<int>(stream.source)];
    one["messages"] = stream.messages;
    one["stamped"] = stream.stamped;
    if (!stream.lines.empty()) {
      const StreamClock::Line& line = stream.lines.front();
      one["offset_s"] = static_cast<double>(line.log_time - line.at) * 1e-9;
      one["drift_ppm"] = (line.slope - 1) * 1e6;
    }
    streams[text_from(name)] = one;
  }
  const char* const kinds[] = {"log time", "with log time", "carried"};
  made["kind"] = kinds[static_cast<int>(clock.kind)];
  made["is_wall"] = clock.is_wall;
  made["by"] = text_from(clock.by);
  made["rate"] = clock.rate;
  made["slowest"] = clock.slowest;
  made["fastest"] = clock.fastest;
  made["offset_s"] = static_cast<double>(clock.offset) * 1e-9;
  made["log_unit_ns"] = clock.log_unit;
  made["agreeing"] = clock.agreeing;
  made["resets"] = clock.episodes.size() - 1;
  made["streams"] = streams;
  return made;
}

}  // namespace

void bind_clock(nb::module_& m) {
  nb::class_<ClockSurvey>(m, "ClockSurvey", "What was seen of the stamps of a recording.")
      .def(nb::init<std::int64_t>(), nb::arg("log_unit") = 1)
      .def(
          "add",
          [](ClockSurvey& survey, const std::string& stream, const Times& logs, const Times& stamps) {
            check_lengths("ClockSurvey.add", logs, stamps);
            for (std::size_t k = 0; k < logs.shape(0); ++k) survey.add(stream, logs.data()[k], stamps.data()[k]);
          },
          nb::arg("stream"), nb::arg("log_times"), nb::arg("stamps"))
      .def(
          "add_clock",
          [](ClockSurvey& survey, const Times& logs, const Times& times) {
            check_lengths("ClockSurvey.add_clock", logs, times);
            for (std::size_t k = 0; k < logs.shape(0); ++k) survey.add_clock(logs.data()[k], times.data()[k]);
          },
          nb::arg("log_times"), nb::arg("times"))
      .def(
          "runs_with_log_time",
          [](const ClockSurvey& survey, const std::vector<std::string>& constants) {
            return survey.runs_with_log_time(constants);
          },
          nb::arg("static"))
      .def("log_unit", &ClockSurvey::log_unit)
      .def("first_log_times", &ClockSurvey::first_log_times);

  nb::class_<RecordingClock>(m, "RecordingClock", "Which clock a recording is on.")
      .def_prop_ro("carries", &RecordingClock::carries)
      .def_prop_ro(
          "episodes",
          [](const RecordingClock& clock) {
            nb::list list;
            for (const RecordingClock::Episode& episode : clock.episodes) {
              list.append(nb::make_tuple(bound(episode.start), bound(episode.end)));
            }
            return list;
          },
          nb::sig("def episodes(self) -> list[tuple[int | None, int | None]]"))
      .def(
          "carry",
          [](const RecordingClock& clock, std::size_t episode, const std::string& stream, const std::string& told,
             const Times& times, const Times& arrivals) {
            check_lengths("RecordingClock.carry", times, arrivals);
            episode_of(clock, episode);
            const auto kind = told == "stamp" ? RecordingClock::Times::stamp
                              : told == "log" ? RecordingClock::Times::log
                                              : RecordingClock::Times::mixed;
            const auto given = span_of(times), arrived = span_of(arrivals);
            std::vector<std::int64_t> moved(given.begin(), given.end()), landed(arrived.begin(), arrived.end());
            clock.carry(episode, stream, kind, moved, landed);
            return nb::make_tuple(array_of(std::move(moved)), array_of(std::move(landed)));
          },
          nb::arg("episode"), nb::arg("stream"), nb::arg("told"), nb::arg("times"), nb::arg("arrivals"),
          nb::sig("def carry(self, episode: int, stream: str, told: str, times: typing.Any, arrivals: typing.Any) -> "
                  "tuple[typing.Any, typing.Any]"))
      .def(
          "at",
          [](const RecordingClock& clock, std::size_t episode, const Times& logs) {
            std::vector<std::int64_t> times(logs.shape(0)), copy(span_of(logs).begin(), span_of(logs).end());
            episode_of(clock, episode);
            clock.carry(episode, "", RecordingClock::Times::log, times, copy);
            return array_of(std::move(times));
          },
          nb::arg("episode"), nb::arg("log_times"),
          nb::sig("def at(self, episode: int, log_times: typing.Any) -> typing.Any"))
      .def(
          "log_range",
          [](const RecordingClock& clock, std::size_t episode, std::optional<std::int64_t> start,
             std::optional<std::int64_t> end) {
            const RecordingClock::Episode& found = episode_of(clock, episode);
            std::int64_t first = start ? found.map.log_time_of(*start, false) : found.start;
            std::int64_t last = end ? found.map.log_time_of(*end, true) : found.end;
            first = std::max(first, found.start);
            last = std::min(last, found.end);
            const auto counts = [&](std::int64_t at, std::int64_t more) {
              const nb::object kept = bound(at);
              return kept.is_none() ? kept : nb::object(nb::int_(at / clock.log_unit + more));
            };
            // The cut of an episode is exact; a unit that is not 1 rounds toward 0.
            const std::int64_t spare = clock.log_unit == 1 ? 0 : 1;
            return nb::make_tuple(counts(first, 0), counts(last, spare));
          },
          nb::arg("episode"), nb::arg("start").none(), nb::arg("end").none(),
          nb::sig("def log_range(self, episode: int, start: int | None, end: int | None) -> "
                  "tuple[int | None, int | None]"))
      .def("describe", &description_of, nb::sig("def describe(self) -> dict[str, typing.Any]"));

  m.def(
      "find_clock",
      [](const ClockSurvey& survey, const std::vector<std::string>& constants) {
        const nb::gil_scoped_release released;
        return find_clock(survey, constants);
      },
      nb::arg("survey"), nb::arg("static"));
}

}  // namespace robocache::python
