"""The Weft filesystem, straight from Python.

    import weft

    with weft.connect("meta-1:7000,meta-2:7000") as fs:
        with fs.open("/data/a", "wb") as f:
            f.write(b"hello")
        samples = fs.read_batch(["/data/a", ("/data/b", 4096, 512)])
        fs.read_batch(["/data/c"], out=torch.empty(1, 1 << 20, device="cuda"))

No kernel and no mount is in between. What a program writes here, mounts see, and the other way
round. Errors are those of ``os``: subclasses of ``OSError`` with ``errno`` and ``filename``.

Beside this: ``weft.aio`` for asyncio, ``weft.fsspec`` (``weft://`` URLs), ``weft.torch`` (data sets
and distributed checkpoints), ``weft.safetensors``.
"""

from ._entries import DirEntry
from ._file import File
from ._filesystem import Filesystem, connect
from ._weft import copied_bytes, gpus

__all__ = ["DirEntry", "File", "Filesystem", "connect", "copied_bytes", "gpus"]
