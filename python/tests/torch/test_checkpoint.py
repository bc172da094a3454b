"""Distributed checkpoints: those of torch, and what saves leave to each other."""

import threading

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException

from weft.torch import WeftReader, WeftWriter, checkpoint


def state_of(seed):
    torch.manual_seed(seed)
    return {
        "weights": torch.randn(200, 30),
        "view": torch.randn(50, 4)[10:20],
        "half": torch.randn(7).to(torch.bfloat16),
        "nested": {"step": seed, "name": "x"},
    }


def assert_same(state, expected):
    assert torch.equal(state["weights"], expected["weights"])
    assert torch.equal(state["view"], expected["view"])
    assert torch.equal(state["half"], expected["half"])
    assert state["nested"] == expected["nested"]


def test_checkpoints_are_those_of_torch(cluster, fs, scratch, mount):
    dcp.save(state_of(1), storage_writer=WeftWriter(f"{scratch}/a", fs))
    state = state_of(9)
    dcp.load(state, checkpoint_id=f"{mount}{scratch}/a")
    assert_same(state, state_of(1))
    dcp.save(state_of(2), checkpoint_id=f"{mount}{scratch}/b")
    dcp.load(state, storage_reader=WeftReader(f"weft://{cluster}{scratch}/b"))
    assert_same(state, state_of(2))
    # A second one takes the place of the first, and leaves nothing of it behind.
    dcp.save(state_of(3), storage_writer=WeftWriter(f"{scratch}/a", fs, threads=4))
    dcp.load(state, storage_reader=WeftReader(f"{scratch}/a", fs))
    assert_same(state, state_of(3))
    assert len(fs.listdir(f"{scratch}/a")) <= 5


def loaded(fs, path):
    """What the checkpoint holds."""
    state = state_of(9)
    dcp.load(state, storage_reader=WeftReader(path, fs))
    return state


class Between(WeftWriter):
    """Does something when the data are written and the metadata are not."""

    def __init__(self, path, fs, body, first=None):
        super().__init__(path, fs)
        self._body, self._first = body, first

    def prepare_local_plan(self, plan):
        """After that, something else."""
        plan = super().prepare_local_plan(plan)
        if self._first is not None:
            self._first()
        return plan

    def finish(self, metadata, results):
        """Does it, and goes on."""
        self._body()
        super().finish(metadata, results)


def test_one_of_two_saves_at_a_time_fails_and_the_other_stays(fs, scratch):
    path = f"{scratch}/a"
    dcp.save(state_of(1), storage_writer=WeftWriter(path, fs))

    def other():
        dcp.save(state_of(2), storage_writer=WeftWriter(path, fs))

    # The later one takes what the first has written for the remains of one that was killed.
    with pytest.raises(CheckpointException, match="No such file"):
        dcp.save(state_of(3), storage_writer=Between(path, fs, other))
    assert_same(loaded(fs, path), state_of(2))
    # One that has not begun to write when the other is done is not disturbed.
    dcp.save(state_of(3), storage_writer=Between(path, fs, lambda: None, other))
    assert_same(loaded(fs, path), state_of(3))
    assert len(fs.listdir(path)) <= 3


def test_an_earlier_save_leaves_a_later_one_its_data(fs, scratch):
    path = f"{scratch}/a"
    begun, go_on = threading.Event(), threading.Event()

    def hold():
        begun.set()
        assert go_on.wait(60)

    def earlier():
        dcp.save(state_of(1), storage_writer=Between(path, fs, lambda: None, hold))

    thread = threading.Thread(target=earlier)
    thread.start()
    assert begun.wait(60)

    def finish():
        go_on.set()
        thread.join()
        assert_same(loaded(fs, path), state_of(1))

    dcp.save(state_of(2), storage_writer=Between(path, fs, finish))
    assert_same(loaded(fs, path), state_of(2))


def test_what_a_killed_save_left_goes_and_no_more(fs, scratch):
    path = f"{scratch}/a"

    def die():
        raise KeyError("killed")

    with pytest.raises(CheckpointException, match="killed"):
        dcp.save(state_of(1), storage_writer=Between(path, fs, die))
    fs.write_bytes(f"{path}/..metadata.0123.tmp", b"half")
    fs.write_bytes(f"{path}/notes", b"of the user")
    left = set(fs.listdir(path))
    dcp.save(state_of(2), storage_writer=WeftWriter(path, fs))
    assert left & set(fs.listdir(path)) == {"notes"}
    assert_same(loaded(fs, path), state_of(2))


def test_saves_without_collectives_clean_up(fs, scratch):
    path = f"{scratch}/a"
    # Of another rank, which is at work.
    fs.makedirs(path)
    fs.write_bytes(f"{path}/__1_0123abcd_0.distcp", b"x")
    for seed in (1, 2, 3):
        dcp.save(state_of(seed), storage_writer=WeftWriter(path, fs), use_collectives=False)
    names = fs.listdir(path)
    assert "__0.metadata" in names and "__1_0123abcd_0.distcp" in names
    assert len(names) <= 4


def test_a_url_of_another_cluster_is_not_ignored(cluster, fs, scratch, monkeypatch):
    for kind in (WeftReader, WeftWriter):
        with pytest.raises(ValueError, match="elsewhere:1"):
            kind("weft://elsewhere:1/a", fs)
        one = kind(f"weft://{cluster.split(',')[0]}{scratch}/a", fs)
        assert (one.fs, one.path) == (fs, f"{scratch}/a")
        with pytest.raises(ValueError, match="elsewhere:1"):
            one.reset("weft://elsewhere:1/b")
        one.reset("/b")
        assert (one.fs, one.path) == (fs, "/b")

    class Connected:
        """Stands for a connection."""

        def __init__(self, cluster):
            self.cluster = cluster

    monkeypatch.setattr(checkpoint, "connect", Connected)
    one = WeftWriter("weft://here:1,here:2/a")
    first = one.fs
    one.reset("weft://here:2/b")
    assert (one.fs, one.path) == (first, "/b")
    one.reset("weft://elsewhere:1/c")
    assert (one.fs.cluster, one.path) == ("elsewhere:1", "/c")
