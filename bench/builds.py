"""`robocache build` of a recording, beside the least that a build must do: `zstd -d` of the same chunks into a file,
and `cp` of that file. All are commands on one core. The two do not wait for the disk; a build waits until its files are
on it."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shutil
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from bench import logs
from bench.goals import OURS, Absent, Row
from bench.messages import CLOUD, PLAIN, MessageCase, RecordedMessages
from bench.timing import Call

COMMANDS = "zstd -d + cp"
NAMES = (COMMANDS,)

# Numbers have a sensor's resolution, so that zstd halves them. There are enough clouds that no chunk has one twice.
CLOUDS = MessageCase("", CLOUD, 64, PLAIN, 30_000, resolution=1 / 512)
IMUS = MessageCase("", "sensor_msgs/msg/Imu", 1000)
IMUS_PER_CLOUD = 10
PERIOD = 10_000_000  # nanoseconds from one Imu to the next

# The child reports its own peak of memory. The peak of wait4 would include the process that started the child.
BUILD = """
import pathlib, sys
from robocache import cli
sys.argv[0] = "robocache"
try:
    cli.main()
except SystemExit as end:
    if end.code:
        raise
print(pathlib.Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0])
"""


@dataclasses.dataclass(frozen=True)
class Recording(logs.Log):
    chunks: Path  # its compressed chunks, one after the other
    unpacked: int  # their bytes when uncompressed

    @property
    def cache(self) -> Path:
        return self.path.with_suffix(".cache")


@dataclasses.dataclass(frozen=True, eq=False)
class BuildCase(Row):
    name: str
    clouds: int
    is_long: bool = False

    op = "build"
    devices = ("cpu",)

    def peers(self, device: str) -> tuple[str, ...]:
        return NAMES

    def make(self, device: str, seed: int = 0) -> Recording:
        from robocache import mcap

        path = logs.folder() / f"build-{self.clouds}-{seed}.mcap"
        clouds, imus = CLOUDS.make(device, seed), IMUS.make(device, seed)
        total = unpacked = 0
        with mcap.Writer(path, "zstd", chunk_size=16 << 20, profile="ros2") as writer:

            def add(case: MessageCase, recorded: RecordedMessages, topic: str) -> int:
                return writer.add_channel(topic, "cdr", writer.add_schema(case.type, "ros2msg", recorded.schema))

            points, motion = add(CLOUDS, clouds, "/points"), add(IMUS, imus, "/imu")
            for k in range(self.clouds * IMUS_PER_CLOUD):
                made = [(motion, imus.messages[k % IMUS.number][0])]
                if k % IMUS_PER_CLOUD == 0:
                    made.append((points, clouds.messages[k // IMUS_PER_CLOUD % CLOUDS.number][0]))
                for channel, data in made:
                    writer.write(channel, _stamped(data, k * PERIOD), k * PERIOD)
                    total += len(data)
        chunks = path.with_suffix(".zst")
        with chunks.open("wb") as file:
            for record in mcap.records(path, unpack=False):
                if record.type == "Chunk":
                    file.write(record.fields["records"])
                    unpacked += record.fields["uncompressed_size"]
        return Recording(path, self.clouds * (1 + IMUS_PER_CLOUD), total, chunks, unpacked)

    def ours(self, rc: ModuleType, recording: Recording) -> Call:
        def call() -> int:
            self._build(recording)
            return sum(sum(episode.samples.values()) for episode in rc.Cache(recording.cache).episodes)

        return call

    def figures(self, who: str, recording: Recording) -> dict[str, float]:
        return {"peak_mib": self._build(recording)} if who == OURS else {}

    def _build(self, recording: Recording) -> float:
        """Builds the cache. Returns the peak of resident memory, in MiB."""
        shutil.rmtree(recording.cache, ignore_errors=True)
        words = [sys.executable, "-c", BUILD, "build", str(recording.path), "-o", str(recording.cache)]
        return int(output_of(*words).split()[-1]) / 1024

    def other_call(self, who: str, recording: Recording) -> Call:
        if not shutil.which("zstd"):
            raise Absent("there is no zstd command; apt install zstd")
        unpacked, copied = (recording.path.with_suffix(end) for end in (".unpacked", ".copied"))

        def call() -> int:
            output_of("zstd", "-d", "-q", "-f", str(recording.chunks), "-o", str(unpacked))
            output_of("cp", str(unpacked), str(copied))
            return copied.stat().st_size

        return call

    def results(self, returned: int) -> list[Tensor]:
        return [torch.tensor(returned)]

    def truth(self, recording: Recording) -> list[Tensor]:
        return [torch.tensor(recording.messages), torch.tensor(recording.unpacked)]

    def compared(self, who: str, results: list[Any]) -> list[Any]:
        return results[:1] if who == OURS else results[-1:]

    def floor_bytes(self, recording: Recording) -> int:
        """The file once, the data once."""
        return recording.path.stat().st_size + recording.bytes


def _stamped(data: bytes, time: int) -> bytes:
    return data[:4] + struct.pack("<iI", *divmod(time, 1_000_000_000)) + data[12:]


def output_of(*words: str) -> str:
    with _one_core():
        return subprocess.run(words, capture_output=True, text=True, check=True).stdout


@contextlib.contextmanager
def _one_core() -> Iterator[None]:
    """Processes that are started inside run on one core."""
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(cores)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)


BUILD_CASES = (
    BuildCase("64 MiB of PointCloud2 and Imu, zstd", 140),
    BuildCase("1 GiB of PointCloud2 and Imu, zstd", 2236, is_long=True),  # its files take up to 4.5 GB
)
