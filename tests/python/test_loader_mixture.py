"""rc.Mixture against its sources: each row is the row that a source's own loader gives at its own position."""

import functools
import json
import pickle

import numpy as np
import pytest
from loader_policies import RATE, recorded
from test_loader_order import mixture as in_order

import robocache as rc

STATE, TOP, WRIST = "observation.state", "images.top", "images.wrist"
WIDTHS = {"arm": {STATE: 5, "action": 4}, "droid": {STATE: 11, "action": 5}, "hand": {STATE: 4}}
CAMERAS = {"arm": {TOP, WRIST}, "droid": {TOP}, "hand": set()}
NEVER = np.iinfo(np.int64).min


@pytest.fixture(scope="module")
def caches(tmp_path_factory):
    folder = tmp_path_factory.mktemp("mixture")
    both, one = recorded(folder / "both", ("top", "wrist"))[0], recorded(folder / "one", ("camera",))[0]
    return {"arm": both, "droid": one, "hand": both}


def sources_of(caches, **more):
    """An arm with two cameras, another at half the rate whose keys have other names, and a hand without actions."""
    cropped = {"crop": (8, 8)}
    keys = {
        "arm": {
            STATE: rc.Key("joints", steps=[-1, 0], normalize="mean_std"),
            TOP: rc.Key("top", image=cropped),
            WRIST: rc.Key("wrist", image=cropped),
            "action": rc.Key("command", steps=range(3), relative="subtract", relative_channels=[0, 1]),
        },
        "droid": {
            "state": rc.Key(["grid", "joints"], steps=[-1, 0], normalize="quantiles"),
            "camera": rc.Key("camera", image=cropped),
            "action": rc.Key("joints", steps=range(3)),
        },
        "hand": {STATE: rc.Key("command", steps=[-1, 0])},
    }
    rates = {"arm": RATE, "droid": RATE / 2, "hand": RATE}
    return {
        name: rc.Loader(
            caches[name], batch_size=1, rate=rates[name], keys=keys[name], seed=seed, rank=0, world=1, **more
        )
        for seed, name in enumerate(keys, start=3)
    }


NAMES = {"droid": {"state": STATE, "camera": TOP}}
WEIGHTS = {"arm": 3, "droid": 2, "hand": 1}


def mixture_of(caches, loaders=None, **more):
    given = {"batch_size": 12, "length": 240, "weights": WEIGHTS, "names": NAMES, "pad_to": 16, "seed": 9}
    return rc.Mixture(loaders or sources_of(caches), **(given | {"rank": 0, "world": 1} | more))


@functools.cache
def all_mixed(shares, seed):
    return list(in_order(shares, seed, 4300))


def mixed(shares, seed, positions):
    """The source of each position, and which of its own positions it is."""
    return zip(*(all_mixed(tuple(shares), seed)[position] for position in positions), strict=True)


def check(batch, positions, loaders, shares, seed=9, pad=16):
    """Every row of a batch, from the loaders of its sources."""
    wanted, own = mixed(shares, seed, positions)
    assert np.asarray(batch["source"]).tolist() == list(wanted)
    assert np.asarray(batch["position"]).tolist() == list(positions)
    for row, (source, position) in enumerate(zip(wanted, own, strict=True)):
        name = list(loaders)[source]
        alone, names = loaders[name].batch(position), NAMES.get(name, {})
        theirs = {names.get(key, key): key for key in loaders[name].keys}
        for key in (STATE, "action"):
            channels = WIDTHS[name].get(key, 0)
            values = np.asarray(batch[key][row])
            assert values.shape == (2 if key == STATE else 3, pad)
            assert np.asarray(batch[f"{key}.channel_valid"][row]).tolist() == [k < channels for k in range(pad)]
            assert not values[:, channels:].any()
            if channels:
                np.testing.assert_array_equal(values[:, :channels], np.asarray(alone[theirs[key]][0]))
        for key in (TOP, WRIST):
            there = key in CAMERAS[name]
            assert bool(batch[f"{key}.image_mask"][row]) == there
            picture = np.asarray(batch[key][row])
            assert picture.shape == (1, 3, 8, 8)
            np.testing.assert_array_equal(picture, np.asarray(alone[theirs[key]][0]) if there else 0 * picture)
        for key in (STATE, "action", TOP, WRIST):
            there = key in theirs
            valid, age = np.asarray(batch[f"{key}.valid"][row]), np.asarray(batch[f"{key}.age"][row])
            assert valid.tolist() == (
                np.asarray(alone[f"{theirs[key]}.valid"][0]).tolist() if there else [False] * len(valid)
            )
            assert age.tolist() == (
                np.asarray(alone[f"{theirs[key]}.age"][0]).tolist() if there else [NEVER] * len(age)
            )
        for said in ("episode", "time"):
            assert int(batch[said][row]) == int(alone[said][0])


