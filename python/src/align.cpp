// resample, align, fuse and align_backward: arrays in, one call of the library, arrays out.
#include "align.h"

#include <nanobind/ndarray.h>
#include <robocache/align.h>
#include <robocache/cache.h>

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "argument.h"
#include "call.h"
#include "core/parallel.h"
#include "once.h"
#include "stream.h"

namespace nb = nanobind;

namespace robocache::python {

namespace {

// What the four calls share.
struct StreamsCall : Call {
  using Call::Call;

  void parse_options(nb::handle edge, nb::handle causal, nb::handle on_nan, nb::handle check) {
    options.edge = parse_edge(where, edge.ptr());
    options.causal = parse_flag(where, "causal", causal.ptr());
    options.on_nan = parse_on_nan(where, on_nan.ptr());
    options.check = parse_flag(where, "check", check.ptr());
  }

  // Streams as a dict by name or a sequence, or as a sequence with a name or None for each beside it.
  bool view_streams(nb::handle given, nb::handle names) {
    collect(given, names);
    streams.resize(members.size());
    bool served = true;
    for (std::size_t k = 0; k < members.size(); ++k) {
      served &= view_stream(stream_at(k), members[k].stream.ptr(), arrays, streams[k]);
    }
    return served;
  }

  // All arrays of the call; false where the torch layer must serve it.
  bool view(nb::handle given, nb::handle names, nb::handle wanted) {
    const bool served = view_streams(given, names);
    return view_targets(where, wanted.ptr(), arrays, targets) && served;
  }

  void collect(nb::handle given, nb::handle names) {
    if (PyDict_Check(given.ptr()) != 0) {
      members.reserve(static_cast<std::size_t>(PyDict_Size(given.ptr())));
      by_name = true;
      PyObject *name = nullptr, *stream = nullptr;
      for (Py_ssize_t k = 0; PyDict_Next(given.ptr(), &k, &name, &stream) != 0;)
        add(nb::borrow(name), nb::borrow(stream));
    } else if (PyTuple_Check(given.ptr()) != 0 || PyList_Check(given.ptr()) != 0) {
      const nb::object items = nb::steal(PySequence_Tuple(given.ptr()));
      const Py_ssize_t count = PyTuple_Size(items.ptr());
      members.reserve(static_cast<std::size_t>(count));
      for (Py_ssize_t k = 0; k < count; ++k) {
        nb::object stream = nb::borrow(PyTuple_GetItem(items.ptr(), k));
        nb::object name = names.is_none() ? stream_name(stream.ptr()) : nb::object(names[k]);
        add(std::move(name), std::move(stream));
      }
    } else if (PyObject_HasAttrString(given.ptr(), "items") != 0) {  // another mapping
      by_name = true;
      for (const nb::handle item : given.attr("items")()) add(item[0], item[1]);
    } else {
      fail(ErrorKind::type, where, "streams is of type ", type_name(given.ptr()),
           "; expected a dict or a list of Stream");
    }
  }

  void add(nb::object name, nb::object stream) {
    if (!name.is_none() && PyUnicode_Check(name.ptr()) == 0) {
      fail(ErrorKind::type, where, "a stream is named ", describe(name.ptr()), "; expected a str");
    }
    if (!by_name && !name.is_none()) {
      for (const Member& other : members) {
        if (!other.name.is_none() && PyUnicode_Compare(other.name.ptr(), name.ptr()) == 0) {
          fail(ErrorKind::value, where, "two streams are named ", describe(name.ptr()));
        }
      }
    }
    members.push_back({std::move(name), std::move(stream)});
  }

  Where stream_at(std::size_t k) const {
    Where here = where;
    PyObject* const name = members[k].name.ptr();
    if (name != Py_None) {
      Py_ssize_t length = 0;
      const char* const text = PyUnicode_AsUTF8AndSize(name, &length);
      if (text == nullptr) throw nb::python_error();
      here.stream = {text, static_cast<std::size_t>(length)};
    }
    if (members.size() > 1) here.position = static_cast<Py_ssize_t>(k);
    return here;
  }

