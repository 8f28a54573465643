"""Key: one entry of a batch: its streams, its steps, and what happens to the values."""

from __future__ import annotations

import datetime
import itertools
import json
import operator
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robocache import _core
from robocache._align.stream import Duration, Method
from robocache._limits import SIZE_LIMIT
from robocache._loader.augment import augment_of
from robocache._recordings.frame_options import FILTERS, FITS
from robocache._recordings.words import missing, named
from robocache._voxels.grid import Grid

KNOWLEDGE = ("as_of", "causal", "truth")
EDGES = ("clamp", "nan", "zero")
DTYPES = ("float32", "float16", "bfloat16", "float64")
PICTURE_DTYPES = ("float32", "float16", "bfloat16", "uint8")
NORMALIZE = ("identity", "mean_std", "min_max", "quantiles")
PICTURE_NORMALIZE = ("identity", "mean_std", "imagenet")
RELATIVE = ("subtract", "pose")
ROTATIONS = ("quaternion", "6d", "6d_rows", "axis_angle")
VOXEL_OPTIONS = ("grid", "reduce", "features", "packed", "empty", "pose", "crop", "crop_frame")
DEPTH_OPTIONS = ("intrinsics", "depth_scale", "depth_min", "depth_max", "invalid")  # of voxels, for depth images
IMAGE_OPTIONS = ("size", "fit", "filter", "pad", "crop", "random_crop", "layout")
LAYOUTS = ("nchw", "nhwc")
GRID = ("origin", "voxel_size", "shape")
MOST_STEPS = 100_000
LEAST_INT_DURATION = 1_000_000  # nanoseconds: a smaller int is refused, because it may be meant as seconds
LONGEST = 2**61  # nanoseconds between an anchor and a step

Statistics = Mapping[str, Any]


