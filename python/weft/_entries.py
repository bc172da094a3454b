"""Names in directories, as ``os.scandir`` shows them."""

import os
import stat as modes
from typing import Any, Self


class DirEntry:
    """A name in a directory: like ``os.DirEntry``, and with the same methods."""

    __slots__ = ("_fs", "_ino", "_kind", "_stat", "name", "path")

    def __init__(self, fs, directory, name, ino, kind, stat):
        self._fs = fs
        self._ino = ino
        self._kind = kind
        self._stat = stat
        #: The name itself; ``bytes`` if the directory was named by bytes.
        self.name = name
        #: The directory's path with the name behind it.
        self.path = os.path.join(directory, name)

    def inode(self) -> int:
        """The number of the inode that the name leads to."""
        return self._ino

    def _is(self, kind, follow):
        if follow and modes.S_ISLNK(self._kind):
            try:
                return modes.S_IFMT(self._fs.stat(self.path).st_mode) == kind
            except FileNotFoundError:
                return False
        return self._kind == kind

    def is_dir(self, *, follow_symlinks: bool = True) -> bool:
        """Whether it is a directory, or a symbolic link to one."""
        return self._is(modes.S_IFDIR, follow_symlinks)

    def is_file(self, *, follow_symlinks: bool = True) -> bool:
        """Whether it is a regular file, or a symbolic link to one."""
        return self._is(modes.S_IFREG, follow_symlinks)

    def is_symlink(self) -> bool:
        """Whether it is a symbolic link."""
        return modes.S_ISLNK(self._kind)

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
        """Its attributes: those that came with the listing, if they did."""
        if follow_symlinks and modes.S_ISLNK(self._kind):
            return self._fs.stat(self.path)
        if self._stat is None:
            self._stat = self._fs.lstat(self.path)
        return self._stat

    def __fspath__(self) -> Any:
        return self.path

    def __repr__(self):
        return f"<weft.DirEntry {self.name!r}>"


class Scan:
    """The iterator that ``Filesystem.scandir`` answers; a context manager, too."""

    def __init__(self, fs, path, pages):
        self._found = self._entries(fs, path, pages)

    @staticmethod
    def _entries(fs, path, pages):
        encode = os.fsencode if isinstance(path, bytes) else str
        for page in pages:
            for name, ino, kind, stat in page:
                yield DirEntry(fs, path, encode(name), ino, kind, stat)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> DirEntry:
        return next(self._found)

    def close(self) -> None:
        """Gives it up before its end."""
        self._found.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
