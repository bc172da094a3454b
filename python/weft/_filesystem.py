"""A filesystem that a program is connected to."""

import contextlib
import errno
import gc
import io
import os
import stat as modes
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Self, TypeAlias

from . import _batch, _gpu, _process
from ._buffered import buffered, of_text
from ._entries import Scan
from ._file import BUFFER, File, flags_of
from ._weft import Connection

_Path: TypeAlias = str | bytes | os.PathLike[str] | os.PathLike[bytes]
_Item: TypeAlias = _Path | tuple[_Path, int, int | None]

#: Names of one directory that are asked for at a time.
_PAGE = 1024
_NOREPLACE = 1


def connect(
    cluster: str,
    *,
    uid: int | None = None,
    gid: int | None = None,
    groups: Iterable[int] | None = None,
    umask: int | None = None,
    cache_bytes: int | None = None,
    write_buffer_bytes: int | None = None,
    timeout: float | None = None,
    close_sync: bool = False,
    threads: int = 0,
    name: str | None = None,
) -> "Filesystem":
    """Connects to a cluster: ``HOST:PORT[,HOST:PORT...]`` of its metadata servers.

    ``uid``, ``gid``, ``groups`` and ``umask`` say whose rights calls have: this process's by
    default. ``cache_bytes`` (read-ahead) and ``write_buffer_bytes`` bound memory, 256 MiB each by
    default. A call that finds the cluster away for ``timeout`` seconds fails; 300 by default,
    ``math.inf`` for never. ``close_sync``: what was written is durable when a file is closed, and
    not a second later. ``threads`` do the work: as many as cores, at most 8, by default, and at
    most 1024. ``name`` is shown to the cluster's administrators.

    Disconnects at the end of a ``with`` block, by ``close``, and when the interpreter exits. It
    may be used by any number of threads; in a process that was forked from this one, and where it
    was unpickled, it connects anew when it is first used.
    """
    if uid is not None and gid is None:
        raise ValueError("uid= goes with gid=: the groups of this process are not that user's")
    settings = {
        "uid": uid,
        "gid": gid,
        "groups": None if groups is None else list(groups),
        "umask": umask,
        "cache_bytes": cache_bytes,
        "write_buffer_bytes": write_buffer_bytes,
        "timeout": timeout,
        "close_sync": close_sync,
        "threads": threads,
        "name": name,
    }
    fs = Filesystem(cluster, settings)
    fs.connection()
    return fs


