"""Reads and writes safetensors files, straight into tensors or arrays.

The format: eight bytes with the length of a header, little-endian; the header, JSON that names each
tensor's type, shape and place; the bytes of all tensors without a gap. What a file says is checked
before memory is made or read into.
"""

import json
import math
import struct
from collections.abc import Iterable, Mapping
from typing import Any

from ._atomic import replaced
from ._filesystem import Filesystem

__all__ = ["load_file", "load_metadata", "save_file"]

#: Longest header that is believed, as in the format's own library.
_MAX_HEADER = 100 << 20
#: Bytes that one read asks for.
_PIECE = 16 << 20
#: How often a file is read that is replaced meanwhile.
_TRIES = 10
#: Types by name: bytes of an element, numpy's name, torch's name.
_TYPES = {
    "BOOL": (1, "bool", "bool"),
    "U8": (1, "uint8", "uint8"),
    "I8": (1, "int8", "int8"),
    "U16": (2, "uint16", "uint16"),
    "I16": (2, "int16", "int16"),
    "U32": (4, "uint32", "uint32"),
    "I32": (4, "int32", "int32"),
    "U64": (8, "uint64", "uint64"),
    "I64": (8, "int64", "int64"),
    "F16": (2, "float16", "float16"),
    "BF16": (2, None, "bfloat16"),
    "F32": (4, "float32", "float32"),
    "F64": (8, "float64", "float64"),
    "F8_E4M3": (1, None, "float8_e4m3fn"),
    "F8_E5M2": (1, None, "float8_e5m2"),
}


def _invalid(path, what):
    return ValueError(f"{path}: no safetensors file: {what}")


def _no_twins(pairs):
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name comes twice")
    return found


def _is_count(value):
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _checked(path, name, entry, size):
    """Type, shape, begin and end of a tensor. Errors: ``ValueError``."""
    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        raise _invalid(path, f"the entry of {name!r} has other fields")
    kind, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(kind, str) or kind not in _TYPES:
        raise _invalid(path, f"{name!r} has the type {kind!r}, unknown here")
    if not isinstance(shape, list) or not all(map(_is_count, shape)):
        raise _invalid(path, f"the shape of {name!r} is {shape!r}")
    if not isinstance(offsets, list) or len(offsets) != 2 or not all(map(_is_count, offsets)):
        raise _invalid(path, f"the offsets of {name!r} are {offsets!r}")
    begin, end = offsets
    if not begin <= end <= size or end - begin != math.prod(shape) * _TYPES[kind][0]:
        raise _invalid(path, f"the bytes of {name!r} are not where, or as many as, it says")
    return kind, tuple(shape), begin, end


def _header(file, path):
    """The tensors by name, the metadata, and where the bytes begin."""
    size = file.stat().st_size
    start = file.pread(8, 0)
    if len(start) != 8:
        raise _invalid(path, f"it has {size} bytes")
    (length,) = struct.unpack("<Q", start)
    if length > min(_MAX_HEADER, size - 8):
        raise _invalid(path, f"a header of {length} bytes in a file of {size}")
    try:
        header = json.loads(file.pread(length, 8).decode(), object_pairs_hook=_no_twins)
    except (ValueError, RecursionError) as error:
        raise _invalid(path, f"its header: {error}") from None
    if not isinstance(header, dict):
        raise _invalid(path, "its header is no object")
    metadata = header.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in metadata.values()):
        raise _invalid(path, "its metadata are not text by name")
    room = size - 8 - length
    tensors = {name: _checked(path, name, entry, room) for name, entry in header.items()}
    at = 0
    for _, _, begin, end in sorted(tensors.values(), key=lambda one: one[2:]):
        if begin != at:
            raise _invalid(path, f"tensors overlap, or leave a gap, at byte {begin}")
        at = end
    if at != room:
        raise _invalid(path, f"{room - at} bytes belong to no tensor")
    return tensors, metadata, 8 + length


def _new(kind, shape, framework, device):
    """A tensor or array, and its memory."""
    _, of_numpy, of_torch = _TYPES[kind]
    if framework == "pt":
        import torch

        tensor = torch.empty(shape, dtype=getattr(torch, of_torch), device=device)
        memory = tensor.reshape(-1).view(torch.uint8)
        return tensor, memory if memory.is_cuda else memory.numpy()
    if of_numpy is None:
        raise TypeError(f"numpy has no type for {kind}: load it with framework='pt'")
    import numpy

    array = numpy.empty(shape, dtype=of_numpy)
    return array, array.reshape(-1).view(numpy.uint8)


