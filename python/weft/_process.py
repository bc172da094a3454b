"""What becomes of connections when processes fork and end."""

import atexit
import os
import sys
import threading
import weakref

_open = weakref.WeakSet()
#: Those of them that were to disconnect, and of which nobody has heard that they have: kept here,
#: for the program may have forgotten them.
_closing = set()
#: Held for a moment. Made anew in a child, where it may have been held for ever.
_lock = threading.RLock()
_children_end_with = None


def _in_child():
    global _lock, _open, _closing, _children_end_with
    _lock = threading.RLock()
    _open = weakref.WeakSet()
    _closing = set()
    _children_end_with = None


os.register_at_fork(after_in_child=_in_child)


class Connecting:
    """The lock that is held while one filesystem connects, and once more by a signal handler that
    needs the connection meanwhile. It is another in a child, where it may be held for ever."""

    def __init__(self):
        self._of, self._lock = None, None

    def lock(self):
        """That of this process."""
        with _lock:
            if self._of is not _lock:
                self._of, self._lock = _lock, threading.RLock()
            return self._lock


def opened(fs):
    """Has a filesystem closed when the process ends, so that what was written is durable."""
    global _children_end_with
    _open.add(fs)
    # Children of multiprocessing, as the workers of a DataLoader, leave without atexit.
    processes = sys.modules.get("multiprocessing.process")
    if processes and processes.parent_process() is not None and _children_end_with is None:
        from multiprocessing import util

        _children_end_with = util.Finalize(None, close_all, exitpriority=-100)


def closing(fs):
    """Has the process wait, when it ends, for a filesystem whose closing is given up."""
    _closing.add(fs)


def closed(fs):
    """It has disconnected."""
    _closing.discard(fs)


@atexit.register
def close_all():
    """Closes all that this process connected; tells what could not be made durable."""
    for fs in list(_open):
        try:
            fs.close()
        except BaseException as error:  # also an interrupt: the others are closed all the same
            what = str(error) or type(error).__name__
            print(f"weft: what was written before the exit was lost: {what}", file=sys.stderr)
