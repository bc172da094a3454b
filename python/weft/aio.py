"""The filesystem for asyncio.

    async with weft.aio.connect(cluster) as fs:
        data = await fs.read("/a", 0, 4096)
        both = await asyncio.gather(fs.read_bytes("/a"), fs.read_bytes("/b"))

No call takes a thread: calls are begun on the connection's own threads, which wake the loop when
they are done. Whoever stops waiting, by ``asyncio.timeout`` or a task that is cancelled, ends only
the wait: what had begun goes on to its end, so that a write is done whole, or not at all.
"""

import asyncio
import os
from collections.abc import Sequence
from typing import Any

from . import _batch, _filesystem, _gpu
from ._file import flags_of
from ._filesystem import Filesystem

#: ``CU_STREAM_PER_THREAD``.
_PER_THREAD = 2

__all__ = ["AsyncFile", "AsyncFilesystem", "connect", "of"]


class _Loop:
    """What is under way for one event loop."""

    def __init__(self, connection, loop):
        self.loop = loop
        self.connection = connection
        self._completions = connection.completions()
        self._waiting = {}
        self._idle = []
        self._next = 0
        loop.add_reader(self._completions.fileno(), self.settle)

    def begin(self, call, *args):
        """Begins a call; what it answers comes to the future."""
        number, self._next = self._next, self._next + 1
        future = self.loop.create_future()
        call(*args, later=(self._completions, number))
        self._waiting[number] = future
        return future

    def settle(self):
        """Gives what is done to who waits for it."""
        for number, answer, error in self._completions.drain():
            future = self._waiting.pop(number, None)
            if future is None or future.done():
                # Nobody waits: a file that was opened for nobody is closed as it is dropped.
                continue
            if error is None:
                future.set_result(answer)
            else:
                future.set_exception(error)
        if not self._waiting:
            for idle in self._idle:
                if not idle.done():
                    idle.set_result(None)
            self._idle.clear()

    async def idle(self):
        """Waits until all that was begun has ended, also what nobody waits for."""
        while self._waiting:
            idle = self.loop.create_future()
            self._idle.append(idle)
            await idle

    def abandon(self):
        """Watches no more."""
        if not self.loop.is_closed():
            self.loop.remove_reader(self._completions.fileno())
        for future in self._waiting.values():
            if not future.done() and not self.loop.is_closed():
                future.cancel()


async def _to_the_end(future, what):
    """Waits for what changes something, and goes on though this is cancelled. The loop's handler of
    exceptions is told then if it fails: nobody else hears of that."""

    def tell(future):
        error = None if future.cancelled() else future.exception()
        if error is not None:
            said = f"weft: {what} has failed, and nobody waits for it any more"
            future.get_loop().call_exception_handler({"message": said, "exception": error})

    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:
        future.add_done_callback(tell)
        raise


async def _named(future, path):
    """Waits, and gives an error the file's name."""
    try:
        return await future
    except OSError as error:
        if error.filename is None:
            error.filename = path
        raise