def load_file(
    fs: Filesystem,
    path: Any,
    *,
    names: Iterable[str] | None = None,
    framework: str = "pt",
    device: Any = "cpu",
) -> dict[str, Any]:
    """The tensors of a file by name; all, or those in ``names``.

    ``framework``: ``"pt"`` for torch, ``"np"`` for numpy. Bytes go straight to their place, many
    pieces at a time, also on a CUDA ``device``; tensors are moved to another one then. Errors: ``ValueError`` for what is no
    such file, ``KeyError`` for a name that it has not.
    """
    if framework not in ("pt", "np"):
        raise ValueError(f"framework must be 'pt' or 'np', not {framework!r}")
    names = None if names is None else list(names)
    # On other devices than these nothing can be read into.
    place = device if str(device).startswith("cuda") else "cpu"
    for _ in range(_TRIES):
        # While it is open, no other file gets its inode.
        with fs.open(path, "rb", 0) as file:
            before = file.stat()
            found = _loaded(fs, file, path, names, (framework, place))
            # Its bytes were read by its name.
            if found is not None and _is_same(fs.stat(path), before):
                break
    else:
        raise _invalid(path, f"it was changed {_TRIES} times while it was read")
    if framework == "pt" and str(device) != "cpu":
        return {name: tensor.to(device) for name, tensor in found.items()}
    return found


def _is_same(stat, other):
    def marks(of):
        return of.st_ino, of.st_size, of.st_mtime_ns

    return marks(stat) == marks(other)


def _loaded(fs, file, path, names, where):
    """The tensors, read by the file's name, behind which another file may be by then; ``None`` if
    that had not as many bytes."""
    tensors, _, base = _header(file, path)
    found, items, places = {}, [], []
    for name in tensors if names is None else names:
        kind, shape, begin, end = tensors[name]
        found[name], memory = _new(kind, shape, *where)
        for at in range(begin, end, _PIECE):
            length = min(_PIECE, end - at)
            items.append((path, base + at, length))
            places.append(memory[at - begin : at - begin + length])
    filled = fs.read_batch(items, out=places)
    return found if filled == [length for _, _, length in items] else None


def load_metadata(fs: Filesystem, path: Any) -> dict[str, str]:
    """The text that the file has beside its tensors, by name."""
    with fs.open(path, "rb", 0) as file:
        return _header(file, path)[1]


def _as_bytes(tensor):
    """Type, shape and bytes."""
    if hasattr(tensor, "untyped_storage"):
        import torch

        name = str(tensor.dtype).removeprefix("torch.")
        tensor = tensor.detach() if tensor.is_cuda else tensor.detach().cpu()
        shape, memory = list(tensor.shape), tensor.contiguous().reshape(-1).view(torch.uint8)
        memory, column = memory if memory.is_cuda else memory.numpy(), 2
    else:
        import numpy

        array = numpy.ascontiguousarray(tensor)
        name, shape, column = array.dtype.newbyteorder("<").name, list(tensor.shape), 1
        memory = array.astype(array.dtype.newbyteorder("<"), copy=False).reshape(-1)
        memory = memory.view(numpy.uint8)
    kinds = [kind for kind, names in _TYPES.items() if names[column] == name]
    if not kinds:
        raise TypeError(f"safetensors has no type for {name}")
    return kinds[0], shape, memory


def save_file(
    fs: Filesystem,
    tensors: Mapping[str, Any],
    path: Any,
    *,
    metadata: Mapping[str, str] | None = None,
) -> None:
    """Writes tensors by name. Others see the whole file, durable, or what was there before.
    ``metadata``: text by name."""
    for key, value in (metadata or {}).items():
        if not isinstance(key, str) or not isinstance(value, str):
            raise TypeError(f"metadata are text by name, and not {key!r}: {value!r}")
    for name in tensors:
        if not isinstance(name, str) or name == "__metadata__":
            raise ValueError(f"no tensor can have the name {name!r}")
    parts, header, at = [], {"__metadata__": dict(metadata)} if metadata else {}, 0
    for name in sorted(tensors):
        kind, shape, memory = _as_bytes(tensors[name])
        end = at + memory.nbytes
        header[name] = {"dtype": kind, "shape": shape, "data_offsets": [at, end]}
        parts.append(memory)
        at = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with replaced(fs, path) as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for memory in parts:
            file.write(memory)
