"""Signals, destructors and the end of a connection while the cluster does not answer."""

import asyncio
import errno
import pathlib
import signal
import subprocess
import sys
import threading
import time

import pytest

import weft
import weft.aio


class Late(Exception):
    """What a handler raises."""


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


@pytest.mark.parametrize("call", ["stat", "read_bytes", "open", "write_bytes"])
def test_a_signal_handler_may_call_the_filesystem(fs, fresh, scratch, away, alarm, call):
    fs.write_bytes(f"{scratch}/a", b"x")
    found, arguments = [], [b"new"] if call == "write_bytes" else []

    def handler():
        # The servers go on only when the handler has begun: the call waits in the middle.
        began.set()
        found.append(fresh.exists(f"{scratch}/none"))
        found.append(fresh.stat(f"{scratch}/a").st_nlink)

    def end():
        began.wait(30)
        servers.__exit__(None, None, None)

    began, servers = threading.Event(), away()
    servers.__enter__()
    thread = threading.Thread(target=end)
    thread.start()
    try:
        alarm(0.05, handler)
        answer = getattr(fresh, call)(f"{scratch}/a", *arguments)
    finally:
        began.set()
        thread.join()
    assert found == [False, 1]
    if call == "open":
        answer.close()
    assert fs.read_bytes(f"{scratch}/a") == (b"new" if call == "write_bytes" else b"x")


def test_a_handler_that_raises_ends_a_call(fresh, scratch, away, alarm):
    def handler():
        raise Late

    with away():
        alarm(0.05, handler)
        with pytest.raises(Late):
            fresh.stat(f"{scratch}/none")
    assert fresh.exists(scratch)


def test_a_handler_that_raises_ends_the_wait_to_disconnect(cluster, scratch, away, alarm):
    def handler():
        raise Late

    fs = weft.connect(cluster)
    fs.write_bytes(f"{scratch}/a", b"x" * 100)
    with away():
        alarm(0.05, handler)
        with pytest.raises(Late):
            fs.close()
        names = [task.read_text() for task in pathlib.Path("/proc/self/task").glob("*/comm")]
    # It goes on.
    assert "weft-disconnect\n" in names


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

    def threads():
        tasks = pathlib.Path(f"/proc/{child.pid}/task").glob("*/comm")
        return [task.read_text().strip() for task in tasks]

    with child:
        assert child.stdout.readline() == "connected\n"
        with away():
            child.stdin.write("\n")
            child.stdin.flush()
            while "weft-disconnect" not in threads() and child.poll() is None:
                time.sleep(0.01)
            child.send_signal(signal.SIGINT)
            try:
                child.wait(10)
            finally:
                child.kill()
        assert "lost: KeyboardInterrupt" in child.stderr.read()
    assert child.returncode == 0


def test_others_run_while_a_forgotten_connection_ends(cluster, scratch, away):
    fs = weft.connect(cluster)
    fs.write_bytes(f"{scratch}/a", b"x" * 100)
    turns, servers = [], away()
    servers.__enter__()

    def work():
        # Only whoever holds the interpreter's lock gets as far as the end of this.
        for _ in range(20):
            time.sleep(0.01)
            turns.append(time.monotonic())
        servers.__exit__(None, None, None)

    # If nobody else does, this lets the servers go on.
    text = (
        "import os, signal, sys, time\n"
        "time.sleep(5)\n"
        "for pid in sys.argv[1:]: os.kill(int(pid), signal.SIGCONT)\n"
    )
    guard = subprocess.Popen([sys.executable, "-c", text, *map(str, away.servers)])
    thread = threading.Thread(target=work)
    try:
        thread.start()
        begun = time.monotonic()
        del fs
        ended = time.monotonic()
    finally:
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
            done, pending = await asyncio.wait(calls, timeout=20)
        await ending
        assert not pending
        for one in done:
            assert isinstance(one.exception(), OSError)
            assert one.exception().errno in (errno.ENOTCONN, errno.ENOENT)

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
