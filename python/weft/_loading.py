"""Streams of samples, read by batches ahead of who takes them. Needs no torch."""

import collections
import itertools
import random
from concurrent.futures import ThreadPoolExecutor

from . import _tar
from ._sampling import Progress


def batched(stream, size):
    """Lists of ``size``; the last may be shorter."""
    stream = iter(stream)
    while batch := list(itertools.islice(stream, size)):
        yield batch


def ahead(stream, read, depth):
    """What ``read`` makes of each of a stream, ``depth`` of them begun before they are wanted."""
    if depth <= 0:
        yield from map(read, stream)
        return
    begun = collections.deque()
    with ThreadPoolExecutor(1, "weft-ahead") as thread:
        try:
            for one in stream:
                begun.append(thread.submit(read, one))
                if len(begun) > depth:
                    yield begun.popleft().result()
            while begun:
                yield begun.popleft().result()
        finally:
            for one in begun:
                one.cancel()


class FileStream:
    """Samples that are a file each, dealt to ranks and workers.

    ``read`` makes samples of a list of places in ``paths``. Which worker of a rank this process is,
    is said when it is iterated.
    """

    def __init__(self, read, progress, prefetch):
        self.read, self.progress, self.prefetch = read, progress, prefetch
        #: Samples given out since the iteration began, in this process.
        self.given = 0
        self._worker = (0, 1)
        #: What a worker has given out before, if it goes on.
        self._skip = 0

    def set_epoch(self, epoch):
        """Begins another epoch."""
        if epoch != self.progress.epoch:
            self.progress.set_epoch(epoch)
            self.given = self._skip = 0

    def left(self):
        """How many samples the rank gets when it is iterated."""
        return self.progress.left()

    def iterate(self, worker, workers):
        """The samples of a worker, from where the state that was loaded left off."""
        if self._skip and (worker, workers) != self._worker:
            raise ValueError(f"the state is of worker {self._worker}, not {(worker, workers)}")
        self._worker, self.given = (worker, workers), self._skip
        progress = self.progress
        deal, order = progress.deal, progress.order()
        places = deal.of_worker(progress.rank, worker, workers, progress.taken, self._skip)
        samples = (order[place] for place in places)
        for batch in ahead(batched(samples, deal.block), self.read, self.prefetch):
            for sample in batch:
                self.given += 1
                yield sample

    def state(self, taken=None):
        """Where it is. In a worker: where that worker is; else ``taken`` samples may be said."""
        worker, workers = self._worker
        if workers == 1 or taken is not None:
            given = self.given if taken is None else taken
            return self.progress.state(self.progress.taken + given)
        return {**self.progress.state(), "worker": [worker, workers], "given": self.given}

    def load(self, state):
        """Goes on there."""
        state = dict(state)
        worker, self._skip = state.pop("worker", [0, 1]), state.pop("given", 0)
        self.progress.load(state)
        self._worker, self.given = tuple(worker), self._skip


class TarStream:
    """Samples of TAR archives, which are dealt to ranks and workers whole."""

    def __init__(self, fs, archives, options):
        self.fs, self.archives, self.options = fs, archives, options
        self.progress = Progress(
            len(archives),
            1,
            seed=options["seed"],
            shuffle=options["shuffle"],
            rank=options["rank"],
            ranks=options["ranks"],
        )
        self.given = 0
        self._skip = 0
        self._worker = None

    def set_epoch(self, epoch):
        """Begins another epoch."""
        if epoch != self.progress.epoch:
            self.progress.set_epoch(epoch)
            self.given = self._skip = 0

    def _found(self, worker, workers):
        progress, order = self.progress, self.progress.order()
        places = progress.deal.of_worker(progress.rank, worker, workers)
        found = itertools.chain.from_iterable(
            _tar.samples(self.fs, self.archives[order[place]]) for place in places
        )
        if not progress.shuffle or self.options["buffer"] < 2:
            return found
        chance = random.Random(f"{progress.seed} {progress.epoch} {progress.rank} {worker}")
        return _tar.shuffled(found, self.options["buffer"], chance)

    def _read(self, batch):
        contents = iter(self.fs.read_batch([item for one in batch for item in one.ranges()]))
        return [one.filled(list(itertools.islice(contents, len(one.files)))) for one in batch]

    def iterate(self, worker, workers):
        """The samples of a worker, from where the state that was loaded left off. What it skips,
        it does not read: only the headers of the archives."""
        if self._skip and self._worker not in (None, (worker, workers)):
            raise ValueError(f"the state is of worker {self._worker}, not {(worker, workers)}")
        self._worker, self.given = (worker, workers), self._skip
        found = itertools.islice(self._found(worker, workers), self._skip, None)
        batches = batched(found, self.options["batch_size"])
        for batch in ahead(batches, self._read, self.options["prefetch"]):
            for sample in batch:
                self.given += 1
                yield sample

    def state(self):
        """Where this process is."""
        worker = list(self._worker or (0, 1))
        state = {**self.progress.state(), "worker": worker, "given": self.given}
        return {**state, "buffer": self.options["buffer"]}

    def load(self, state):
        """Goes on there. Errors: ``ValueError`` if the state is of another rank or shape."""
        own = self.progress.state()
        for name in ("version", "samples", "rank", "ranks"):
            if state[name] != own[name]:
                raise ValueError(f"a state with {name} {state[name]}, and it is {own[name]} here")
        if state["buffer"] != self.options["buffer"]:
            raise ValueError("a state of another shuffle buffer")
        self.progress.seed, self.progress.shuffle = state["seed"], state["shuffle"]
        self.progress.set_epoch(state["epoch"])
        self._worker, self._skip = tuple(state["worker"]), state["given"]
        self.given = self._skip