class AsyncFilesystem:
    """A ``weft.Filesystem`` whose calls are awaited. For one event loop at a time."""

    def __init__(self, fs: Filesystem) -> None:
        #: The filesystem itself, whose calls wait in their thread.
        self.fs = fs
        self._loop = None

    def _here(self):
        """What is under way for the loop that runs."""
        connection, loop = self.fs.connection(), asyncio.get_running_loop()
        mine = self._loop
        if mine is None or mine.loop is not loop or mine.connection is not connection:
            if mine is not None and mine.connection.is_of_this_process():
                mine.abandon()
            self._loop = mine = _Loop(connection, loop)
        return mine

    def _begin(self, name, *args):
        here = self._here()
        return here.begin(getattr(here.connection, name), *args)

    def _begin_in(self, call, *args):
        # A file may be older than the loop.
        return self._here().begin(call, *args)

    async def _call(self, path, name, *args):
        return await _named(self._begin(name, *args), path)

    async def open(
        self, path: Any, mode: str = "rb", *, perm: int = 0o666, flags: int = 0
    ) -> "AsyncFile":
        """Opens a file in binary mode: an ``AsyncFile``."""
        kind, text = flags_of(mode)
        if text:
            kind, _ = flags_of(mode.replace("t", "") + "b")
        native = await self._call(path, "open", path, kind | flags, perm)
        return AsyncFile(self, path, native)

    async def read(self, path: Any, offset: int = 0, length: int | None = None) -> bytes:
        """A piece of a file; without a length, to its end."""
        return (await self.read_batch([(path, offset, length)]))[0]

    async def read_bytes(self, path: Any) -> bytes:
        """All of a file."""
        return await self.read(path)

    async def write_bytes(self, path: Any, data: Any, *, sync: bool = False) -> None:
        """Makes a file that holds ``data``, in place of the one that is there. Goes on to its end
        though the wait for it is cancelled."""
        writing = asyncio.ensure_future(self._write(path, data, sync))
        await _to_the_end(writing, f"a write of {path!r}")

    async def _write(self, path, data, sync):
        async with await self.open(path, "wb") as file:
            await file.pwrite(data, 0)
            if sync:
                await file.fsync()

    async def read_batch(
        self, items: Sequence[Any], out: Any = None, *, errors: str = "raise"
    ) -> list[Any]:
        """Reads many files, or pieces; see ``weft.Filesystem.read_batch``."""
        _batch.check_errors(errors)
        items = _batch.normal_items(items)
        buffers = None if out is None else _batch.slots(items, out)
        if buffers and (places := _gpu.places(buffers)):
            return _batch.settled(await self._read_gpu(items, buffers, places), errors)
        asked = items if buffers is None else _batch.within(items, buffers)
        reads = await self._begin("begin_read_batch", asked)
        results = []
        for at, (read, item) in enumerate(zip(reads, items, strict=True)):
            if isinstance(read, OSError):
                read.filename = item[0]
                results.append(read)
            elif buffers is None:
                results.append(read.tobytes())
            else:
                results.append(_fill(read, buffers[at], item[0]))
        return _batch.settled(results, errors)

    async def _read_gpu(self, items, buffers, places):
        if any(stream == _PER_THREAD for _, _, stream in places):
            raise ValueError("the default stream of a thread is nothing to an event loop")
        connection = self._here().connection

        def read():
            # Their owners are kept to its end, also when nobody waits any more.
            return connection.read_batch_gpu(items, places), buffers

        # It waits for the GPU, too: a thread is in place.
        reads = asyncio.ensure_future(asyncio.to_thread(read))
        try:
            return (await asyncio.shield(reads))[0]
        except asyncio.CancelledError:
            # Until then the memory is filled. Who gives up that wait, too, is not kept.
            await asyncio.wait([reads])
            raise

    async def stat(self, path: Any, *, follow_symlinks: bool = True) -> os.stat_result:
        """An ``os.stat_result``."""
        return await self._call(path, "stat", path, follow_symlinks)

    async def lstat(self, path: Any) -> os.stat_result:
        """Attributes of a symbolic link itself."""
        return await self._call(path, "stat", path, False)

    async def exists(self, path: Any) -> bool:
        """Whether a path leads to something."""
        try:
            await self.stat(path)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    async def listdir(self, path: Any = "/") -> list[Any]:
        """The names in a directory."""
        names, cursor, end = [], None, False
        while not end:
            page = await self._call(path, "read_dir", path, cursor, 1024, False)
            entries, cursor, end = page
            names.extend(entry[0] for entry in entries)
        return [os.fsencode(name) for name in names] if isinstance(path, bytes) else names

    async def mkdir(self, path: Any, mode: int = 0o777) -> None:
        """Makes a directory."""
        await self._call(path, "mkdir", path, mode)

    async def unlink(self, path: Any) -> None:
        """Removes a name of what is no directory."""
        await self._call(path, "unlink", path)

    async def rmdir(self, path: Any) -> None:
        """Removes an empty directory."""
        await self._call(path, "rmdir", path)

    async def rename(self, source: Any, target: Any) -> None:
        """Moves a name, in place of what is there, in one step."""
        await self._call(source, "rename", source, target)

    async def sync(self) -> None:
        """All that was done through this connection is durable and visible to all."""
        await self._begin("sync")

    async def close(self) -> None:
        """Disconnects, when what is under way here has ended."""
        mine, loop = self._loop, asyncio.get_running_loop()
        if mine is not None and mine.loop is loop:
            await mine.idle()
        self._loop = None
        # It waits for the cluster, and is called once: a thread is in place.
        closing = loop.run_in_executor(None, self.fs.close)
        await _to_the_end(closing, "a close of the filesystem")
        if mine is not None:
            # What began meanwhile was told that it is disconnected.
            if mine.loop is loop:
                mine.settle()
            mine.abandon()

    async def __aenter__(self):
        if self.fs is None:
            raise ValueError("not connected")
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


