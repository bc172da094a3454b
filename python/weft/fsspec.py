"""The filesystem for fsspec: ``weft://HOST:PORT[,HOST:PORT...]/path``.

    fs = fsspec.filesystem("weft", cluster="meta-1:7000,meta-2:7000")
    with fsspec.open("weft://meta-1:7000/data/a", "wb") as f: ...

The package registers it; nothing need be imported. Without a cluster in the URL or the options,
the environment variable ``WEFT_CLUSTER`` names it.
"""

import contextlib
import datetime
import errno
import os
import shutil
import stat as modes

from fsspec.spec import AbstractFileSystem
from fsspec.utils import isfilelike, stringify_path

from . import connect
from ._deferred import Deferred
from ._file import BUFFER

__all__ = ["WeftFileSystem"]

#: Bytes that are copied at a time.
_COPY = 8 << 20
#: Files that are read together.
_BATCH = 256
#: Options of fsspec itself.
_OF_FSSPEC = (
    "asynchronous",
    "listings_expiry_time",
    "loop",
    "max_paths",
    "skip_instance_cache",
    "use_listings_cache",
)


def _split(url):
    """The cluster (or ``None``) and the path of a URL or a path."""
    for prefix in ("weft://", "weft::"):
        if url.startswith(prefix):
            rest = url[len(prefix) :]
            authority, slash, path = rest.partition("/")
            # `weft:///path` has no cluster; `weft://path` is what others strip to a path.
            if authority and all(":" in server for server in authority.split(",")):
                return authority, slash + path
            return None, rest
    return None, url


