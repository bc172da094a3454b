"""Directories, names and attributes, here and through the mount."""

import os
import pathlib
import shutil
import stat

import pytest

import weft
from weft.fsspec import WeftFileSystem


def test_directories_and_links(fs, scratch):
    fs.makedirs(f"{scratch}/a/b/c")
    fs.makedirs(f"{scratch}/a/b/c/", exist_ok=True)
    with pytest.raises(FileExistsError):
        fs.makedirs(f"{scratch}/a/b/c")
    fs.write_bytes(f"{scratch}/a/f", b"1234")
    fs.symlink("f", f"{scratch}/a/s")
    fs.symlink("b", f"{scratch}/a/sd")
    fs.symlink("none", f"{scratch}/a/broken")
    fs.link(f"{scratch}/a/f", f"{scratch}/a/b/hard")
    assert sorted(fs.listdir(f"{scratch}/a")) == ["b", "broken", "f", "s", "sd"]
    assert sorted(fs.listdir(os.fsencode(f"{scratch}/a")))[0] == b"b"
    assert fs.readlink(f"{scratch}/a/s") == "f"
    assert (fs.stat(f"{scratch}/a/s").st_size, fs.stat(f"{scratch}/a/f").st_nlink) == (4, 2)
    assert stat.S_ISLNK(fs.lstat(f"{scratch}/a/s").st_mode)
    assert not fs.exists(f"{scratch}/a/broken") and fs.lexists(f"{scratch}/a/broken")
    assert fs.isdir(f"{scratch}/a/sd") and fs.isfile(f"{scratch}/a/s") and not fs.isfile("/none/x")
    for stats in (False, True):
        with fs.scandir(f"{scratch}/a", stats=stats) as entries:
            seen = {e.name: (e.is_dir(), e.is_file(), e.is_symlink()) for e in entries}
        assert seen == {
            "b": (True, False, False),
            "broken": (False, False, True),
            "f": (False, True, False),
            "s": (False, True, True),
            "sd": (True, False, True),
        }
    with pytest.raises(FileNotFoundError):
        fs.scandir(f"{scratch}/none")


def test_walks_see_what_the_mount_sees(fs, scratch, mount):
    for path in ("a/b/c", "a/d", "e"):
        fs.makedirs(f"{scratch}/{path}")
        fs.write_bytes(f"{scratch}/{path}/f", path.encode())
    fs.symlink("a", f"{scratch}/link")
    root = f"{mount}{scratch}"
    for topdown in (True, False):
        for follow in (True, False):
            ours = fs.walk(scratch, topdown, followlinks=follow)
            theirs = os.walk(root, topdown, followlinks=follow)
            seen = {(top, *map(tuple, map(sorted, rest))) for top, *rest in ours}
            expected = {(top, *map(tuple, map(sorted, rest))) for top, *rest in theirs}
            assert {(f"{mount}{top}", *rest) for top, *rest in seen} == expected


def test_many_names_come_by_pages(fs, scratch):
    names = {f"{number:05}" for number in range(2500)}
    for name in names:
        fs.open(f"{scratch}/{name}", "xb", 0).close()
    assert set(fs.listdir(scratch)) == names
    assert {entry.name for entry in fs.scandir(scratch, stats=True)} == names


def make(fs, path, count):
    """A directory with so many files, whose names begin with that of the directory."""
    fs.mkdir(path)
    names = {f"{os.path.basename(path)}{number:05}" for number in range(count)}
    for name in names:
        fs.open(f"{path}/{name}", "xb", 0).close()
    return names


def test_a_listing_ends_whatever_is_moved(fs, scratch):
    names, seen = make(fs, f"{scratch}/a", 1100), []
    for entry in fs.scandir(f"{scratch}/a"):
        seen.append(entry.name)
        assert len(seen) <= len(names)
        fs.rename(entry.path, f"{entry.path}.done")
    assert set(seen) == names
    assert set(fs.listdir(f"{scratch}/a")) == {f"{name}.done" for name in names}


