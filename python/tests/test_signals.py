"""Signals, destructors and the end of a connection while the cluster does not answer."""

import asyncio
import contextlib
import errno
import pathlib
import pickle
import signal
import subprocess
import sys
import threading
import time

import pytest

import weft
import weft.aio


#: So long a test waits for what comes unless something is wrong.
PATIENCE = 120


class Late(Exception):
    """What a handler raises."""


def threads(process="self"):
    """The names of a process's threads."""
    names = []
    for task in pathlib.Path(f"/proc/{process}/task").glob("*/comm"):
        # It may end meanwhile.
        with contextlib.suppress(OSError):
            names.append(task.read_text().strip())
    return names


@pytest.fixture
def fresh(cluster):
    """A connection that has seen nothing yet, and has to ask for all."""
    with weft.connect(cluster) as fs:
        yield fs


@pytest.fixture
def alarm():
    """Has a function called by a signal, once, after some seconds."""
    before = signal.getsignal(signal.SIGALRM)

    def after(seconds, handler):
        signal.signal(signal.SIGALRM, lambda *_: handler())
        signal.setitimer(signal.ITIMER_REAL, seconds)

    yield after
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


@contextlib.contextmanager
def away_until(began, away):
    """The servers go on only when a handler has begun: what is called waits in the middle."""

    def end():
        began.wait(PATIENCE)
        servers.__exit__(None, None, None)

    servers = away()
    servers.__enter__()
    thread = threading.Thread(target=end)
    thread.start()
    try:
        yield
    finally:
        began.set()
        thread.join()


@pytest.mark.parametrize("call", ["stat", "read_bytes", "open", "write_bytes"])
def test_a_signal_handler_may_call_the_filesystem(fs, fresh, scratch, away, alarm, call):
    fs.write_bytes(f"{scratch}/a", b"x")
    found, arguments = [], [b"new"] if call == "write_bytes" else []

    def handler():
        began.set()
        found.append(fresh.exists(f"{scratch}/none"))
        found.append(fresh.stat(f"{scratch}/a").st_nlink)

    began = threading.Event()
    with away_until(began, away):
        alarm(0.05, handler)
        answer = getattr(fresh, call)(f"{scratch}/a", *arguments)
    assert found == [False, 1]
    if call == "open":
        answer.close()
    assert fs.read_bytes(f"{scratch}/a") == (b"new" if call == "write_bytes" else b"x")


def test_a_signal_handler_may_need_the_connection_that_is_being_made(fs, scratch, away, alarm):
    began, files, copy = threading.Event(), [], pickle.loads(pickle.dumps(fs))

    def handler():
        began.set()
        files.append(copy.open(f"{scratch}/a", "wb"))
        files[0].write(b"x")

    with away_until(began, away):
        alarm(0.05, handler)
        assert copy.exists(scratch)
    # They have one connection, which knows the file.
    copy.close()
    assert files[0].closed
    assert fs.read_bytes(f"{scratch}/a") == b"x"


def test_a_signal_handler_may_close_what_connects(fs, scratch, away, alarm):
    began, copy = threading.Event(), pickle.loads(pickle.dumps(fs))

    def handler():
        began.set()
        copy.close()

    with away_until(began, away), pytest.raises(ValueError, match="closed"):
        alarm(0.05, handler)
        copy.stat(scratch)


def test_a_signal_handler_may_close_what_is_being_closed(cluster, fs, scratch, away, alarm):
    # Closing the file waits for the servers.
    began, other = threading.Event(), weft.connect(cluster, close_sync=True)
    file = other.open(f"{scratch}/a", "wb")
    file.write(b"x" * 100)

    def handler():
        began.set()
        other.close()

    with away_until(began, away):
        alarm(0.05, handler)
        other.close()
    assert file.closed and fs.read_bytes(f"{scratch}/a") == b"x" * 100


def test_a_handler_that_raises_ends_a_call(fresh, scratch, away, alarm):
    def handler():
        raise Late

    with away(), pytest.raises(Late):
        alarm(0.05, handler)
        fresh.stat(f"{scratch}/none")
    assert fresh.exists(scratch)


