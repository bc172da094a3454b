"""What the tests share: a cluster, which ``WEFT_CLUSTER`` names, and a directory for each test.

``WEFT_MOUNT`` is where the same filesystem is mounted.
"""

import os
import pathlib
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
