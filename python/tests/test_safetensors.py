"""The safetensors format, with numpy; what is damaged is told, and never believed."""

import json
import struct

import numpy
import pytest

from weft import safetensors


def packed(header, data=b""):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def entry(dtype="U8", shape=(4,), offsets=(0, 4)):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}


def test_arrays_come_back(fs, scratch):
    chance = numpy.random.default_rng(1)
    arrays = {
        "a.weight": chance.standard_normal((300, 70)).astype("f4"),
        "scalar": numpy.array(7, "i8"),
        "empty": numpy.zeros((0, 3), "f2"),
        "flags": numpy.array([True, False]),
        "big": chance.integers(0, 255, 40_000_000, "u1"),
        "columns": numpy.arange(12, dtype="f8").reshape(3, 4).T,
    }
    path = f"{scratch}/a.safetensors"
    safetensors.save_file(fs, arrays, path, metadata={"by": "a test"})
    found = safetensors.load_file(fs, path, framework="np")
    assert set(found) == set(arrays)
    for name, array in arrays.items():
        assert found[name].dtype == array.dtype and found[name].shape == array.shape
        assert (found[name] == array).all()
    assert list(safetensors.load_file(fs, path, names=["flags"], framework="np")) == ["flags"]
    assert safetensors.load_metadata(fs, path) == {"by": "a test"}
    with pytest.raises(KeyError):
        safetensors.load_file(fs, path, names=["none"], framework="np")
    assert fs.listdir(scratch) == ["a.safetensors"]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"1234567",
        struct.pack("<Q", 1 << 63),
        struct.pack("<Q", 10) + b"{}",
        packed(b"\xff\xff"),
        packed(b"[" * 100_000),
        packed([]),
        packed({"a": 1}),
        packed({"a": entry("F7")}, b"1234"),
        packed({"a": entry(["U8"])}, b"1234"),
        packed({"a": entry(shape=(-4,))}, b"1234"),
        packed({"a": entry(shape=(True, 4))}, b"1234"),
        packed({"a": entry(shape=(1 << 62, 1 << 62))}, b"1234"),
        packed({"a": entry(offsets=(0, 4, 4))}, b"1234"),
        packed({"a": entry(offsets=(4, 0))}, b"1234"),
        packed({"a": entry(offsets=(1, 5))}, b"1234"),
        packed({"a": entry(offsets=(1, 5))}, b"12345"),
        packed({"a": entry()}, b"12345"),
        packed({"a": entry()}, b"123"),
        packed({"a": entry(), "b": entry()}, b"1234"),
        packed({"a": {**entry(), "more": 1}}, b"1234"),
        packed({"__metadata__": {"a": 1}}),
        packed(b'{"a": %s, "a": %s}' % ((json.dumps(entry()).encode(),) * 2), b"1234"),
    ],
)
def test_what_is_damaged_is_told(fs, scratch, content):
    fs.write_bytes(f"{scratch}/a", content)
    with pytest.raises(ValueError, match="no safetensors file"):
        safetensors.load_file(fs, f"{scratch}/a", framework="np")


def test_an_empty_one_is_good(fs, scratch):
    fs.write_bytes(f"{scratch}/a", packed({}))
    assert safetensors.load_file(fs, f"{scratch}/a", framework="np") == {}


def test_a_file_that_is_replaced_meanwhile_is_read_whole(fs, scratch, monkeypatch):
    path = f"{scratch}/a"
    versions = [{"a": numpy.full(1000, n, "u1"), "b": numpy.full(500, n, "u1")} for n in (1, 2)]
    safetensors.save_file(fs, versions[0], path)
    header, turns = safetensors._header, iter([1, 0, 1])

    def replaced(*args):
        found = header(*args)
        for turn in turns:
            safetensors.save_file(fs, versions[turn], path)
            break
        return found

    monkeypatch.setattr(safetensors, "_header", replaced)
    found = safetensors.load_file(fs, path, framework="np")
    assert (found["a"] == 2).all() and (found["b"] == 2).all()
    # One that has other places for the same names.
    other = {"a": numpy.full(7, 3, "u1"), "b": numpy.full(5, 3, "u1")}
    turns, versions[1] = iter([1]), other
    found = safetensors.load_file(fs, path, framework="np")
    assert {name: one.tobytes() for name, one in found.items()} == {"a": b"\3" * 7, "b": b"\3" * 5}


def test_what_cannot_be_loaded_is_not_saved(fs, scratch):
    arrays = {"a": numpy.zeros(3)}
    for metadata in ({"step": 5}, {5: "step"}):
        with pytest.raises(TypeError, match="metadata"):
            safetensors.save_file(fs, arrays, f"{scratch}/a", metadata=metadata)
    for name in ("__metadata__", 5):
        with pytest.raises(ValueError, match="name"):
            safetensors.save_file(fs, {name: numpy.zeros(3)}, f"{scratch}/a")
    assert fs.listdir(scratch) == []
