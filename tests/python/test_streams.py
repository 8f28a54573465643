"""recording.streams[x] and cache.streams[x] are the same kind of thing: a RecordedStream."""

import pickle

import numpy as np
import pytest
from test_mcap_recording import write

import robocache as rc

ATTRIBUTES = ("name", "type", "dtype", "shape", "channels", "method", "ragged", "metadata", "info")


@pytest.fixture
def recording(tmp_path):
    write(tmp_path / "a.mcap", {"/fast": 100, "/slow": 10})
    return rc.open(tmp_path / "a.mcap")


def test_with_one_episode_they_have_the_same_samples(recording, tmp_path):
    with rc.CacheWriter(tmp_path / "cache") as writer:
        writer.add(recording)
    cache = rc.Cache(tmp_path / "cache")
    assert list(cache.streams) == list(recording.streams)
    for name in recording.streams:
        theirs, ours = recording.streams[name], cache.streams[name]
        assert type(theirs) is type(ours) is rc.RecordedStream
        for attribute in ATTRIBUTES:
            assert getattr(ours, attribute) == getattr(theirs, attribute), attribute
        np.testing.assert_array_equal(ours.values, theirs.values)
        np.testing.assert_array_equal(ours.times, theirs.times)
    timeline = rc.Timeline.over(recording.streams, rate=20)
    one, other = (rc.align(dict(source.streams), timeline) for source in (recording, cache))
    np.testing.assert_array_equal(one["/fast"].values, other["/fast"].values)


def test_with_several_episodes_all_but_the_samples(recording, tmp_path):
    with rc.CacheWriter(tmp_path / "cache") as writer:
        writer.add(recording)
        writer.add(dict(recording.streams), name="again")
    cache = rc.Cache(tmp_path / "cache")
    ours, theirs = cache.streams["/fast"], recording.streams["/fast"]
    assert isinstance(ours, rc.RecordedStream)
    for attribute in ATTRIBUTES:
        assert getattr(ours, attribute) == getattr(theirs, attribute), attribute
    for attribute in ("values", "times", "arrivals", "samples", "backward"):
        with pytest.raises(ValueError, match=r"there are 2 episodes.*cache.episodes\[0\].streams\[\"/fast\"\]"):
            getattr(ours, attribute)
    with pytest.raises(TypeError, match="NoSamples"):
        rc.align({"/fast": ours}, rc.Timeline(0, rate=10, count=2))
    assert repr(ours) == "CachedStream('/fast', test/fast, float64 [2], linear)"
    assert pickle.loads(pickle.dumps(ours)) == ours
    assert "/fast" in cache.streams
    with pytest.raises(KeyError, match='has no stream "/fats"; near names: /fast'):
        cache.streams["/fats"]
