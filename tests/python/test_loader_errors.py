"""Bad input to rc.Loader: each sentence names the argument, what was given, and what is expected."""

from __future__ import annotations

import copy
import itertools
import json
import re

import numpy as np
import pytest
from loader_calling import loader_of
from loader_cases import CACHES, write
from loader_specs import MEANS, arm_spec, one, plain_spec

import robocache as rc

if not hasattr(rc, "Loader"):
    pytest.skip("this build has no rc.Loader", allow_module_level=True)

WRONG = (ValueError, TypeError, KeyError, IndexError)


@pytest.fixture(scope="module")
def caches(tmp_path_factory):
    folder = tmp_path_factory.mktemp("caches")
    return {name: rc.Cache(CACHES[name].write(folder / name)[0]) for name in ("arm", "plain", "short", "lacking")}


def check_sentence(error, parts):
    """That all of these patterns are in the sentence, that it names what it is of, and is not a repr of something."""
    text = str(error.args[0]) if error.args else ""
    for part in parts:
        assert re.search(part, text, re.IGNORECASE), f"no {part!r} in: {text}"
    assert re.match(r"(rc\.)?(Loader|Key)\b", text), f"does not say whose argument it is: {text}"
    assert "Traceback" not in text
    assert "object at 0x" not in text


# name: the cache, the arguments, what the sentence has
PLAIN = {
    # No window is left, and why
    "whole": (plain_spec(keys={"a": {"streams": ["state"], "steps": range(500)}}, whole=True), ["no window", "whole"]),
    "drop_last_steps": (plain_spec(drop_last_steps=1000), ["no window", "drop_last_steps"]),
    "no episodes": (plain_spec(episodes=[]), ["no (window|episode)"]),
    "no episode by predicate": (
        plain_spec(episodes=lambda episode: False),
        ["no (window|episode)|none of", "episodes"],
    ),
    # Rates, steps, sizes
    "steps without end": (one(["state"], itertools.count()), ["steps", "100,000"]),
    "resident": (plain_spec(resident="1XB"), ["resident", "1XB", "GiB"]),
    "resident negative": (plain_spec(resident=-5, device="cpu"), ["resident", "-5", "GiB"]),
    "tokens": (plain_spec(tokenize=str), ["tokenize", "'a'", "whole numbers"]),
    "tokens of floats": (plain_spec(tokenize=lambda task: [0.5]), ["tokenize", "0.5", "whole numbers"]),
    "rank float": (plain_spec(rank=0.5, world=2), ["rank", "0.5", "int"]),
    "transform": (plain_spec(transform=3), ["transform", "3", "function"]),
    "tokenize": (plain_spec(tokenize="words"), ["tokenize", "words", "function"]),
    "weights with two dimensions": (plain_spec(weights=[[1.0]], length=3), ["weights", r"\[1, 1\]"]),
    "key task_tokens": (one(["state"], name="task_tokens"), ["task_tokens"]),
    "rate 0": (plain_spec(rate=0), ["rate", "0", "positive"]),
    "rate negative": (plain_spec(rate=-50.0), ["rate", "-50"]),
    "rate nan": (plain_spec(rate=float("nan")), ["rate", "nan"]),
    "rate inf": (plain_spec(rate=float("inf")), ["rate", "inf"]),
    "rate text": (plain_spec(rate="fast"), ["rate"]),
    "batch_size 0": (plain_spec(batch_size=0), ["batch_size", "0"]),
    "batch_size negative": (plain_spec(batch_size=-4), ["batch_size", "-4"]),
    "batch_size float": (plain_spec(batch_size=2.5), ["batch_size", "2.5"]),
    "stride 0": (plain_spec(stride=0), ["stride", "0"]),
    "stride negative": (plain_spec(stride=-0.1), ["stride", "-0.1|-100"]),
    "stride in seconds as an int": (plain_spec(stride=2), ["stride", "2"]),
    "drop_last_steps negative": (plain_spec(drop_last_steps=-1), ["drop_last_steps", "-1"]),
    "seed negative": (plain_spec(seed=-1), ["seed", "-1"]),
    "seed float": (plain_spec(seed=0.5), ["seed", "0.5"]),
    "last": (plain_spec(last="whatever"), ["last", "whatever", "join"]),
    "split": (plain_spec(split="test"), ["split", "test", "train"]),
    "where": (plain_spec(where="movnig"), ["where|stream", "movnig", "moving"]),
    "where is a number": (plain_spec(where="state"), ["where", "state"]),
    "arrays": (plain_spec(arrays="polars"), ["arrays", "polars"]),
    "episode number": (plain_spec(episodes=[7]), ["episode", "7", "3"]),
    "episode name": (plain_spec(episodes=["plain-9"]), ["episode", "plain-9"]),
    # Ranks
    "rank outside": (plain_spec(rank=3, world=3), ["rank", "3", "world"]),
    "rank negative": (plain_spec(rank=-1, world=2), ["rank", "-1"]),
    "world 0": (plain_spec(rank=0, world=0), ["world", "0"]),
    # Keys
    "no keys": ({"rate": 50, "batch_size": 4}, ["keys"]),
    "empty keys": (plain_spec(keys={}), ["keys"]),
    "keys and the short form": (plain_spec(observation=["state"]), ["keys", "observation"]),
    "no streams": (plain_spec(keys={"a": {"streams": []}}), ["stream"]),
    "unknown stream": (one(["stat"]), ["stat", "state"]),
    "steps of a number": (one(["state"], [0.5]), ["steps", "0.5"]),
    "no steps": (one(["state"], []), ["steps"]),
    "steps fall": (one(["state"], [0, -1]), ["steps", "rise|rising"]),
    "steps twice": (one(["state"], [0, 0, 1]), ["steps", "rise|rising"]),
    "steps too far": (one(["state"], [2**60]), ["steps"]),
    "both kinds of steps": (one(["state"], [0], delta_timestamps=[0.0]), ["steps", "delta_timestamps"]),
    "delta_timestamps nan": (one(["state"], None, delta_timestamps=[float("nan")]), ["delta_timestamps", "nan"]),
    "delta_timestamps fall": (one(["state"], None, delta_timestamps=[0.1, 0.0]), ["delta_timestamps", "rise|rising"]),
    "knowledge": (one(["state"], knowledge="all"), ["knowledge", "all", "as_of"]),
    "edge": (one(["state"], edge="wrap"), ["edge", "wrap", "clamp"]),
    "on_nan": (one(["state"], on_nan="drop"), ["on_nan", "drop"]),
    "method": (one(["state"], method="spline"), ["method", "spline"]),
    "normalize": (one(["state"], normalize="zscore"), ["normalize", "zscore", "mean_std"]),
    "dtype": (one(["state"], dtype="complex64"), ["dtype", "complex64"]),
    "drop": (one(["state"], drop=1.5), ["drop", "1.5"]),
    "max_gap in seconds as an int": (one(["state"], max_gap=1), ["max_gap", "1"]),
    "image of numbers": (one(["state"], image={"size": (4, 4)}), ["image", "state"]),
    "latency_jitter of an action": (one(["state"], name="action", latency_jitter=True), ["action", "jitter", "truth"]),
    "latency_jitter of the truth": (one(["state"], knowledge="causal", latency_jitter=True), ["jitter", "causal"]),
    "relative to no key": (one(["state"], relative="observation.arm"), ["relative", "observation.arm"]),
    # Statistics that do not fit
    "stats too long": (one(["state"], normalize="mean_std", stats=MEANS), ["stat", "4", "3"]),
    "stats without std": (one(["state"], normalize="mean_std", stats={"mean": [0, 0, 0]}), ["stat", "std"]),
    "stats nan": (
        one(["state"], normalize="mean_std", stats={"mean": [0, float("nan"), 0], "std": [1, 1, 1]}),
        ["mean", "nan"],
    ),
    "stats negative": (
        one(["state"], normalize="mean_std", stats={"mean": [0, 0, 0], "std": [1, -1, 1]}),
        ["std", "-1|negative"],
    ),
    "stats the wrong way round": (
        one(["state"], normalize="min_max", stats={"min": [0, 2, 0], "max": [1, 1, 1]}),
        ["min", "max"],
    ),
}
ARM = {
    "camera with numbers": (one(["wrist", "joints"]), ["wrist", "camera"]),
    "two cameras": (one(["wrist", "wrist"]), ["wrist"]),
    "crop larger than the frame": (one("wrist", [0], image={"crop": (15, 9)}), ["crop", "15", "14"]),
    "unknown stage of images": (one("wrist", [0], image={"sise": (4, 4)}), ["image", "sise", "size"]),
    "relative of another width": (
        arm_spec(
            keys={
                "observation.state": {"streams": ["half"], "steps": [0]},
                "action": {"streams": ["command"], "steps": [0], "relative": "observation.state"},
            }
        ),
        ["relative", "2", "4"],
    ),
}


