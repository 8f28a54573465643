#include "options.h"

#include <array>
#include <cmath>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "core/limits.h"
#include "core/names.h"
#include "core/text.h"
#include "libraries.h"
#include "once.h"

namespace nb = nanobind;

namespace robocache::python {

namespace {

// A word of the interface and what it means. Literals in Python code are interned, so comparing addresses almost always
// finds the word; `object` is the interned string.
template <class T>
struct Choice {
  const char* text;
  T value;
  PyObject* object = nullptr;
};

// The choices that a table of words offers, in its order.
template <class T, std::size_t count>
std::array<Choice<T>, count> choices_of(const std::array<Word<T>, count>& table) {
  std::array<Choice<T>, count> choices{};
  for (std::size_t k = 0; k < count; ++k) choices[k] = {table[k].text, table[k].value};
  return choices;
}

template <class T, std::size_t count>
std::optional<T> find(std::array<Choice<T>, count>& choices, PyObject* object) {
  for (Choice<T>& word : choices) {
    if (word.object == object && object != nullptr) return word.value;
  }
  if (PyUnicode_Check(object) == 0) return std::nullopt;
  for (Choice<T>& word : choices) {
    if (word.object == nullptr) word.object = PyUnicode_InternFromString(word.text);
    if (PyUnicode_CompareWithASCIIString(object, word.text) == 0) return word.value;
  }
  return std::nullopt;
}

template <class T, std::size_t count>
std::string list_of(const std::array<Choice<T>, count>& choices) {
  std::string text;
  for (std::size_t k = 0; k < count; ++k) {
    text += k == 0 ? "" : k + 1 == count ? " or " : ", ";
    text += choices[k].text;
  }
  return text;
}

template <class T, std::size_t count>
T parse_word(std::array<Choice<T>, count>& choices, const Where& where, const char* argument, PyObject* object) {
  const std::optional<T> found = find(choices, object);
  if (!found) {
    fail(PyUnicode_Check(object) != 0 ? ErrorKind::value : ErrorKind::type, where, argument, " is ", describe(object),
         "; expected ", list_of(choices));
  }
  return *found;
}

auto edges = choices_of(words<Edge>);
auto on_nans = choices_of(words<OnNan>);
auto fits = choices_of(words<Fit>);
auto filters = choices_of(words<Filter>);
auto image_layouts = choices_of(words<ImageLayout>);
auto yuv_matrices = choices_of(words<YuvMatrix>);
auto yuv_ranges = choices_of(words<YuvRange>);
auto yuv_sitings = choices_of(words<YuvSiting>);
auto methods = choices_of(words<Method>);
// All but occupancy_bits, which Python asks for by another argument.
std::array<Choice<Reduction>, 6> reductions{{{word_of(Reduction::count), Reduction::count},
                                             {word_of(Reduction::occupancy), Reduction::occupancy},
                                             {word_of(Reduction::sum), Reduction::sum},
                                             {word_of(Reduction::mean), Reduction::mean},
                                             {word_of(Reduction::max), Reduction::max},
                                             {word_of(Reduction::min), Reduction::min}}};
std::array<Choice<bool>, 2> frames{{{"grid", false}, {"sensor", true}}};
std::array<Choice<bool>, 2> layouts{{{"dense", false}, {"sparse", true}}};
std::array<Choice<bool>, 2> attention_layouts{{{"bhqd", false}, {"bqhd", true}}};
std::array<Choice<BackendChoice>, 4> backend_names{{{word_of(Backend::reference), {Backend::reference}},
                                                    {word_of(Backend::cpu), {Backend::cpu}},
                                                    {word_of(Backend::cuda), {Backend::cuda}},
                                                    {"torch", {Backend::automatic, true}}}};

BackendInfo cuda_backend() {
  for (BackendInfo& backend : backends()) {
    if (backend.name == word_of(Backend::cuda)) return std::move(backend);
  }
  return {};
}

struct TimeDelta {
  nb::object type = nb::module_::import_("datetime").attr("timedelta");
};
Once<TimeDelta> timedelta;

constexpr double narrow_seconds_limit = 0x1p14;  // |t| of a float that is narrower than float64 must not be above

bool is_numpy_scalar(PyObject* object, std::string_view name) {
  const std::string type = type_name(object);
  return type.starts_with("numpy.") && type.substr(6).starts_with(name);
}

std::int64_t nanoseconds(const Where& where, const char* argument, double seconds) {
  const double ns = std::rint(seconds * 1e9);
  constexpr auto limit = static_cast<double>(time_limit);
  if (!(ns > -limit && ns < limit)) {
    fail(ErrorKind::value, where, argument, " = ", concat(seconds), " s; it must be finite and within ",
         time_limit_in_words());
  }
  return static_cast<std::int64_t>(ns);
}

std::int64_t nanoseconds(const Where& where, const char* argument, PyObject* integer) {
  const long long ns = PyLong_AsLongLong(integer);
  if (ns == -1 && PyErr_Occurred() != nullptr) {
    PyErr_Clear();
    fail(ErrorKind::value, where, argument, " = ", describe(integer), " ns; it must be within ", time_limit_in_words());
  }
  return ns;
}

// An int of Python or NumPy; no bool and no array. Asking NumPy's types takes longest, so it comes last.
nb::object as_integer(PyObject* object) {
  if (PyLong_Check(object) != 0 && PyBool_Check(object) == 0) return nb::borrow(object);
  if (PyFloat_Check(object) != 0) return {};
  if (is_numpy_scalar(object, "int") || is_numpy_scalar(object, "uint")) return nb::steal(PyNumber_Index(object));
  return {};
}

std::optional<double> as_float(PyObject* object) {
  if (PyFloat_Check(object) != 0) return PyFloat_AsDouble(object);
  if (PyLong_Check(object) != 0) return std::nullopt;
  if (is_numpy_scalar(object, "float")) return PyFloat_AsDouble(object);
  return std::nullopt;
}

// A dict from names and patterns: robocache._align.methods says which channels are whose.
Methods match_patterns(const Where& where, PyObject* patterns, PyObject* channels) {
  const nb::object by_name = nb::module_::import_("robocache._align.methods").attr("by_name");
  Methods result;
  for (const nb::handle item : by_name(nb::str(where.text().c_str()), nb::borrow(patterns), nb::borrow(channels))) {
    result.ranges.push_back({parse_word(methods, where, "method", nb::object(item[0]).ptr()),
                             nb::cast<std::int64_t>(item[1]), nb::cast<std::int64_t>(item[2])});
  }
  if (result.ranges.empty()) result.whole = Method::hold;  // no channels: nothing to compute
  return result;
}

}  // namespace

Fit parse_fit(const Where& where, PyObject* object) { return parse_word(fits, where, "fit", object); }
Filter parse_filter(const Where& where, PyObject* object) { return parse_word(filters, where, "filter", object); }
ImageLayout parse_image_layout(const Where& where, PyObject* object) {
  return parse_word(image_layouts, where, "layout", object);
}
YuvMatrix parse_yuv_matrix(const Where& where, PyObject* object) {
  return parse_word(yuv_matrices, where, "yuv_matrix", object);
}
YuvRange parse_yuv_range(const Where& where, PyObject* object) {
  return parse_word(yuv_ranges, where, "yuv_range", object);
}
YuvSiting parse_yuv_siting(const Where& where, PyObject* object) {
  return parse_word(yuv_sitings, where, "yuv_siting", object);
}
Edge parse_edge(const Where& where, PyObject* object) { return parse_word(edges, where, "edge", object); }

OnNan parse_on_nan(const Where& where, PyObject* object) { return parse_word(on_nans, where, "on_nan", object); }

Reduction parse_reduction(const Where& where, PyObject* object) {
  return parse_word(reductions, where, "reduce", object);
}

bool parse_sparse(const Where& where, PyObject* object) { return parse_word(layouts, where, "layout", object); }

bool parse_heads_last(const Where& where, PyObject* object) {
  return parse_word(attention_layouts, where, "layout", object);
}

bool parse_in_sensor_frame(const Where& where, PyObject* object) {
  return parse_word(frames, where, "crop_frame", object);
}

BackendChoice parse_backend(const Where& where, PyObject* object) {
  if (object == Py_None) return {};
  const BackendChoice choice = parse_word(backend_names, where, "backend", object);
  if (choice.backend == Backend::cuda && !cuda_is_available()) {
    fail(ErrorKind::unavailable, where, "the cuda backend cannot run here: ", cuda_backend().description);
  }
  return choice;
}

bool cuda_is_available() {
  static const bool available = cuda_backend().available;
  return available;
}

bool parse_flag(const Where& where, const char* argument, PyObject* object) {
  if (object == Py_False) return false;
  if (object == Py_True) return true;
  if (is_numpy_scalar(object, "bool")) return PyObject_IsTrue(object) == 1;
  fail(ErrorKind::type, where, argument, " is ", describe(object), "; expected True or False");
}

std::int64_t parse_duration(const Where& where, const char* argument, PyObject* object, std::int64_t least) {
  if (const std::optional<double> seconds = as_float(object)) return nanoseconds(where, argument, *seconds);
  if (const nb::object integer = as_integer(object); integer.is_valid()) {
    const std::int64_t ns = nanoseconds(where, argument, integer.ptr());
    if (ns != 0 && ns > -1000 && ns < least) {
      fail(ErrorKind::value, where, argument, " = ", ns, " is ", ns,
           " ns, since an int is nanoseconds; write seconds as a float: ", ns, ".0, or ",
           concat(static_cast<double>(ns) / 1000), ns % 1000 == 0 ? ".0" : "", " for ", ns, " ms");
    }
    return ns;
  }
  const std::string type = type_name(object);
  if (type == "numpy.timedelta64") {
    const nb::object ns = nb::handle(object).attr("astype")("timedelta64[ns]").attr("astype")("int64");
    return nanoseconds(where, argument, nb::steal(PyNumber_Index(ns.ptr())).ptr());
  }
  if (PyObject_IsInstance(object, timedelta().type.ptr()) != 1) {
    fail(ErrorKind::type, where, argument, " is ", describe(object),
         "; expected seconds as a float, nanoseconds as an int, or a timedelta");
  }
  const nb::handle delta(object);
  const nb::object seconds = delta.attr("days") * nb::int_(86400) + delta.attr("seconds");
  const nb::object microseconds = seconds * nb::int_(1000000) + delta.attr("microseconds");
  return nanoseconds(where, argument, nb::object(microseconds * nb::int_(1000)).ptr());
}

std::int64_t parse_max_gap(const Where& where, PyObject* object) {
  if (object == Py_None) return no_max_gap;
  constexpr std::int64_t least = 1'000'000;  // no stream has samples every microsecond: max_gap=1000 means a second
  const std::int64_t gap = parse_duration(where, "max_gap", object, least);
  if (gap < 0) {
    const char* const unit = as_float(object) ? " s" : as_integer(object).is_valid() ? " ns" : "";
    fail(ErrorKind::value, where, "max_gap = ", describe(object), unit,
         " is negative; expected the widest space between samples that is no gap, or None");
  }
  return gap;
}

std::optional<std::int64_t> parse_time(const Where& where, const char* argument, PyObject* object, DType dtype) {
  if (is_cached_array(object)) return std::nullopt;  // by far cheaper than the names of its type below
  if (const nb::object integer = as_integer(object); integer.is_valid())
    return nanoseconds(where, argument, integer.ptr());
  const std::optional<double> seconds = as_float(object);
  if (!seconds) return std::nullopt;
  if (PyFloat_Check(object) == 0) {
    if (is_numpy_scalar(object, "float32")) dtype = DType::f32;
    if (is_numpy_scalar(object, "float16")) dtype = DType::f16;
  }
  if (dtype != DType::f64 && std::fabs(*seconds) > narrow_seconds_limit) {
    fail(ErrorKind::value, where, argument, " = ", concat(*seconds), " s is too large for ", name_of(dtype),
         ": its step there is over a millisecond; give float64 seconds or int64 nanoseconds");
  }
  return nanoseconds(where, argument, *seconds);
}

double parse_rate(const Where& where, const char* argument, PyObject* object) {
  if (PyBool_Check(object) == 0 && PyNumber_Check(object) != 0) {
    const double rate = PyFloat_AsDouble(object);
    if (rate != -1.0 || PyErr_Occurred() == nullptr) return rate;
    PyErr_Clear();
  }
  fail(ErrorKind::type, where, argument, " is ", describe(object), "; expected a number of hertz");
}

std::int64_t parse_integer(const Where& where, const char* argument, PyObject* object) {
  const nb::object integer = as_integer(object);
  if (!integer.is_valid()) fail(ErrorKind::type, where, argument, " is ", describe(object), "; expected an int");
  const long long value = PyLong_AsLongLong(integer.ptr());
  if (value == -1 && PyErr_Occurred() != nullptr) {
    PyErr_Clear();
    fail(ErrorKind::value, where, argument, " = ", describe(object), " does not fit 64 bits");
  }
  return value;
}

double parse_number(const Where& where, const char* argument, PyObject* object) {
  const double value = PyFloat_AsDouble(object);
  if (value == -1 && PyErr_Occurred() != nullptr) {
    PyErr_Clear();
    fail(ErrorKind::type, where, argument, " is ", describe(object), "; expected a number");
  }
  return value;
}

Methods parse_methods(const Where& where, PyObject* object, PyObject* channels) {
  Methods result;
  if (object == Py_None) return result;
  if (PyUnicode_Check(object) != 0) {
    result.whole = parse_word(methods, where, "method", object);
    return result;
  }
  if (PyDict_Check(object) != 0) return match_patterns(where, object, channels);
  if (PyTuple_Check(object) == 0 && PyList_Check(object) == 0) {
    fail(ErrorKind::type, where, "method is ", describe(object),
         "; expected a name, a list of (name, begin, end), or a dict of patterns where channels are named");
  }
  const nb::object items = nb::steal(PySequence_Tuple(object));
  const Py_ssize_t count = PyTuple_Size(items.ptr());
  if (count == 0) fail(ErrorKind::value, where, "method is an empty list");
  for (Py_ssize_t k = 0; k < count; ++k) {
    const nb::object item = nb::borrow(PyTuple_GetItem(items.ptr(), k));
    if ((PyTuple_Check(item.ptr()) == 0 && PyList_Check(item.ptr()) == 0) || PySequence_Size(item.ptr()) != 3) {
      fail(ErrorKind::type, where, "method[", k, "] is ", describe(item.ptr()), "; expected (name, begin, end)");
    }
    const nb::object parts = nb::steal(PySequence_Tuple(item.ptr()));
    if (PyObject* const name = PyTuple_GetItem(parts.ptr(), 2); find(methods, name)) {
      fail(ErrorKind::type, where, "method[", k, "] is ", describe(item.ptr()), "; the name comes first: (\"",
           text_of(nb::borrow(name)), "\", ", describe(PyTuple_GetItem(parts.ptr(), 0)), ", ",
           describe(PyTuple_GetItem(parts.ptr(), 1)), ")");
    }
    const std::string entry = "method[" + std::to_string(k) + "]: ";
    MethodRange range;
    range.method = parse_word(methods, where, (entry + "name").c_str(), PyTuple_GetItem(parts.ptr(), 0));
    range.begin = parse_integer(where, (entry + "begin").c_str(), PyTuple_GetItem(parts.ptr(), 1));
    range.end = parse_integer(where, (entry + "end").c_str(), PyTuple_GetItem(parts.ptr(), 2));
    result.ranges.push_back(range);
  }
  return result;
}

std::optional<DType> parse_dtype(const Where& where, PyObject* object) {
  if (object == Py_None) return std::nullopt;
  // Few dtypes are used again and again; each entry holds its object.
  struct Entry {
    PyObject* object = nullptr;
    DType dtype = DType::f32;
  };
  static std::array<Entry, 8> seen{};
  static std::size_t next = 0;
  for (const Entry& entry : seen) {
    if (entry.object == object) return entry.dtype;
  }
  std::string name;
  if (PyUnicode_Check(object) != 0) {
    name = text_of(nb::borrow(object));
  } else if (type_name(object) == "torch.dtype") {
    name = text_of(nb::borrow(object)).substr(std::string_view("torch.").size());
  } else {
    const nb::object dtype =
        nb::steal(PyObject_CallMethod(nb::module_::import_("numpy").ptr(), "dtype", "(O)", object));
    if (dtype.is_valid()) {
      name = text_of(dtype.attr("name"));
    } else {
      PyErr_Clear();
    }
  }
  if (const std::optional<DType> dtype = value_of<DType>(name)) {
    PyObject* const evicted = seen[next].object;
    Py_INCREF(object);
    seen[next] = {object, *dtype};
    next = (next + 1) % seen.size();
    Py_XDECREF(evicted);
    return dtype;
  }
  fail(ErrorKind::type, where, "dtype is ", describe(object),
       "; expected a float, integer or bool dtype of 8 to 64 bits, such as \"float32\"");
}

void bind_options(nb::module_& m) {
  m.def(
      "nanoseconds", [](const char* what, nb::handle duration) { return parse_duration({}, what, duration.ptr()); },
      nb::arg("what"), nb::arg("duration"),
      "A duration (seconds as a float, nanoseconds as an int, a timedelta) in nanoseconds.",
      nb::sig("def nanoseconds(what: str, duration: typing.Any) -> int"));
  m.def(
      "hertz", [](const char* what, nb::handle rate) { return parse_rate({}, what, rate.ptr()); }, nb::arg("what"),
      nb::arg("rate").none(), "A rate as a float.", nb::sig("def hertz(what: str, rate: typing.Any) -> float"));
  m.def(
      "dtype_name",
      [](nb::handle dtype) {
        return name_of(*parse_dtype({"fuse", {}, -1}, dtype.ptr()));
      },
      nb::arg("dtype"), "The name of a dtype, in whatever form fuse(dtype=) takes it.",
      nb::sig("def dtype_name(dtype: typing.Any) -> str"));
}

}  // namespace robocache::python