@pytest.mark.parametrize("order", [["arm", "droid", "hand"], ["hand", "droid", "arm"]])
def test_rows_are_those_of_the_sources(caches, order):
    loaders = sources_of(caches)
    loaders = {name: loaders[name] for name in order}
    mixture = mixture_of(caches, loaders)
    assert dict(zip(order, mixture.shares, strict=True)) == {"arm": 2048, "droid": 1365, "hand": 683}
    assert len(mixture) == 20
    for number, batch in enumerate(mixture):
        if number % 4 == 0:
            check(batch, range(12 * number, 12 * number + 12), loaders, mixture.shares)
    assert number == 19
    assert mixture.state_dict()["position"] == 240
    check(mixture.batch(341), range(4092, 4104), loaders, mixture.shares)  # over the end of a block


@pytest.mark.parametrize("library", ["torch", "jax"])
def test_other_libraries_give_the_same(caches, library):
    pytest.importorskip(library, reason=f"{library} is not installed")
    wanted = mixture_of(caches).batch(2)
    found = mixture_of(caches, sources_of(caches, arrays=library)).batch(2)
    assert set(found) == set(wanted)
    for name, values in wanted.items():
        # JAX has no int64 by default, and those arrays stay NumPy's
        assert isinstance(found[name], np.ndarray) == (library == "jax" and values.dtype == np.int64)
        np.testing.assert_array_equal(np.asarray(found[name]), values, err_msg=name)


