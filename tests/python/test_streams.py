"""recording.streams[x] and cache.streams[x] are the same kind of thing: a RecordedStream."""

import pickle

import numpy as np
import pytest
from test_mcap_recording import write
from test_recording import batch, made

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
    sentence = r'^align: stream "/fast": .*there are 2 episodes; take .*: cache.episodes\[0\].streams\["/fast"\]$'
    for streams in ({"/fast": ours}, {"other": theirs, "/fast": ours}, {"/fast": ours, "other": theirs}):
        with pytest.raises(ValueError, match=sentence):
            rc.align(streams, rc.Timeline(0, rate=10, count=2))
    assert repr(ours) == "CachedStream('/fast', test/fast, float64 [2], linear)"
    assert pickle.loads(pickle.dumps(ours)) == ours
    assert "/fast" in cache.streams
    with pytest.raises(KeyError, match='has no stream "/fats"; near names: /fast'):
        cache.streams["/fats"]


def test_a_recording_of_several_episodes_answers_as_a_cache_does(tmp_path):
    recording = made(
        batch("/a", [[1.0]], [5]),
        batch("/a", [[1.0], [2.0]], [5, 6], episode=1),
        batch("/late", [[1.0, 2.0]], [7], episode=1),
        tasks=(None, None),
    )
    with rc.CacheWriter(tmp_path / "cache") as writer:
        for episode in recording.episodes:
            writer.add(dict(episode.streams), name=episode.name)
    cache = rc.Cache(tmp_path / "cache")
    assert list(recording.streams) == list(cache.streams) == ["/a", "/late"]
    assert len(recording.streams) == 2
    assert "/late" in recording.streams
    for name in cache.streams:
        ours, theirs = cache.streams[name], recording.streams[name]
        assert type(ours) is type(theirs)
        assert theirs == ours
        for attribute in ATTRIBUTES:
            assert getattr(ours, attribute) == getattr(theirs, attribute), attribute
    sentence = r'there are 2 episodes; take the samples of one: recording.episodes\[1\].streams\["/late"\]$'
    with pytest.raises(ValueError, match=sentence):
        _ = recording.streams["/late"].values
    with pytest.raises(ValueError, match=f'^align: stream "x": .*{sentence}'):
        rc.align({"x": recording.streams["/late"]}, rc.Timeline(0, rate=10, count=2))
    with pytest.raises(KeyError, match='there is no stream "/lat"; near names: /late'):
        recording.streams["/lat"]
    assert recording.episodes[1].streams["/late"].values.tolist() == [[1.0, 2.0]]


def test_lists_of_samples_make_a_stream_for_a_cache(tmp_path):
    with rc.CacheWriter(tmp_path / "cache") as writer:
        writer.add({"/cloud": rc.Stream([np.zeros(2), np.ones(3)], [1000, 2000])})
    found = rc.Cache(tmp_path / "cache").streams["/cloud"]
    assert [sample.tolist() for sample in found.samples] == [[0, 0], [1, 1, 1]]
    with pytest.raises(TypeError, match="align: values is of type list"):
        rc.align([rc.Stream([np.zeros(2), np.ones(3)], [1000, 2000])], rc.Timeline(0, rate=10, count=2))