@pytest.mark.parametrize("name", PLAIN)
def test_bad_arguments(caches, name):
    spec, parts = PLAIN[name]
    with pytest.raises(WRONG) as caught:
        loader_of(caches["plain"], spec)
    check_sentence(caught.value, parts)


@pytest.mark.parametrize("name", ARM)
def test_bad_keys(caches, name):
    spec, parts = ARM[name]
    with pytest.raises(WRONG) as caught:
        loader_of(caches["arm"], spec)
    check_sentence(caught.value, parts)


def test_episodes_that_share_no_time(caches):
    with pytest.raises(ValueError, match=r"no window") as caught:
        loader_of(caches["short"], plain_spec(episodes=[1]))
    check_sentence(caught.value, [r"share no time|no time|do not overlap"])
    with pytest.raises(ValueError, match=r"no window") as caught:
        loader_of(caches["short"], plain_spec(episodes=[1, 2], whole=True))
    check_sentence(caught.value, [r"share no time|no time|do not overlap", "whole"])  # why each went


def test_where_is_never_true(tmp_path):
    episodes = CACHES["plain"].make()
    for episode in episodes:
        episode.streams["moving"].values = np.zeros(len(episode.streams["moving"].times), bool)
    cache = rc.Cache(write(tmp_path / "cache", episodes))
    with pytest.raises(ValueError, match=r"no window") as caught:
        loader_of(cache, plain_spec(where="moving"))
    check_sentence(caught.value, ["where"])