class Key:
    """One entry of a batch: which streams, at which steps around the anchor, and what happens to the values.

    Args:
        streams: The name of a stream, or several, whose channels are put side by side. A camera stands alone.
        steps: The steps around the anchor t, in units of 1 / rate, in rising order: `range(-15, 1)` is the last 16
            steps up to t, `range(50)` is t and the 49 steps after it. Default: [0].
        delta_timestamps: In place of steps: seconds from the anchor, in rising order, as in LeRobot.
        knowledge: Which samples exist. "as_of": those that had arrived by the anchor, which is what a robot knows when
            it decides at t. "causal": at each step those that had arrived by that step. "truth": all. Default: "truth"
            for keys named "action" or "action.something", otherwise "as_of".
        method: As in `rc.align`. Default: as the cache stores it. One for all streams, or a dict by stream.
        max_gap: As in `rc.align`, like `method`. Default: as the cache stores it.
        edge: The value of a step that is not valid: "clamp", "zero" or "nan". Default: "zero" for streams whose name
            has the word velocity or delta, otherwise "clamp".
        on_nan: As in `rc.align`: "propagate" or "skip".
        image: For a camera, a dict of options of `rc.image`: size, fit, filter, pad, crop and layout ("nchw", the
            default, or "nhwc"). A crop of (height, width) is at a random place for each window and camera; in
            `loader.eval()` and `loader.window()`, and with `random_crop=False`, in the middle.
        augment: For a camera of uint8 pictures, a dict of ranges. A value is drawn for each window and camera, and all
            steps of a window have the same value. "rotation": the most degrees to either side. "brightness", "contrast"
            and "saturation": b means a factor from max(0, 1 - b) to 1 + b. "hue": the most turns to either side, at
            most 0.5. They are applied in this order, after the crop, to bytes. `loader.eval()` and `loader.window()`
            do not augment.
        voxels: For a stream of clouds or depth images, a dict: `grid` (an `rc.Grid`), and options of `rc.voxelize` or
            `rc.voxelize_depth`: reduce, features (channels of the cloud, by name or number), packed, empty, pose, crop
            and crop_frame; for depth images `intrinsics`, depth_scale, depth_min, depth_max and invalid too. The entry
            is [B, T, X, Y, Z], or with features [B, T, X, Y, Z, F]. The coordinates are the channels x, y and z,
            otherwise the first three.
        normalize: "identity", "mean_std", "min_max" or "quantiles" (q01 and q99 become -1 and 1); a camera has
            "identity" (0 to 1), "mean_std" or "imagenet".
        stats: Statistics in place of the cache's: {"mean": [...], "std": [...], "min", "max", "q01", "q99"}, a number
            for each channel, after `relative` and `rotation`.
        convention: The library whose formula normalises: "robocache", "lerobot" or "openpi".
        relative: "subtract" or "pose", with `relative_to`; or the name of a key, which means "subtract" from that key.
        relative_to: The key whose step at the anchor is the origin. Default for "subtract" and "pose":
            "observation.state".
        relative_channels: The channels of this key that become relative, by number; "pose" takes groups of seven
            (position and quaternion xyzw). Default: all.
        rotation: The form that quaternions (xyzw) are converted to: "6d" (the first two columns of the matrix),
            "6d_rows" (its first two rows, as in UMI and diffusion policy) or "axis_angle".
        rotation_channels: The first channel of each quaternion. Default: the channels with the method slerp.
        dtype: "float32" (default), "float16", "bfloat16" or "float64"; a camera "float32", "float16", "bfloat16" or
            "uint8" (then nothing is normalised). Voxels have the dtype of `rc.voxelize` unless one is given.
        drop: The probability that a window lacks a stream. It is drawn for each stream by itself.
        latency_jitter: Draws a delay for each window and stream from those of the recording (arrival - stamp), and all
            samples of the stream arrive with this delay.

    Examples:
        >>> rc.Key(["joints", "gripper"], steps=range(-15, 1), normalize="mean_std")
        >>> rc.Key("wrist", image=dict(size=(224, 224), crop=(208, 208)), dtype="bfloat16")
        >>> rc.Key("wrist", augment=dict(rotation=5.0, brightness=0.2, contrast=0.2, saturation=0.2, hue=0.05))
        >>> rc.Key("command", steps=range(50), relative="observation.state", normalize="quantiles")
    """

    __slots__ = (
        "augment",
        "convention",
        "delta_timestamps",
        "drop",
        "dtype",
        "edge",
        "image",
        "knowledge",
        "latency_jitter",
        "max_gap",
        "method",
        "normalize",
        "on_nan",
        "relative",
        "relative_channels",
        "relative_to",
        "rotation",
        "rotation_channels",
        "stats",
        "steps",
        "streams",
        "voxels",
    )

    def __init__(
        self,
        streams: str | Sequence[str],
        *,
        steps: Iterable[int] | None = None,
        delta_timestamps: Iterable[float] | None = None,
        knowledge: str | None = None,
        method: Method | Mapping[str, Method] | None = None,
        max_gap: Duration | Mapping[str, Duration] | None = None,
        edge: str | None = None,
        on_nan: str = "propagate",
        image: Mapping[str, Any] | None = None,
        augment: Mapping[str, float] | None = None,
        voxels: Mapping[str, Any] | None = None,
        normalize: str = "identity",
        stats: Statistics | None = None,
        convention: str = "robocache",
        relative: str | None = None,
        relative_to: str | None = None,
        relative_channels: Iterable[int] | None = None,
        rotation: str | None = None,
        rotation_channels: Iterable[int] | None = None,
        dtype: str | None = None,
        drop: float = 0.0,
        latency_jitter: bool = False,
    ) -> None:
        self.streams = streams_of(streams)
        if steps is not None and delta_timestamps is not None:
            raise ValueError("Key: give steps or delta_timestamps, one of them")
        self.steps = steps_of([0] if steps is None else steps) if delta_timestamps is None else None
        self.delta_timestamps = None if delta_timestamps is None else seconds_of(delta_timestamps)
        self.knowledge = knowledge if knowledge is None else one_of("knowledge", knowledge, KNOWLEDGE)
        self.method = method
        self.max_gap = max_gap
        self.edge = edge if edge is None else one_of("edge", edge, EDGES)
        self.on_nan = one_of("on_nan", on_nan, ("propagate", "skip"))
        self.image = None if image is None else image_of(image)
        self.augment = None if augment is None else augment_of(augment)
        self.normalize = one_of("normalize", normalize, sorted({*NORMALIZE, *PICTURE_NORMALIZE}))
        self.stats = None if stats is None else dict(stats)
        self.convention = one_of("convention", convention, ("robocache", "lerobot", "openpi"))
        if relative is not None and relative not in RELATIVE:
            if relative_to is not None:
                raise ValueError(
                    f'Key: relative is "{relative}"; with relative_to it must be one of {", ".join(RELATIVE)}'
                )
            relative, relative_to = "subtract", str(relative)
        self.relative = relative
        self.relative_to = ("observation.state" if relative_to is None else relative_to) if relative else None
        if relative is None and relative_to is not None:
            raise ValueError('Key: relative_to needs relative: "subtract" or "pose"')
        self.relative_channels = channels_of("relative_channels", relative_channels)
        self.rotation = rotation if rotation is None else one_of("rotation", rotation, ROTATIONS)
        self.rotation_channels = channels_of("rotation_channels", rotation_channels)
        self.dtype = dtype if dtype is None else one_of("dtype", name_of(dtype), sorted({*DTYPES, *PICTURE_DTYPES}))
        self.drop = probability("drop", drop)
        self.latency_jitter = bool(latency_jitter)
        self.voxels = None if voxels is None else voxels_of(voxels)
        if self.voxels is not None:
            self._check_voxels()

    def _check_voxels(self) -> None:
        """Raises if the key has an option that is for numbers or pictures."""
        if len(self.streams) > 1:
            raise ValueError("Key: voxels is for one stream; give each stream a key of its own")
        for option in ("image", "augment", "normalize", "stats", "relative", "rotation"):
            if getattr(self, option) != getattr(_DEFAULT, option):
                raise ValueError(f"Key: {option} is not for a key with voxels")

    def offsets(self, rate: float) -> NDArray[np.int64]:
        """The steps as nanoseconds from the anchor, rounded as a Timeline's are.

        Args:
            rate: Hertz.

        Returns:
            int64, rising.
        """
        if self.steps is not None:
            given, unit = np.asarray(self.steps, np.float64), 1e9 / rate
            found = np.rint(given * 1e9 / rate)
        else:
            assert self.delta_timestamps is not None
            given, unit = np.asarray(self.delta_timestamps), 1.0
            found = np.rint(given * 1e9)
        if not np.all(np.abs(found) < LONGEST):
            raise ValueError(
                f"Key: steps lie up to {float(np.abs(given * unit).max()):.3g} ns from the anchor, which is beyond "
                "the range of times (73 years)"
            )
        offsets = found.astype(np.int64)
        if np.any(np.diff(offsets) <= 0):
            raise ValueError(f"Key: two of its steps fall on the same nanosecond at {rate:g} Hz")
        return offsets

    def replace(self, **changes: Any) -> Key:
        """The same key with some arguments changed.

        Args:
            **changes: Arguments of `Key`, such as `normalize="quantiles"`.

        Returns:
            The new key.
        """
        given = {name: getattr(self, name) for name in Key.__slots__} | changes
        if "delta_timestamps" in changes and changes["delta_timestamps"] is not None:
            given["steps"] = changes.get("steps")
        if "steps" in changes and changes["steps"] is not None:
            given["delta_timestamps"] = changes.get("delta_timestamps")
        return Key(**given)

    def to_json(self) -> dict[str, Any]:
        """The arguments that differ from the defaults.

        Returns:
            A dict for JSON.
        """
        plain = {name: jsonable(getattr(self, name)) for name in Key.__slots__}
        default = {name: jsonable(getattr(_DEFAULT, name)) for name in Key.__slots__}
        kept = {name: value for name, value in plain.items() if value != default[name]}
        return {"streams": plain["streams"]} | kept

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Key) and self.to_json() == other.to_json()

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        said = self.to_json()
        streams = said.pop("streams")
        first = repr(streams[0]) if len(streams) == 1 else repr(streams)
        if self.steps is not None and len(self.steps) > 4 and is_consecutive(self.steps):
            said["steps"] = range(self.steps[0], self.steps[-1] + 1)
        return f"Key({', '.join([first, *(f'{name}={value!r}' for name, value in said.items())])})"


