"""A process that locks what it is told to, for locks.rs: one command a line, one answer a line.

Opens, locks and closes as any program does; prints the name of the errno if a call fails. Whatever
may wait says so first, with its process id.
"""
import errno
import fcntl
import os
import signal
import struct
import sys

FLOCK = "hhqqi4x"  # struct flock where off_t has 64 bits
KINDS = {"r": fcntl.F_RDLCK, "w": fcntl.F_WRLCK, "u": fcntl.F_UNLCK}
NAMES = {number: name for name, number in KINDS.items()}
BSD = {"r": fcntl.LOCK_SH, "w": fcntl.LOCK_EX, "u": fcntl.LOCK_UN}
OFD_GETLK, OFD_SETLK, OFD_SETLKW = 36, 37, 38


class Interrupted(Exception):
    pass


def interrupted(*_):
    raise Interrupted


signal.signal(signal.SIGUSR1, interrupted)
files = {}


def set_lock(command, name, kind, start, length):
    lock = struct.pack(FLOCK, KINDS[kind], os.SEEK_SET, int(start), int(length), 0)
    fcntl.fcntl(files[name], command, lock)
    return "ok"


def get_lock(name, kind, start, length):
    lock = struct.pack(FLOCK, KINDS[kind], os.SEEK_SET, int(start), int(length), 0)
    kind, _, start, length, pid = struct.unpack(FLOCK, fcntl.fcntl(files[name], fcntl.F_GETLK, lock))
    return "u" if kind == fcntl.F_UNLCK else f"{NAMES[kind]} {start} {length} {pid}"


def do(verb, *rest):
    if verb == "open":
        files[rest[0]] = os.open(rest[1], os.O_RDWR | os.O_CREAT)
    elif verb == "open-to-read":
        files[rest[0]] = os.open(rest[1], os.O_RDONLY)
    elif verb == "close":
        os.close(files.pop(rest[0]))
    elif verb == "try":
        return set_lock(fcntl.F_SETLK, *rest)
    elif verb == "wait":
        return set_lock(fcntl.F_SETLKW, *rest)
    elif verb == "get":
        return get_lock(*rest)
    elif verb == "try-flock":
        fcntl.flock(files[rest[0]], BSD[rest[1]] | fcntl.LOCK_NB)
    elif verb == "wait-flock":
        fcntl.flock(files[rest[0]], BSD[rest[1]])
    elif verb == "try-ofd":
        return set_lock(OFD_SETLK, *rest)
    elif verb == "wait-ofd":
        return set_lock(OFD_SETLKW, *rest)
    elif verb == "write":
        os.pwrite(files[rest[0]], rest[1].encode(), 0)
    elif verb == "cut":
        os.ftruncate(files[rest[0]], 4)
    elif verb == "read":
        return os.pread(files[rest[0]], 100, 0).decode() or "nothing"
    elif verb == "sync":
        os.fsync(files[rest[0]])
    else:
        raise SystemExit(f"no such command: {verb}")
    return "ok"


for line in sys.stdin:
    try:
        answer = do(*line.split())
    except Interrupted:
        answer = "EINTR"
    except OSError as error:
        # That number has two names.
        answer = "EDEADLK" if error.errno == errno.EDEADLK else errno.errorcode[error.errno]
    print(answer, flush=True)
