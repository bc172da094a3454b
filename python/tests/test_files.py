"""File objects: modes, positions, buffers, errors."""

import array
import contextlib
import errno
import io
import os
import pickle
import subprocess
import sys

import pytest

import weft


def test_whole_files_and_modes(fs, scratch):
    path = f"{scratch}/a"
    with fs.open(path, "wb") as file:
        assert file.write(b"one\ntwo\n") == 8
        assert (file.readable(), file.writable(), file.seekable()) == (False, True, True)
        with pytest.raises(io.UnsupportedOperation):
            file.read()
    with fs.open(path, "ab") as file:
        assert file.tell() == 8
        file.write(b"three")
    with fs.open(path) as file:
        assert list(file) == [b"one\n", b"two\n", b"three"]
        with pytest.raises(io.UnsupportedOperation):
            file.write(b"x")
    with fs.open(path, "rt", encoding="ascii") as file:
        assert (file.read(), file.mode) == ("one\ntwo\nthree", "rt")
    with pytest.raises(FileExistsError) as raised:
        fs.open(path, "xb")
    assert (raised.value.errno, raised.value.filename) == (errno.EEXIST, path)
    fs.write_bytes(path, b"other", sync=True)
    assert fs.read_bytes(path) == b"other"
    for mode in ("", "rw", "q", "rbt", "rr"):
        with pytest.raises(ValueError, match="invalid mode"):
            fs.open(path, mode)


@pytest.mark.parametrize("buffering", [0, -1, 16])
def test_read_and_write_with_a_position(fs, scratch, buffering):
    content = bytes(range(256)) * 300
    with fs.open(f"{scratch}/a", "w+b", buffering) as file:
        assert file.write(content) == len(content)
        assert file.seek(-10, os.SEEK_END) == len(content) - 10
        assert file.read() == content[-10:]
        assert file.read(1) == b""
        file.seek(3)
        room = bytearray(7)
        assert file.readinto(room) == 7
        assert (bytes(room), file.tell()) == (content[3:10], 10)
        file.write(b"NEW")
        file.seek(8)
        assert file.read(7) == content[8:10] + b"NEW" + content[13:15]
        assert file.truncate(20) == 20
        file.seek(0)
        assert len(file.read()) == 20
        with pytest.raises((OSError, ValueError)):
            file.seek(-1)
    with pytest.raises(ValueError, match="closed"):
        file.read()


def test_calls_with_an_offset_leave_the_position(fs, scratch):
    with fs.open(f"{scratch}/a", "w+b") as file:
        file.write(b"0123456789")
        assert file.pread(3, 4) == b"456"
        assert file.pwrite(memoryview(b"xy"), 0) == 2
        assert file.tell() == 10
        floats = array.array("d", [0.0])
        assert file.pread_into(floats, 2) == 8
        assert floats.tobytes() == b"23456789"
        file.seek(0)
        assert file.read(2) == b"xy"
        file.fsync()
        assert file.stat().st_size == 10
        with pytest.raises(BufferError):
            file.pread_into(b"read-only", 0)
        with pytest.raises(io.UnsupportedOperation):
            file.fileno()