@pytest.mark.parametrize("world", [1, 2, 3, 4, 6])
def test_worlds_share_the_same_batches(caches, world):
    whole = mixture_of(caches).batch(5)
    parts = [mixture_of(caches, batch_size=12 // world, rank=rank, world=world).batch(5) for rank in range(world)]
    for name, values in whole.items():
        np.testing.assert_array_equal(np.concatenate([part[name] for part in parts]), values, err_msg=name)


def test_a_state_goes_on_in_another_world(caches):
    first = mixture_of(caches)
    passed = []
    for batch in first:
        passed += batch["position"].tolist()
        if len(passed) == 60:
            break
    state = json.loads(json.dumps(first.state_dict()))
    assert state == first.state_after(batch)
    for rank in (0, 1):
        other = mixture_of(caches, batch_size=5, rank=rank, world=2)
        other.load_state_dict(state)
        rows = [batch["position"].tolist() for batch in other]
        assert [row for some in rows for row in some] == [
            60 + 10 * k + 5 * rank + j for k in range(18) for j in range(5)
        ]


@pytest.mark.parametrize(("last", "batches"), [("join", 21), ("drop", 20), ("short", 21)])
def test_how_a_pass_ends(caches, last, batches):
    loaders = sources_of(caches)
    mixture = mixture_of(caches, loaders, length=245, last=last)
    assert len(mixture) == batches
    *_, final = mixture
    if last == "short":
        assert final["row_valid"].tolist() == [True] * 5 + [False] * 7
        check(final, [240, 241, 242, 243] + [244] * 8, loaders, mixture.shares)
    else:
        assert "row_valid" not in final


@pytest.mark.parametrize("rank", [0, 1, 2])
def test_the_state_after_padded_rows_is_the_next_pass(caches, rank):
    """Ranks 1 and 2 have nothing but padding."""
    mixture = mixture_of(caches, batch_size=4, length=4, last="short", rank=rank, world=3)
    for end in (4, 8):
        [batch] = mixture
        assert mixture.state_after(batch) == mixture.state_dict()
        assert mixture.state_dict()["position"] == end


def test_shares_are_kept_in_every_block(caches):
    mixture = mixture_of(caches, batch_size=4096, length=4096)
    for number in (0, 3):
        assert np.bincount(mixture.batch(number)["source"]).tolist() == mixture.shares
    default = mixture_of(caches, weights=None)
    windows = [len(loader.windows) for loader in default.sources.values()]
    np.testing.assert_allclose(np.asarray(default.shares) / 4096, np.asarray(windows) / sum(windows), atol=1 / 4096)


def test_a_source_of_no_weight_is_left_out(caches):
    batch = mixture_of(caches, weights={"arm": 1, "droid": 0, "hand": 0}).batch(0)
    assert set(batch["source"].tolist()) == {0}
    assert batch[WRIST].any()


def test_tasks_are_numbered_together(caches, tmp_path):
    with rc.CacheWriter(tmp_path / "other") as writer:
        times = np.arange(30) * 50_000_000
        writer.add({"joints": rc.Stream(np.ones((30, 2)), times)}, task="fold")
        writer.add({"joints": rc.Stream(np.ones((30, 2)), times)}, task="pull")
    said = {"batch_size": 1, "rate": RATE, "keys": {STATE: rc.Key("joints")}, "rank": 0, "world": 1}
    words = {"push": [1], "pull": [2, 3], "fold": [4, 5, 6]}
    loaders = {
        n: rc.Loader(c, **said, tokenize=words.get) for n, c in (("a", caches["arm"]), ("b", tmp_path / "other"))
    }
    mixture = rc.Mixture(loaders, batch_size=50, length=100, rank=0, world=1)
    assert mixture.tasks == ["push", "pull", "fold"]
    for batch in mixture:
        for row in range(50):
            loader = list(loaders.values())[batch["source"][row]]
            task = loader.cache.episodes[int(batch["episode"][row])].task
            number = int(batch["task_index"][row])
            assert (None if number < 0 else mixture.tasks[number]) == task
            assert batch["task_tokens"][row][batch["task_tokens.valid"][row]].tolist() == words.get(task, [])


def test_a_spec_makes_the_same_mixture(caches):
    mixture = mixture_of(caches)
    again = rc.Mixture.from_spec(caches, json.loads(json.dumps(mixture.spec())), rank=0, world=1)
    again.load_state_dict(mixture.state_dict())
    for name, values in mixture.batch(3).items():
        np.testing.assert_array_equal(again.batch(3)[name], values, err_msg=name)
    copied = pickle.loads(pickle.dumps(mixture))
    assert all(np.array_equal(copied.batch(3)[name], values) for name, values in mixture.batch(3).items())
    assert "arm: 50.0%, 96 windows at 20 Hz" in repr(again)
    with pytest.raises(ValueError, match='caches= has none for source "hand"'):
        rc.Mixture.from_spec({"arm": caches["arm"], "droid": caches["droid"]}, mixture.spec())
    with pytest.raises(ValueError, match="this is no spec of a mixture"):
        rc.Mixture.from_spec(caches, {})


def test_evaluation_crops_in_the_middle(caches):
    mixture = mixture_of(caches, weights={"arm": 1, "droid": 0, "hand": 0})
    batch, centred = mixture.batch(0), mixture.eval().batch(0)
    np.testing.assert_array_equal(batch[STATE], centred[STATE])
    assert (batch[TOP] != centred[TOP]).any()
    np.testing.assert_array_equal(centred[TOP][4], mixture.sources["arm"].eval().batch(4)[TOP][0])


def test_the_transform_sees_the_whole_batch(caches):
    batch = mixture_of(caches, transform=lambda batch: {"seen": batch["source"]}).batch(0)
    assert list(batch) == ["seen"]


def test_channels_without_pad_to(caches):
    batch = mixture_of(caches, pad_to=None).batch(0)
    assert (batch[STATE].shape[-1], batch["action"].shape[-1]) == (11, 5)
    batch = mixture_of(caches, pad_to={"action": 7}).batch(0)
    assert (batch[STATE].shape[-1], batch["action"].shape[-1]) == (11, 7)


def test_sources_that_do_not_fit_together_are_told(caches):
    loaders = sources_of(caches)
    with pytest.raises(ValueError, match=r'key "observation\.state" of source "droid" has 11 channels; pad_to is 8'):
        mixture_of(caches, loaders, pad_to=8)
    with pytest.raises(ValueError, match='weights= has none for source "hand"'):
        mixture_of(caches, loaders, weights={"arm": 1, "droid": 1})
    with pytest.raises(ValueError, match='weights= names no source: "leg"'):
        mixture_of(caches, loaders, weights=WEIGHTS | {"leg": 1})
    with pytest.raises(ValueError, match='names= has a key that source "droid" lacks: "stat"'):
        mixture_of(caches, loaders, names={"droid": {"stat": STATE}})
    with pytest.raises(ValueError, match='source "droid" has two keys "action"'):
        mixture_of(caches, loaders, names={"droid": {"state": "action"}})
    with pytest.raises(ValueError, match='key "action" is a camera in one source and numbers in another'):
        mixture_of(caches, loaders, names={"arm": {"action": "other", TOP: "action"}})
    with pytest.raises(TypeError, match=r'source "arm" is Cache; expected an rc\.Loader'):
        rc.Mixture({"arm": caches["arm"]}, batch_size=1, length=1)
    with pytest.raises(TypeError, match=r"sources is \{\}; expected a dict of"):
        rc.Mixture({}, batch_size=1, length=1)
    longer = {"keys": {STATE: rc.Key("joints", steps=[-2, -1, 0])}}
    other = rc.Loader(caches["arm"], batch_size=1, rate=RATE, rank=0, world=1, **longer)
    with pytest.raises(
        ValueError, match=r'is float32 \[2\] in source "a" and float32 \[3\] in source "b"; give both keys'
    ):
        rc.Mixture({"a": loaders["arm"], "b": other}, batch_size=1, length=1)
    state = mixture_of(caches, loaders).state_dict()
    with pytest.raises(ValueError, match=r"What differs: mixture$"):
        mixture_of(caches, loaders, weights={"arm": 1, "droid": 1, "hand": 1}).load_state_dict(state)
    with pytest.raises(ValueError, match=r'What differs: seed, source "droid"$'):
        mixture_of(caches, loaders | {"droid": sources_of(caches, episodes=[0])["droid"]}, seed=1).load_state_dict(
            state
        )
    with pytest.raises(ValueError, match="this is no state of a mixture"):
        mixture_of(caches, loaders).load_state_dict({"position": 3})
    with pytest.raises(ValueError, match="position is -1"):
        mixture_of(caches, loaders).load_state_dict(state | {"position": -1})


@pytest.mark.parametrize("name", ["source", "episode", f"{STATE}.channel_valid", "action.age"])
def test_keys_with_names_of_other_entries_are_told(caches, name):
    names = {**NAMES, "hand": {STATE: name}}
    with pytest.raises(ValueError, match=f'Mixture: a key may not be named "{name}".*rename it by names='):
        mixture_of(caches, names=names)


def test_devices_of_sources_must_agree(caches):
    pytest.importorskip("torch", reason="torch is not installed")
    loaders = sources_of(caches) | {"hand": sources_of(caches, device="cpu")["hand"]}
    with pytest.raises(ValueError, match='source "arm" has device=None, arrays=None, and source "hand" device=cpu'):
        mixture_of(caches, loaders)
