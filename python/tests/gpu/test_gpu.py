"""Files in the memory of a GPU: that of a driver that is simulated (``tests/cuda``)."""

import asyncio
import ctypes
import errno
import random

import pytest

import weft
from weft import aio


class Driver:
    """What the tests call of it."""

    def __init__(self):
        self.lib = ctypes.CDLL("libcuda.so.1")
        context = ctypes.c_void_p()
        self.call("cuInit", 0)
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
        self.call("cuCtxPushCurrent_v2", context)

    def call(self, name, *args):
        assert getattr(self.lib, name)(*args) == 0, name


    def under_way(self):
        """Copies that are."""
        counts = (ctypes.c_uint64 * 3)()
        self.lib.weft_cuda_sim_copies(counts)
        return counts[2]


@pytest.fixture(scope="module")
def driver():
    return Driver()


class Memory:
    """Memory of a GPU with content."""

    def __init__(self, driver, content):
        self.driver, self.nbytes = driver, len(content)
        address = ctypes.c_uint64()
        driver.call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(max(self.nbytes, 1)))
        self.address = address.value
        self.put(content)

    def put(self, content):
        size = ctypes.c_size_t(len(content))
        self.driver.call("cuMemcpyHtoD_v2", ctypes.c_uint64(self.address), content, size)

    def get(self):
        bytes_ = ctypes.create_string_buffer(self.nbytes)
        place = ctypes.c_uint64(self.address)
        self.driver.call("cuMemcpyDtoH_v2", bytes_, place, ctypes.c_size_t(self.nbytes))
        return bytes_.raw

    def free(self):
        """Ends the process if a copy is under way."""
        self.driver.call("cuMemFree_v2", ctypes.c_uint64(self.address))


class Array:
    """An array with ``__cuda_array_interface__``."""

    def __init__(self, memory, shape=None, typestr="|u1", strides=None, readonly=False, stream=1):
        self.__cuda_array_interface__ = {
            "shape": (memory.nbytes,) if shape is None else shape,
            "typestr": typestr,
            "data": (memory.address, readonly),
            "strides": strides,
            "stream": stream,
            "version": 3,
        }


class Exported:
    """An array that speaks DLPack."""

    def __init__(self, memory, shape, strides=None, offset=0):
        from weft._gpu import _Device, _Tensor, _Type

        self.shape = (ctypes.c_int64 * len(shape))(*shape)
        self.strides = strides and (ctypes.c_int64 * len(shape))(*strides)
        device, kind = _Device(2, 0), _Type(2, 32, 1)
        self.tensor = _Tensor(
            memory.address, device, len(shape), kind, self.shape, self.strides, offset
        )

    def __dlpack_device__(self):
        return (2, 0)

    def __dlpack__(self, *, stream=None):
        assert stream == 1
        new = ctypes.pythonapi.PyCapsule_New
        new.restype = ctypes.py_object
        new.argtypes = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
        return new(ctypes.addressof(self.tensor), b"dltensor", None)


def content(size, seed):
    return random.Random(seed).randbytes(size)


def test_gpus_have_names(driver):
    assert weft.gpus() == [
        (0, "No GPU 0", "0000:a0:00.0"),
        (1, "No GPU 1", "0000:a1:00.0"),
    ]


def test_files_go_to_a_gpu_and_back(driver, fs, scratch):
    data = content(5_000_000, 1)
    memory = Memory(driver, data)
    with fs.open(f"{scratch}/a", "xb+", 0) as file:
        assert file.pwrite(Array(memory), 0) == len(data)
        assert file.pread(len(data) + 1, 0) == data
        memory.put(bytes(len(data)))
        assert file.pread_into(Array(memory), 100) == len(data) - 100
        assert memory.get()[:-100] == data[100:]
        file.seek(0)
        assert file.readinto(Array(memory)) == len(data)
        assert file.tell() == len(data) and memory.get() == data
    with fs.open(f"{scratch}/log", "ab", 0) as file:
        for _ in range(2):
            assert file.write(Array(memory)) == len(data)
    assert fs.read_bytes(f"{scratch}/log") == 2 * data
    memory.free()


def written(fs, scratch, count, size):
    paths = [f"{scratch}/{at}" for at in range(count)]
    for at, path in enumerate(paths):
        fs.write_bytes(path, content(size, at))
    return paths


