"""Memory of GPUs: what tensors and arrays say of theirs."""

import ctypes
import math

#: ``kDLCUDA`` and ``kDLCUDAManaged``.
_DLPACK_CUDA = (2, 13)
#: The legacy default stream, which comes after all others but those that say otherwise.
_LEGACY = 1


class View:
    """A run of bytes of a GPU, as ``memoryview`` is one of this host. ``owner`` keeps it."""

    def __init__(self, address, nbytes, stream, owner, rows=None, readonly=False):
        self.address, self.nbytes = address, nbytes
        #: What transfers come after: a stream's handle, or ``None``.
        self.stream = stream
        self.owner = owner
        #: The first dimension, if there are more.
        self.rows = rows
        self.readonly = readonly

    def __len__(self):
        return self.nbytes

    def __getitem__(self, part):
        start, stop, step = part.indices(self.nbytes)
        if step != 1:
            raise ValueError("memory of a GPU is cut into runs only")
        length = max(stop - start, 0)
        return View(self.address + start, length, self.stream, self.owner, None, self.readonly)

    @property
    def place(self):
        """As the native part takes it."""
        return self.address, self.nbytes, self.stream


def view(target):
    """The memory of a tensor or array of a GPU; ``None`` if it is none of those.

    Known are torch's tensors, ``__cuda_array_interface__`` (CuPy, Numba, JAX) and DLPack.
    """
    if isinstance(target, View):
        return target
    if hasattr(target, "untyped_storage"):
        return _of_tensor(target) if target.device.type == "cuda" else None
    # Objects that are neither have no such attributes, and those of the host no such device.
    interface = getattr(target, "__cuda_array_interface__", None)
    if interface is not None:
        return _of_interface(interface, target)
    device = getattr(target, "__dlpack_device__", None)
    if device is not None and int(device()[0]) in _DLPACK_CUDA:
        return _of_capsule(target.__dlpack__(stream=_LEGACY), target)
    return None


def target(memory):
    """The same, of memory that is filled. Errors: ``BufferError`` if it may not be."""
    found = view(memory)
    if found is not None and (found.readonly or _is_constant(memory)):
        raise BufferError("out is read-only")
    return found


def _is_constant(array):
    """Arrays of JAX do not change, and do not say so."""
    return type(array).__module__.partition(".")[0] in ("jax", "jaxlib")


def _rows(shape):
    return shape[0] if len(shape) > 1 else None


def _of_tensor(tensor):
    import torch

    if not tensor.is_contiguous():
        raise ValueError("the tensor is not contiguous")
    if tensor.is_conj() or tensor.is_neg():
        raise ValueError("the tensor is a view whose values are not those in memory: resolve it")
    stream = torch.cuda.current_stream(tensor.device).cuda_stream
    nbytes = tensor.numel() * tensor.element_size()
    return View(tensor.data_ptr(), nbytes, stream, tensor, _rows(tuple(tensor.shape)))


def _of_interface(interface, owner):
    shape, kind = tuple(interface["shape"]), interface["typestr"]
    if kind[1:2] in ("t", "O") or interface.get("mask") is not None:
        raise ValueError("arrays of bits or objects, or with a mask, have no bytes of their own")
    size = int(kind[2:]) * (4 if kind[1:2] == "U" else 1)
    strides = interface.get("strides")
    if strides is not None and not _is_contiguous(shape, strides, size):
        raise ValueError("the array is not C-contiguous")
    address, readonly = interface["data"]
    # None: nothing is waited for.
    stream = interface.get("stream")
    return View(address, math.prod(shape) * size, stream, owner, _rows(shape), bool(readonly))


def _is_contiguous(shape, strides, size):
    """Whether elements lie one after the other, the last dimension first."""
    for length, stride in zip(reversed(shape), reversed(strides), strict=True):
        if length > 1 and stride != size:
            return math.prod(shape) == 0
        size *= length
    return True


class _Device(ctypes.Structure):
    _fields_ = [("kind", ctypes.c_int32), ("number", ctypes.c_int32)]


class _Type(ctypes.Structure):
    _fields_ = [("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16)]


class _Tensor(ctypes.Structure):
    """``DLTensor`` of dlpack.h, with which ``DLManagedTensor`` begins."""

    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device", _Device),
        ("ndim", ctypes.c_int32),
        ("dtype", _Type),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)


def _of_capsule(capsule, owner):
    """What a capsule says; it is not consumed, and frees what it holds with itself."""
    tensor = _Tensor.from_address(_pointer(capsule, b"dltensor"))
    shape = tuple(tensor.shape[at] for at in range(tensor.ndim))
    if tensor.strides:
        strides = tuple(tensor.strides[at] for at in range(tensor.ndim))
        # Counted in elements.
        if not _is_contiguous(shape, strides, 1):
            raise ValueError("the array is not C-contiguous")
    bits = math.prod(shape) * tensor.dtype.bits * tensor.dtype.lanes
    if bits % 8:
        raise ValueError("the array is no whole number of bytes")
    address = (tensor.data or 0) + tensor.byte_offset
    # Its owner has had what it does to it come before the legacy stream.
    return View(address, bits // 8, _LEGACY, (owner, capsule), _rows(shape))


def places(buffers):
    """The places of buffers that are all of GPUs; ``None`` if none is. Empty ones are nowhere: they
    count as either."""
    for at, buffer in enumerate(buffers):
        if isinstance(buffer, View) and not len(buffer):
            buffers[at] = bytearray()
    views = [buffer for buffer in buffers if isinstance(buffer, View)]
    if not views:
        return None
    if any(len(buffer) and not isinstance(buffer, View) for buffer in buffers):
        raise ValueError("out mixes memory of GPUs and of this host")
    empty = views[0].address, 0, views[0].stream
    return [buffer.place if isinstance(buffer, View) else empty for buffer in buffers]
