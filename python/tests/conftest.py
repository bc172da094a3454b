"""What the tests share: a cluster, which ``WEFT_CLUSTER`` names, and a directory for each test.

``WEFT_MOUNT`` is where the same filesystem is mounted.
"""

import contextlib
import os
import pathlib
import re
import signal
import time
import uuid

import pytest

import weft


@pytest.fixture(scope="session")
def cluster():
    """The metadata servers of the cluster."""
    return os.environ["WEFT_CLUSTER"]


@pytest.fixture(scope="session")
def mount():
    """Where it is mounted."""
    return pathlib.Path(os.environ["WEFT_MOUNT"])


@pytest.fixture(scope="session")
def connected(cluster):
    """A connection that the tests of a run share."""
    with weft.connect(cluster) as fs:
        yield fs


@pytest.fixture
def fs(connected):
    """The same; fsspec's suite has a fixture of this name."""
    return connected


@pytest.fixture
def scratch(connected):
    """A directory of the test's own."""
    path = f"/python-{uuid.uuid4().hex}"
    connected.mkdir(path)
    yield path
    connected.rmtree(path)


def _listeners(ports):
    """The processes that listen on these TCP ports."""
    sockets = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with contextlib.suppress(FileNotFoundError):
            for line in pathlib.Path(table).read_text().splitlines()[1:]:
                fields = line.split()
                if fields[3] == "0A" and int(fields[1].rpartition(":")[2], 16) in ports:
                    sockets.add(f"socket:[{fields[9]}]")
    found = set()
    for link in pathlib.Path("/proc").glob("[0-9]*/fd/*"):
        with contextlib.suppress(OSError):
            if os.readlink(link) in sockets:
                found.add(int(re.search(r"\d+", str(link)).group()))
    return found


def _stands_still(process):
    """Whether all its threads have stopped, which they do when they are next scheduled."""
    states = []
    for status in pathlib.Path(f"/proc/{process}/task").glob("*/stat"):
        with contextlib.suppress(FileNotFoundError):
            states.append(status.read_text().rpartition(")")[2].split()[0])
    return all(state == "T" for state in states)


@pytest.fixture
def away(cluster):
    """A context in which the metadata servers stand still, and nothing that asks them is answered.
    It must be short."""
    servers = _listeners({int(server.rpartition(":")[2]) for server in cluster.split(",")})
    assert servers

    @contextlib.contextmanager
    def stopped():
        try:
            for server in servers:
                os.kill(server, signal.SIGSTOP)
            for server in servers:
                while not _stands_still(server):
                    time.sleep(0.001)
            yield
        finally:
            for server in servers:
                os.kill(server, signal.SIGCONT)

    stopped.servers = servers
    return stopped
