// Messages of a recording into streams, for robocache/_recording.py.
//
//   _core.Decoder(name: str, encoding: str, text: bytes, message_encoding: str, topic: str, time: str = "auto")
//       A topic: its schema (name "sensor_msgs/msg/Imu", encoding "ros2msg" | "ros2idl" | "jsonschema" | "", its text),
//       the encoding of its messages ("cdr" | "json"), time "auto" | "stamp" | "log" | "publish". Raises FileError where
//       the encoding is unknown or the schema cannot be understood.
//     .add(messages: list[tuple[bytes, int, int]]) -> tuple[int, str | None]
//       (data, log_time, publish_time) each. How many were broken and left out, and the sentence of the first of them.
//     .bytes: int                                           what take() would hand out; call it at 1 to 4 MiB
//     .take() -> list[Piece]
//
//   Piece = (info, values, times, arrivals, lengths)        NumPy arrays that own their memory
//       values [N, *shape]; ragged [rows, *shape]; times, arrivals int64 [N]; lengths int64 [N] where ragged, else None
//   info  = (name: str, type: str, dtype: str, shape: tuple[int, ...], channels: tuple[str, ...],
//            methods: tuple[tuple[str, int, int], ...], ragged: bool, metadata: dict[str, str])
//       methods: (method, begin, end) over the flattened shape, all channels once; (): align's default.
//       Channels may be added from one piece of a stream to the next (earlier pieces: NaN there), never taken away.
//       metadata["time"]: "stamp", "log", "publish", or "varies": what "auto" chose.
//
//   _core.McapRecording(source: bytes | Buffer | Reader, name: str, time: str = "auto")
//       source: bytes: a path (os.fsencode); memoryview: the content itself; else an object with `size: int` and
//       `read(offset: int, n: int) -> bytes`. Reads the summary (or, where there is none, the records) and no message.
//     .summary() -> dict:  "topics": list[tuple[topic, type, message_encoding, schema_encoding, count | None]],
//                          "messages": int | None, "start": int | None, "end": int | None (log times, ns),
//                          "warnings": list[str]
//     .pieces(topics: list[str] | None = None) -> Iterator[Piece]      one pass, bounded memory; pieces of 1 to 4 MiB
//     .problems: list[tuple[topic, count, sentence]]        after a pass: topics that are skipped (count: 0) and broken
//                                                           messages (how many, the first one's sentence)
