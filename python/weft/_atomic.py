"""Files that are there whole or not at all."""

import contextlib
import os
import secrets


@contextlib.contextmanager
def replaced(fs, path):
    """A new file, to be written unbuffered. At the end it is durable, and takes the place of the
    one at ``path`` in one step; if something is raised, it goes."""
    directory, name = os.path.split(os.fspath(path))
    temporary = os.path.join(directory, f".{name}.{secrets.token_hex(8)}.tmp")
    try:
        with fs.open(temporary, "xb", 0) as file:
            yield file
            file.fsync()
        fs.rename(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            fs.unlink(temporary)
        raise
    fs.sync_dir(directory or "/")
