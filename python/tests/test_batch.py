"""Many reads together, into new bytes and into memory that is there."""

import array

import numpy
import pytest


@pytest.fixture
def files(fs, scratch):
    """Two hundred files of some sizes, by path."""
    contents = {f"{scratch}/{n:03}": bytes([n]) * (n * 37 % 5000) for n in range(200)}
    for path, content in contents.items():
        fs.write_bytes(path, content)
    return contents


def test_paths_and_ranges(fs, files):
    assert fs.read_batch(list(files)) == list(files.values())
    ranges = [(path, 10, 20) for path in files]
    assert fs.read_batch(ranges) == [content[10:30] for content in files.values()]
    ends = [(path, 100, None) for path in files]
    assert fs.read_batch(ends) == [content[100:] for content in files.values()]
    assert fs.read_batch([]) == []


def test_errors_are_raised_or_returned(fs, files):
    good = list(files)[3]
    wanted = [good, "/none", (good, 0, 5)]
    with pytest.raises(FileNotFoundError) as raised:
        fs.read_batch(wanted)
    assert raised.value.filename == "/none"
    reads = fs.read_batch(wanted, errors="return")
    assert (reads[0], reads[2]) == (files[good], files[good][:5])
    assert isinstance(reads[1], FileNotFoundError) and reads[1].filename == "/none"
    with pytest.raises(ValueError, match="errors"):
        fs.read_batch(wanted, errors="ignore")
    lengths = fs.read_batch(wanted, out=numpy.empty((3, 5000), "u1"), errors="return")
    assert (lengths[0], lengths[2]) == (len(files[good]), 5)


def test_rows_of_an_array(fs, files):
    out = numpy.full((len(files), 5000), 255, "u1")
    lengths = fs.read_batch(list(files), out=out)
    assert lengths == [len(content) for content in files.values()]
    for row, content in zip(out, files.values(), strict=True):
        assert row[: len(content)].tobytes() == content
        assert (row[len(content) :] == 255).all()


def test_shapes_and_types_of_memory(fs, scratch):
    numbers = numpy.arange(24, dtype="f4").reshape(2, 3, 4)
    for at in range(2):
        fs.write_bytes(f"{scratch}/{at}", numbers[at].tobytes())
    paths = [f"{scratch}/{at}" for at in range(2)]
    out = numpy.zeros((2, 3, 4), "f4")
    assert fs.read_batch(paths, out=out) == [48, 48]
    assert (out == numbers).all()
    flat = bytearray(96)
    assert fs.read_batch(paths, out=flat) == [48, 48]
    assert bytes(flat) == numbers.tobytes()
    pieces = bytearray(10)
    assert fs.read_batch([(paths[0], 0, 3), (paths[1], 4, 7)], out=pieces) == [3, 7]
    assert bytes(pieces) == numbers[0].tobytes()[:3] + numbers[1].tobytes()[4:11]
    buffers = [bytearray(48), array.array("f", [0] * 20)]
    assert fs.read_batch(paths, out=buffers) == [48, 48]
    assert buffers[1][:12].tolist() == numbers[1].ravel().tolist()
    times = numpy.zeros((2, 6), "M8[s]")
    assert fs.read_batch(paths, out=times) == [48, 48]


def test_memory_that_does_not_fit_is_refused(fs, scratch):
    path = f"{scratch}/a"
    fs.write_bytes(path, b"0123456789")
    with pytest.raises(OSError, match="longer than its buffer") as raised:
        fs.read_batch([path], out=bytearray(9))
    assert raised.value.filename == path
    assert fs.read_batch([path], out=bytearray(10)) == [10]
    for out, error in [
        (numpy.zeros((2, 10), "u1"), ValueError),
        (numpy.zeros((1, 20), "u1")[:, ::2], ValueError),
        (b"read-only ", BufferError),
        ([], ValueError),
        (7, TypeError),
    ]:
        with pytest.raises(error):
            fs.read_batch([path], out=out)
    with pytest.raises(ValueError, match="flat"):
        fs.read_batch([path, (path, 0, 1)], out=bytearray(11))
    with pytest.raises(ValueError, match="bytes, and"):
        fs.read_batch([(path, 0, 12)], out=bytearray(11))