def is_consecutive(steps: tuple[int, ...]) -> bool:
    return steps == tuple(range(steps[0], steps[-1] + 1))


def streams_of(streams: Any) -> tuple[str, ...]:
    given = (streams,) if isinstance(streams, str) else tuple(streams) if isinstance(streams, Iterable) else ()
    if not given or not all(isinstance(name, str) for name in given):
        raise TypeError(f"Key: streams is {streams!r}; expected the name of a stream, or a list of names")
    for name in given:
        if given.count(name) > 1:
            raise ValueError(f'Key: stream "{name}" is named twice')
    return given


def steps_of(steps: Any) -> tuple[int, ...]:
    try:
        given = tuple(operator.index(step) for step in itertools.islice(steps, MOST_STEPS + 1))
    except TypeError:
        raise TypeError(f"Key: steps is {steps!r}; expected ints in units of 1 / rate, as range(-15, 1)") from None
    return rising("steps", given)


def seconds_of(seconds: Any) -> tuple[float, ...]:
    try:
        given = tuple(float(each) for each in itertools.islice(seconds, MOST_STEPS + 1))
    except TypeError:
        raise TypeError(f"Key: delta_timestamps is {seconds!r}; expected seconds, as [-0.1, 0.0]") from None
    if not all(np.isfinite(given)):
        raise ValueError(f"Key: delta_timestamps has {next(x for x in given if not np.isfinite(x))}; expected seconds")
    return rising("delta_timestamps", given)