@pytest.mark.parametrize("kind", ["interface", "dlpack"])
def test_a_batch_has_a_row_for_each(driver, cluster, fs, scratch, kind):
    paths = written(fs, scratch, 40, 4000)
    memory = Memory(driver, bytes(40 * 4000))
    if kind == "interface":
        out = Array(memory, (40, 1000), "<f4")
    else:
        out = Exported(memory, (40, 1000))
    assert fs.read_batch(paths, out=out) == [4000] * 40
    assert memory.get() == b"".join(content(4000, at) for at in range(40))

    # Also from an event loop.
    async def read():
        async with aio.connect(cluster) as loop:
            return await loop.read_batch(paths[::-1], out=out)

    assert asyncio.run(read()) == [4000] * 40
    assert memory.get() == b"".join(content(4000, at) for at in reversed(range(40)))
    memory.free()


def test_what_fails_fails_alone(driver, fs, scratch):
    paths = written(fs, scratch, 3, 4000)
    memory = Memory(driver, bytes(4 * 4000))
    out = Array(memory, (4, 4000))
    read = fs.read_batch([paths[0], "/is/not", paths[2], paths[1]], out=out, errors="return")
    assert read[0] == read[2] == read[3] == 4000
    assert read[1].errno == errno.ENOENT and read[1].filename == "/is/not"
    with pytest.raises(OSError, match="longer") as raised:
        fs.read_batch([paths[0]], out=[Array(memory, (3999,))])
    assert raised.value.errno == errno.EFBIG
    memory.free()


def test_what_is_no_place_is_refused(driver, fs, scratch):
    path = written(fs, scratch, 1, 4000)[0]
    memory = Memory(driver, bytes(4000))
    with pytest.raises(BufferError, match="read-only"):
        fs.read_batch([path], out=Array(memory, readonly=True))
    with pytest.raises(ValueError, match="contiguous"):
        fs.read_batch([path], out=Array(memory, (10, 10), "<f4", (80, 4)))
    with pytest.raises(ValueError, match="contiguous"):
        fs.read_batch([path], out=Exported(memory, (10, 10), (1, 10)))
    with pytest.raises(ValueError, match="mixes"):
        fs.read_batch([path, path], out=[Array(memory), bytearray(4000)])
    with pytest.raises(ValueError, match="rows"):
        fs.read_batch([path], out=Array(memory, (2, 2000)))
    with pytest.raises(OSError, match="not of one GPU|not in the memory"):
        fs.read_batch([path], out=Array(memory, (4001,)))
    with fs.open(path, "rb", 0) as file, pytest.raises(BufferError):
        file.pread_into(Array(memory, readonly=True), 0)
    # Strides of a contiguous one, and of one of whose dimensions has no use for them.
    for shape, strides in [((10, 100), (400, 4)), ((1, 1000), (7, 4))]:
        out = Array(memory, shape, "<f4", strides)
        items = [path] if shape[0] == 1 else [(path, 400 * at, 400) for at in range(10)]
        fs.read_batch(items, out=out)
        assert memory.get() == content(4000, 0)
    memory.free()


def test_who_gives_up_waiting_has_memory_that_nobody_fills(driver, cluster, fs, scratch):
    path = written(fs, scratch, 1, 3_000_000)[0]
    memory = Memory(driver, bytes(3_000_000))
    driver.lib.weft_cuda_sim_pause(ctypes.c_uint64(200_000))

    async def give_up():
        async with aio.connect(cluster) as loop:
            read = asyncio.ensure_future(loop.read_batch([path], out=[Array(memory)]))
            while driver.under_way() == 0 and not read.done():
                await asyncio.sleep(0)
            read.cancel()
            with pytest.raises(asyncio.CancelledError):
                await read
            assert driver.under_way() == 0

    asyncio.run(give_up())
    driver.lib.weft_cuda_sim_pause(ctypes.c_uint64(300))
    memory.free()


def test_an_empty_one_takes_nothing(driver, fs, scratch):
    path = written(fs, scratch, 1, 0)[0]
    memory = Memory(driver, b"x")
    assert fs.read_batch([path], out=Array(memory, (1, 1))) == [0]
    # What is empty is nowhere.
    nowhere = Array(memory, (0,))
    nowhere.__cuda_array_interface__["data"] = (0, False)
    assert fs.read_batch([path, path], out=[nowhere, Array(memory)]) == [0, 0]
    assert fs.read_batch([path], out=[nowhere]) == [0]
    with fs.open(f"{scratch}/new", "xb+", 0) as file:
        assert file.write(nowhere) == 0 and file.pread_into(nowhere, 0) == 0
    assert memory.get() == b"x"
    memory.free()


def test_what_has_no_bytes_of_its_own_is_refused(driver, fs, scratch):
    path = written(fs, scratch, 1, 100)[0]
    memory = Memory(driver, bytes(100))
    bits = Array(memory, (100,), "|t1")
    masked = Array(memory)
    masked.__cuda_array_interface__["mask"] = Array(memory)
    for out in (bits, masked):
        with pytest.raises(ValueError, match="bytes of their own"):
            fs.read_batch([path], out=[out])
    memory.free()
