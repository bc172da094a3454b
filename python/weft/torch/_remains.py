"""What saves of checkpoints leave in their directory: shards that are replaced, and those of saves
that were killed. Needs no torch.

Nothing is unpickled here: the names of shards are in the metadata as they are.
"""

import contextlib
import os
import secrets

METADATA = ".metadata"
SUFFIX = ".distcp"


def now(fs, directory):
    """The time as the filesystem has it, in nanoseconds."""
    path = os.path.join(directory, f".{METADATA}.{secrets.token_hex(8)}.tmp")
    with fs.open(path, "xb", 0) as file:
        found = file.stat().st_mtime_ns
    fs.unlink(path)
    return found


def metadata(fs, directory, names):
    """What these files hold, if they are there."""
    contents = []
    for name in names:
        with contextlib.suppress(FileNotFoundError):
            contents.append(fs.read_bytes(os.path.join(directory, name)))
    return b"\n".join(contents)


def clean(fs, directory, name, before, mine, begun):
    """Removes the shards that the metadata ``before`` named, which have been replaced; and what is
    there since before this save has ``begun`` and is of no complete one, if its name begins with
    ``mine``. What any metadata name stays. ``name``: that of the metadata."""
    with fs.scandir(directory, stats=True) as entries:
        found = list(entries)
    named = metadata(fs, directory, [one.name for one in found if one.name.endswith(METADATA)])

    def is_older(entry):
        with contextlib.suppress(FileNotFoundError):
            return begun is not None and entry.stat().st_mtime_ns < begun
        return False

    for entry in found:
        encoded = os.fsencode(entry.name)
        if entry.name.endswith(SUFFIX):
            left = entry.name.startswith(mine) and is_older(entry)
            old = encoded not in named and (encoded in before or left)
        else:
            half = entry.name.startswith(f".{name}.") and entry.name.endswith(".tmp")
            old = half and is_older(entry)
        if old:
            with contextlib.suppress(FileNotFoundError):
                fs.unlink(entry.path)
