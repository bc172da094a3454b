"""File objects with a buffer, and for text."""

import functools
import io
import os
from typing import Any

from ._file import File, reopen


class _Direct:
    """Calls that go past the buffer, to the file."""

    # By what makes bytes of text, which ends it.
    _wrapped = False

    def __init__(self, raw, size):
        super().__init__(raw, size)
        raw._wrapped = True
        if raw._flags & os.O_APPEND:
            # A write whose answer does not reach the buffer is offered again. No signal handler,
            # which may raise something, runs between this and the buffer.
            raw.write = functools.partial(raw._native.append, raw.name, True)

    def pread(self, n: int, offset: int) -> bytes:
        """Up to ``n`` bytes from ``offset``; the position stays."""
        self._flush_before()
        return self.raw.pread(n, offset)

    def pread_into(self, buffer: Any, offset: int) -> int:
        """Fills a buffer from ``offset``; the position stays."""
        self._flush_before()
        return self.raw.pread_into(buffer, offset)

    def pwrite(self, buffer: Any, offset: int) -> int:
        """Writes all of a buffer at ``offset``; the position stays."""
        self.flush()
        return self.raw.pwrite(buffer, offset)

    def stat(self) -> os.stat_result:
        """Its attributes."""
        self._flush_before()
        return self.raw.stat()

    def fsync(self) -> None:
        """What was written is durable and visible to all when this returns."""
        self.flush()
        self.raw.fsync()

    def _flush_before(self):
        if self.writable():
            self.flush()

    def detach(self) -> File:
        """Writes the buffer, and answers the file without it."""
        raw = super().detach()
        raw._wrapped = False
        return raw

    def __del__(self):
        if not self._wrapped:
            self._end()

    def _is_open(self):
        raw = getattr(self, "raw", None)
        # What is in the buffer in a process that was forked is the parent's.
        return raw is not None and not raw.closed and raw._native.is_of_this_process()

    def _end(self, text=None):
        """Writes the buffer, after that of the text, and closes the file, as nobody has it any
        more."""
        if not self._is_open():
            return
        try:
            if self.writable():
                (text or self).flush()
        finally:
            self.raw._end()

    def __reduce_ex__(self, _):
        if self.closed or self.writable():
            raise TypeError("only files that are open to read can be pickled")
        return reopen, (self.raw._fs, self.name, self.mode, -1, self.tell())


class BufferedReader(_Direct, io.BufferedReader):
    """A buffered file to read."""


class BufferedWriter(_Direct, io.BufferedWriter):
    """A buffered file to write."""


class BufferedRandom(_Direct, io.BufferedRandom):
    """A buffered file to read and write."""

    def pwrite(self, buffer: Any, offset: int) -> int:
        """Writes all of a buffer at ``offset``; the position stays."""
        written = super().pwrite(buffer, offset)
        # What was read ahead may be out of date now: this forgets it.
        at = self.tell()
        self.seek(0, os.SEEK_END)
        self.seek(at)
        return written


class TextWriter(io.TextIOWrapper):
    """A file to write text."""

    def __init__(self, binary, *args):
        super().__init__(binary, *args)
        binary._wrapped = True

    def detach(self):
        binary = super().detach()
        binary._wrapped = False
        return binary

    def __del__(self):
        binary = getattr(self, "buffer", None)
        if binary is not None:
            binary._end(self)


def of_text(binary, *args):
    """The text file for a buffered one."""
    return (TextWriter if binary.writable() else io.TextIOWrapper)(binary, *args)


def buffered(raw, size):
    """The buffered file for a raw one."""
    if raw.readable() and raw.writable():
        return BufferedRandom(raw, size)
    return BufferedReader(raw, size) if raw.readable() else BufferedWriter(raw, size)