def test_what_a_handler_ends_is_not_appended_twice(cluster, fs, scratch, away, alarm):
    def handler():
        raise Late

    path = f"{scratch}/a"
    with weft.connect(cluster) as other, fs.open(path, "ab", 0) as theirs:
        with other.open(path, "ab") as file:
            # Two write it: neither may keep what was written.
            file.write(b"one ")
            file.flush()
            theirs.write(b"two ")
            file.write(b"three ")
            with away(), pytest.raises(Late):
                alarm(0.05, handler)
                file.flush()
            file.write(b"four ")
    assert fs.read_bytes(path) == b"one two three four "


def test_a_handler_that_raises_ends_the_wait_to_disconnect(cluster, scratch, away, alarm):
    def handler():
        if "weft-disconnect" not in threads():
            # It has not come as far.
            return alarm(0.05, handler)
        raise Late

    fs = weft.connect(cluster)
    fs.write_bytes(f"{scratch}/a", b"x" * 100)
    with away():
        with pytest.raises(Late):
            alarm(0.05, handler)
            fs.close()
        names = threads()
    # It goes on.
    assert "weft-disconnect" in names


GIVEN_UP = (
    "def late(*_):\n"
    "    names = []\n"
    "    for task in glob.glob('/proc/self/task/*/comm'):\n"
    "        with contextlib.suppress(OSError): names.append(pathlib.Path(task).read_text())\n"
    # Not before it has begun.
    "    if 'weft-disconnect\\n' in names: raise Late\n"
    "    signal.setitimer(signal.ITIMER_REAL, 0.1)\n"
    "signal.signal(signal.SIGALRM, late)\n"
    "try:\n"
    "    signal.setitimer(signal.ITIMER_REAL, 0.1)\n"
    "    fs.close()\n"
    "except Late: pass\n"
    # It is nobody's any more.
    "del fs, file\n"
)
IN_ANOTHER_THREAD = (
    "threading.Thread(target=fs.close, daemon=True).start()\n"
    "time.sleep(0.1)\n"
)