def test_a_listing_is_of_one_directory(fs, scratch):
    names, _ = make(fs, f"{scratch}/a", 1100), make(fs, f"{scratch}/b", 1100)
    for stats in (False, True):
        fs.symlink("a", f"{scratch}/now")
        with fs.scandir(f"{scratch}/now", stats=stats) as entries:
            seen = {next(entries).name}
            fs.symlink("b", f"{scratch}/next")
            fs.rename(f"{scratch}/next", f"{scratch}/now")
            seen.update(entry.name for entry in entries)
        assert seen == names
        fs.unlink(f"{scratch}/now")


def test_a_directory_that_is_removed_while_it_is_listed_is_not_found(fs, scratch, mount):
    path = pathlib.Path(f"{mount}{scratch}/a")
    path.mkdir()
    for number in range(1100):
        (path / str(number)).touch()
    with fs.scandir(f"{scratch}/a") as entries:
        next(entries)
        shutil.rmtree(path)
        with pytest.raises(FileNotFoundError) as raised:
            list(entries)
    assert raised.value.filename == f"{scratch}/a"


def test_names_of_any_bytes(fs, scratch, mount):
    name = b"\xff\xfe \xc3\xa4"
    path = os.fsencode(scratch) + b"/" + name
    fs.write_bytes(path, b"x")
    assert fs.listdir(scratch) == [os.fsdecode(name)]
    assert fs.stat(os.fsdecode(path)).st_size == 1
    assert os.listdir(f"{mount}{scratch}".encode()) == [name]
    assert fs.stat(pathlib.PurePosixPath(scratch)).st_mode == fs.stat(scratch).st_mode
    fs.unlink(path)


def test_renames_are_in_one_step(fs, scratch):
    fs.write_bytes(f"{scratch}/a", b"a")
    fs.write_bytes(f"{scratch}/b", b"b")
    with pytest.raises(FileExistsError):
        fs.rename(f"{scratch}/a", f"{scratch}/b", no_replace=True)
    fs.replace(f"{scratch}/a", f"{scratch}/b")
    assert fs.listdir(scratch) == ["b"] and fs.read_bytes(f"{scratch}/b") == b"a"
    fs.remove(f"{scratch}/b")


def test_attributes_are_those_of_the_mount(fs, scratch, mount):
    path, there = f"{scratch}/a", f"{mount}{scratch}/a"
    fs.write_bytes(path, b"x" * 5000)
    fs.chmod(path, 0o640)
    fs.chown(path, 12, -1)
    fs.utime(path, ns=(1_000_000_001, 2_000_000_002))
    ours, theirs = fs.stat(path), os.stat(there)
    for field in ("mode", "ino", "nlink", "uid", "gid", "size", "mtime_ns", "ctime_ns", "blocks"):
        assert getattr(ours, f"st_{field}") == getattr(theirs, f"st_{field}"), field
    assert (ours.st_uid, ours.st_mtime_ns, int(ours.st_mtime)) == (12, 2_000_000_002, 2)
    fs.utime(path, (3, 4.5))
    assert os.stat(there).st_mtime_ns == 4_500_000_000
    fs.utime(path)
    assert fs.stat(path).st_mtime > 1e9
    fs.truncate(path, 10)
    assert os.path.getsize(there) == fs.getsize(path) == 10
    fs.setxattr(path, "user.a", b"\0value")
    with pytest.raises(FileExistsError):
        fs.setxattr(path, "user.a", b"", os.XATTR_CREATE)
    assert fs.getxattr(path, "user.a") == os.getxattr(there, "user.a") == b"\0value"
    assert fs.listxattr(path) == ["user.a"]
    fs.removexattr(path, "user.a")
    with pytest.raises(OSError, match="No data available"):
        fs.getxattr(path, "user.a")
    assert 0 < fs.statvfs().f_bavail <= fs.statvfs().f_blocks


def test_both_see_one_filesystem(fs, scratch, mount):
    there = pathlib.Path(f"{mount}{scratch}/a")
    for turn in range(50):
        fs.write_bytes(f"{scratch}/a", b"native %d" % turn)
        assert there.read_bytes() == b"native %d" % turn
        there.write_bytes(b"mount %d" % turn)
        assert fs.read_bytes(f"{scratch}/a") == b"mount %d" % turn