class Filesystem:
    """A filesystem, by paths. Made by ``weft.connect``.

    Paths are ``str``, ``bytes`` or ``os.PathLike``; they begin at the root, with or without a
    slash. Calls are those of ``os`` with the same name, and so are their errors.
    """

    def __init__(self, cluster: str, settings: dict[str, Any]) -> None:
        #: The metadata servers that it was told.
        self.cluster = cluster
        self._settings = settings
        self._connection = None
        self._connecting = _process.Connecting()
        self._closed = False
        #: Threads that close it.
        self._closers = set()
        #: Files whose buffers have to be written out before it is disconnected.
        self._written = weakref.WeakSet()

    def connection(self) -> Connection:
        """The connection of this process, for what only ``weft`` itself does with it."""
        if (connection := self._connected()) is not None:
            return connection
        with self._connecting.lock():
            if (connection := self._connected()) is not None:
                return connection
            made = Connection(self.cluster, self._settings)
            # A signal handler may have connected, too, or closed it, meanwhile.
            if (connection := self._connected()) is not None:
                return connection
            self._connection, self._written = made, weakref.WeakSet()
            _process.opened(self)
            return made

    def _connected(self):
        if self._closed:
            raise ValueError("the filesystem was closed")
        connection = self._connection
        if connection is None or not connection.is_of_this_process():
            return None
        return connection

    def close(self) -> None:
        """Closes files that were opened to write, makes all that was written durable, and
        disconnects. A second time nothing happens, but that it waits if that is still under way: in
        another thread, or since a signal handler has ended the first wait."""
        connection, self._closed = self._connection, True
        if connection is None or not connection.is_of_this_process():
            return
        here = threading.get_ident()
        if here in self._closers:
            # A signal handler: this thread goes on with it afterwards, and cannot before.
            return
        try:
            self._closers.add(here)
            _process.closing(self)
            with contextlib.ExitStack() as last:
                # All of it is done, and the first error raised.
                last.callback(connection.disconnect)
                for file in _outermost_last(self._written):
                    last.callback(file.close)
        finally:
            self._closers.discard(here)
            if connection.is_disconnected():
                self._connection = None
                _process.closed(self)

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        return self._closed

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce__(self):
        return Filesystem, (self.cluster, self._settings)

    def __repr__(self):
        return f"<weft.Filesystem {self.cluster!r}{' closed' if self._closed else ''}>"

    # Files.

    def open(
        self,
        path: _Path,
        mode: str = "rb",
        buffering: int = -1,
        encoding: str | None = None,
        errors: str | None = None,
        newline: str | None = None,
        *,
        perm: int = 0o666,
        flags: int = 0,
    ) -> Any:
        """Opens a file, as the built-in ``open`` does, in binary mode unless it says ``t``.

        ``buffering=0`` answers a ``weft.File``; others have its ``pread``, ``pwrite`` and
        ``fsync``, too. ``perm``: permission bits of a new file. ``flags``: more flags of
        ``os.open``, as ``os.O_DSYNC`` or ``os.O_NOFOLLOW``.
        """
        kind, text = flags_of(mode)
        if not text and (encoding, errors, newline) != (None, None, None):
            raise ValueError("binary mode has no encoding, errors or newline")
        if buffering == 0 and text:
            raise ValueError("can't have unbuffered text I/O")
        native = self.connection().open(path, kind | flags, perm)
        raw = File(self, path, mode.replace("t", ""), native, kind | flags)
        if buffering == 0:
            return raw
        binary = buffered(raw, buffering if buffering > 1 else BUFFER)
        if not text:
            return self._noted(binary)
        file = of_text(binary, encoding, errors, newline, buffering == 1)
        file.mode = mode
        return self._noted(file)

    def _noted(self, file):
        if file.writable():
            self._written.add(file)
        return file

    def read_bytes(self, path: _Path) -> bytes:
        """All of a file."""
        return self.read_batch([path])[0]

    def write_bytes(self, path: _Path, data: Any, *, sync: bool = False) -> None:
        """Makes a file that holds ``data``, in place of the one that is there. ``sync``: durable
        and visible to all when this returns."""
        with self.open(path, "wb", 0) as file:
            file.write(data)
            if sync:
                file.fsync()

    def read_batch(
        self, items: Sequence[_Item], out: Any = None, *, errors: str = "raise"
    ) -> list[Any]:
        """Reads many files, or pieces of files, with few requests.

        ``items``: paths, or ``(path, offset, length)``; a length of ``None`` means to the end.
        Without ``out`` a list of ``bytes`` is answered. With it, memory is filled and a list of
        lengths is answered: one contiguous numpy array, torch tensor or buffer of shape
        ``(n, ...)`` with a row for each item, or flat (cut into the items' lengths, or equal
        parts), or a list with a buffer for each. A file that is longer than its buffer is an error
        (``EFBIG``). Bytes are copied once, and without the interpreter's lock. Memory may be of
        CUDA GPUs: tensors of torch, arrays with ``__cuda_array_interface__``, or DLPack.

        ``errors="return"`` puts the ``OSError`` of what fails in its place in the list.
        """
        _batch.check_errors(errors)
        items = _batch.normal_items(items)
        buffers = None if out is None else _batch.slots(items, out)
        if buffers and (places := _gpu.places(buffers)):
            return _batch.settled(self.connection().read_batch_gpu(items, places), errors)
        return _batch.settled(self.connection().read_batch(items, buffers), errors)

    # Attributes.

    def stat(self, path: _Path, *, follow_symlinks: bool = True) -> os.stat_result:
        """An ``os.stat_result``, with nanoseconds; ``st_dev`` is 0."""
        return self.connection().stat(path, follow_symlinks)

    def lstat(self, path: _Path) -> os.stat_result:
        """Attributes of a symbolic link itself."""
        return self.connection().stat(path, False)

    def _mode(self, path: _Path) -> int:
        try:
            return self.stat(path).st_mode
        except (FileNotFoundError, NotADirectoryError, ValueError):
            return 0

    def exists(self, path: _Path) -> bool:
        """Whether a path leads to something."""
        return self._mode(path) != 0

    def lexists(self, path: _Path) -> bool:
        """Whether there is something at a path, be it a symbolic link that leads nowhere."""
        try:
            self.lstat(path)
        except (FileNotFoundError, NotADirectoryError, ValueError):
            return False
        return True

    def isfile(self, path: _Path) -> bool:
        """Whether a path leads to a regular file."""
        return modes.S_ISREG(self._mode(path))

    def isdir(self, path: _Path) -> bool:
        """Whether a path leads to a directory."""
        return modes.S_ISDIR(self._mode(path))

    def islink(self, path: _Path) -> bool:
        """Whether there is a symbolic link at a path."""
        return self.lexists(path) and modes.S_ISLNK(self.lstat(path).st_mode)

    def getsize(self, path: _Path) -> int:
        """Bytes of a file."""
        return self.stat(path).st_size

    def chmod(self, path: _Path, mode: int) -> None:
        """Sets permission bits."""
        self.connection().chmod(path, mode)

    def chown(self, path: _Path, uid: int, gid: int, *, follow_symlinks: bool = True) -> None:
        """Sets owner and group; -1 leaves what is there."""
        owner = tuple(None if one == -1 else one for one in (uid, gid))
        self.connection().chown(path, owner, follow_symlinks)

    def utime(
        self,
        path: _Path,
        times: tuple[float, float] | None = None,
        *,
        ns: tuple[int, int] | None = None,
        follow_symlinks: bool = True,
    ) -> None:
        """Sets the times of access and change, in seconds or ``ns``; by default, now."""
        if times is not None and ns is not None:
            raise ValueError("utime: you may specify either 'times' or 'ns' but not both")
        if times is not None:
            ns = tuple(round(time * 10**9) for time in times)
        self.connection().utime(path, ns or (None, None), follow_symlinks)

    def truncate(self, path: _Path, length: int) -> None:
        """Cuts a file, or extends it by a hole."""
        self.connection().truncate(path, length)

    def getxattr(self, path: _Path, attribute: _Path) -> bytes:
        """The value of an extended attribute."""
        return self.connection().getxattr(path, attribute)

    def setxattr(self, path: _Path, attribute: _Path, value: Any, flags: int = 0) -> None:
        """Sets an extended attribute; ``os.XATTR_CREATE`` and ``os.XATTR_REPLACE`` work."""
        self.connection().setxattr(path, attribute, value, flags)

    def listxattr(self, path: _Path) -> list[str]:
        """The names of the extended attributes."""
        return self.connection().listxattr(path)

    def removexattr(self, path: _Path, attribute: _Path) -> None:
        """Removes an extended attribute."""
        self.connection().removexattr(path, attribute)

    # Names.

    def _pages(self, path, attrs):
        cursor, end = None, False
        while not end:
            entries, cursor, end = self.connection().read_dir(path, cursor, _PAGE, attrs)
            yield entries

    def listdir(self, path: _Path = "/") -> list[Any]:
        """The names in a directory, in no order."""
        names = [entry[0] for page in self._pages(path, False) for entry in page]
        return [os.fsencode(name) for name in names] if isinstance(path, bytes) else names

    def scandir(self, path: _Path = "/", *, stats: bool = False) -> Scan:
        """An iterator of ``weft.DirEntry``; with ``stats``, attributes come with the names. All are
        of the directory that the path leads to now; what is made or moved there later is left
        out."""
        path = os.fspath(path)
        pages = self._pages(path, stats)
        first = next(pages)
        return Scan(self, path, _chained(first, pages))

    def walk(
        self,
        top: _Path = "/",
        topdown: bool = True,
        onerror: Callable[[OSError], object] | None = None,
        followlinks: bool = False,
    ) -> Iterator[tuple[Any, list[Any], list[Any]]]:
        """What ``os.walk`` does."""
        top = os.fspath(top)
        dirs, files, below = [], [], []
        try:
            for entry in self.scandir(top):
                is_dir = entry.is_dir()
                (dirs if is_dir else files).append(entry.name)
                if is_dir and not topdown and (followlinks or not entry.is_symlink()):
                    below.append(entry.path)
        except OSError as error:
            if onerror is not None:
                onerror(error)
            return
        if topdown:
            yield top, dirs, files
            paths = (os.path.join(top, name) for name in dirs)
            below = (path for path in paths if followlinks or not self.islink(path))
        for path in below:
            yield from self.walk(path, topdown, onerror, followlinks)
        if not topdown:
            yield top, dirs, files

    def mkdir(self, path: _Path, mode: int = 0o777) -> None:
        """Makes a directory."""
        self.connection().mkdir(path, mode)

    def makedirs(self, path: _Path, mode: int = 0o777, exist_ok: bool = False) -> None:
        """Makes a directory, and those above it that are missing."""
        path = os.fspath(path)
        head, tail = os.path.split(path)
        if not tail:
            head, tail = os.path.split(head)
        if head and tail and not self.exists(head):
            self.makedirs(head, exist_ok=True)
        try:
            self.mkdir(path, mode)
        except FileExistsError:
            if not exist_ok or not self.isdir(path):
                raise

    def unlink(self, path: _Path) -> None:
        """Removes a name of what is no directory."""
        self.connection().unlink(path)

    remove = unlink

    def rmdir(self, path: _Path) -> None:
        """Removes an empty directory."""
        self.connection().rmdir(path)

    def rmtree(self, path: _Path) -> None:
        """Removes a directory with all that is in it. Symbolic links are not followed, not even if
        one takes the place of a directory meanwhile; ``path`` must not be one."""
        self._rmtree(path, None)

    def _rmtree(self, path, depth):
        """``rmtree``; with a ``depth``, what lies deeper stays, and what it lies in."""
        path = os.fspath(path)
        slash = b"/" if isinstance(path, bytes) else "/"
        path = path.rstrip(slash) or slash
        found = self.lstat(path)
        if not modes.S_ISDIR(found.st_mode):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)
        self._empty(path, self.connection().at(found.st_ino), depth)
        with _if_empty(depth):
            self.rmdir(path)

    def _empty(self, path, directory, depth):
        """Removes what is in a directory. Its path is for errors only: whatever stands there now,
        all goes by the inode."""
        here = b"." if isinstance(path, bytes) else "."
        cursor, end = None, False
        while not end:
            with _below(path):
                entries, cursor, end = directory.read_dir(here, cursor, _PAGE, False)
            for name, ino, kind, _ in entries:
                name = os.fsencode(name) if isinstance(path, bytes) else name
                at = os.path.join(path, name)
                if not modes.S_ISDIR(kind):
                    with _below(at):
                        directory.unlink(name)
                elif depth != 1:
                    self._empty(at, directory.at(ino), depth and depth - 1)
                    with _below(at), _if_empty(depth):
                        directory.rmdir(name)

    def rename(self, source: _Path, target: _Path, *, no_replace: bool = False) -> None:
        """Moves a name, in place of what is there, in one step; ``no_replace`` refuses that."""
        self.connection().rename(source, target, _NOREPLACE if no_replace else 0)

    def replace(self, source: _Path, target: _Path) -> None:
        """Moves a name, in place of what is there, in one step."""
        self.connection().rename(source, target)

    def link(self, source: _Path, target: _Path) -> None:
        """Gives a file one more name."""
        self.connection().link(source, target)

    def symlink(self, target: _Path, path: _Path) -> None:
        """Makes a symbolic link at ``path`` that leads to ``target``."""
        self.connection().symlink(target, path)

    def readlink(self, path: _Path) -> Any:
        """Where a symbolic link leads; ``bytes`` if the path is."""
        target = self.connection().readlink(path)
        return os.fsencode(target) if isinstance(path, bytes) else target

    # The whole.

    def statvfs(self) -> os.statvfs_result:
        """Room in the filesystem, an ``os.statvfs_result``."""
        return self.connection().statvfs()

    def sync(self) -> None:
        """All that was done through this connection is durable and visible to all."""
        self.connection().sync()

    def sync_dir(self, path: _Path) -> None:
        """The names in a directory are durable, as after ``os.fsync`` of it."""
        self.connection().sync_dir(path)


@contextlib.contextmanager
def _below(path):
    """Names a path in errors."""
    try:
        yield
    except OSError as error:
        error.filename = path
        raise


@contextlib.contextmanager
def _if_empty(depth):
    """Leaves a directory that is not, if there is a depth to which it was to be emptied."""
    try:
        yield
    except OSError as error:
        if depth is None or error.errno != errno.ENOTEMPTY:
            raise


def _outermost_last(files):
    """Files to be closed, and what wraps them to write text, be it of others: fsspec and programs
    wrap buffered files, whose own buffers know nothing of the text that is still in the wrapper.
    For an ``ExitStack``, which begins with the last."""
    files = list(files)
    binary = {id(file) for file in files if not isinstance(file, io.TextIOBase)}
    if not binary:
        return files
    wrappers = [
        one
        for one in gc.get_referrers(*files)
        if isinstance(one, io.TextIOWrapper) and not one.closed and id(one.buffer) in binary
    ]
    return files + wrappers


def _chained(first, rest):
    yield first
    yield from rest
