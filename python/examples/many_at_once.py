"""Writes and reads many files at once from one event loop.

python many_at_once.py HOST:PORT[,HOST:PORT...] DIRECTORY
"""

import asyncio
import sys

import weft.aio


async def main(cluster, directory):
    """Writes a hundred files and reads them back."""
    async with weft.aio.connect(cluster) as fs:
        paths = [f"{directory}/{number}" for number in range(100)]
        await asyncio.gather(*(fs.write_bytes(path, path.encode()) for path in paths))
        contents = await asyncio.gather(*(fs.read_bytes(path) for path in paths))
        assert contents == [path.encode() for path in paths]
        print(f"{len(contents)} files written and read")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