def rising(name: str, given: tuple[Any, ...]) -> tuple[Any, ...]:
    if not given:
        raise ValueError(f"Key: {name} is empty; a key needs at least one step")
    if len(given) > MOST_STEPS:
        raise ValueError(f"Key: {name} has more than {MOST_STEPS:,} steps")
    for before, after in itertools.pairwise(given):
        if after <= before:
            raise ValueError(f"Key: {name} must rise, but {after} comes after {before}")
    return given


def one_of(name: str, given: Any, choices: Sequence[str]) -> str:
    if not isinstance(given, str):
        raise TypeError(f"Key: {name} is {given!r}; expected one of {', '.join(choices)}")
    if given not in choices:
        raise ValueError(f'Key: {name} is "{given}"; expected one of {", ".join(choices)}')
    return given


def name_of(dtype: Any) -> str:
    """float32 for "float32", np.float32, torch.float32 and jnp.float32."""
    if isinstance(dtype, str):
        return dtype
    return getattr(dtype, "__name__", str(dtype)).removeprefix("torch.")


def channels_of(name: str, channels: Any) -> tuple[int, ...] | None:
    if channels is None:
        return None
    try:
        given = tuple(operator.index(each) for each in channels)
    except TypeError:
        raise TypeError(f"Key: {name} is {channels!r}; expected the numbers of channels") from None
    if any(each < 0 for each in given) or list(given) != sorted(set(given)):
        raise ValueError(f"Key: {name} is {list(given)}; expected numbers from 0 on, in rising order")
    return given


def probability(name: str, given: Any) -> float:
    number = float(given)
    if not 0 <= number <= 1:
        raise ValueError(f"Key: {name} is {given}; expected a probability from 0 to 1")
    return number


