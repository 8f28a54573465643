"""Reading all messages of an MCAP file on one core, ours beside the `mcap` package. Ours checks CRCs; the package does
not by default."""

from __future__ import annotations

import atexit
import dataclasses
import functools
import random
import shutil
import tempfile
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from bench import others
from bench.goals import Row
from bench.timing import Call

PACKAGE = "mcap"
NAMES = (PACKAGE,)


@functools.cache
def folder() -> Path:
    made = tempfile.mkdtemp(prefix="robocache-bench-")
    atexit.register(shutil.rmtree, made, ignore_errors=True)
    return Path(made)


@dataclasses.dataclass(frozen=True)
class Log:
    """An MCAP file that the bench wrote."""

    path: Path
    messages: int
    bytes: int  # of the data of all messages


@dataclasses.dataclass(frozen=True, eq=False)
class McapCase(Row):
    """Reads all messages in log-time order, and takes the length of the data of each."""

    name: str
    number: int
    size: int  # of a message; a third of it is noise, the rest compresses
    compression: str = "zstd"
    disorder: int = 0  # by how many messages one may come late

    op = "mcap.messages"
    devices = ("cpu",)

    def peers(self, device: str) -> tuple[str, ...]:
        return NAMES

    def make(self, device: str, seed: int = 0) -> Log:
        from robocache import mcap

        path = folder() / f"{self.number}-{self.size}-{self.compression}-{self.disorder}-{seed}.mcap"
        if not path.exists():
            rng = random.Random(seed)
            pool = [rng.randbytes(self.size // 3) + bytes(self.size - self.size // 3) for _ in range(64)]
            with mcap.Writer(path, self.compression, chunk_size=1 << 20, profile="ros2") as writer:
                schema = writer.add_schema("demo/msg/Bytes", "ros2msg", "uint8[] data")
                channels = [writer.add_channel(f"/topic_{k}", "cdr", schema) for k in range(5)]
                for k in range(self.number):
                    late = rng.randint(0, self.disorder) if self.disorder else 0
                    writer.write(channels[k % 5], pool[k % 64], max(0, k - late) * 1_000_000, sequence=k)
        return Log(path, self.number, self.number * self.size)

    def ours(self, rc: ModuleType, log: Log) -> Call:
        from robocache import mcap

        return lambda: _look(message.data for message in mcap.messages(log.path))

    def other_call(self, who: str, log: Log) -> Call:
        reader = others.module("mcap.reader", "pip install mcap")

        def call() -> Tensor:
            with log.path.open("rb") as file:
                return _look(message.data for _, _, message in reader.make_reader(file).iter_messages())

        return call

    def results(self, returned: Any) -> list[Tensor]:
        return [returned]

    def truth(self, log: Log) -> list[Tensor]:
        return [torch.tensor([log.messages, log.bytes])]

    def floor_bytes(self, log: Log) -> int:
        """The file once, the data once."""
        return log.path.stat().st_size + log.bytes


def _look(data: Iterable[bytes]) -> Tensor:
    count = total = 0
    for one in data:
        count += 1
        total += len(one)
    return torch.tensor([count, total])


LOG_CASES = (
    McapCase("100K of 320 bytes, zstd", 100_000, 320),
    McapCase("100K of 320 bytes, lz4", 100_000, 320, "lz4"),
    McapCase("100K of 320 bytes, zstd, out of order", 100_000, 320, disorder=20_000),
    McapCase("1000 of 64 KiB, zstd", 1000, 1 << 16),
)