def test_large_memory_is_filled_without_as_much_beside_it(cluster, fs, scratch):
    rest, mib = os.urandom((1 << 20) - 1), 1 << 20
    with fs.open(f"{scratch}/a", "wb", 0) as file:
        for number in range(96):
            file.write(bytes([number]) + rest)
        file.write(b"end")
    room = bytearray(b"x") * (97 * mib)
    with fs.open(f"{scratch}/a", "rb", 0) as file:
        assert file.pread_into(room, 1) == 96 * mib + 2
        assert room.startswith(rest) and room[96 * mib - 1 :] == b"end" + b"x" * (mib - 2)
        assert all(room[at * mib - 1] == at for at in range(1, 96))
        # As long as what one request is for.
        assert file.pread_into(memoryview(room)[: 32 * mib], 64 * mib + 3) == 32 * mib
        assert room[: mib - 3] == rest[2:] and room[32 * mib - 3 : 32 * mib] == b"end"
    text = (
        "import re, sys, weft\n"
        "def peak():\n"
        "    with open('/proc/self/status') as status:\n"
        "        return int(re.search(r'VmHWM:\\s+(\\d+) kB', status.read())[1]) >> 10\n"
        "room = bytearray(b'x') * (97 << 20)\n"
        "with weft.connect(sys.argv[1], cache_bytes=8 << 20) as fs:\n"
        "    with fs.open(sys.argv[2], 'rb', 0) as file:\n"
        "        before = peak()\n"
        "        file.readinto(room)\n"
        "        print(peak() - before)\n"
    )
    words = [sys.executable, "-c", text, cluster, f"{scratch}/a"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 72


def test_the_position_of_a_file_to_append_is_its_end(fs, scratch):
    fs.write_bytes(f"{scratch}/a", b"0123")
    for buffering in (0, -1):
        with fs.open(f"{scratch}/a", "a+b", buffering) as file:
            end = file.tell()
            assert (file.seek(1), file.read(2)) == (1, b"12")
            assert file.write(b"45") == 2
            file.flush()
            assert (file.tell(), file.read()) == (end + 2, b"")
            assert (file.seek(-1, os.SEEK_CUR), file.read()) == (end + 1, b"5")
            file.seek(0)
            assert file.pwrite(b"67", 0) == 2
            assert (file.tell(), file.read(3)) == (0, b"012")
    assert fs.read_bytes(f"{scratch}/a") == b"012345674567"


class Refused(Exception):
    """What a test makes a call raise."""


@pytest.mark.parametrize("buffering", [0, -1, 16])
def test_what_was_appended_is_not_appended_again(fs, scratch, monkeypatch, buffering):
    def refused(*_):
        raise Refused

    with fs.open(f"{scratch}/a", "ab", buffering) as file:
        raw = file.raw if buffering else file
        file.write(b"one ")
        file.flush()
        # Whatever goes wrong behind a write is not the write's failure.
        with monkeypatch.context() as patch, contextlib.suppress(Refused):
            patch.setattr(raw, "stat", refused)
            file.write(b"two ")
            file.flush()
        file.flush()
        file.write(b"three, which is longer than a buffer ")
        # Another with the same content, from the same memory.
        for _ in range(3):
            file.write(b"four ")
            file.flush()
    whole = b"one two three, which is longer than a buffer four four four "
    assert fs.read_bytes(f"{scratch}/a") == whole


def in_time(call, *args):
    """Calls it until it is not too late: how long the cluster takes is not what is tested."""
    while True:
        with contextlib.suppress(TimeoutError):
            return call(*args)


def test_what_may_have_been_appended_is_not_appended_again(cluster, fs, scratch, away):
    path, lines = f"{scratch}/a", [b"%06d\n" % number for number in range(1000)]
    other = in_time(lambda: weft.connect(cluster, timeout=2.0))
    with other, fs.open(path, "ab", 0) as theirs:
        file = in_time(other.open, path, "ab")
        # Two write it: neither may keep what was written.
        file.write(b"".join(lines[:10]))
        in_time(file.flush)
        theirs.write(b"theirs\n")
        file.write(b"".join(lines[10:500]))
        with away(), pytest.raises(OSError):
            file.flush()
        in_time(file.flush)
        file.write(b"".join(lines[500:]))
        in_time(file.flush)
        file.close()
    # Of what failed it is not known whether it is there.
    found = fs.read_bytes(path).splitlines(keepends=True)
    assert len(found) == len(set(found))
    assert {b"theirs\n", *lines[:10], *lines[500:]} <= set(found)


def test_what_buffers_wrap_is_a_raw_file(fs, scratch):
    with fs.open(f"{scratch}/a", "wb", 0) as raw:
        assert isinstance(raw, weft.File) and isinstance(raw, io.RawIOBase)
        with io.TextIOWrapper(io.BufferedWriter(raw), "utf-8") as text:
            text.write("ä" * 1000)
    with fs.open(f"{scratch}/a", "rb", 0) as raw:
        assert io.TextIOWrapper(io.BufferedReader(raw), "utf-8").read() == "ä" * 1000


def test_holes_are_found(fs, scratch):
    with fs.open(f"{scratch}/a", "wb", 0) as file:
        file.pwrite(b"x" * 4096, 8 << 20)
    with fs.open(f"{scratch}/a", "rb", 0) as file:
        assert file.seek(0, os.SEEK_DATA) > 0
        assert file.seek(0, os.SEEK_HOLE) == 0
        assert file.pread(10, 100) == bytes(10)


def test_files_to_read_pickle_and_others_do_not(fs, scratch):
    fs.write_bytes(f"{scratch}/a", b"0123456789")
    for buffering in (0, -1):
        with fs.open(f"{scratch}/a", "rb", buffering) as file:
            file.seek(4)
            assert pickle.loads(pickle.dumps(file)).read() == b"456789"
        with fs.open(f"{scratch}/a", "r+b", buffering) as file, pytest.raises(TypeError):
            pickle.dumps(file)


def test_errors_are_those_of_os(fs, scratch):
    def error(kind, call, *args):
        with pytest.raises(kind) as raised:
            call(*args)
        assert raised.value.filename == args[0]
        assert os.strerror(raised.value.errno) in str(raised.value)

    fs.mkdir(f"{scratch}/d")
    fs.write_bytes(f"{scratch}/d/f", b"")
    error(FileNotFoundError, fs.open, f"{scratch}/none")
    error(FileNotFoundError, fs.stat, f"{scratch}/none/x")
    error(NotADirectoryError, fs.stat, f"{scratch}/d/f/x")
    error(IsADirectoryError, fs.open, f"{scratch}/d", "wb")
    error(FileExistsError, fs.mkdir, f"{scratch}/d")
    with pytest.raises(OSError) as raised:
        fs.rmdir(f"{scratch}/d")
    assert raised.value.errno == errno.ENOTEMPTY
    with pytest.raises(OSError) as raised:
        fs.stat("/" + "x" * 300)
    assert raised.value.errno == errno.ENAMETOOLONG
    with pytest.raises(ValueError, match="null"):
        fs.stat("a\0b")
    with pytest.raises(TypeError):
        fs.stat(7)


def test_what_is_buffered_is_written_when_the_filesystem_is_closed(cluster, fs, scratch):
    with weft.connect(cluster) as other:
        file = other.open(f"{scratch}/a", "w", encoding="utf-8")
        file.write("kept")
    assert fs.read_bytes(f"{scratch}/a") == b"kept"
    assert file.closed and other.closed
    with pytest.raises(ValueError, match="closed"):
        other.stat("/")
    other.close()


@pytest.mark.parametrize(
    ("cluster", "options"),
    [
        ("nowhere", {}),
        ("host:0", {}),
        ("", {}),
        ("127.0.0.1:1", {"timeout": -1.0}),
        ("127.0.0.1:1", {"uid": 1}),
    ],
)
def test_what_cannot_be_connected_to_is_refused(cluster, options):
    with pytest.raises((OSError, ValueError)):
        weft.connect(cluster, **options)


def test_no_more_threads_are_begun_than_help():
    with pytest.raises(OSError, match="2000 threads") as raised:
        weft.connect("127.0.0.1:1", threads=2000, timeout=0.1)
    assert raised.value.errno == errno.EINVAL
