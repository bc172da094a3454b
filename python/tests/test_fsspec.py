"""fsspec's own abstract suite, and what it does not ask for."""

import pickle
import shutil
import subprocess
import sys

import fsspec
import pytest
from fsspec.tests import abstract

from weft._deferred import Deferred
from weft.fsspec import WeftFileSystem


class WeftFixtures(abstract.AbstractFixtures):
    """The filesystem that the suite is run on."""

    @pytest.fixture
    def fs(self, cluster):
        """The filesystem as programs get it."""
        return fsspec.filesystem("weft", cluster=cluster)

    @pytest.fixture
    def fs_path(self, scratch):
        """A directory of the test's own."""
        return scratch


class TestCopy(abstract.AbstractCopyTests, WeftFixtures):
    """Copies within."""


class TestGet(abstract.AbstractGetTests, WeftFixtures):
    """Copies out."""


class TestPut(abstract.AbstractPutTests, WeftFixtures):
    """Copies in."""


class TestOpen(abstract.AbstractOpenTests, WeftFixtures):
    """Opens."""


class TestPipe(abstract.AbstractPipeTests, WeftFixtures):
    """Writes whole files."""


@pytest.fixture
def spec(cluster):
    """The filesystem as programs get it."""
    return fsspec.filesystem("weft", cluster=cluster)


def test_a_url_names_cluster_and_path(cluster, spec, scratch):
    url = f"weft://{cluster}{scratch}/a"
    with fsspec.open(url, "wb") as file:
        file.write(b"by url")
    assert spec.cat_file(f"{scratch}/a") == b"by url"
    fs, path = fsspec.core.url_to_fs(url)
    assert (fs.fsid, path) == (spec.fsid, f"{scratch}/a")
    assert spec.unstrip_protocol(path) == url


@pytest.mark.parametrize(
    ("url", "path"),
    [
        ("weft://a:1/x/y", "/x/y"),
        ("weft://a:1,b:2/x", "/x"),
        ("weft://a:1", "/"),
        ("weft:///x", "/x"),
        ("weft://x/y", "/x/y"),
        ("/x/", "/x"),
        ("x", "/x"),
        ("/", "/"),
        ("", "/"),
    ],
)
def test_paths_of_urls(url, path):
    assert WeftFileSystem._strip_protocol(url) == path


def test_a_transaction_is_seen_whole_or_not_at_all(spec, scratch):
    with pytest.raises(RuntimeError), spec.transaction:
        with spec.open(f"{scratch}/never", "wb") as file:
            file.write(b"x")
        raise RuntimeError
    assert spec.ls(scratch) == []
    with spec.transaction:
        for name in "ab":
            with spec.open(f"{scratch}/{name}", "wb") as file:
                file.write(name.encode())
        assert not spec.exists(f"{scratch}/a")
    assert spec.cat([f"{scratch}/a", f"{scratch}/b"]) == {
        f"{scratch}/a": b"a",
        f"{scratch}/b": b"b",
    }
    assert spec.ls(scratch, detail=False) == [f"{scratch}/a", f"{scratch}/b"]


def test_a_transaction_leaves_nothing_of_what_it_has_lost(spec, scratch):
    def lost(file):
        file.write(b"x")
        # No write succeeds any more.
        file.raw._native.close()

    with pytest.raises(RuntimeError), spec.transaction:
        lost(spec.open(f"{scratch}/a", "wb"))
        raise RuntimeError
    assert spec.ls(scratch) == []
    file = Deferred(spec.weft, f"{scratch}/a", "wb")
    lost(file)
    with pytest.raises(OSError):
        file.close()
    with pytest.raises(OSError, match="not whole"):
        file.commit()
    file.discard()
    assert spec.ls(scratch) == []


def test_ranges_are_read_together(spec, scratch):
    spec.pipe({f"{scratch}/a": b"0123456789", f"{scratch}/b": b"abcdef"})
    paths = [f"{scratch}/{name}" for name in "abac"]
    reads = spec.cat_ranges(paths, [2, 0, -3, 0], [5, None, None, 9])
    assert reads[:3] == [b"234", b"abcdef", b"789"]
    assert isinstance(reads[3], FileNotFoundError)
    with pytest.raises(FileNotFoundError):
        spec.cat_ranges(paths, 0, 1, on_error="raise")
    assert spec.cat_file(f"{scratch}/a", -4, -1) == b"678"


