#include "stream.h"

#include <array>
#include <cmath>
#include <limits>
#include <memory>
#include <string>
#include <string_view>

#include "core/limits.h"
#include "core/text.h"
#include "once.h"
#include "ops/align/check_stream.h"

namespace nb = nanobind;

namespace robocache::python {

namespace {

// A slot of a Python class, read through its descriptor: a third of the cost of a lookup by name.
class Slot {
 public:
  Slot(const nb::object& type, const char* name)
      : descriptor_(nb::object(type.attr(name)).release().ptr()),
        get_(reinterpret_cast<descrgetfunc>(PyType_GetSlot(Py_TYPE(descriptor_), Py_tp_descr_get))) {}

  nb::object operator()(PyObject* object) const {
    nb::object value = nb::steal(get_(descriptor_, object, reinterpret_cast<PyObject*>(Py_TYPE(object))));
    if (!value.is_valid()) throw nb::python_error();
    return value;
  }

 private:
  PyObject* descriptor_;
  descrgetfunc get_;
};

nb::object class_named(const char* name) { return nb::module_::import_("robocache").attr(name); }

struct StreamClass {
  nb::object type = class_named("Stream");
  Slot values{type, "_values"}, times{type, "_times"}, method{type, "_method"}, latency{type, "_latency"},
      arrivals{type, "_arrivals"}, max_gap{type, "_max_gap"}, edge{type, "_edge"}, causal{type, "_causal"},
      as_of{type, "_as_of"}, on_nan{type, "_on_nan"}, lengths{type, "_lengths"}, offsets{type, "_offsets"},
      rows{type, "_rows"}, channels{type, "_channels"}, name{type, "_name"}, spec{type, "_spec"};
};
Once<StreamClass> stream_class;

struct TimelineClass {
  nb::object type = class_named("Timeline");
  Slot start{type, "start"}, rate{type, "rate"}, count{type, "count"}, first{type, "first"}, anchored{type, "anchored"};
};
Once<TimelineClass> timeline_class;

bool is_a(PyObject* object, const nb::object& type) {
  return PyObject_TypeCheck(object, reinterpret_cast<PyTypeObject*>(type.ptr())) != 0;
}

// The value of as_of, without looking into arrays.
struct AsOfSpec {
  enum class Kind : std::uint8_t { absent, off, anchor, time, array };
  Kind kind = Kind::absent;
  std::int64_t time = 0;
};

[[noreturn]] void refuse_as_of(const Where& where, PyObject* object) {
  fail(ErrorKind::type, where, "as_of is ", describe(object),
       "; expected nanoseconds as an int, seconds as a float, an array with one time for each row, \"anchor\", or "
       "False");
}

AsOfSpec parse_as_of(const Where& where, PyObject* object) {
  using Kind = AsOfSpec::Kind;
  if (object == Py_None) return {};
  if (object == Py_False) return {Kind::off};
  if (PyUnicode_Check(object) != 0) {
    if (PyUnicode_CompareWithASCIIString(object, "anchor") != 0) refuse_as_of(where, object);
    return {Kind::anchor};
  }
  if (const std::optional<std::int64_t> time = parse_time(where, "as_of", object)) {
    if (*time == no_as_of) {
      fail(ErrorKind::value, where, "as_of = ", *time, " ns; it must be within ", time_limit_in_words());
    }
    return {Kind::time, *time};
  }
  if (array_type(object).library == Library::none) refuse_as_of(where, object);
  return {Kind::array};
}

// A Stream's options, parsed; in the Stream's slot _spec, inside a capsule.
struct Spec {
  Methods methods;
  std::int64_t latency = 0, max_gap = no_max_gap;
  std::optional<Edge> edge;
  std::optional<bool> causal;
  AsOfSpec as_of;
  std::optional<OnNan> on_nan;
  bool arrivals = false, lengths = false, offsets = false, rows = false;  // which of these arrays it has
  Py_ssize_t channel_names = -1;
};
constexpr const char* spec_name = "robocache.spec";

std::unique_ptr<Spec> parse_spec(const Where& where, PyObject* object) {
  const StreamClass& c = stream_class();
  auto spec = std::make_unique<Spec>();
  spec->methods = parse_methods(where, c.method(object).ptr(), c.channels(object).ptr());
  spec->latency = parse_duration(where, "latency", c.latency(object).ptr());
  spec->max_gap = parse_max_gap(where, c.max_gap(object).ptr());
  if (const nb::object edge = c.edge(object); !edge.is_none()) spec->edge = parse_edge(where, edge.ptr());
  if (const nb::object causal = c.causal(object); !causal.is_none())
    spec->causal = parse_flag(where, "causal", causal.ptr());
  spec->as_of = parse_as_of(where, c.as_of(object).ptr());
  if (const nb::object on_nan = c.on_nan(object); !on_nan.is_none()) spec->on_nan = parse_on_nan(where, on_nan.ptr());
  spec->arrivals = !c.arrivals(object).is_none();
  spec->lengths = !c.lengths(object).is_none();
  spec->offsets = !c.offsets(object).is_none();
  spec->rows = !c.rows(object).is_none();
  if (const nb::object channels = c.channels(object); !channels.is_none()) {
    spec->channel_names = PyObject_Size(channels.ptr());
    if (spec->channel_names < 0) throw nb::python_error();
  }
  return spec;
}

// The capsule must be held while the Spec is read: a thread that parses the same Stream puts its own in the slot.
nb::object spec_of(const Where& where, PyObject* object) {
  nb::object kept = stream_class().spec(object);
  if (!kept.is_none()) return kept;
  std::unique_ptr<Spec> spec = parse_spec(where, object);
  nb::object capsule = nb::steal(PyCapsule_New(spec.get(), spec_name, [](PyObject* dying) {
    delete static_cast<Spec*>(PyCapsule_GetPointer(dying, spec_name));
  }));
  if (!capsule.is_valid()) throw nb::python_error();
  static_cast<void>(spec.release());  // the capsule's now
  if (PyObject_SetAttrString(object, "_spec", capsule.ptr()) != 0) throw nb::python_error();
  return capsule;
}

const Spec& spec_in(const nb::object& capsule) {
  const auto* const spec = static_cast<const Spec*>(PyCapsule_GetPointer(capsule.ptr(), spec_name));
  if (spec == nullptr) throw nb::python_error();
  return *spec;
}

// The names of a Timeline's parts in sentences. While a Timeline is made, they are arguments.
struct TimelineWords {
  const char *start = "the timeline's start", *rate = "the timeline's rate", *count = "the timeline's count",
             *first = "the timeline's first step";
};

[[noreturn]] void refuse_start(const Where& where, const char* name, PyObject* start) {
  fail(ErrorKind::type, where, name, " is ", describe(start),
       "; expected nanoseconds as an int, seconds as a float, or an array with one start for each row");
}

// All but a start that is an array: false there.
bool parse_timeline(const Where& where, const TimelineWords& words, PyObject* object, PyObject* start, Timeline& line) {
  const TimelineClass& c = timeline_class();
  line.rate = parse_rate(where, words.rate, c.rate(object).ptr());
  line.count = parse_integer(where, words.count, c.count(object).ptr());
  line.first = parse_integer(where, words.first, c.first(object).ptr());
  if (const std::optional<std::int64_t> time = parse_time(where, words.start, start)) {
    line.start = *time;
    return true;
  }
  if (array_type(start).library == Library::none) refuse_start(where, words.start, start);
  return false;
}

// A view of an array of times; of one that is a single number in host memory, such as times[0] of a tensor, the number.
// False where the torch layer must serve the call.
bool view_times(const Where& where, const char* name, const nb::object& array, Arrays& arrays, std::int64_t& time,
                TensorView& times) {
  arrays.keep(array);  // what holds it may change while other threads run
  if (!arrays.view(where, name, array.ptr(), Role::stamps, times)) return false;
  if (times.rank == 0 && times.device.kind == DeviceKind::cpu) {
    const nb::object number = array.attr("item")();
    if (const std::optional<std::int64_t> found = parse_time(where, name, number.ptr(), times.dtype)) {
      time = *found;
      times = {};
    }
  }
  return true;
}

bool view_timeline(const Where& where, PyObject* object, Arrays& arrays, Timeline& line) {
  const nb::object start = timeline_class().start(object);
  const TimelineWords words;
  if (parse_timeline(where, words, object, start.ptr(), line)) return true;
  if (!view_times(where, words.start, start, arrays, line.start, line.starts)) return false;
  if (line.starts.rank == 0 && line.starts.device.kind == DeviceKind::cpu)
    refuse_start(where, words.start, start.ptr());
  return true;
}

// False where the torch layer must serve the call.
bool view_as_of(const Where& where, const AsOfSpec& spec, const nb::object& object, Arrays& arrays, AsOf& as_of) {
  as_of = AsOf{};
  if (spec.kind == AsOfSpec::Kind::time) as_of.time = spec.time;
  return spec.kind != AsOfSpec::Kind::array || view_times(where, "as_of", object, arrays, as_of.time, as_of.times);
}

// The prefix of sentences while a Stream is made.
std::string place_of(nb::handle object) {
  std::string place = "Stream";
  const nb::object name = stream_class().name(object.ptr());
  if (!name.is_none()) {
    if (PyUnicode_Check(name.ptr()) == 0) {
      fail(ErrorKind::type, {"Stream", {}, -1}, "name is ", describe(name.ptr()), "; expected a str");
    }
    place += " \"" + text_of(name) + "\"";
  }
  return place;
}

// The library's check, whose sentences begin with "align"; here they begin with `place`.
template <class F>
void say_at(const std::string& place, const F& check) {
  try {
    check();
  } catch (const Error& error) {
    constexpr std::string_view operation = "align";
    const std::string_view text = error.what();
    if (!text.starts_with(operation)) throw;
    throw Error(error.kind(), place + std::string(text.substr(operation.size())));
  }
}

// Whether nothing can be wrong with a stream of values [S, ...] and times [S] and few options: most are so, and the whole
// check takes half a microsecond. False: it must be checked.
bool is_plain_and_sound(const Where& where, PyObject* object) {
  const StreamClass& c = stream_class();
  const nb::object capsule = spec_of(where, object);
  const Spec& spec = spec_in(capsule);
  if (spec.arrivals || spec.lengths || spec.offsets || spec.rows || spec.channel_names >= 0 || spec.edge == Edge::nan ||
      spec.methods.whole || !spec.methods.ranges.empty() || spec.latency != 0 ||
      spec.as_of.kind != AsOfSpec::Kind::absent) {
    return false;
  }
  Arrays arrays{BackendChoice{}};
  TensorView values, times;
  if (!arrays.view(where, "values", c.values(object).ptr(), Role::integers, values) ||
      !arrays.view(where, "times", c.times(object).ptr(), Role::stamps, times)) {
    return true;  // what has no memory is checked by the call
  }
  return values.rank >= 1 && values.rank <= 4 && times.rank == 1 && values.shape[0] == times.shape[0] &&
         (times.dtype == DType::i64 || times.dtype == DType::f64 || times.dtype == DType::f32) &&
         values.device == times.device && values.size() <= std::numeric_limits<std::int32_t>::max();
}

}  // namespace

void check_stream(nb::handle object) {
  const std::string place = place_of(object);
  if (is_plain_and_sound({place.c_str(), {}, -1}, object.ptr())) return;
  Arrays arrays{BackendChoice{}};
  Stream stream;
  // Role::integers: whether values require grad does not matter here. What has no memory is checked by the call.
  if (!view_stream({place.c_str(), {}, -1}, object.ptr(), arrays, stream, Role::integers)) return;
  say_at(place, [&] { robocache::check_stream(stream); });
}

void check_stream_options(nb::handle object) {
  const std::string place = place_of(object);
  static_cast<void>(spec_of({place.c_str(), {}, -1}, object.ptr()));
}

void check_timeline(nb::handle object) {
  const Where where{"Timeline", {}, -1};
  Timeline line;
  const nb::object start = timeline_class().start(object.ptr());
  parse_timeline(where, {"start", "rate", "count", "first"}, object.ptr(), start.ptr(), line);
  if (!(line.rate > 0) || !std::isfinite(line.rate)) {
    fail(ErrorKind::value, where, "rate is ", concat(line.rate), "; it must be a positive number of hertz");
  }
  if (line.count < 0) fail(ErrorKind::value, where, "count is ", line.count, "; it must not be negative");
  say_at("Timeline", [&] { robocache::check_timeline(line); });
}

nb::object stream_name(PyObject* object) {
  const StreamClass& c = stream_class();
  return is_a(object, c.type) ? c.name(object) : nb::none();
}

int leading_rank(const Stream& stream) { return stream.offsets ? 1 : stream.times.rank; }

std::int64_t channel_count(const Stream& stream) {
  std::int64_t count = 1;
  for (int k = leading_rank(stream); k < stream.values.rank; ++k)
    count *= stream.values.shape[static_cast<std::size_t>(k)];
  return count;
}

void set_methods(const Methods& methods, Stream& stream) {
  if (methods.whole) {
    stream.methods.assign(1, {*methods.whole, 0, channel_count(stream)});
  } else {
    stream.methods = methods.ranges;
  }
}

bool view_stream(const Where& where, PyObject* object, Arrays& arrays, Stream& stream, Role values_role) {
  const StreamClass& c = stream_class();
  if (!is_a(object, c.type)) {
    fail(ErrorKind::type, where, "expected a robocache.Stream, not ", type_name(object));
  }
  const nb::object capsule = spec_of(where, object);
  const Spec& spec = spec_in(capsule);
  stream.name = where.stream;
  stream.latency = spec.latency;
  stream.max_gap = spec.max_gap;
  stream.edge = spec.edge;
  stream.causal = spec.causal;
  stream.on_nan = spec.on_nan;
  bool served = true;
  const auto view = [&](const char* argument, const Slot& slot, Role role, TensorView& into) {
    served &= arrays.view(where, argument, slot(object).ptr(), role, into);
  };
  view("values", c.values, values_role, stream.values);
  view("times", c.times, Role::stamps, stream.times);
  if (spec.arrivals) view("arrivals", c.arrivals, Role::stamps, stream.arrivals);
  if (spec.lengths) view("lengths", c.lengths, Role::integers, stream.lengths);
  if (spec.offsets) view("offsets", c.offsets, Role::integers, stream.offsets);
  if (spec.rows) view("rows", c.rows, Role::integers, stream.rows);
  if (spec.as_of.kind != AsOfSpec::Kind::absent) {
    served &= view_as_of(where, spec.as_of, c.as_of(object), arrays, stream.as_of.emplace());
  }
  if (!served) return false;
  set_methods(spec.methods, stream);
  if (spec.channel_names >= 0 && stream.values.rank >= stream.times.rank &&
      channel_count(stream) != spec.channel_names) {
    fail(ErrorKind::value, where, "channels has ", spec.channel_names, " names, and the values have ",
         channel_count(stream), " channels");
  }
  return true;
}

bool takes_anchor(const Where& where, PyObject* stream) {
  const nb::object capsule = spec_of(where, stream);
  return spec_in(capsule).as_of.kind == AsOfSpec::Kind::anchor;
}

bool view_as_of(const Where& where, PyObject* object, Arrays& arrays, AsOf& as_of, bool& anchor) {
  const AsOfSpec spec = parse_as_of(where, object);
  anchor = spec.kind == AsOfSpec::Kind::anchor;
  return view_as_of(where, spec, nb::borrow(object), arrays, as_of);
}

void check_anchor(const Where& where, PyObject* targets) {
  if (is_a(targets, timeline_class().type) && timeline_class().anchored(targets).ptr() == Py_True) return;
  fail(ErrorKind::value, where,
       "as_of=\"anchor\" needs targets that are a Timeline.around, whose t is the decision; give as_of a time, or one "
       "for each row");
}

bool view_targets(const Where& where, PyObject* object, Arrays& arrays, std::optional<Targets>& targets) {
  if (is_a(object, timeline_class().type)) {
    Timeline line;
    if (!view_timeline(where, object, arrays, line)) return false;
    targets.emplace(line);
    return true;
  }
  const bool listed = PyList_Check(object) != 0 || PyTuple_Check(object) != 0;
  if (!listed && array_type(object).library == Library::none) {
    fail(ErrorKind::type, where, "targets is ", describe(object),
         "; expected a Timeline, or the times as an array (beside NumPy arrays a list will do)");
  }
  nb::object array = nb::borrow(object);
  if (listed) {
    if (arrays.type().library != Library::numpy) {
      fail(ErrorKind::type, where, "targets is a ", type_name(object), ", but values is ",
           name_of(arrays.type().library), "; pass the same kind, or a Timeline");
    }
    array = nb::steal(PyObject_CallMethod(nb::module_::import_("numpy").ptr(), "asarray", "(O)", object));
    if (!array.is_valid() && PyErr_ExceptionMatches(PyExc_ValueError) != 0) {
      PyErr_Clear();
      fail(ErrorKind::value, where, "targets is a ", type_name(object),
           " whose rows differ in length; expected a time for each target, or rows of as many each");
    }
    if (!array.is_valid()) throw nb::python_error();
    arrays.keep(array);
  }
  TensorView view;
  if (!arrays.view(where, "targets", array.ptr(), Role::stamps, view)) return false;
  targets.emplace(view);
  return true;
}

}  // namespace robocache::python