def test_streams_that_episodes_lack(caches):
    """Which stream, and in how many episodes."""
    with pytest.raises(ValueError, match=r"action") as caught:
        loader_of(caches["lacking"], plain_spec())
    check_sentence(caught.value, ["action", r"\b2\b", r"\b4\b"])
    loader_of(caches["lacking"], plain_spec(episodes=[0, 2]))  # these have it


def test_an_empty_cache(tmp_path):
    with rc.CacheWriter(tmp_path / "cache"):
        pass
    with pytest.raises(WRONG) as caught:
        loader_of(rc.Cache(tmp_path / "cache"), plain_spec())
    check_sentence(caught.value, [r"no episode|is empty"])


def test_what_is_no_cache(tmp_path):
    with pytest.raises((TypeError, rc.FileError)):
        loader_of(tmp_path / "nothing", plain_spec())
    with pytest.raises(TypeError, match="cache"):
        loader_of(7, plain_spec())


# ---- States


OTHERS = {
    "seed": ({"seed": 1}, ["seed", "0", "1"]),
    "rate": ({"rate": 20}, ["rate"]),
    "keys": ({"keys": {"a": {"streams": ["state"], "steps": [0]}}}, ["key"]),
    "shuffle": ({"shuffle": False}, ["shuffle|order"]),
    "stride": ({"stride": 0.1}, ["stride|windows"]),
    "episodes": ({"episodes": [0, 1]}, ["episodes"]),
}


@pytest.mark.parametrize("name", OTHERS)
def test_a_state_of_another_spec_says_what_differs(caches, name):
    state = loader_of(caches["plain"], plain_spec()).state_dict()
    changes, parts = OTHERS[name]
    other = loader_of(caches["plain"], plain_spec(**changes))
    with pytest.raises(ValueError, match=r"stat") as caught:
        other.load_state_dict(state)
    check_sentence(caught.value, parts)


def test_a_state_of_another_cache_says_so(caches, tmp_path):
    state = loader_of(caches["plain"], plain_spec()).state_dict()
    other = rc.Cache(write(tmp_path / "cache", CACHES["plain"].make()[:2]))
    with pytest.raises(ValueError, match=r"cache") as caught:
        loader_of(other, plain_spec()).load_state_dict(state)
    check_sentence(caught.value, ["cache"])


def test_a_state_of_the_same_cache_elsewhere_is_taken(caches, tmp_path):
    """What was moved, or was built again from the same episodes, is the same cache."""
    state = loader_of(caches["plain"], plain_spec()).state_dict()
    same = rc.Cache(write(tmp_path / "elsewhere", CACHES["plain"].make()))
    loader_of(same, plain_spec()).load_state_dict(state)


