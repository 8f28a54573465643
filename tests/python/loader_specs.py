"""Specs for tests of the loader: the arguments of rc.Loader, with the arguments of rc.Key in `keys`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from cases import Random
from loader_cases import MS


@dataclass(frozen=True)
class SpecCase:
    cache: str
    arguments: dict[str, Any] = field(default_factory=dict)


STATE_AND_ACTION: dict[str, Any] = {
    "observation.state": {"streams": ["state"], "steps": range(-3, 1)},
    "action": {"streams": ["action"], "steps": range(6)},
}
MEANS = {"mean": [0.25, -0.5, 0.125, 3.0], "std": [0.5, 2.0, 0.0, 1.7]}
LIMITS = {"min": [-1.0, -0.3, 0.2, 5.0], "max": [1.5, 0.7, 0.2, 5.5]}
SHARES = {"q01": [-0.7, -0.1, -2.2, 0.0], "q99": [0.9, 0.4, 1.1, 0.0]}


def one(streams: Any, steps: Any = range(-2, 3), rate: float = 50, name: str = "observation", **more: Any) -> Any:
    """A spec of one key."""
    own = {key: more.pop(key) for key in list(more) if key in KEY_ARGUMENTS}
    return {"rate": rate, "batch_size": 4, "keys": {name: {"streams": streams, "steps": steps, **own}}, **more}


KEY_ARGUMENTS = {
    *("delta_timestamps", "knowledge", "method", "max_gap", "edge", "on_nan", "image", "normalize", "stats"),
    *("relative", "relative_to", "relative_channels", "rotation", "dtype", "drop", "latency_jitter"),
}


def plain_spec(**more: Any) -> dict[str, Any]:
    return {"rate": 50, "batch_size": 4, "keys": STATE_AND_ACTION, **more}


def arm_spec(rate: float = 50, **more: Any) -> dict[str, Any]:
    """Many keys in one table."""
    keys = {
        "observation.state": {"streams": ["joints", "gripper"], "steps": range(-5, 1)},
        "observation.velocity": {"streams": ["wheel_velocity"], "steps": [-4, -1, 0]},
        "observation.mode": {"streams": ["mode", "mount"], "steps": [0]},
        "observation.images.wrist": {"streams": "wrist", "steps": [-2, 0], "dtype": "float32"},
        "action": {"streams": ["command"], "steps": range(8)},
    }
    return {"rate": rate, "batch_size": 5, "keys": keys, **more}


SPECS: dict[str, SpecCase] = {
    # Each method, dtype and kind of stream alone
    **{
        f"stream {stream}": SpecCase("arm", one([stream], seed=k))
        for k, stream in enumerate(
            ["joints", "gripper", "half", "heading", "tool_pose", "wheel_velocity", "contact", "buttons", "command"]
        )
    },
    "static alone": SpecCase("arm", one(["mount"])),
    "on change alone": SpecCase("arm", one(["mode"])),
    "static beside": SpecCase("arm", one(["joints", "mount"])),
    "joined": SpecCase("arm", one(["joints", "gripper", "contact", "mode", "half"])),
    "camera": SpecCase("arm", one("wrist", [-3, 0], dtype="float32")),
    "camera bytes": SpecCase("arm", one("wrist", [-1, 0, 1], dtype="uint8")),
    # What it knew
    "truth": SpecCase("arm", one(["joints", "gripper"], knowledge="truth")),
    "causal": SpecCase("arm", one(["joints", "gripper", "wheel_velocity"], knowledge="causal")),
    "as of, for an action": SpecCase("arm", one(["command"], name="action", knowledge="as_of")),
    "action by name": SpecCase("arm", one(["command"], name="action.arm")),
    # Options of streams
    "method hold": SpecCase("arm", one(["joints"], method="hold")),
    "method nearest": SpecCase("arm", one(["gripper"], method="nearest")),
    "max_gap": SpecCase("arm", one(["gripper"], max_gap=0.03)),
    "edge zero": SpecCase("arm", one(["joints"], range(-6, 7), edge="zero", knowledge="truth")),
    "edge nan": SpecCase("arm", one(["joints"], range(-6, 7), edge="nan")),
    "edge clamp of velocity": SpecCase("arm", one(["wheel_velocity"], range(-6, 7), edge="clamp")),
    # Steps and anchors
    "one step": SpecCase("plain", one(["state"], [0])),
    "far steps": SpecCase("plain", one(["state"], [-400, -7, 0, 2, 900])),
    "delta_timestamps": SpecCase("plain", one(["state"], None, delta_timestamps=[-0.0333, 0.0, 0.01, 0.1])),
    "rate 30": SpecCase("arm", arm_spec(30)),
    "rate 7.3": SpecCase("plain", plain_spec(rate=7.3)),
    "rate 1000": SpecCase("plain", plain_spec(rate=1000.0, episodes=[1])),
    "stride": SpecCase("plain", plain_spec(stride=0.0471)),
    "stride ns": SpecCase("plain", plain_spec(stride=33_333_333)),
    "whole": SpecCase("plain", plain_spec(whole=True)),
    "whole and drop_last_steps": SpecCase("plain", plain_spec(whole=True, drop_last_steps=3)),
    "where intervals meet anchors": SpecCase(
        "plain", plain_spec(where={0: [(0.04, 0.1)], 2: [(0.0, 0.0), (0.5, 0.52)]})
    ),
    "drop_last_steps": SpecCase("plain", plain_spec(drop_last_steps=5)),
    "whole and stride": SpecCase("arm", arm_spec(whole=True, stride=0.011)),
    "short episodes": SpecCase("short", plain_spec()),
    # Selection
    "episode numbers": SpecCase("plain", plain_spec(episodes=[2, 0])),
    "episode names": SpecCase("plain", plain_spec(episodes=["plain-1"])),
    "where": SpecCase("plain", plain_spec(where="moving")),
    "where not": SpecCase("plain", plain_spec(where="not moving")),
    "where intervals": SpecCase("plain", plain_spec(where={0: [(0.05, 0.11), (0.29, 0.31)], 2: [(0.7, 9.0)]})),
    "missing, left out": SpecCase("lacking", plain_spec(missing="leave_out")),
    "missing, masked": SpecCase("lacking", plain_spec(missing="mask")),
    # Normalisation
    "mean_std": SpecCase("arm", one(["joints"], normalize="mean_std", stats=MEANS)),
    "min_max": SpecCase("arm", one(["joints"], normalize="min_max", stats=LIMITS)),
    "quantiles": SpecCase("arm", one(["joints"], normalize="quantiles", stats=SHARES)),
    "statistics of the cache": SpecCase("arm", one(["joints"], normalize="mean_std")),
    "limits of the cache": SpecCase("arm", one(["joints", "gripper"], normalize="min_max")),
    "quantiles of the cache": SpecCase("arm", one(["gripper"], normalize="quantiles")),
    "statistics of the selected": SpecCase("arm", one(["joints"], normalize="mean_std", episodes=[0, 3])),
    "zero is written last": SpecCase(
        "arm", one(["joints", "wheel_velocity"], range(-9, 1), normalize="mean_std", edge="clamp", knowledge="causal")
    ),
    # dtype
    "float16": SpecCase("arm", one(["joints", "gripper"], dtype="float16")),
    "float64": SpecCase("arm", one(["joints", "gripper"], dtype="float64")),
    "bfloat16 on torch": SpecCase("arm", one(["joints", "gripper"], dtype="bfloat16", device="cpu")),
    # Relative
    "subtract": SpecCase(
        "plain",
        {
            **plain_spec(),
            "keys": {
                "observation.state": {"streams": ["state"], "steps": range(-2, 1)},
                "action": {"streams": ["action"], "steps": range(5), "relative": "observation.state"},
            },
        },
    ),
    "subtract channels": SpecCase(
        "arm",
        arm_spec(
            keys={
                "observation.state": {"streams": ["joints", "gripper"], "steps": [-3, 0]},
                "action": {
                    "streams": ["command"],
                    "steps": range(4),
                    "relative": "subtract",
                    "relative_channels": [0, 2],
                },
            }
        ),
    ),
    **{
        f"rotation {kind}": SpecCase("arm", one(["joints", "tool_pose"], rotation=kind))
        for kind in ("quaternion", "6d", "axis_angle")
    },
    **{
        f"pose, {kind}": SpecCase(
            "arm",
            arm_spec(
                keys={
                    "observation.pose": {"streams": ["tool_pose"], "steps": [-1, 0]},
                    "action": {
                        "streams": ["target_pose"],
                        "steps": range(4),
                        "relative": "pose",
                        "relative_to": "observation.pose",
                        "rotation": kind,
                    },
                }
            ),
        )
        for kind in (None, "6d", "axis_angle")
    },
    "subtract and normalise": SpecCase(
        "arm",
        {
            "rate": 50,
            "batch_size": 4,
            "keys": {
                "observation.state": {"streams": ["joints"], "steps": range(-2, 1), "normalize": "mean_std"},
                "action": {
                    "streams": ["command"],
                    "steps": range(5),
                    "relative": "observation.state",
                    "normalize": "min_max",
                    "stats": LIMITS,
                },
            },
        },
    ),
    # Pictures
    "image size": SpecCase("arm", one("wrist", [0], image={"size": (9, 20)}, dtype="float32")),
    "image cover, crop": SpecCase(
        "arm", one("wrist", [-2, 0], image={"size": (12, 12), "fit": "cover", "crop": (8, 10)}, dtype="float32")
    ),
    "image contain": SpecCase(
        "arm", one("wrist", [0], image={"size": (12, 12), "fit": "contain", "pad": 114}, dtype="float16")
    ),
    "image mean_std": SpecCase(
        "arm", one("wrist", [0], normalize="mean_std", stats={"mean": [0.5, 0.4, 0.3], "std": [0.2, 0.3, 0.25]})
    ),
    "image imagenet": SpecCase("arm", one("wrist", [-1, 0], normalize="imagenet", dtype="float16")),
    "image nhwc": SpecCase("arm", one("wrist", [0], image={"layout": "nhwc", "size": (9, 10)})),
    "image centre crop": SpecCase("arm", one("wrist", [0], image={"crop": (9, 11), "random_crop": False})),
    "image bytes": SpecCase("arm", one("wrist", [0], image={"size": (7, 9), "filter": "bicubic"}, dtype="uint8")),
    # Samples that are not finite
    "not finite": SpecCase("arm", one(["noisy"], normalize="mean_std", stats={k: v[:3] for k, v in MEANS.items()})),
    "not finite, skipped": SpecCase("arm", one(["noisy", "joints"], on_nan="skip")),
    "not finite, statistics": SpecCase("arm", one(["noisy"], on_nan="skip", normalize="min_max")),
    # Many at once
    "all": SpecCase("arm", arm_spec()),
    "all, in shards": SpecCase("arm in shards", arm_spec(seed=12345678901234567)),
    "all, in order": SpecCase("arm in shards", arm_spec(shuffle=False)),
    "own arrays": SpecCase("plain own", plain_spec()),
    "many shards": SpecCase("many shards", plain_spec(batch_size=16)),
    "short form": SpecCase(
        "arm",
        {
            "rate": 50,
            "batch_size": 4,
            "observation": ["joints", "wheel_velocity"],
            "action": ["command"],
            "observation_steps": 4,
            "action_steps": 6,
        },
    ),
    "fixed": SpecCase(
        "fixed",
        {
            "rate": 50,
            "batch_size": 8,
            "seed": 7,
            "keys": {
                "observation.state": {
                    "streams": ["state", "gripper"],
                    "steps": range(-3, 1),
                    "normalize": "min_max",
                    "stats": {"min": [-2.0, -2.0, -2.0, 0.0], "max": [2.0, 2.0, 2.0, 250.0]},
                },
                "action": {"streams": ["action"], "steps": range(5)},
            },
        },
    ),
}


# ---- Drawn specs


WIDTHS = {
    "joints": 4,
    "gripper": 1,
    "half": 2,
    "heading": 2,
    "tool_pose": 7,
    "wheel_velocity": 2,
    "contact": 1,
    "buttons": 3,
    "command": 4,
    "target_pose": 7,
    "noisy": 3,
    "mode": 1,
    "mount": 3,
}


def drawn_key(random: Random) -> tuple[str, dict[str, Any]]:
    """A key of the arm's streams with some of the options."""
    if random.chance(5):
        steps = sorted({random.integer(-6, 3) for _ in range(random.integer(1, 4))})
        image = {"size": (random.integer(1, 20), random.integer(1, 20))} if random.chance(2) else None
        dtype = random.choice(["float32", "float16", "uint8"])
        return "observation.images.wrist", {"streams": "wrist", "steps": steps, "image": image, "dtype": dtype}
    names = list(WIDTHS)
    streams = list(dict.fromkeys(random.choice(names) for _ in range(random.integer(1, 5))))
    low = random.integer(-12, 3)
    key: dict[str, Any] = {"streams": streams, "steps": range(low, low + random.integer(1, 9))}
    if random.chance(4):
        key["steps"] = sorted({random.integer(-40, 40) for _ in range(5)})
    elif random.chance(4):
        del key["steps"]
        key["delta_timestamps"] = [k / 64 for k in sorted({random.integer(-30, 30) for _ in range(4)})]
    if random.chance(2):
        key["knowledge"] = random.choice(["truth", "as_of", "causal"])
    if random.chance(3):
        key["edge"] = random.choice(["clamp", "zero"])
    if random.chance(4):
        key["max_gap"] = random.integer(10, 200) * MS
    if random.chance(4):
        key["on_nan"] = "skip"
    if random.chance(5):
        key["method"] = random.choice(["hold", "nearest"])
    if random.chance(3):
        width = sum(WIDTHS[stream] for stream in streams)
        first, second = ([random.integer(-300, 300) / 128 for _ in range(width)] for _ in range(2))
        low_high = list(zip(*(sorted(pair) for pair in zip(first, second, strict=True)), strict=True))
        kind = random.choice(["mean_std", "min_max", "quantiles"])
        names = {"mean_std": ("mean", "std"), "min_max": ("min", "max"), "quantiles": ("q01", "q99")}[kind]
        if kind == "mean_std":
            low_high[1] = [abs(value) for value in low_high[1]]
        key |= {"normalize": kind, "stats": dict(zip(names, map(list, low_high), strict=True))}
    if random.chance(5):
        key["dtype"] = "float16"
    return random.choice(["observation.a", "observation.b", "action", "action.b", "state"]), key


def drawn_spec(number: int) -> dict[str, Any]:
    """A spec over the cache "arm"."""
    random = Random(f"loader spec {number}")
    spec: dict[str, Any] = {
        "rate": random.choice([50, 50, 30, 12.5, 59.94, 200]),
        "batch_size": random.integer(1, 9),
        "seed": random.integer(0, 2**62),
        "shuffle": not random.chance(5),
        "keys": dict(drawn_key(random) for _ in range(random.integer(1, 5))),
    }
    if random.chance(4):
        spec["stride"] = random.integer(3, 90) * MS + random.integer(0, 1000)
    if random.chance(4):
        spec["episodes"] = [k for k in range(4) if random.chance(2)] or [1]
    if random.chance(6):
        spec["drop_last_steps"] = random.integer(0, 6)
    return spec
