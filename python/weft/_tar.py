"""Reads samples out of TAR archives as WebDataset lays them out: the files of one sample lie beside
each other and have one name but for what comes behind its first dot. Needs no torch.

Headers are read first, without the content between them; the content of many samples is then read
together, and straight to where it is wanted.
"""

import tarfile
from dataclasses import dataclass

_BLOCK = tarfile.BLOCKSIZE
#: Bytes that are read at a time where headers are looked for.
_WINDOW = 64 * 1024
#: Longest extended header that is believed.
_MAX_HEADER = 1 << 20
#: Headers that say more of what comes next, or of all.
_EXTENDED = (
    tarfile.GNUTYPE_LONGNAME,
    tarfile.GNUTYPE_LONGLINK,
    tarfile.XHDTYPE,
    tarfile.XGLTYPE,
    tarfile.SOLARIS_XHDTYPE,
)


@dataclass(frozen=True)
class Sample:
    """A sample in an archive: its key, and extension, offset and length of each file."""

    archive: str
    #: Which archive of that name; see ``version``.
    version: tuple
    key: str
    files: tuple

    def ranges(self):
        """What to read, as ``read_batch`` takes it."""
        return [(self.archive, offset, length) for _, offset, length in self.files]

    def filled(self, contents):
        """The sample itself, from what was read."""
        sample = {"__key__": self.key, "__url__": self.archive}
        for (extension, _, _), content in zip(self.files, contents, strict=True):
            sample[extension] = content
        return sample


def version(stat):
    """What differs when another archive has taken the place of one, or it was written to."""
    return stat.st_ino, stat.st_size, stat.st_mtime_ns


class _Window:
    """A file of which small pieces are read by growing offsets."""

    def __init__(self, file, size):
        self._file, self.size = file, size
        self._start, self._data = 0, b""

    def read(self, offset, length):
        at = offset - self._start
        if at < 0 or at + length > len(self._data):
            wanted = max(length, min(_WINDOW, self.size - offset))
            self._start, self._data, at = offset, self._file.pread(wanted, offset), 0
        piece = self._data[at : at + length]
        if len(piece) < length:
            raise tarfile.ReadError(f"the archive ends at {offset + len(piece)}, within a file")
        return piece


def _split(name):
    directory, slash, base = name.rpartition("/")
    stem, _, extension = base.partition(".")
    return directory + slash + stem, extension.lower()


def _extended(content):
    """The records of a pax header."""
    records, at = {}, 0
    while at < len(content) and content[at] != 0:
        space = content.find(b" ", at, at + 20)
        if space < 0 or not content[at:space].isdigit():
            raise tarfile.ReadError("a pax header without a length")
        end = at + int(content[at:space])
        key, equals, value = content[space + 1 : end - 1].partition(b"=")
        if not equals or not space < end <= len(content):
            raise tarfile.ReadError("a pax header that does not end")
        records[key.decode("utf-8", "surrogateescape")] = value.decode("utf-8", "surrogateescape")
        at = end
    return records


def _believed(records, at):
    """The records, if what they say is known here."""
    if any(key.startswith(("GNU.sparse.", "SCHILY.realsize")) for key in records):
        raise tarfile.ReadError(f"what begins at offset {at} is sparse, unknown here")
    size = records.get("size", "0")
    if not (size.isascii() and size.isdigit()):
        raise tarfile.ReadError(f"what begins at offset {at} has {size!r} bytes")
    return records


def members(file, size):
    """Name, offset and length of each regular file of an archive."""
    window, at, name, length = _Window(file, size), 0, None, None
    while at + _BLOCK <= size:
        header = window.read(at, _BLOCK)
        try:
            info = tarfile.TarInfo.frombuf(header, "utf-8", "surrogateescape")
        except tarfile.EOFHeaderError:
            # Two blocks of zeros are the end: one may be where it was cut.
            if at + 2 * _BLOCK <= size and not any(window.read(at + _BLOCK, _BLOCK)):
                return
            break
        except tarfile.HeaderError as error:
            raise tarfile.ReadError(f"no header of TAR at offset {at}: {error}") from None
        at += _BLOCK
        if info.size < 0 or info.type == tarfile.GNUTYPE_SPARSE:
            what = "is sparse, unknown here" if info.size >= 0 else f"has {info.size} bytes"
            raise tarfile.ReadError(f"what begins at offset {at} {what}")
        if info.type in _EXTENDED:
            if info.size > _MAX_HEADER:
                raise tarfile.ReadError(f"a header of {info.size} bytes at offset {at}")
            content = window.read(at, info.size)
            if info.type == tarfile.GNUTYPE_LONGNAME:
                name = content.rstrip(b"\0").decode("utf-8", "surrogateescape")
            elif info.type == tarfile.XGLTYPE:
                if {"path", "size"} & set(_believed(_extended(content), at)):
                    raise tarfile.ReadError(f"one name or size for all files at offset {at}")
            elif info.type != tarfile.GNUTYPE_LONGLINK:
                records = _believed(_extended(content), at)
                name = records.get("path", name)
                length = int(records["size"]) if "size" in records else length
            at += -(-info.size // _BLOCK) * _BLOCK
            continue
        # Links and directories have no content, whatever size some programs write down for them.
        has_content = info.isreg() or info.type not in tarfile.SUPPORTED_TYPES
        bytes_ = (info.size if length is None else length) if has_content else 0
        if at + bytes_ > size:
            raise tarfile.ReadError(f"a file of {bytes_} bytes at offset {at} of {size}")
        if info.isreg():
            yield info.name if name is None else name, at, bytes_
        at += -(-bytes_ // _BLOCK) * _BLOCK
        name = length = None
    raise tarfile.ReadError(f"the archive ends at {size}, without its end")


def samples(fs, archive):
    """The samples of an archive, in its order. Left out are files named ``__...__``, or below a
    directory of such a name at the top, and those with no extension or nothing before it."""
    with fs.open(archive, "rb", 0) as file:
        key, files, stat = None, [], file.stat()
        for name, offset, length in members(file, stat.st_size):
            stem, extension = _split(name)
            top = name.partition("/")[0]
            if not extension or top.startswith("__") and top.endswith("__"):
                continue
            if not stem.rpartition("/")[2]:
                continue
            if stem != key or any(extension == other for other, _, _ in files):
                if files:
                    yield Sample(archive, version(stat), key, tuple(files))
                key, files = stem, []
            files.append((extension, offset, length))
        if files:
            yield Sample(archive, version(stat), key, tuple(files))


def shuffled(stream, size, chance):
    """A stream in another order: each is one of the next ``size``, by chance."""
    held = []
    for one in stream:
        if len(held) < size:
            held.append(one)
            continue
        at = chance.randrange(size)
        yield held[at]
        held[at] = one
    chance.shuffle(held)
    yield from held
