"""File objects: what ``Filesystem.open`` answers."""

import errno
import io
import os
from typing import Any

from . import _gpu

#: Bytes that buffered files read and write at a time.
BUFFER = 256 * 1024
_SEEK_DATA = getattr(os, "SEEK_DATA", 3)
_SEEK_HOLE = getattr(os, "SEEK_HOLE", 4)


def flags_of(mode: str) -> tuple[int, bool]:
    """The flags of ``os.open`` for a mode of ``open``, and whether it is of text."""
    kinds, rest = [c for c in mode if c in "rwxa"], set(mode) - set("rwxa")
    text, binary, plus = "t" in mode, "b" in mode, "+" in mode
    if len(kinds) != 1 or rest - set("bt+") or len(set(mode)) != len(mode) or text and binary:
        raise ValueError(f"invalid mode: {mode!r}")
    flags = {
        "r": 0,
        "w": os.O_CREAT | os.O_TRUNC,
        "x": os.O_CREAT | os.O_EXCL,
        "a": os.O_CREAT | os.O_APPEND,
    }[kinds[0]]
    if plus:
        return flags | os.O_RDWR, not binary
    return flags | (os.O_RDONLY if kinds[0] == "r" else os.O_WRONLY), not binary


class File(io.RawIOBase):
    """An open file with a position, unbuffered. Calls with an offset (``pread``) leave that alone,
    and any number of threads may make them.

    There is no file descriptor behind it: ``fileno`` raises ``io.UnsupportedOperation``.
    """

    _native = None
    # By a buffer, which closes it. It is not closed before that has been written: the collector of
    # garbage takes what is in a circle in any order.
    _wrapped = False

    def __init__(self, fs, path, mode, native, flags):
        super().__init__()
        self._fs = fs
        self._native = native
        self._flags = flags
        self._writes = flags & os.O_ACCMODE != os.O_RDONLY
        self._at = 0
        # Appends past this object when that was found: it is at the end after another.
        self._appends = 0
        #: The path that it was opened by.
        self.name = path
        #: The mode that it was opened in.
        self.mode = mode
        if flags & os.O_APPEND:
            self._at = None
            self.tell()

    def _do(self, call, *args):
        if self.closed:
            raise ValueError("I/O operation on closed file")
        try:
            return call(*args)
        except OSError as error:
            if error.filename is None:
                error.filename = self.name
            raise

    def readable(self) -> bool:
        """Whether it was opened to read."""
        self._check_open()
        return self._flags & os.O_ACCMODE != os.O_WRONLY

    def writable(self) -> bool:
        """Whether it was opened to write."""
        self._check_open()
        return self._writes

    def seekable(self) -> bool:
        """Always."""
        self._check_open()
        return True

    def _check_open(self):
        if self.closed:
            raise ValueError("I/O operation on closed file")

    def _check(self, what):
        if not getattr(self, what)():
            raise io.UnsupportedOperation("read" if what == "readable" else "write")

    def pread(self, n: int, offset: int) -> bytes:
        """Up to ``n`` bytes from ``offset``: fewer at the end of the file only."""
        self._check("readable")
        return self._do(self._native.pread, n, offset)

    def pread_into(self, buffer: Any, offset: int) -> int:
        """Fills a writable buffer, or memory of a GPU (see ``Filesystem.read_batch``), from
        ``offset``. Answers how many bytes there were."""
        self._check("readable")
        if (of_gpu := _gpu.target(buffer)) is not None:
            return self._do(self._native.pread_gpu, of_gpu.place, offset) if len(of_gpu) else 0
        return self._do(self._native.pread_into, buffer, offset)

    def pwrite(self, buffer: Any, offset: int) -> int:
        """Writes all of a buffer, or of memory of a GPU, at ``offset``, or, in append mode, at the
        end. Answers how many bytes that were. Of a buffer whose append has failed nothing is
        appended twice when it is written again."""
        self._check("writable")
        of_gpu = _gpu.view(buffer)
        if of_gpu is not None and not len(of_gpu):
            buffer = b""
        elif of_gpu is not None:
            whole = bool(self._flags & os.O_APPEND)
            return self._do(self._native.pwrite_gpu, of_gpu.place, offset, whole)
        if self._flags & os.O_APPEND:
            return self._do(self._native.append, self.name, False, buffer)
        return self._do(self._native.pwrite, buffer, offset)

    def read(self, size: int | None = -1) -> bytes:
        """Up to ``size`` bytes, all if negative; fewer at the end of the file only."""
        if size is None or size < 0:
            return self.readall()
        at = self.tell()
        data = self.pread(size, at)
        self._move(at + len(data))
        return data

    def readall(self) -> bytes:
        """All that is left."""
        self._check("readable")
        parts = []
        while left := max(self.stat().st_size - self.tell(), 0):
            part = self.read(left)
            parts.append(part)
            if not part:
                break
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def readinto(self, buffer: Any) -> int:
        """Fills a writable buffer. Answers how many bytes there were: 0 at the end."""
        at = self.tell()
        filled = self.pread_into(buffer, at)
        self._move(at + filled)
        return filled

    def write(self, data: Any) -> int:
        """Writes all of a buffer, at the position or, in append mode, at the end."""
        if self._flags & os.O_APPEND:
            written = self.pwrite(data, 0)
            # At the end, which is asked for when it is needed: that may fail.
            self._at = None
        else:
            written = self.pwrite(data, self._at)
            self._at += written
        return written

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Sets the position; ``os.SEEK_DATA`` and ``os.SEEK_HOLE`` work, too."""
        self._check_open()
        if whence in (_SEEK_DATA, _SEEK_HOLE):
            return self._move(self._do(self._native.seek, offset, whence == _SEEK_HOLE))
        if whence == os.SEEK_SET:
            base = 0
        elif whence == os.SEEK_CUR:
            base = self.tell()
        elif whence == os.SEEK_END:
            base = self.stat().st_size
        else:
            raise ValueError(f"invalid whence: {whence}")
        if base + offset < 0:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), self.name)
        return self._move(base + offset)

    def tell(self) -> int:
        """The position."""
        self._check_open()
        if self._flags & os.O_APPEND and (
            self._at is None or self._appends != self._native.appends
        ):
            self._move(self.stat().st_size)
        return self._at

    def _move(self, at):
        self._at = at
        if self._flags & os.O_APPEND:
            self._appends = self._native.appends
        return at

    def truncate(self, size: int | None = None) -> int:
        """Cuts it, or extends it by a hole. Answers the new size."""
        self._check("writable")
        size = self.tell() if size is None else size
        if size < 0:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), self.name)
        self._do(self._native.truncate, size)
        return size

    def stat(self) -> os.stat_result:
        """Its attributes, what was written here and is not durable yet included."""
        return self._do(self._native.stat)

    def fsync(self) -> None:
        """What was written is durable and visible to all when this returns."""
        self._do(self._native.sync)

    def close(self) -> None:
        """Closes it. The first error of what was written and nobody was told of is raised."""
        if self.closed:
            return
        try:
            self._do(self._native.close)
        except OSError as error:
            # Of what was only read nothing is lost with the connection.
            if self._writes or error.errno != errno.ENOTCONN:
                raise
        finally:
            super().close()

    def __del__(self):
        # That of io, before Python 3.13, tells nobody what fails.
        if not self._wrapped:
            self._end()

    def _end(self):
        """Closes it, as nobody has it any more. What fails is told by Python then."""
        if self._native is None or self.closed:
            return
        try:
            self.close()
        except OSError as error:
            # What was lost when it was disconnected was told by that.
            if self._writes and error.errno != errno.ENOTCONN:
                raise

    def __reduce__(self):
        if self.closed or self.writable():
            raise TypeError("only files that are open to read can be pickled")
        return reopen, (self._fs, self.name, self.mode, 0, self.tell())

    def __reduce_ex__(self, _):
        return self.__reduce__()

    def __repr__(self):
        state = " closed" if self.closed else ""
        return f"<weft.File {self.name!r} mode={self.mode!r}{state}>"


def reopen(fs, path, mode, buffering, at):
    file = fs.open(path, mode, buffering)
    file.seek(at)
    return file