def image_of(image: Any) -> dict[str, Any]:
    """The options of a camera, as far as they can be checked without its frames."""
    if not isinstance(image, Mapping):
        raise TypeError(f"Key: image is {image!r}; expected a dict, as dict(size=(224, 224), crop=(208, 208))")
    for option in image:
        if option not in IMAGE_OPTIONS:
            raise ValueError(missing("Key: image has no option", str(option), IMAGE_OPTIONS))
    made = dict(image)
    for option in ("size", "crop"):
        if made.get(option) is not None:
            made[option] = sides_of(option, made[option])
    if made.get("fit") is not None:
        one_of("image's fit", made["fit"], FITS)
    if made.get("filter") is not None:
        one_of("image's filter", made["filter"], FILTERS)
    if made.get("layout") is not None:
        one_of("image's layout", made["layout"], LAYOUTS)
    return {option: value for option, value in made.items() if value is not None}


def voxels_of(voxels: Any) -> dict[str, Any]:
    """The options of voxels, as JSON can hold them, as far as they can be checked without clouds."""
    if not isinstance(voxels, Mapping):
        raise TypeError(f"Key: voxels is {voxels!r}; expected a dict, as dict(grid=rc.Grid(...), reduce='occupancy')")
    for option in voxels:
        if option not in (*VOXEL_OPTIONS, *DEPTH_OPTIONS):
            raise ValueError(missing("Key: voxels has no option", str(option), (*VOXEL_OPTIONS, *DEPTH_OPTIONS)))
    grid = voxels.get("grid")
    if isinstance(grid, Mapping) and set(grid) == set(GRID):
        grid = Grid(**grid)
    if not isinstance(grid, Grid):
        raise TypeError(f"Key: voxels' grid is {grid!r}; expected an rc.Grid")
    if not isinstance(voxels.get("reduce", "count"), str):
        raise TypeError(f"Key: voxels' reduce is {voxels['reduce']!r}; expected one name, since a key is one tensor")
    if "intrinsics" in voxels:
        if "features" in voxels:
            raise ValueError("Key: voxels has features=, which are channels of a cloud, and intrinsics=, of a camera")
    else:
        for option in set(DEPTH_OPTIONS) & set(voxels):
            raise ValueError(f"Key: voxels has {option}=, which is for depth images, and these need intrinsics= too")
    with named("Key: voxels"):
        plain = {option: jsonable(value) for option, value in voxels.items() if option != "grid" and value is not None}
    return {"grid": {name: list(getattr(grid, name)) for name in GRID}} | plain


def sides_of(option: str, given: Any) -> tuple[int, int]:
    try:
        sides = tuple(operator.index(side) for side in given)
    except TypeError:
        sides = ()
    if len(sides) != 2 or min(sides) < 1:
        raise ValueError(f"Key: image's {option} is {given!r}; expected (height, width) in pixels")
    return sides[0], sides[1]


def jsonable(value: Any) -> Any:
    """A value of a key as JSON."""
    if isinstance(value, datetime.timedelta):
        return duration_json(_core.nanoseconds("max_gap", value))
    if isinstance(value, Mapping):
        return {str(name): jsonable(each) for name, each in value.items()}
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, (tuple, list, range)):
        return [jsonable(each) for each in value]
    json.dumps(value)  # raises TypeError if JSON cannot hold it
    return value


def duration_json(nanoseconds: int) -> float | int:
    """A duration that Key and Loader accept: seconds in place of an int that is too small for them."""
    return nanoseconds * 1e-9 if nanoseconds < LEAST_INT_DURATION else nanoseconds


WORD = re.compile(r"(^|[^a-z])(velocity|velocities|delta|deltas)($|[^a-z])")


def default_edge(stream: str) -> str:
    """zero for streams of velocities or differences, because a robot that stands still has a velocity of 0."""
    spaced = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", stream).lower()
    return "zero" if WORD.search(spaced) else "clamp"