def _fill(data, buffer, path):
    if len(data) > len(buffer):
        what = f"it is longer than its buffer of {len(buffer)} bytes"
        return OSError(27, what, path)
    return data.copy_into(buffer)


class AsyncFile:
    """An open file whose calls are awaited. It has no position."""

    def __init__(self, fs, path, native):
        self._fs = fs
        self._native = native
        #: The path that it was opened by.
        self.name = path

    async def _call(self, name, *args):
        return await _named(self._fs._begin_in(getattr(self._native, name), *args), self.name)

    async def pread(self, n: int, offset: int) -> bytes:
        """Up to ``n`` bytes from ``offset``: fewer at the end of the file only."""
        return (await self._call("begin_pread", n, offset)).tobytes()

    async def pread_into(self, buffer: Any, offset: int) -> int:
        """Fills a writable buffer from ``offset``. Answers how many bytes there were."""
        length = memoryview(buffer).nbytes
        return (await self._call("begin_pread", length, offset)).copy_into(buffer)

    async def pwrite(self, buffer: Any, offset: int) -> int:
        """Writes all of a buffer at ``offset``. The buffer may be changed as soon as this was
        called. A write that had begun goes on though the wait for it is cancelled."""
        return await self._call("begin_pwrite", buffer, offset)

    async def truncate(self, size: int) -> None:
        """Cuts it, or extends it by a hole."""
        await self._call("truncate", size)

    async def stat(self) -> os.stat_result:
        """An ``os.stat_result``."""
        return await self._call("stat")

    async def fsync(self) -> None:
        """What was written is durable and visible to all when this returns."""
        await self._call("sync")

    async def close(self) -> None:
        """Closes it; goes on though the wait for it is cancelled. What fails then is told to the
        loop's handler of exceptions."""
        closing = self._fs._begin_in(self._native.close)
        await _named(_to_the_end(closing, f"a close of {self.name!r}"), self.name)

    async def __aenter__(self):
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class connect:
    """Connects, with the arguments of ``weft.connect``: to be awaited, or for ``async with``."""

    def __init__(self, cluster: str, **settings: Any) -> None:
        self._arguments = cluster, settings
        self._fs = None

    async def _connected(self) -> AsyncFilesystem:
        cluster, settings = self._arguments
        loop = asyncio.get_running_loop()
        call = lambda: _filesystem.connect(cluster, **settings)  # noqa: E731
        self._fs = AsyncFilesystem(await loop.run_in_executor(None, call))
        return self._fs

    def __await__(self):
        return self._connected().__await__()

    async def __aenter__(self):
        return await self._connected()

    async def __aexit__(self, *_: object) -> None:
        await self._fs.close()


def of(fs: Filesystem) -> AsyncFilesystem:
    """The asynchronous face of a ``weft.Filesystem``, which both share."""
    return AsyncFilesystem(fs)
