"""What a program says of an epoch, as workers see it that were made before. Needs no torch.

Workers have a copy of a data set. Those that stay for several epochs learn here, in memory that
they share with the program, that another epoch has been set, and whether all of them have come to
the end of the one before.
"""

import mmap

#: Numbers: how often an epoch was set or a state loaded; which epoch; how often a state was loaded;
#: which epoch was begun anew, as its count.
_COUNT, _EPOCH, _LOADS, _ANEW, _FIRST = range(5)
#: Workers whose ends are kept.
_WORKERS = 1024


def plain():
    """Memory that is shared with processes that are forked."""
    return memoryview(mmap.mmap(-1, (_FIRST + _WORKERS) * 8)).cast("q")


class Shared:
    """Shared by a data set and its copies in workers.

    ``make`` answers memory for 64-bit numbers, which are 0: how it is shared with processes that
    are spawned is its own affair.
    """

    #: How many numbers there are.
    LENGTH = _FIRST + _WORKERS

    def __init__(self, cells=None):
        self._cells = plain() if cells is None else cells
        self._seen = self._loads = 0

    def set_epoch(self, epoch):
        """Tells copies of another epoch."""
        self._cells[_EPOCH] = epoch
        self._cells[_COUNT] = self._seen = int(self._cells[_COUNT]) + 1

    def loaded(self):
        """Tells copies that a state was loaded, which they have not."""
        self._cells[_COUNT] = self._seen = int(self._cells[_COUNT]) + 1
        self._cells[_LOADS] = self._loads = int(self._cells[_LOADS]) + 1

    def news(self):
        """The epoch that was set since this was last asked; ``None`` if none was. Errors:
        ``RuntimeError`` if a state was loaded when this worker was there already."""
        if int(self._cells[_LOADS]) != self._loads:
            what = "a state was loaded when workers were there already, which stay for epochs"
            raise RuntimeError(f"{what}: load it before the DataLoader is iterated first")
        count = int(self._cells[_COUNT])
        if count == self._seen:
            return None
        self._seen = count
        return int(self._cells[_EPOCH])

    def ended(self, worker):
        """A worker has come to the end."""
        if worker < _WORKERS:
            self._cells[_FIRST + worker] = int(self._cells[_COUNT]) + 1

    def begins(self, worker, workers):
        """A worker begins to iterate. Whether all had come to the end of this epoch, or of what was
        left of it, before: it begins anew then. All workers get the same answer."""
        if workers > _WORKERS:
            return False
        end = int(self._cells[_COUNT]) + 1
        if all(int(self._cells[_FIRST + one]) == end for one in range(workers)):
            self._cells[_ANEW] = end
            return True
        self._cells[_FIRST + worker] = 0
        return False

    def is_anew(self):
        """Whether workers have begun this epoch once more, when all had come to its end."""
        return int(self._cells[_ANEW]) == int(self._cells[_COUNT]) + 1

    def __getstate__(self):
        state = dict(vars(self))
        if isinstance(self._cells, memoryview):
            state["_cells"] = list(self._cells)
        return state

    def __setstate__(self, state):
        vars(self).update(state)
        if isinstance(self._cells, list):
            values, self._cells = self._cells, plain()
            for at, value in enumerate(values):
                self._cells[at] = value
        elif hasattr(self._cells, "share_memory_"):
            # A copy that was made within this process.
            self._cells.share_memory_()