def is_action(key: str) -> bool:
    """Whether a key of this name, in a loader or as LeRobot calls it, is an action."""
    return key == "action" or key.startswith("action.")


def default_knowledge(key: str) -> str:
    return "truth" if is_action(key) else "as_of"


def is_known_to_a_robot(name: str, key: Key) -> bool:
    """Whether a robot at the anchor has this key: actions that are yet to come it has not."""
    return not is_action(name) or (key.knowledge or default_knowledge(name)) != "truth"


def table_of(keys: Any) -> dict[str, Key]:
    """The keys of a call, checked."""
    if not isinstance(keys, Mapping) or not keys:
        raise TypeError(f"Loader: keys is {keys!r}; expected a dict of rc.Key by name")
    made: dict[str, Key] = {}
    for name, key in keys.items():
        if not isinstance(name, str) or not name:
            raise TypeError(f"Loader: a key is named {name!r}; expected a str")
        if isinstance(key, (str, list, tuple)):
            key = Key(key)
        elif isinstance(key, Mapping):
            key = Key(**key)
        if not isinstance(key, Key):
            raise TypeError(f'Loader: key "{name}" is {key!r}; expected an rc.Key')
        made[name] = key
    for name in made:
        for reserved in ("episode", "time", "position", "task_index", "task", "task_tokens", "row_valid"):
            if name == reserved:
                raise ValueError(f'Loader: a key may not be named "{name}": every batch has an entry of that name')
        for suffix in (".valid", ".age"):
            if name.endswith(suffix) and name.removesuffix(suffix) in made:
                raise ValueError(
                    f'Loader: a key may not be named "{name}": it stands beside key "{name[: -len(suffix)]}"'
                )
    return made


def check_origins(table: Mapping[str, Key]) -> None:
    """Raises if a key is relative to a key that is not there."""
    for name, key in table.items():
        if key.relative_to is not None and (key.relative_to not in table or key.relative_to == name):
            others = [other for other in table if other != name]
            sentence = f'Loader: key "{name}" is relative to a key that is not there:'
            raise ValueError(missing(sentence, key.relative_to, others))


def short_form(
    observation: Sequence[str] | str | None,
    action: Sequence[str] | str | None,
    observation_steps: int,
    action_steps: int,
    is_camera: Any,
) -> dict[str, Key]:
    """The keys that `observation=`, `action=` and their steps stand for: one for each stream."""
    for name, count in (("observation_steps", observation_steps), ("action_steps", action_steps)):
        if isinstance(count, bool) or not isinstance(count, int):
            raise TypeError(f"Loader: {name} is {count!r}; expected an int")
        if count < 1:
            raise ValueError(f"Loader: {name} is {count}; expected at least 1: steps count the anchor")
    made: dict[str, Key] = {}
    for stream in streams_of(observation) if observation else ():
        steps = [0] if is_camera(stream) else range(1 - observation_steps, 1)
        made[f"observation.{stream}"] = Key(stream, steps=steps)
    for stream in streams_of(action) if action else ():
        made[f"action.{stream}"] = Key(stream, steps=range(action_steps))
    if not made:
        raise ValueError("Loader: name the streams of the batch: keys={...}, or observation=[...] and action=[...]")
    return made


def whole_number(name: str, given: Any, least: int, end: int = SIZE_LIMIT) -> int:
    """An int argument of Loader or Mixture, from `least` to `end` - 1; `end` is a power of two."""
    try:
        number = operator.index(given)
    except TypeError:
        number = None
    if number is None or isinstance(given, bool):
        raise TypeError(f"Loader: {name} is {given!r}; expected an int")
    if number < least:
        raise ValueError(f"Loader: {name} is {number}; expected at least {least}")
    if number >= end:
        raise ValueError(f"Loader: {name} is {number}; expected {least} to 2^{end.bit_length() - 1} - 1")
    return number


_DEFAULT = Key("any")
