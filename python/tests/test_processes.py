"""Forks, spawned processes, exits, signals and threads."""

import errno
import gc
import multiprocessing
import os
import pickle
import select
import signal
import subprocess
import sys
import threading

import pytest

import weft


def in_child(fs, body):
    """Runs something in a forked child; whether it raised nothing."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            body()
            # Or else others wait for what its session holds until that is found dead.
            fs.close()
            code = 0
        finally:
            os._exit(code)
    # It was forked beside threads that held whatever they held: it may wait for ever.
    child = os.pidfd_open(pid)
    try:
        ended, _, _ = select.select([child], [], [], 120)
    finally:
        os.close(child)
    if not ended:
        os.kill(pid, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_a_forked_child_connects_anew(fs, scratch):
    fs.write_bytes(f"{scratch}/a", b"parent")
    reader, writer = fs.open(f"{scratch}/a"), fs.open(f"{scratch}/w", "wb")
    writer.write(b"buffered by the parent")

    def body():
        for call in (lambda: reader.pread(1, 0), lambda: reader.read(), reader.stat):
            with pytest.raises(OSError) as raised:
                call()
            assert raised.value.errno == errno.ENOTCONN
        reader.close()
        assert fs.read_bytes(f"{scratch}/a") == b"parent"
        fs.write_bytes(f"{scratch}/b", b"child")

    assert in_child(fs, body)
    assert (fs.read_bytes(f"{scratch}/b"), reader.read()) == (b"child", b"parent")
    writer.close()
    assert fs.read_bytes(f"{scratch}/w") == b"buffered by the parent"


def test_what_a_child_drops_is_the_parents(fs, scratch):
    files, told = [fs.open(f"{scratch}/{mode}", mode) for mode in ("wb", "ab", "w")], []
    for file in files:
        file.write("of the parent" if file.mode == "w" else b"of the parent")
    del file
    gc.collect()

    def body():
        sys.unraisablehook = told.append
        files.clear()
        gc.collect()
        assert told == []

    assert in_child(fs, body)
    for file in files:
        file.close()
        assert fs.read_bytes(file.name) == b"of the parent"


@pytest.mark.parametrize("length", [1, 300_000])
def test_forks_while_other_threads_are_at_work(fs, scratch, length):
    fs.write_bytes(f"{scratch}/a", b"x" * length)
    stop = threading.Event()

    def work():
        while not stop.is_set():
            fs.stat(f"{scratch}/a")
            fs.read_bytes(f"{scratch}/a")

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(20):
            assert in_child(fs, lambda: fs.read_bytes(f"{scratch}/a"))
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def _read(fs, path, results):
    results.put(fs.read_bytes(path))


def _write(fs, path, results):
    fs.open(path, "wb").write(b"not closed")
    results.put(b"")


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_workers_of_multiprocessing(fs, scratch, method):
    context = multiprocessing.get_context(method)
    results = context.SimpleQueue()
    fs.write_bytes(f"{scratch}/a", b"for all")
    workers = [context.Process(target=_read, args=(fs, f"{scratch}/a", results)) for _ in range(3)]
    workers.append(context.Process(target=_write, args=(fs, f"{scratch}/{method}", results)))
    for worker in workers:
        worker.start()
    assert sorted(results.get() for _ in workers) == [b""] + [b"for all"] * 3
    for worker in workers:
        worker.join()
        assert worker.exitcode == 0
    # What a worker had not closed was written when it ended.
    assert fs.read_bytes(f"{scratch}/{method}") == b"not closed"


def test_a_filesystem_pickles(fs, scratch):
    copy = pickle.loads(pickle.dumps(fs))
    copy.write_bytes(f"{scratch}/a", b"x")
    copy.close()
    assert fs.listdir(scratch) == ["a"]


def program(text, *args):
    """Runs a program to its end."""
    return subprocess.run(
        [sys.executable, "-c", text, *args], capture_output=True, text=True, timeout=120
    )


def test_a_program_that_exits_without_closing_loses_nothing(cluster, fs, scratch):
    done = program(
        "import sys, weft\n"
        "fs = weft.connect(sys.argv[1])\n"
        "raw = fs.open(sys.argv[2] + '/raw', 'wb', 0)\n"
        "raw.write(b'r' * 1000000)\n"
        "text = fs.open(sys.argv[2] + '/text', 'w')\n"
        "text.write('t' * 1000)\n",
        cluster,
        scratch,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert fs.read_bytes(f"{scratch}/raw") == b"r" * 1000000
    assert fs.read_bytes(f"{scratch}/text") == b"t" * 1000


def test_a_program_that_is_killed_leaves_what_it_synced(cluster, fs, scratch):
    done = program(
        "import os, sys, weft\n"
        "fs = weft.connect(sys.argv[1])\n"
        "file = fs.open(sys.argv[2] + '/a', 'wb')\n"
        "file.write(b's' * 1000000); file.fsync()\n"
        "file.write(b'u' * 1000000); file.flush()\n"
        "os.kill(os.getpid(), 9)\n",
        cluster,
        scratch,
    )
    assert done.returncode == -signal.SIGKILL
    assert fs.read_bytes(f"{scratch}/a")[:1000000] == b"s" * 1000000


def test_a_signal_handler_ends_a_wait():
    # Nobody listens there: without the signal it would wait for ever.
    done = program(
        "import math, signal, weft\n"
        "class Late(Exception): pass\n"
        "def late(*_): raise Late\n"
        "signal.signal(signal.SIGALRM, late)\n"
        "try:\n"
        "    signal.setitimer(signal.ITIMER_REAL, 0.2)\n"
        "    weft.connect('127.0.0.1:1', timeout=math.inf)\n"
        "except Late:\n"
        "    print('late')\n"
    )
    assert (done.stdout, done.returncode) == ("late\n", 0), done.stderr


def test_a_cluster_that_is_away_keeps_nobody_from_another(cluster):
    # Nobody listens there: whoever waited for that would wait for ever.
    done = program(
        "import contextlib, glob, math, os, pathlib, sys, threading, time, weft\n"
        "def names():\n"
        "    for task in glob.glob('/proc/self/task/*/comm'):\n"
        "        with contextlib.suppress(OSError): yield pathlib.Path(task).read_text()\n"
        "away = lambda: weft.connect('127.0.0.1:1', timeout=math.inf)\n"
        "threading.Thread(target=away, daemon=True).start()\n"
        "while 'weft-connect\\n' not in names(): time.sleep(0.01)\n"
        "weft.connect(sys.argv[1]).close()\n"
        "print('connected', flush=True)\n"
        "os._exit(0)\n",
        cluster,
    )
    assert (done.stdout, done.returncode) == ("connected\n", 0), done.stderr


def test_an_exit_does_not_crash_what_still_waits():
    # Nobody listens there. When the interpreter has ended, the process goes on for half a second.
    done = program(
        "import ctypes, math, sys, threading, time, weft\n"
        "c = ctypes.CDLL(None)\n"
        "c.on_exit(ctypes.cast(c.usleep, ctypes.c_void_p), None)\n"
        "away = lambda: weft.connect('127.0.0.1:1', timeout=math.inf, threads=1)\n"
        "for _ in range(16):\n"
        "    threading.Thread(target=away, daemon=True).start()\n"
        "    time.sleep(0.01)\n"
        "sys.exit(500_000)\n"
    )
    assert (done.returncode, done.stderr) == (500_000 % 256, "")


def test_threads_share_a_connection_and_run_beside_each_other(fs, scratch):
    content = os.urandom(4 << 20)

    def work(number):
        path = f"{scratch}/{number}"
        for _ in range(3):
            fs.write_bytes(path, content)
            with fs.open(path, "rb", 0) as file:
                assert file.read() == content
        done.append(number)

    done = []
    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(done) == list(range(8))
    assert isinstance(fs, weft.Filesystem)


def test_all_are_closed_at_exit_whatever_one_raises(cluster, fs, scratch):
    done = program(
        "import sys, weft\n"
        "one, other = weft.connect(sys.argv[1]), weft.connect(sys.argv[1])\n"
        "files = [fs.open(f'{sys.argv[2]}/{at}', 'w') for at, fs in enumerate((one, other))]\n"
        "for file in files: file.write('x')\n"
        "class Broken(weft.Filesystem):\n"
        "    def close(self): raise KeyError('broken')\n"
        "class Stopped(weft.Filesystem):\n"
        "    def close(self): raise KeyboardInterrupt\n"
        "kinds = [Broken, Stopped] * 5\n"
        "more = [kind(sys.argv[1], one._settings) for kind in kinds]\n"
        "for fs in more: fs.connection()\n",
        cluster,
        scratch,
    )
    assert done.returncode == 0 and done.stderr.count("was lost") == 10, done.stderr
    assert [fs.read_bytes(f"{scratch}/{at}") for at in range(2)] == [b"x", b"x"]