@pytest.mark.parametrize("state", [{}, None, [], {"position": 4}, "abc"])
def test_what_is_no_state(caches, state):
    loader = loader_of(caches["plain"], plain_spec())
    with pytest.raises((ValueError, TypeError)) as caught:
        loader.load_state_dict(state)
    check_sentence(caught.value, ["state"])
    assert next(iter(loader))["position"][0] == 0  # and the loader is as before


def test_a_state_that_was_written_to_is_refused_or_used(caches):
    """Never a position that is none."""
    loader = loader_of(caches["plain"], plain_spec())
    state = json.loads(json.dumps(loader.state_dict()))
    for name, value in state.items():
        if isinstance(value, int):
            for bad in (-1, 0.5, "4", None, 2**80):
                changed = copy.deepcopy(state) | {name: bad}
                with pytest.raises((ValueError, TypeError)) as caught:
                    loader.load_state_dict(changed)
                check_sentence(caught.value, ["state"])


# ---- Calls


@pytest.mark.parametrize("number", [-1, 0.5, "3", None, 2**70])
def test_bad_batch_numbers(caches, number):
    with pytest.raises(WRONG) as caught:
        loader_of(caches["plain"], plain_spec()).batch(number)
    check_sentence(caught.value, ["batch|number", re.escape(str(number))])


@pytest.mark.parametrize("episode", [3, -4, "nothing", 0.5])
def test_bad_windows(caches, episode):
    with pytest.raises(WRONG) as caught:
        loader_of(caches["plain"], plain_spec()).window(episode, 0)
    check_sentence(caught.value, ["window|episode", re.escape(str(episode))])


def test_windows_far_from_their_episode(caches):
    """Such as seconds from the episode's start, where its recording has the time of day."""
    loader = loader_of(caches["plain"], plain_spec())
    with pytest.raises(
        ValueError, match=r"Loader\.window: t is 0\.3, more than a day from episode 'plain-1'.*17000000"
    ):
        loader.window("plain-1", 0.3)
    first = caches["plain"].episodes[1].start
    assert not loader.window("plain-1", first - 10**12)["observation.state.valid"].any()


def test_a_transform_that_returns_nothing(caches):
    loader = loader_of(caches["plain"], plain_spec(transform=lambda batch: None))
    with pytest.raises(TypeError, match="Loader: transform returned None; it must return the batch"):
        loader.batch(0)
    mixture = rc.Mixture(
        {"a": loader_of(caches["plain"], plain_spec())}, batch_size=4, length=8, transform=lambda batch: None
    )
    with pytest.raises(TypeError, match="transform returned None"):
        mixture.batch(0)


def test_a_loader_has_no_items(caches):
    with pytest.raises(TypeError, match=r"Loader: a loader has batches.*loader\.batch\(0\).*loader\.iterable\(\)"):
        loader_of(caches["plain"], plain_spec())[0]


def test_ranks_may_be_numbers_of_numpy(caches):
    loader = loader_of(caches["plain"], plain_spec(rank=np.int64(1), world=np.int32(2)))
    assert (loader.rank, loader.world) == (1, 2)


def test_what_was_left_out_is_printed(caches):
    said = str(loader_of(caches["short"], plain_spec()))
    assert "40" in said  # windows
    assert re.search(r"1 episode|left out", said)
    assert "share" in said
    one = rc.Loader(caches["plain"], batch_size=4, rate=50, keys={"a": rc.Key("state")}, episodes=[0, 1])
    assert "left out: 1 episode that episodes= does not name" in repr(one)


def test_a_device_that_is_not_there(caches):
    pytest.importorskip("torch")
    with pytest.raises(RuntimeError, match="Loader: device is 'foo', which torch cannot use"):
        loader_of(caches["plain"], plain_spec(device="foo"))


def test_what_is_no_spec(caches):
    spec = loader_of(caches["plain"], plain_spec()).spec()
    for name in ("keys", "rate", "selection"):
        with pytest.raises(ValueError, match=f"no spec of a loader.*{name}"):
            rc.Loader.from_spec(caches["plain"], {k: v for k, v in spec.items() if k != name})


def test_a_chunk_of_other_channels(caches):
    loader = loader_of(caches["plain"], plain_spec())
    with pytest.raises(ValueError, match=r'Loader\.invert: key "action" has 3 channels.*5'):
        loader.invert("action", np.zeros((2, 4, 5), np.float32))
