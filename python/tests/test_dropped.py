"""Files that nobody closes."""

import gc
import sys

import pytest

import weft

MODES = ["wb", "ab", "r+b", "w", "a", "w+"]


@pytest.fixture
def told(monkeypatch):
    """What Python tells of what fails where nobody can be told."""
    # Not of what other tests have left.
    gc.collect()
    told = []
    monkeypatch.setattr(sys, "unraisablehook", lambda raised: told.append(raised.exc_value))
    return told


def opened(fs, path, mode):
    """A file with something in its buffer."""
    fs.write_bytes(path, b"")
    file = fs.open(path, mode)
    file.write(b"buffered" if "b" in mode else "buffered")
    return file


@pytest.mark.parametrize("mode", MODES)
def test_what_is_garbage_in_a_circle_is_written(fs, scratch, told, mode):
    file = opened(fs, f"{scratch}/a", mode)
    # Its buffer, and what lies below, are garbage at the same time.
    file.circle = file
    del file
    gc.collect()
    assert (fs.read_bytes(f"{scratch}/a"), told) == (b"buffered", [])


@pytest.mark.parametrize("mode", MODES)
def test_what_is_lost_with_a_file_that_is_dropped_is_told(fs, scratch, told, mode):
    file = opened(fs, f"{scratch}/a", mode)
    raw = file.raw if "b" in mode else file.buffer.raw
    # No write succeeds any more.
    raw._native.close()
    del raw, file
    gc.collect()
    assert len(told) == 1 and isinstance(told[0], OSError)


def test_a_file_without_its_buffer_is_closed_alone(fs, scratch, told):
    raw = opened(fs, f"{scratch}/a", "wb").detach()
    raw.write(b" and not")
    native = raw._native
    del raw
    gc.collect()
    with pytest.raises(OSError):
        native.pwrite(b"x", 0)
    assert (fs.read_bytes(f"{scratch}/a"), told) == (b"buffered and not", [])


def test_what_is_left_open_when_the_filesystem_is_closed_is_no_news(cluster, fs, scratch, told):
    fs.write_bytes(f"{scratch}/a", b"a")
    with weft.connect(cluster) as other:
        files = [other.open(f"{scratch}/a", mode) for mode in ("r", "rb", "wb")]
        files += [other.open(f"{scratch}/a", mode, 0) for mode in ("rb", "r+b")]
    # Nothing of what it was opened for is lost.
    files[0].close()
    files[1].close()
    del files
    gc.collect()
    assert told == []