  std::int64_t stamps() const {
    std::int64_t count = 0;
    for (const Stream& stream : streams) count += stream.times.size();
    return count;
  }

  // Leading dimensions of every output: rows, where there are any, and targets.
  std::size_t leading(const Batch& batch, std::int64_t* shape) const {
    std::size_t rank = 0;
    if (batch.rows) shape[rank++] = *batch.rows;
    shape[rank++] = batch.targets;
    return rank;
  }

  AlignOptions options;
  struct Member {
    nb::object name;  // None: named by its position
    nb::object stream;
  };
  std::vector<Member> members;
  bool by_name = false;  // the streams came with a name each
  std::vector<Stream> streams;
  std::optional<Targets> targets;
};

// out= must be what would have been returned; its shape and device are checked by the library. The call reads its inputs
// while it writes.
void view_out(StreamsCall& call, nb::handle out, std::optional<DType> dtype, TensorView& view) {
  call.view_out(out, dtype, view);
  for (std::size_t k = 0; k < call.streams.size(); ++k) {
    const Where where = call.members.empty() ? call.where : call.stream_at(k);
    const Stream& stream = call.streams[k];
    check_apart(where, view, "values", stream.values);
    check_apart(where, view, "times", stream.times);
    check_apart(where, view, "arrivals", stream.arrivals);
    check_apart(where, view, "lengths", stream.lengths);
    check_apart(where, view, "offsets", stream.offsets);
    check_apart(where, view, "rows", stream.rows);
  }
  check_apart(call.where, view, "targets", call.targets->times);
  if (call.targets->timeline) check_apart(call.where, view, "the timeline's start", call.targets->timeline->starts);
}

// [B, T, ...]: the leading dimensions, then the stream's trailing ones.
std::size_t values_shape(const StreamsCall& call, const Batch& batch, const Stream& stream, std::int64_t* shape) {
  std::size_t rank = call.leading(batch, shape);
  for (int k = leading_rank(stream); k < stream.values.rank; ++k) {
    if (rank == max_rank)
      fail(ErrorKind::value, call.where, "the output would have more than ", max_rank, " dimensions");
    shape[rank++] = stream.values.shape[static_cast<std::size_t>(k)];
  }
  return rank;
}

// The dtype that all streams must have where no other is asked for.
DType common_dtype(const StreamsCall& call) {
  const DType first = call.streams[0].values.dtype;
  for (std::size_t k = 1; k < call.streams.size(); ++k) {
    const DType here = call.streams[k].values.dtype;
    if (here != first) {
      fail(ErrorKind::type, call.stream_at(k), "values are ", name_of(here), ", and the first stream's ",
           name_of(first), "; say dtype= for the fused tensor");
    }
  }
  return first;
}

// robocache.Aligned and robocache.Fused, which are named tuples.
struct Records {
  nb::object aligned = nb::module_::import_("robocache._align").attr("Aligned");
  nb::object fused = nb::module_::import_("robocache._align").attr("Fused");
  newfunc make = reinterpret_cast<newfunc>(PyType_GetSlot(&PyTuple_Type, Py_tp_new));
};
Once<Records> records;

// The tuple as one of them.
nb::object record(const nb::object& type, const nb::object& parts) {
  const nb::object arguments = nb::steal(PyTuple_Pack(1, parts.ptr()));
  nb::object made = nb::steal(records().make(reinterpret_cast<PyTypeObject*>(type.ptr()), arguments.ptr(), nullptr));
  if (!made.is_valid()) throw nb::python_error();
  return made;
}

// Name, or position, to the slice of the fused channels.
nb::object columns_of(const StreamsCall& call) {
  nb::object columns = nb::steal(PyDict_New());
  std::int64_t first = 0;
  for (std::size_t k = 0; k < call.streams.size(); ++k) {
    const std::int64_t end = first + channel_count(call.streams[k]);
    const nb::object from = nb::steal(PyLong_FromLongLong(first));
    const nb::object to = nb::steal(PyLong_FromLongLong(end));
    const nb::object slice = nb::steal(PySlice_New(from.ptr(), to.ptr(), nullptr));
    const nb::object& name = call.members[k].name;
    const nb::object key = name.is_none() ? nb::steal(PyLong_FromSize_t(k)) : name;
    if (PyDict_SetItem(columns.ptr(), key.ptr(), slice.ptr()) != 0) throw nb::python_error();
    first = end;
  }
  return columns;
}

nb::object resample(Argument values, Argument times, Argument targets, Argument method, Argument edge, Argument max_gap,
                    Argument latency, Argument causal, Argument lengths, Argument offsets, Argument rows,
                    Argument on_nan, Argument check, Argument out, Argument backend) {
  StreamsCall call("resample", backend);
  const Where& where = call.where;
  call.parse_options(edge, causal, on_nan, check);
  const Methods methods = parse_methods(where, method.ptr());
  Stream& stream = call.streams.emplace_back();
  stream.max_gap = parse_max_gap(where, max_gap.ptr());
  stream.latency = parse_duration(where, "latency", latency.ptr());
  Arrays& arrays = call.arrays;
  bool served = arrays.view(where, "values", values.ptr(), Role::values, stream.values);
  served &= arrays.view(where, "times", times.ptr(), Role::stamps, stream.times);
  const auto view_integers = [&](const char* argument, Argument array, TensorView& into) {
    if (!array.is_none()) served &= arrays.view(where, argument, array.ptr(), Role::integers, into);
  };
  view_integers("lengths", lengths, stream.lengths);
  view_integers("offsets", offsets, stream.offsets);
  view_integers("rows", rows, stream.rows);
  served &= view_targets(where, targets.ptr(), arrays, call.targets);
  if (!served) return not_implemented();
  set_methods(methods, stream);
  const Batch shape_of_call = batch(where.operation, call.streams, *call.targets);
  Aligned output;
  Outputs outputs(where, arrays, 1);
  if (out.is_none()) {
    std::int64_t shape[max_rank];
    const std::size_t rank = values_shape(call, shape_of_call, stream, shape);
    outputs.add(stream.values.dtype, {shape, rank});
    outputs.allocate();
    output.values = outputs[0];
  } else {
    view_out(call, out, stream.values.dtype, output.values);
  }
  call.run(call.stamps() + output.values.size(), {},
           [&](const Context& context) { robocache::resample(context, stream, *call.targets, call.options, output); });
  if (out.is_none()) return outputs.take();
  call.written(out);
  return nb::borrow(out);
}

// Makes the four results of each stream in `outputs`, which has room for them, and returns views of them.
std::vector<Aligned> make_results(const StreamsCall& call, const Batch& shape_of_call, Outputs& outputs) {
  for (const Stream& stream : call.streams) {
    std::int64_t shape[max_rank];
    const std::size_t rank = values_shape(call, shape_of_call, stream, shape);
    const std::size_t lead = call.leading(shape_of_call, shape);
    outputs.add(stream.values.dtype, {shape, rank});
    outputs.add(DType::boolean, {shape, lead});
    outputs.add(DType::i64, {shape, lead});
    outputs.add(DType::i64, {shape, lead});
  }
  outputs.allocate();
  std::vector<Aligned> aligned(call.streams.size());
  for (std::size_t k = 0; k < aligned.size(); ++k) {
    aligned[k] = {outputs[4 * k], outputs[4 * k + 1], outputs[4 * k + 2], outputs[4 * k + 3]};
  }
  return aligned;
}

// An Aligned of each stream: a dict where they came with names, else a list.
nb::object aligned_records(const StreamsCall& call, Outputs& outputs) {
  nb::object result = nb::steal(call.by_name ? PyDict_New() : PyList_New(0));
  for (const auto& member : call.members) {
    nb::object parts[4];
    for (nb::object& part : parts) part = outputs.take();
    const nb::object made = record(
        records().aligned, nb::steal(PyTuple_Pack(4, parts[0].ptr(), parts[1].ptr(), parts[2].ptr(), parts[3].ptr())));
    const int failed = call.by_name ? PyDict_SetItem(result.ptr(), member.name.ptr(), made.ptr())
                                    : PyList_Append(result.ptr(), made.ptr());
    if (failed != 0) throw nb::python_error();
  }
  return result;
}

nb::object align(Argument streams, Argument names, Argument targets, Argument edge, Argument causal, Argument on_nan,
                 Argument check, Argument backend) {
  StreamsCall call("align", backend);
  call.parse_options(edge, causal, on_nan, check);
  if (!call.view(streams, names, targets)) return not_implemented();
  const Batch shape_of_call = batch(call.where.operation, call.streams, *call.targets);
  call.check_wide_integers("ages and indices", ", or use resample");
  Outputs outputs(call.where, call.arrays, 4 * call.streams.size());
  const std::vector<Aligned> aligned = make_results(call, shape_of_call, outputs);
  std::int64_t work = call.stamps();
  for (const Aligned& made : aligned) work += made.values.size();
  call.run(work, {}, [&](const Context& context) {
    robocache::align(context, call.streams, *call.targets, call.options, aligned);
  });
  return aligned_records(call, outputs);
}

// Row b of an array that has rows.
TensorView row_of(const TensorView& view, std::int64_t b) {
  TensorView row = view;
  row.data = static_cast<std::byte*>(view.data) + b * view.strides[0] * size_of(view.dtype);
  row.shape[0] = 1;
  return row;
}

using Numbers = nb::ndarray<const std::int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

// Row b is episode episodes[b] of a cache, whichever shard it lies in: read in place. `streams` are empty: they say the
// names, the options and what a sample is; `places` say which streams of the cache they are. NotImplemented where a shard
// has fewer channels than the stream has now.
nb::object align_episodes(const Cache& cache, const Numbers& episodes, const Numbers& places, Argument streams,
                          Argument targets, Argument edge, Argument causal, Argument on_nan, Argument backend) {
  StreamsCall call("align", backend);
  call.parse_options(edge, causal, on_nan, nb::handle(Py_True));
  if (!call.view(streams, nb::none(), targets)) return not_implemented();
  const Batch shape_of_call = batch(call.where.operation, call.streams, *call.targets);
  const std::size_t count = call.streams.size();
  const std::size_t rows = episodes.size();
  if (shape_of_call.rows != static_cast<std::int64_t>(rows) || places.size() != count) {
    fail(ErrorKind::value, call.where, "as many targets as episodes, and as many places as streams, are needed");
  }
  std::vector<Stream> all;  // of row 0, then of row 1, ...
  std::vector<std::shared_ptr<const void>> memory;
  std::int64_t work = 0;
  bool is_narrow = false;
  {
    const nb::gil_scoped_release released;
    all.reserve(rows * count);
    for (std::size_t b = 0; b < rows; ++b) {
      const std::int64_t number = episodes.data()[b];
      for (std::size_t k = 0; k < count; ++k) {
        Stream& stream = all.emplace_back(call.streams[k]);
        const auto& has = cache.episodes().at(static_cast<std::size_t>(number)).streams;
        const auto entry = std::ranges::find(has, places.data()[k], &EpisodeStream::stream);
        if (entry == has.end()) continue;
        const CachedStream found = cache.read(number, entry->stream);
        const TensorView& expected = stream.values;
        is_narrow = is_narrow || found.values.dtype != expected.dtype || found.values.rank != expected.rank ||
                    !std::equal(found.values.shape.begin() + 1, found.values.shape.begin() + found.values.rank,
                                expected.shape.begin() + 1);
        stream.values = found.values;
        stream.times = found.times;
        stream.arrivals = found.arrivals;
        stream.latency = entry->latency;
        work += found.times.size();
        if (memory.empty() || memory.back() != found.memory) memory.push_back(found.memory);
      }
    }
  }
  if (is_narrow) return not_implemented();
  Outputs outputs(call.where, call.arrays, 4 * count);
  const std::vector<Aligned> aligned = make_results(call, shape_of_call, outputs);
  for (const Aligned& made : aligned) work += made.values.size();
  call.run(work, {}, [&](const Context& context) {
    constexpr std::int64_t large_work = 1 << 16;  // elements that are worth another thread
    const std::int64_t grain = large_work * static_cast<std::int64_t>(rows) / std::max<std::int64_t>(work, 1) + 1;
    parallel_for(static_cast<std::int64_t>(rows), grain, [&](std::int64_t begin, std::int64_t end) {
      std::vector<Aligned> to(count);
      for (std::int64_t b = begin; b < end; ++b) {
        Targets at = *call.targets;
        if (at.timeline) {
          at.timeline->starts = row_of(at.timeline->starts, b);
        } else {
          at.times = row_of(at.times, b);
        }
        for (std::size_t k = 0; k < count; ++k) {
          const Aligned& whole = aligned[k];
          to[k] = {row_of(whole.values, b), row_of(whole.valid, b), row_of(whole.age, b), row_of(whole.index, b)};
        }
        const std::span<const Stream> row(&all[static_cast<std::size_t>(b) * count], count);
        robocache::align(context, row, at, call.options, to);
      }
    });
  });
  return aligned_records(call, outputs);
}

nb::object fuse(Argument streams, Argument names, Argument targets, Argument edge, Argument causal, Argument on_nan,
                Argument check, Argument backend, Argument dtype, Argument out) {
  StreamsCall call("fuse", backend);
  call.parse_options(edge, causal, on_nan, check);
  std::optional<DType> wanted = parse_dtype(call.where, dtype.ptr());
  if (!call.view(streams, names, targets)) return not_implemented();
  const Batch shape_of_call = batch(call.where.operation, call.streams, *call.targets);
  call.check_wide_integers("ages and indices", ", or use resample");
  const std::size_t count = call.streams.size();
  if (!wanted && out.is_none()) wanted = common_dtype(call);
  std::int64_t shape[3];
  const std::size_t lead = call.leading(shape_of_call, shape);
  std::int64_t& last = shape[lead];
  last = 0;
  for (const Stream& stream : call.streams) last += channel_count(stream);
  Aligned fused;
  Outputs outputs(call.where, call.arrays, 3);
  if (out.is_none()) {
    outputs.add(*wanted, {shape, lead + 1});
  } else {
    view_out(call, out, wanted, fused.values);
  }
  last = static_cast<std::int64_t>(count);
  outputs.add(DType::boolean, {shape, lead + 1});
  outputs.add(DType::i64, {shape, lead + 1});
  outputs.allocate();
  const std::size_t marks = out.is_none() ? 1 : 0;
  if (out.is_none()) fused.values = outputs[0];
  fused.valid = outputs[marks];
  fused.age = outputs[marks + 1];
  call.run(call.stamps() + fused.values.size(), {},
           [&](const Context& context) { robocache::fuse(context, call.streams, *call.targets, call.options, fused); });
  nb::object values;
  if (out.is_none()) {
    values = outputs.take();
  } else {
    call.written(out);
    values = nb::borrow(out);
  }
  const nb::object valid = outputs.take();
  const nb::object age = outputs.take();
  const nb::object columns = columns_of(call);
  return record(records().fused, nb::steal(PyTuple_Pack(4, values.ptr(), valid.ptr(), age.ptr(), columns.ptr())));
}

nb::object align_backward(Argument streams, Argument names, Argument targets, Argument edge, Argument causal,
                          Argument on_nan, Argument backend, Argument output_gradients) {
  StreamsCall call("align_backward", backend);
  call.parse_options(edge, causal, on_nan, nb::handle(Py_False));  // the forward has checked the data
  if (!call.view(streams, names, targets)) return not_implemented();
  const nb::object given = nb::steal(PySequence_Tuple(output_gradients.ptr()));
  if (!given.is_valid()) throw nb::python_error();
  const std::size_t count = call.streams.size();
  if (PyTuple_Size(given.ptr()) != static_cast<Py_ssize_t>(count)) {
    fail(ErrorKind::value, call.where, "as many output gradients as streams are needed");
  }
  Outputs outputs(call.where, call.arrays, count);
  std::vector<TensorView> from(count), into(count);
  std::int64_t work = call.stamps();
  for (std::size_t k = 0; k < count; ++k) {
    PyObject* const gradient = PyTuple_GetItem(given.ptr(), static_cast<Py_ssize_t>(k));
    if (!call.arrays.view(call.where, "an output gradient", gradient, Role::integers, from[k]))
      return not_implemented();
    const TensorView& values = call.streams[k].values;
    outputs.add(values.dtype, {values.shape.data(), static_cast<std::size_t>(values.rank)});
    work += from[k].size();
  }
  outputs.allocate();
  for (std::size_t k = 0; k < count; ++k) into[k] = outputs[k];
  call.run(work, call.workspace(outputs), [&](const Context& context) {
    robocache::align_backward(context, call.streams, *call.targets, call.options, from, into);
  });
  nb::list result;
  for (std::size_t k = 0; k < count; ++k) result.append(outputs.take());
  return result;
}

}  // namespace

void bind_align(nb::module_& m) {
  m.def(
      "resample", &resample,
      nb::sig("def resample(values: typing.Any, times: typing.Any, targets: typing.Any, method: typing.Any, edge: str, "
              "max_gap: typing.Any, latency: typing.Any, causal: bool, lengths: typing.Any, offsets: typing.Any, "
              "rows: typing.Any, on_nan: str, check: bool, out: typing.Any, backend: str | None, /) -> typing.Any"),
      "robocache.resample, or NotImplemented where robocache._torch must serve the call.");
  m.def("align", &align,
        nb::sig("def align(streams: typing.Any, names: tuple[str | None, ...] | None, targets: typing.Any, edge: str, "
                "causal: bool, on_nan: str, check: bool, backend: str | None, /) -> typing.Any"),
        "robocache.align, or NotImplemented where robocache._torch must serve the call.");
  m.def("align_episodes", &align_episodes,
        nb::sig("def align_episodes(cache: Cache, episodes: typing.Any, places: typing.Any, streams: dict[str, "
                "typing.Any], targets: typing.Any, edge: str, causal: bool, on_nan: str, backend: str | None, /) -> "
                "typing.Any"),
        "align of a cache's episodes, read in place in whichever shards they lie; or NotImplemented.");
  m.def("fuse", &fuse,
        nb::sig("def fuse(streams: typing.Any, names: tuple[str | None, ...] | None, targets: typing.Any, edge: str, "
                "causal: bool, on_nan: str, check: bool, backend: str | None, dtype: typing.Any, out: typing.Any, /) "
                "-> typing.Any"),
        "robocache.fuse, or NotImplemented where robocache._torch must serve the call.");
  m.def("check_stream", &check_stream, nb::sig("def check_stream(stream: typing.Any, /) -> None"),
        "Raises where an option of a Stream is wrong.");
  m.def("check_timeline", &check_timeline, nb::sig("def check_timeline(timeline: typing.Any, /) -> None"),
        "Raises where the rate, count or start of a Timeline is wrong.");
  m.def("align_backward", &align_backward,
        nb::sig("def align_backward(streams: typing.Any, names: tuple[str | None, ...] | None, targets: typing.Any, "
                "edge: str, causal: bool, on_nan: str, backend: str | None, output_gradients: typing.Any, /) "
                "-> typing.Any"),
        "d loss / d values of each stream, as a list, from d loss / d aligned values.");
}

}  // namespace robocache::python
