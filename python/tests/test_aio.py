"""The asynchronous face."""

import asyncio
import threading
import types

import numpy
import pytest

import weft
import weft.aio


def run(cluster, body):
    """Runs a test with a connection of its own."""

    async def main():
        async with weft.aio.connect(cluster) as fs:
            return await body(fs)

    return asyncio.run(main())


def test_files_and_names(cluster, scratch):
    async def body(fs):
        await fs.mkdir(f"{scratch}/d")
        async with await fs.open(f"{scratch}/d/a", "w+b") as file:
            assert await file.pwrite(b"0123456789", 0) == 10
            assert await file.pread(3, 4) == b"456"
            room = bytearray(4)
            assert (await file.pread_into(room, 6), bytes(room)) == (4, b"6789")
            await file.truncate(8)
            await file.fsync()
            assert (await file.stat()).st_size == 8
        assert await fs.read(f"{scratch}/d/a", 2, 3) == b"234"
        await fs.rename(f"{scratch}/d/a", f"{scratch}/d/b")
        assert await fs.listdir(f"{scratch}/d") == ["b"]
        await fs.write_bytes(f"{scratch}/d/b", b"new", sync=True)
        assert await fs.read_bytes(f"{scratch}/d/b") == b"new"
        with pytest.raises(FileNotFoundError) as raised:
            await fs.stat(f"{scratch}/none")
        assert raised.value.filename == f"{scratch}/none"
        await fs.unlink(f"{scratch}/d/b")
        await fs.rmdir(f"{scratch}/d")
        assert not await fs.exists(f"{scratch}/d")
        await fs.sync()

    run(cluster, body)


def test_many_at_once_take_no_threads(cluster, scratch):
    async def body(fs):
        await asyncio.gather(*(fs.write_bytes(f"{scratch}/{n}", b"%d" % n) for n in range(300)))
        threads = threading.active_count()
        paths = [f"{scratch}/{n}" for n in range(300)]
        stats = asyncio.gather(*(fs.stat(path) for path in paths))
        reads = asyncio.gather(*(fs.read_bytes(path) for path in paths))
        assert [one.st_size for one in await stats] == [len(b"%d" % n) for n in range(300)]
        assert await reads == [b"%d" % n for n in range(300)]
        assert threading.active_count() == threads
        out = numpy.zeros((300, 4), "u1")
        assert await fs.read_batch(paths, out) == [len(str(n)) for n in range(300)]
        assert out[299].tobytes() == b"299\0"
        mixed = await fs.read_batch([paths[0], "/none", (paths[123], 1, 1)], errors="return")
        assert (mixed[0], mixed[2]) == (b"0", b"2")
        assert isinstance(mixed[1], FileNotFoundError)
        with pytest.raises(OSError, match="longer"):
            await fs.read_batch(paths, numpy.zeros((300, 2), "u1"))

    run(cluster, body)


def test_a_listing_is_of_one_directory_and_ends(cluster, fs, scratch):
    for name in "ab":
        fs.mkdir(f"{scratch}/{name}")
        for number in range(1100):
            fs.open(f"{scratch}/{name}/{name}{number}", "xb", 0).close()
    fs.symlink("a", f"{scratch}/now")
    fs.symlink("b", f"{scratch}/next")

    async def body(afs):
        pages, begin = [], afs._begin

        def raced(name, *args):
            if len(pages) == 1:
                fs.write_bytes(f"{scratch}/a/late", b"")
                fs.rename(f"{scratch}/next", f"{scratch}/now")
            pages.append(args)
            return begin(name, *args)

        afs._begin = raced
        assert set(await afs.listdir(f"{scratch}/now")) == {f"a{number}" for number in range(1100)}
        assert len(pages) == 2

    run(cluster, body)


def test_a_write_whose_wait_is_cancelled_is_done_whole(cluster, fs, scratch):
    old, new = b"o" * 3_000_000, b"n" * 3_000_000

    async def body(afs):
        for turn in range(20):
            path = f"{scratch}/{turn}"
            async with await afs.open(path, "wb") as file:
                await file.pwrite(old, 0)
                task = asyncio.ensure_future(file.pwrite(new, 0))
                # It has begun when the task has run once.
                await asyncio.sleep(0)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
            # Closing waits for what was begun before it, or it was done.
            await afs.sync()

    run(cluster, body)
    for turn in range(20):
        assert fs.read_bytes(f"{scratch}/{turn}") == new


@pytest.mark.parametrize("what", ["a close of", "a write of", "of the filesystem"])
def test_what_fails_when_its_wait_was_cancelled_is_told(cluster, scratch, what):
    async def body(afs):
        told, loop, path = [], asyncio.get_running_loop(), f"{scratch}/a"
        loop.set_exception_handler(lambda _, context: told.append(context))
        if what == "a close of":
            file, unlink = await afs.open(path, "wb"), afs.fs.connection().unlink
            # What is closed fails, as if something written to it were lost.
            fails = lambda later: unlink(f"{scratch}/none", later=later)  # noqa: E731
            file._native = types.SimpleNamespace(close=fails)
            call = file.close()
        elif what == "a write of":
            call = afs.write_bytes(f"{scratch}/none/a", b"x")
        else:
            broken = types.SimpleNamespace(close=lambda: (failing.wait(), 1 / 0))
            failing, call = threading.Event(), weft.aio.of(broken).close()
        waits = asyncio.ensure_future(call)
        await asyncio.sleep(0)
        waits.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waits
        if what == "of the filesystem":
            failing.set()
        async with asyncio.timeout(120):
            while not told:
                await asyncio.sleep(0.01)
        assert what in told[0]["message"]
        assert isinstance(told[0]["exception"], (FileNotFoundError, ZeroDivisionError))

    run(cluster, body)


def test_one_connection_serves_loops_one_after_the_other(fs, scratch):
    afs = weft.aio.of(fs)
    for turn in range(3):
        asyncio.run(afs.write_bytes(f"{scratch}/{turn}", b"x"))
    assert sorted(fs.listdir(scratch)) == ["0", "1", "2"]


def test_closing_ends_what_waits(cluster):
    async def main():
        fs = await weft.aio.connect(cluster)
        await fs.stat("/")
        await fs.close()
        with pytest.raises(ValueError, match="closed"):
            await fs.stat("/")

    asyncio.run(main())


def test_batches_ask_for_no_more_than_finds_room(cluster, fs, scratch):
    fs.write_bytes(f"{scratch}/big", b"x" * 3_000_000)
    fs.write_bytes(f"{scratch}/small", b"y" * 10)

    async def body(afs):
        asked, begin = [], afs._begin
        afs._begin = lambda name, items: asked.extend(items) or begin(name, items)
        paths = [f"{scratch}/big", f"{scratch}/small"]
        out = [bytearray(100), bytearray(10)]
        reads = await afs.read_batch(paths, out, errors="return")
        assert isinstance(reads[0], OSError) and reads[1:] == [10]
        assert [length for _, _, length in asked] == [101, 11]
        with pytest.raises(ValueError, match="buffers"):
            await afs.read_batch(paths, out[:1])
        with pytest.raises(ValueError, match="longer than its buffer"):
            await afs.read_batch([(paths[0], 0, 11)], [bytearray(10)])

    run(cluster, body)
