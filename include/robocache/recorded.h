// A log as streams in memory, straight into align, without a cache.
//
// ```cpp no_run
// robocache::McapRecording recording(robocache::open_bytes("drive.mcap"));
// robocache::McapBatches batches = recording.batches({{"/joint_states", "/gripper"}});  // all topics: batches()
// const std::vector<robocache::RecordedStream> recorded = robocache::assemble(batches);
// for (const robocache::Problem& problem : batches.problems()) std::puts(problem.sentence.c_str());
//
// std::vector<robocache::Stream> streams;
// for (const robocache::RecordedStream& stream : recorded) streams.push_back(stream.view());
// const std::int64_t channels = streams[0].values.shape[1] + streams[1].values.shape[1];
// const robocache::Array values = robocache::Array::zeros(robocache::DType::f64, {500, channels});
// const robocache::Timeline timeline{.start = recorded[0].times.front(), .rate = 50, .count = 500};
// robocache::fuse({}, streams, timeline, {.causal = true}, {.values = values.view()});
// ```
//
// Batches come from an McapRecording, or from a Decoder where the messages come from elsewhere (a bus, a rosbag2 database):
// `assemble(decoder.take())`.
//
// Clocks. Times are as recorded. Where a log may have more than one clock (a simulation's stamps beside log times), carry the
// batches over to one clock before they are assembled; the example in clock.h does that. Python's rc.open does it by itself.
// Determinism. The same messages give the same streams, bit for bit.
// Threads. assemble() works in the calling thread. Several threads may call it, each with batches of its own. Any number of
// threads may read a RecordedStream.
// Memory. All samples, and those of one stream a second time while it is put together, with 40 bytes for each of its samples.
// Cost. One pass over the messages and one copy; a sort for streams whose stamps go backward.
#pragma once

#include <robocache/align.h>
#include <robocache/array.h>
#include <robocache/formats.h>

#include <cstdint>
#include <vector>

#pragma GCC visibility push(default)  // the shared library exports what follows

namespace robocache {

// All samples of a stream, by time; samples of equal times stay in the order in which they were recorded.
struct RecordedStream {
  StreamInfo info{};                  // name, type, channels, methods, metadata: of the last batch
  Array values{};                     // [N, shape...]; where ragged: int64 [N], the numbers 0 .. N - 1 of the samples
  std::vector<std::int64_t> times{};  // [N] nanoseconds, not decreasing
  std::vector<std::int64_t> arrivals{};  // [N] nanoseconds: log times
  std::int64_t backward = 0;             // how many stamps were earlier than the one before them, before sorting
  // Where a sample is any number of rows (the bytes of an image, the points of a cloud), sample k is
  // rows[offsets[k]] .. rows[offsets[k + 1]]. Aligned values are then numbers of samples: which one was seen at each target.
  Array rows{};                         // [rows of all samples, shape...]
  std::vector<std::int64_t> offsets{};  // [N + 1]

  // Views of this stream with its methods and its name. Valid until the stream is moved, changed or destroyed.
  Stream view() const;
};

// Reads batches to their end, and puts the streams together in the order in which they first appear. Broken messages and topics
// that cannot be decoded are left out, and batches.problems() lists them. Throws what McapBatches::next() throws.
std::vector<RecordedStream> assemble(McapBatches& batches);

// The same for batches in memory. The batches of one stream follow each other in the order of the vector. If a stream of
// float64 gets more channels, earlier samples have NaN there. Throws Error(value) where batches of one stream do not fit each
// other, or the arrays of a batch do not.
std::vector<RecordedStream> assemble(std::vector<StreamBatch> batches);

}  // namespace robocache

#pragma GCC visibility pop
