"""Load on a mount while its fabric fails: writes and fsyncs files, reads and verifies others, deletes
some. Every error and every wrong byte counts. Commands:

  load.py fill DIR COUNT     writes COUNT files and says how many bytes
  load.py run DIR STOP       until STOP exists; prints figures as JSON; exit code 1 after any error
  load.py verify DIR         every file that the record in DIR.sums names, and no other
"""

import hashlib
import json
import os
import random
import sys
import time


def save(folder, sums):
    with open(folder.rstrip("/").replace("/", "_") + ".sums", "w") as out:
        json.dump(sums, out)


def load(folder):
    with open(folder.rstrip("/").replace("/", "_") + ".sums") as file:
        return json.load(file)


def write(path, size):
    data = random.randbytes(size)
    fd = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY)
    try:
        at = 0
        while at < size:
            at += os.write(fd, data[at : at + (1 << 20)])
        os.fsync(fd)
    finally:
        os.close(fd)
    return hashlib.sha256(data).hexdigest()


def read(path):
    fd = os.open(path, os.O_RDONLY)
    try:
        # Not from the page cache: what the drives hold is the question.
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        digest = hashlib.sha256()
        while piece := os.read(fd, 1 << 20):
            digest.update(piece)
        return digest.hexdigest()
    finally:
        os.close(fd)


def fill(folder, count):
    os.makedirs(folder, exist_ok=True)
    sums, total = {}, 0
    for i in range(count):
        size = random.choice([4 << 10, 100_000, 1 << 20, 5_000_001])
        sums[f"fill-{i}"] = write(f"{folder}/fill-{i}", size)
        total += size
    save(folder, sums)
    print(f"{count} files, {total >> 20} MiB")


def run(folder, stop):
    sums = load(folder)
    figures = {"writes": 0, "reads": 0, "deletes": 0, "written": 0, "errors": [], "bad": []}
    slowest = {"write": 0.0, "read": 0.0}
    this = os.path.basename(stop)
    while not os.path.exists(stop) and len(figures["errors"]) < 10:
        begin = time.monotonic()
        try:
            name = f"{this}-{figures['writes']}"
            size = random.choice([10_000, 300_000, 2 << 20])
            sums[name] = write(f"{folder}/{name}", size)
            figures["writes"] += 1
            figures["written"] += size
        except OSError as error:
            figures["errors"].append(f"write: {error}")
        between = time.monotonic()
        slowest["write"] = max(slowest["write"], between - begin)
        try:
            name = random.choice(list(sums))
            if read(f"{folder}/{name}") != sums[name]:
                figures["bad"].append(name)
            figures["reads"] += 1
        except OSError as error:
            figures["errors"].append(f"read {name}: {error}")
        slowest["read"] = max(slowest["read"], time.monotonic() - between)
        if len(sums) > 60:  # so that a long run does not fill the drives
            name = random.choice(list(sums))
            try:
                os.unlink(f"{folder}/{name}")
                del sums[name]
                figures["deletes"] += 1
            except OSError as error:
                figures["errors"].append(f"unlink {name}: {error}")
    save(folder, sums)
    figures["slowest_s"] = {k: round(v, 2) for k, v in slowest.items()}
    print(json.dumps(figures))
    return 1 if figures["errors"] or figures["bad"] else 0


def verify(folder):
    sums = load(folder)
    there = set(os.listdir(folder))
    wrong = [n for n in sums if n not in there or read(f"{folder}/{n}") != sums[n]]
    extra = sorted(there - set(sums))
    print(f"{len(sums)} files verified, {len(wrong)} wrong, {len(extra)} unexpected")
    return 1 if wrong or extra else 0


if __name__ == "__main__":
    command, folder, *rest = sys.argv[1:]
    if command == "fill":
        fill(folder, int(rest[0]))
    elif command == "run":
        sys.exit(run(folder, rest[0]))
    else:
        sys.exit(verify(folder))