class WeftFileSystem(AbstractFileSystem):
    """A Weft cluster as fsspec sees filesystems. ``settings`` are those of ``weft.connect``.

    ``auto_mkdir``: files that are made bring the directories that they lie in, as with object
    stores.
    """

    protocol = "weft"
    root_marker = "/"
    local_file = False

    def __init__(self, cluster=None, auto_mkdir=True, *args, **settings):
        own = {key: settings.pop(key) for key in _OF_FSSPEC if key in settings}
        super().__init__(*args, **own)
        cluster = cluster or os.environ.get("WEFT_CLUSTER")
        if not cluster:
            raise ValueError("which cluster? cluster=, weft://HOST:PORT/path or WEFT_CLUSTER")
        self.auto_mkdir = auto_mkdir
        #: The ``weft.Filesystem`` behind it.
        self.weft = connect(cluster, **settings)

    @classmethod
    def _strip_protocol(cls, path):
        if isinstance(path, (list, tuple)):
            return [cls._strip_protocol(one) for one in path]
        _, path = _split(stringify_path(path))
        return "/" + path.strip("/")

    @staticmethod
    def _get_kwargs_from_urls(url):
        cluster, _ = _split(stringify_path(url))
        return {"cluster": cluster} if cluster else {}

    def unstrip_protocol(self, name):
        """The full URL of a path."""
        return f"weft://{self.weft.cluster}{self._strip_protocol(name)}"

    @property
    def fsid(self):
        """Tells clusters apart."""
        return f"weft_{self.weft.cluster}"

    # What there is.

    def _info(self, path, stat, link=None):
        kind = modes.S_IFMT(stat.st_mode)
        types = {modes.S_IFDIR: "directory", modes.S_IFREG: "file", modes.S_IFLNK: "link"}
        info = {
            "name": path,
            "size": stat.st_size if kind == modes.S_IFREG else 0,
            "type": types.get(kind, "other"),
            "created": stat.st_ctime,
            "islink": link is not None,
            "mode": stat.st_mode,
            "uid": stat.st_uid,
            "gid": stat.st_gid,
            "mtime": stat.st_mtime,
            "ino": stat.st_ino,
            "nlink": stat.st_nlink,
        }
        if link is not None:
            info["destination"] = link
        return info

    def info(self, path, **kwargs):
        """What is known of a path; symbolic links are followed."""
        path = self._strip_protocol(path)
        found = self.weft.lstat(path)
        if not modes.S_ISLNK(found.st_mode):
            return self._info(path, found)
        return self._of_link(path, found)

    def _of_link(self, path, found):
        link = self.weft.readlink(path)
        try:
            found = self.weft.stat(path)
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
                raise
        return self._info(path, found, link)

    def ls(self, path, detail=True, **kwargs):
        """What is in a directory, or the file itself."""
        path = self._strip_protocol(path)
        infos = []
        try:
            with self.weft.scandir(path, stats=detail) as entries:
                for entry in entries:
                    at = self._strip_protocol(entry.path)
                    if not detail:
                        infos.append(at)
                    elif entry.is_symlink():
                        infos.append(self._of_link(at, entry.stat(follow_symlinks=False)))
                    else:
                        infos.append(self._info(at, entry.stat()))
        except NotADirectoryError:
            return [self.info(path)] if detail else [path]
        return sorted(infos, key=lambda info: info["name"]) if detail else sorted(infos)

    def exists(self, path, **kwargs):
        """Whether a path leads to something."""
        return self.weft.exists(self._strip_protocol(path))

    def lexists(self, path, **kwargs):
        """Whether there is something at a path, be it a link that leads nowhere."""
        return self.weft.lexists(self._strip_protocol(path))

    def isfile(self, path):
        """Whether a path leads to a file."""
        return self.weft.isfile(self._strip_protocol(path))

    def isdir(self, path):
        """Whether a path leads to a directory."""
        return self.weft.isdir(self._strip_protocol(path))

    def created(self, path):
        """When anything of it was last changed: what was made when is not told to programs."""
        return self._time(self.weft.stat(self._strip_protocol(path)).st_ctime)

    def modified(self, path):
        """When its content was last changed."""
        return self._time(self.weft.stat(self._strip_protocol(path)).st_mtime)

    @staticmethod
    def _time(seconds):
        return datetime.datetime.fromtimestamp(seconds, tz=datetime.UTC)

    # Names.

    def mkdir(self, path, create_parents=True, **kwargs):
        """Makes a directory."""
        path = self._strip_protocol(path)
        if create_parents:
            self.weft.makedirs(path)
        else:
            self.weft.mkdir(path)

    def makedirs(self, path, exist_ok=False):
        """Makes a directory, and those above it that are missing."""
        self.weft.makedirs(self._strip_protocol(path), exist_ok=exist_ok)

    def rmdir(self, path):
        """Removes an empty directory."""
        self.weft.rmdir(self._strip_protocol(path))

    def rm_file(self, path):
        """Removes a file."""
        self.weft.unlink(self._strip_protocol(path))

    _rm = rm_file

    def rm(self, path, recursive=False, maxdepth=None):
        """Removes files, and directories if ``recursive``."""
        if maxdepth is not None and maxdepth < 1:
            raise ValueError("maxdepth must be at least 1")
        paths, gone = path if isinstance(path, (list, tuple)) else [path], set()
        for one in paths:
            found = self.expand_path(one) if has_magic(one) else [self._strip_protocol(one)]
            # Above before below: what lies below goes with it, and not if the way is a link.
            for at in sorted(found):
                if any(above in gone for above in _above(at)):
                    continue
                gone.add(at)
                if not modes.S_ISDIR(self.weft.lstat(at).st_mode):
                    self.weft.unlink(at)
                elif not recursive:
                    raise IsADirectoryError(errno.EISDIR, "rm without recursive=True", at)
                else:
                    self.weft._rmtree(at, maxdepth)

    def mv(self, path1, path2, recursive=True, maxdepth=None, **kwargs):
        """Moves a file or a directory, in one step."""
        source, target = self._strip_protocol(path1), self._strip_protocol(path2)
        if self.weft.isdir(target) and (path2.endswith("/") or not self.weft.isdir(source)):
            target = self._strip_protocol(f"{target}/{os.path.basename(source)}")
        self.weft.lstat(source)
        self._room_for(target)
        self.weft.rename(source, target)

    def link(self, src, dst, **kwargs):
        """Gives a file one more name."""
        self.weft.link(self._strip_protocol(src), self._strip_protocol(dst))

    def symlink(self, src, dst, **kwargs):
        """Makes a symbolic link at ``dst``."""
        self.weft.symlink(self._strip_protocol(src), self._strip_protocol(dst))

    def islink(self, path):
        """Whether there is a symbolic link."""
        return self.weft.islink(self._strip_protocol(path))

    def chmod(self, path, mode):
        """Sets permission bits."""
        self.weft.chmod(self._strip_protocol(path), mode)

    def touch(self, path, truncate=True, **kwargs):
        """Makes a file, or empties it; without ``truncate`` only its times are set."""
        path = self._strip_protocol(path)
        self._room_for(path)
        with self.weft.open(path, "wb" if truncate else "ab", 0):
            pass
        self.weft.utime(path)

    def _room_for(self, path):
        if self.auto_mkdir:
            self.weft.makedirs(self._parent(path), exist_ok=True)

    # Content.

    def _open(self, path, mode="rb", block_size=None, autocommit=True, **kwargs):
        path = self._strip_protocol(path)
        if "r" not in mode:
            self._room_for(path)
        if autocommit or "r" in mode:
            size = block_size if isinstance(block_size, int) and block_size > 1 else BUFFER
            return self.weft.open(path, mode, size)
        return Deferred(self.weft, path, mode)

    def cat_file(self, path, start=None, end=None, **kwargs):
        """The content of a file, or a piece of it; negative offsets count from the end."""
        path = self._strip_protocol(path)
        return self.weft.read_batch([self._range(path, start, end)])[0]

    def _range(self, path, start, end):
        start = start or 0
        if start < 0 or end is not None and end < 0:
            size = self.weft.stat(path).st_size
            start = max(size + start, 0) if start < 0 else start
            end = size + end if end is not None and end < 0 else end
        return path, start, None if end is None else max(end - start, 0)

    def cat_ranges(self, paths, starts, ends, max_gap=None, on_error="return", **kwargs):
        """Pieces of many files, read together."""
        if max_gap is not None:
            raise NotImplementedError("max_gap: pieces are read together as they are")
        if not isinstance(paths, list):
            raise TypeError("paths must be a list")
        starts = starts if isinstance(starts, list) else [starts] * len(paths)
        ends = ends if isinstance(ends, list) else [ends] * len(paths)
        if len(starts) != len(paths) or len(ends) != len(paths):
            raise ValueError("starts and ends must be as many as paths")
        results, wanted, places = [None] * len(paths), [], []
        for at, (path, start, end) in enumerate(zip(paths, starts, ends, strict=True)):
            try:
                wanted.append(self._range(self._strip_protocol(path), start, end))
                places.append(at)
            except OSError as error:
                results[at] = error
        reads = self.weft.read_batch(wanted, errors="return")
        for at, read in zip(places, reads, strict=True):
            results[at] = read
        if on_error == "raise":
            for result in results:
                if isinstance(result, Exception):
                    raise result
        return results

    def cat(self, path, recursive=False, on_error="raise", **kwargs):
        """The content of a file, or of many, by path."""
        paths = self.expand_path(path, recursive=recursive)
        if not (len(paths) > 1 or isinstance(path, list) or paths[0] != self._strip_protocol(path)):
            return self.cat_file(paths[0], **kwargs)
        found, ends = {}, (kwargs.get("start"), kwargs.get("end"))
        for begin in range(0, len(paths), _BATCH):
            some = paths[begin : begin + _BATCH]
            reads = (
                self.weft.read_batch(some, errors="return")
                if ends == (None, None)
                else self.cat_ranges(some, *ends)
            )
            for at, read in zip(some, reads, strict=True):
                # Directories are named by recursive expansion, too.
                if not isinstance(read, Exception):
                    found[at] = read
                elif on_error == "raise" and not isinstance(read, IsADirectoryError):
                    raise read
                elif on_error == "return":
                    found[at] = read
        return found

    def pipe_file(self, path, value, mode="overwrite", **kwargs):
        """Sets the content of a file; ``mode="create"`` refuses one that is there."""
        with self.open(path, "xb" if mode == "create" else "wb") as file:
            file.write(value)

    def cp_file(self, path1, path2, **kwargs):
        """Copies a file; of a directory, makes an empty one."""
        source, target = self._strip_protocol(path1), self._strip_protocol(path2)
        if self.weft.isdir(source):
            self.weft.makedirs(target, exist_ok=True)
            return
        with self.weft.open(source, "rb", 0) as read:
            self._not_the_same(read.stat(), target, path1)
            self._room_for(target)
            with self.open(target, "wb") as write:
                shutil.copyfileobj(read, write, _COPY)

    def _not_the_same(self, source, target, name):
        """Refuses to copy a file to itself, which would empty it, be it by another name."""
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            if self.weft.stat(target).st_ino == source.st_ino:
                raise shutil.SameFileError(f"{name!r} and {target!r} are the same file")

    def put_file(self, lpath, rpath, callback=None, mode="overwrite", **kwargs):
        """Copies a local file into the filesystem."""
        target = self._strip_protocol(rpath)
        if os.path.isdir(lpath):
            self.weft.makedirs(target, exist_ok=True)
            return
        parent = self._parent(target)
        if parent != self.root_marker:
            self.weft.makedirs(parent, exist_ok=True)
        mode = "xb" if mode == "create" else "wb"
        with open(lpath, "rb") as read:
            found = os.fstat(read.fileno())
            with contextlib.suppress(FileNotFoundError):
                _not_by_a_mount(found, self.weft.stat(target), lpath, target)
            with self.open(target, mode) as write:
                _copy(read, write, found.st_size, callback)

    def get_file(self, rpath, lpath, callback=None, outfile=None, **kwargs):
        """Copies a file out of the filesystem."""
        source = self._strip_protocol(rpath)
        if isfilelike(lpath):
            outfile = lpath
        elif self.weft.isdir(source):
            os.makedirs(lpath, exist_ok=True)
            return
        with self.weft.open(source, "rb", 0) as read:
            if outfile is not None:
                _copy(read, outfile, read.stat().st_size, callback)
                return
            os.makedirs(os.path.dirname(os.path.abspath(lpath)), exist_ok=True)
            with contextlib.suppress(FileNotFoundError):
                _not_by_a_mount(os.stat(lpath), read.stat(), lpath, source)
            with open(lpath, "wb") as write:
                _copy(read, write, read.stat().st_size, callback)

    def sync(self):
        """All that was done is durable and visible to all."""
        self.weft.sync()


def has_magic(path):
    """Whether a path has wildcards."""
    return any(char in path for char in "*?[")


def _above(path):
    """The paths of the directories above."""
    while path != "/":
        path = os.path.dirname(path)
        yield path


def _not_by_a_mount(local, found, lpath, path):
    """Refuses to copy a file to itself by way of a mount."""

    def marks(stat):
        return stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns

    if marks(local) == marks(found):
        raise shutil.SameFileError(f"{lpath!r} is {path!r}, as a mount shows it")


def _copy(source, target, size, callback):
    if callback is not None:
        callback.set_size(size)
    while data := source.read(_COPY):
        target.write(data)
        if callback is not None:
            callback.relative_update(len(data))
