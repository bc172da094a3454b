"""Lists the samples of a data set. Needs no torch."""

import fnmatch
import os


def _suffixes(suffixes):
    return (suffixes,) if isinstance(suffixes, str) else tuple(suffixes)


def list_samples(fs, root, *, suffixes=None, pattern=None, accept=None, recursive=True):
    """The files below a directory, sorted: the same on every rank.

    ``suffixes``: one, or several, that names end with; ``pattern``: as of the shell, for the path
    below the directory; ``accept``: called with path and ``os.stat_result``. Hidden files (``.x``)
    are left out.
    """
    root = os.fspath(root).rstrip("/") or "/"
    ends = None if suffixes is None else _suffixes(suffixes)
    found, left = [], [root]
    while left:
        with fs.scandir(left.pop(), stats=accept is not None) as entries:
            for entry in entries:
                if entry.name.startswith("."):
                    continue
                if entry.is_dir():
                    # A link to a directory above would never end.
                    if recursive and not entry.is_symlink():
                        left.append(entry.path)
                    continue
                below = entry.path[len(root) :].lstrip("/")
                if ends is not None and not entry.name.endswith(ends):
                    continue
                if pattern is not None and not fnmatch.fnmatchcase(below, pattern):
                    continue
                if accept is None or accept(entry.path, entry.stat()):
                    found.append(entry.path)
    found.sort()
    return found
