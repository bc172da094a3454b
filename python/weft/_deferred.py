"""Files of an fsspec transaction: seen by nobody until it is complete."""

import contextlib
import errno
import os
import secrets
import shutil

from ._buffered import BufferedWriter
from ._file import BUFFER


class Deferred(BufferedWriter):
    """A file to write that gets its name when it is committed, in one step."""

    _failed = False

    def __init__(self, fs, path, mode):
        self._fs = fs
        self._target = path
        self._exclusive = "x" in mode
        directory, name = os.path.split(path)
        self._temporary = os.path.join(directory, f".{name}.{secrets.token_hex(8)}.tmp")
        if self._exclusive and fs.lexists(path):
            raise FileExistsError(17, "File exists", path)
        try:
            if "a" in mode:
                with contextlib.suppress(FileNotFoundError), fs.open(path, "rb", 0) as old:
                    with fs.open(self._temporary, "xb") as copy:
                        shutil.copyfileobj(old, copy, BUFFER)
            raw = fs.open(self._temporary, "ab" if "a" in mode else "xb", 0)
        except BaseException:
            with contextlib.suppress(OSError):
                fs.unlink(self._temporary)
            raise
        super().__init__(raw, BUFFER)

    def close(self):
        """Closes it. What fails is a failure of the commit as well."""
        try:
            super().close()
        except BaseException:
            self._failed = True
            raise

    def commit(self):
        """Gives it its name."""
        self.close()
        if self._failed:
            raise OSError(errno.EIO, "it could not be closed, and is not whole", self._target)
        self._fs.rename(self._temporary, self._target, no_replace=self._exclusive)

    def discard(self):
        """Removes it, whatever was lost of it."""
        with contextlib.suppress(OSError):
            self.close()
        with contextlib.suppress(FileNotFoundError):
            self._fs.unlink(self._temporary)