@contextlib.contextmanager
def closing(cluster, path, how, timeout):
    """A program that writes to a file when it is told to, begins to close the filesystem in some
    way, and comes to its end."""
    text = (
        "import contextlib, glob, pathlib, signal, sys, threading, time, weft\n"
        "class Late(Exception): pass\n"
        # How long the cluster takes while it is there is not what is tested.
        "def in_time(call, *args):\n"
        "    while True:\n"
        "        with contextlib.suppress(TimeoutError): return call(*args)\n"
        f"fs = in_time(lambda: weft.connect(sys.argv[1], timeout={timeout}))\n"
        "file = in_time(fs.open, sys.argv[2], 'wb', 0)\n"
        "in_time(file.pwrite, b'synced ', 0)\n"
        "in_time(file.fsync)\n"
        "file.seek(7)\n"
        "print('synced', flush=True)\n"
        "sys.stdin.readline()\n"
        "file.write(b'and not')\n"
        f"{how}"
        "print('ends', flush=True)\n"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", text, cluster, path],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with child:
        try:
            assert child.stdout.readline() == "synced\n"
            yield child
        finally:
            child.kill()


@pytest.mark.parametrize("how", [GIVEN_UP, IN_ANOTHER_THREAD], ids=["given up", "in a thread"])
def test_an_exit_waits_for_a_close_that_is_under_way(cluster, fs, scratch, away, how):
    with closing(cluster, f"{scratch}/a", how, 300) as child:
        with away():
            child.stdin.write("\n")
            child.stdin.flush()
            assert child.stdout.readline() == "ends\n"
            with pytest.raises(subprocess.TimeoutExpired):
                child.wait(0.5)
        assert (child.wait(PATIENCE), child.stderr.read()) == (0, "")
    assert fs.read_bytes(f"{scratch}/a") == b"synced and not"


def test_an_exit_tells_what_a_close_that_was_given_up_has_lost(cluster, scratch, away):
    with closing(cluster, f"{scratch}/a", GIVEN_UP, 2) as child, away():
        child.stdin.write("\n")
        child.stdin.flush()
        assert child.wait(PATIENCE) == 0
        assert "before the exit was lost" in child.stderr.read()


def test_an_interrupt_ends_the_wait_at_exit(cluster, away):
    text = (
        "import signal, sys, weft\n"
        # It may have been started where interrupts are ignored.
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "fs = weft.connect(sys.argv[1])\n"
        "print('connected', flush=True)\n"
        "sys.stdin.readline()\n"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", text, cluster],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )

    with child:
        assert child.stdout.readline() == "connected\n"
        with away():
            child.stdin.write("\n")
            child.stdin.flush()
            while "weft-disconnect" not in threads(child.pid) and child.poll() is None:
                time.sleep(0.01)
            child.send_signal(signal.SIGINT)
            try:
                child.wait(PATIENCE)
            finally:
                child.kill()
        assert "lost: KeyboardInterrupt" in child.stderr.read()
    assert child.returncode == 0


def test_others_run_while_a_forgotten_connection_ends(cluster, scratch, away):
    fs = weft.connect(cluster)
    fs.write_bytes(f"{scratch}/a", b"x" * 100)
    turns, servers, going = [], away(), threading.Event()
    servers.__enter__()

    def work():
        # Only whoever holds the interpreter's lock gets as far as the end of this.
        going.wait(PATIENCE)
        while "weft-disconnect" not in threads():
            time.sleep(0.01)
        for _ in range(20):
            time.sleep(0.01)
            turns.append(time.monotonic())
        servers.__exit__(None, None, None)

    # If nobody else does, this lets the servers go on.
    text = (
        "import os, signal, sys, time\n"
        "time.sleep(30)\n"
        "for pid in sys.argv[1:]: os.kill(int(pid), signal.SIGCONT)\n"
    )
    guard = subprocess.Popen([sys.executable, "-c", text, *map(str, away.servers)])
    thread = threading.Thread(target=work)
    try:
        thread.start()
        begun = time.monotonic()
        going.set()
        del fs
        ended = time.monotonic()
    finally:
        going.set()
        thread.join()
        guard.kill()
        guard.wait()
    assert sum(begun < turn < ended for turn in turns) > 3
    with weft.connect(cluster) as fs:
        assert fs.read_bytes(f"{scratch}/a") == b"x" * 100


def test_a_forgotten_connection_loses_nothing(cluster, fs, scratch):
    text = (
        "import sys, weft\n"
        "fs = weft.connect(sys.argv[1])\n"
        "file = fs.open(sys.argv[2], 'wb')\n"
        "file.write(b'b' * 1000)\n"
        # All of them are garbage at once, in a circle.
        "file.circle = [file, fs]\n"
        "del file, fs\n"
    )
    words = [sys.executable, "-c", text, cluster, f"{scratch}/a"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert fs.read_bytes(f"{scratch}/a") == b"b" * 1000


def test_what_waits_is_told_when_the_connection_ends(cluster, scratch, away):
    async def main():
        fs = weft.connect(cluster)
        afs = weft.aio.of(fs)
        with away():
            calls = [asyncio.ensure_future(afs.stat(f"{scratch}/{n}")) for n in range(50)]
            await asyncio.sleep(0)
            ending = asyncio.get_running_loop().run_in_executor(None, fs.close)
            told = await asyncio.gather(*calls, return_exceptions=True)
        await ending
        # The end of the session may come before that of its threads: who asks then is out of time.
        expected = errno.ENOTCONN, errno.ENOENT, errno.ETIMEDOUT
        assert all(isinstance(one, OSError) and one.errno in expected for one in told), told

    asyncio.run(main())


def test_closing_waits_for_what_is_under_way(cluster, fs, scratch):
    async def main():
        afs = await weft.aio.connect(cluster)
        paths = [f"{scratch}/{n}" for n in range(100)]
        calls = [asyncio.ensure_future(afs.mkdir(path)) for path in paths]
        await asyncio.sleep(0)
        await afs.close()
        await asyncio.gather(*calls)

    asyncio.run(main())
    assert len(fs.listdir(scratch)) == 100