def test_moves_find_and_times(spec, scratch):
    spec.makedirs(f"{scratch}/d/e")
    spec.pipe_file(f"{scratch}/d/e/f", b"x" * 10)
    spec.mv(f"{scratch}/d", f"{scratch}/moved")
    assert spec.find(scratch) == [f"{scratch}/moved/e/f"]
    assert spec.du(scratch) == 10
    info = spec.info(f"{scratch}/moved/e/f")
    assert (info["type"], info["size"]) == ("file", 10)
    assert spec.modified(f"{scratch}/moved/e/f") <= spec.created(f"{scratch}/moved/e/f")
    with pytest.raises(FileNotFoundError):
        spec.mv(f"{scratch}/none", f"{scratch}/other")
    with pytest.raises(FileNotFoundError):
        spec.cat(f"{scratch}/none")


def test_it_pickles(spec, scratch):
    spec.pipe_file(f"{scratch}/a", b"1")
    assert pickle.loads(pickle.dumps(spec)).cat_file(f"{scratch}/a") == b"1"


def test_a_file_is_not_copied_to_itself(spec, scratch, mount, tmp_path):
    spec.pipe_file(f"{scratch}/a", b"kept")
    spec.link(f"{scratch}/a", f"{scratch}/hard")
    spec.weft.symlink("a", f"{scratch}/soft")
    for source in "a", "soft":
        for target in "a", "hard", "soft":
            with pytest.raises(shutil.SameFileError):
                spec.cp_file(f"{scratch}/{source}", f"{scratch}/{target}")
    with pytest.raises(shutil.SameFileError):
        spec.put_file(f"{mount}{scratch}/a", f"{scratch}/hard")
    with pytest.raises(shutil.SameFileError):
        spec.get_file(f"{scratch}/soft", f"{mount}{scratch}/a")
    assert spec.cat_file(f"{scratch}/hard") == b"kept"
    spec.cp_file(f"{scratch}/soft", f"{scratch}/b")
    spec.get_file(f"{scratch}/b", f"{tmp_path}/b")
    spec.put_file(f"{tmp_path}/b", f"{scratch}/b")
    assert spec.cat_file(f"{scratch}/b") == b"kept"


def test_ranges_of_many_are_those_of_one(spec, scratch):
    spec.pipe({f"{scratch}/a": b"0123456789", f"{scratch}/b": b"abcdef"})
    paths = [f"{scratch}/{name}" for name in "ab"]
    assert list(spec.cat(paths, start=1, end=3).values()) == [b"12", b"bc"]
    assert list(spec.cat(paths, start=-2).values()) == [b"89", b"ef"]


def test_wildcards_remove_what_lies_below_and_follow_no_links(spec, scratch):
    spec.pipe({f"{scratch}/d/a/b/c": b"x", f"{scratch}/d/e": b"x", f"{scratch}/kept/f": b"x"})
    spec.weft.symlink("../kept", f"{scratch}/d/link")
    spec.rm(f"{scratch}/d/**", recursive=True)
    assert spec.find(scratch) == [f"{scratch}/kept/f"]
    spec.pipe({f"{scratch}/d/a/b/c": b"x", f"{scratch}/d/e": b"x"})
    spec.weft.symlink("../kept", f"{scratch}/d/link")
    spec.rm([f"{scratch}/d/a/b", f"{scratch}/d/a", f"{scratch}/d/a/b/c"], recursive=True)
    assert spec.ls(f"{scratch}/d", detail=False) == [f"{scratch}/d/e", f"{scratch}/d/link"]
    spec.pipe({f"{scratch}/d/a/b/c": b"x", f"{scratch}/d/a/d": b"x"})
    spec.rm(f"{scratch}/d", recursive=True, maxdepth=2)
    assert spec.find(f"{scratch}") == [f"{scratch}/d/a/b/c", f"{scratch}/kept/f"]


def test_text_that_was_not_closed_is_written_at_the_end(cluster, spec, scratch):
    text = (
        "import fsspec, io, sys\n"
        "cluster, scratch = sys.argv[1:]\n"
        "fs = fsspec.filesystem('weft', cluster=cluster)\n"
        "a = fs.open(scratch + '/a', 'w')\n"
        "b = fsspec.open(f'weft://{cluster}{scratch}/b', 'wt').open()\n"
        "c = io.TextIOWrapper(fs.weft.open(scratch + '/c', 'wb'))\n"
        "for file in a, b, c: file.write('t' * 1000)\n"
    )
    words = [sys.executable, "-c", text, cluster, scratch]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    paths = [f"{scratch}/{name}" for name in "abc"]
    assert spec.cat(paths) == dict.fromkeys(paths, b"t" * 1000)