def test_rights_are_those_of_who_is_named(cluster, fs, scratch):
    fs.write_bytes(f"{scratch}/secret", b"x")
    fs.chmod(f"{scratch}/secret", 0o600)
    fs.mkdir(f"{scratch}/open")
    fs.chmod(f"{scratch}/open", 0o777)
    with weft.connect(cluster, uid=1234, gid=1234, umask=0o027) as user:
        with pytest.raises(PermissionError):
            user.open(f"{scratch}/secret")
        with pytest.raises(PermissionError):
            user.mkdir(f"{scratch}/x")
        with pytest.raises(PermissionError):
            user.chmod(f"{scratch}/secret", 0o666)
        user.write_bytes(f"{scratch}/open/a", b"")
        made = user.stat(f"{scratch}/open/a")
        assert (made.st_uid, made.st_gid, stat.S_IMODE(made.st_mode)) == (1234, 1234, 0o640)
        # Names may be listed where nothing may be looked up.
        fs.chmod(f"{scratch}/open", 0o774)
        assert user.listdir(f"{scratch}/open") == ["a"]
        with pytest.raises(PermissionError):
            user.scandir(f"{scratch}/open", stats=True)
    fs.chmod(f"{scratch}/secret", 0o640)
    with weft.connect(cluster, uid=1234, gid=1234, groups=[0]) as user:
        assert user.read_bytes(f"{scratch}/secret") == b"x"


def test_rmtree_does_not_follow_links(fs, scratch):
    fs.makedirs(f"{scratch}/kept/below")
    fs.write_bytes(f"{scratch}/kept/a", b"x")
    fs.symlink("kept", f"{scratch}/link")
    for path in (f"{scratch}/link", f"{scratch}/link/", f"{scratch}/link".encode()):
        with pytest.raises(NotADirectoryError):
            fs.rmtree(path)
    fs.makedirs(f"{scratch}/gone/b")
    fs.symlink("../../kept", f"{scratch}/gone/b/link")
    fs.write_bytes(os.fsencode(f"{scratch}/gone/b/") + b"\xff", b"x")
    fs.rmtree(f"{scratch}/gone/")
    assert sorted(fs.listdir(scratch)) == ["kept", "link"]
    assert sorted(fs.listdir(f"{scratch}/kept")) == ["a", "below"]
    with pytest.raises(FileNotFoundError) as raised:
        fs.rmtree(f"{scratch}/none")
    assert raised.value.filename == f"{scratch}/none"


@pytest.mark.parametrize("depth", [None, 3])
def test_rmtree_is_not_led_away_by_a_link_that_comes_meanwhile(fs, scratch, depth):
    fs.makedirs(f"{scratch}/kept/below")
    fs.makedirs(f"{scratch}/gone/b")
    fs.write_bytes(f"{scratch}/gone/b/a", b"x")
    fs.write_bytes(f"{scratch}/kept/a", b"x")

    class Raced(type(fs)):
        """Puts a link in the place of a directory when that has been listed."""

        def _empty(self, path, directory, depth):
            if path.endswith("/b"):
                fs.rename(f"{scratch}/gone/b", f"{scratch}/moved")
                fs.symlink("../kept", f"{scratch}/gone/b")
            super()._empty(path, directory, depth)

        def scandir(self, path="/", **options):
            if path.endswith("/b"):
                fs.rename(f"{scratch}/gone/b", f"{scratch}/moved")
                fs.symlink("../kept", f"{scratch}/gone/b")
            return super().scandir(path, **options)

    spec = WeftFileSystem(fs.cluster, skip_instance_cache=True)
    spec.weft = Raced(fs.cluster, fs._settings)
    with spec.weft, pytest.raises(NotADirectoryError):
        spec.rm(f"{scratch}/gone", recursive=True, maxdepth=depth)
    assert sorted(fs.listdir(f"{scratch}/kept")) == ["a", "below"]
