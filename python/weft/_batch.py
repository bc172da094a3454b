"""The arguments of ``read_batch``: what to read, and where to put it."""

import operator
import os

from . import _gpu


def _normal(item):
    if isinstance(item, (str, bytes, os.PathLike)):
        return item, 0, None
    path, offset, length = item
    return path, operator.index(offset), None if length is None else operator.index(length)


def normal_items(items):
    """Each item as path, offset and length (``None``: to the end of the file)."""
    return [_normal(item) for item in items]


def writable(target):
    """The memory of an array, a tensor or a buffer: a flat ``memoryview`` of bytes, or a ``View`` of
    a GPU, and how many rows there are (``None`` if it has but one dimension)."""
    if (of_gpu := _gpu.target(target)) is not None:
        return of_gpu, of_gpu.rows
    if hasattr(target, "untyped_storage"):
        target = _of_tensor(target)
    try:
        view = memoryview(target)
    except (TypeError, ValueError, BufferError):
        view = _of_array(target)
    if view.readonly:
        raise BufferError("out is read-only")
    if not view.c_contiguous:
        raise ValueError("out is not C-contiguous")
    rows = view.shape[0] if view.ndim > 1 else None
    # An empty one cannot be cast.
    return view.cast("B") if view.nbytes else memoryview(bytearray()), rows


def _of_tensor(tensor):
    import torch

    if tensor.device.type != "cpu":
        raise ValueError(f"out is on {tensor.device}: read into CPU memory, or that of a CUDA GPU")
    if not tensor.is_contiguous():
        raise ValueError("out is not C-contiguous")
    # Also of types that numpy does not know, as bfloat16.
    return tensor.detach().reshape(tensor.shape or (1,)).view(torch.uint8).numpy()


def _of_array(array):
    # Types that the buffer protocol does not know, as datetime64 and bfloat16.
    if not hasattr(array, "__array_interface__"):
        raise TypeError(f"out must have the buffer protocol, and {type(array).__name__} has not")
    import numpy

    return memoryview(numpy.asarray(array).view(numpy.uint8))


def slots(items, out):
    """A writable buffer for each item: pieces of one contiguous memory, or one each of a list.

    Memory of shape ``(n, ...)`` has a row for each of n items. Flat memory is cut into pieces of
    the items' lengths, one after the other, or, if none has a length, into n equal ones.
    """
    if isinstance(out, (list, tuple)):
        return [writable(one)[0] for one in out]
    view, rows = writable(out)
    if not items:
        return []
    lengths = [length for _, _, length in items]
    if rows is not None:
        if rows != len(items):
            raise ValueError(f"out has {rows} rows for {len(items)} items")
        sizes = [view.nbytes // rows] * len(items)
    elif None not in lengths:
        sizes = lengths
    elif any(length is not None for length in lengths):
        raise ValueError("flat memory is for items that all have a length, or none")
    else:
        each, rest = divmod(view.nbytes, len(items))
        if rest:
            raise ValueError(f"{view.nbytes} bytes cannot be cut into {len(items)} equal pieces")
        sizes = [each] * len(items)
    if sum(sizes) > view.nbytes:
        raise ValueError(f"out has {view.nbytes} bytes, and the items may have {sum(sizes)}")
    found, at = [], 0
    for size in sizes:
        found.append(view[at : at + size])
        at += size
    return found


def within(items, buffers):
    """The items, with no more asked for than tells whether all of it finds room: a byte more than
    that. Errors: ``ValueError``, for what is known not to."""
    if len(buffers) != len(items):
        raise ValueError(f"{len(items)} reads, but {len(buffers)} buffers for them")
    asked = []
    for at, ((path, offset, length), buffer) in enumerate(zip(items, buffers, strict=True)):
        if length is not None and length > len(buffer):
            raise ValueError(f"read {at} of the batch is longer than its buffer")
        asked.append((path, offset, len(buffer) + 1 if length is None else length))
    return asked


def settled(results, errors):
    """The results, or the first error among them, raised."""
    if errors == "raise":
        for result in results:
            if isinstance(result, BaseException):
                raise result
    return results


def check_errors(errors):
    """Refuses what ``errors=`` does not know."""
    if errors not in ("raise", "return"):
        raise ValueError(f"errors must be 'raise' or 'return', not {errors!r}")
