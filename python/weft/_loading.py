"""Streams of samples, read by batches ahead of who takes them. Needs no torch."""

import collections
import itertools
import random
from concurrent.futures import ThreadPoolExecutor

from . import _tar
from ._sampling import Progress, digest
from ._shared import Shared


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


class _Stream:
    """What streams have in common: where a worker is in which epoch.

    ``given`` counts the samples given out in this process since its state was loaded, or since it
    began this epoch.
    """

    def __init__(self, progress, shared=None):
        self.progress = progress
        self.given = 0
        self._shared = Shared() if shared is None else shared
        self._worker = None
        #: What a worker has given out before, if it goes on.
        self._skip = 0
        #: Its state was loaded in this process and not, as others, by the program: nobody else can
        #: tell that it has come to the end of that.
        self._own, self._ended = False, False

    def set_epoch(self, epoch):
        """Begins another epoch, in workers that stay, too."""
        if epoch != self.progress.epoch:
            self._anew(epoch)
            self._shared.set_epoch(epoch)

    def _anew(self, epoch):
        self.progress.epoch = epoch
        self.progress.restart()
        self.given = self._skip = 0
        self._own = self._ended = False

    def _begin(self, worker, workers):
        """Called when a worker begins to iterate."""
        epoch = self._shared.news()
        # A worker that has a state of its own is there already, perhaps.
        if epoch is not None and not (self._own and epoch == self.progress.epoch):
            self._anew(epoch)
        all_ended = self._shared.begins(worker, workers)
        if self._ended if self._own else all_ended:
            self._anew(self.progress.epoch)
        if self._skip and self._worker not in (None, (worker, workers)):
            raise ValueError(f"the state is of worker {self._worker}, not {(worker, workers)}")
        self._worker, self.given = (worker, workers), self._skip

    def _end(self):
        """Called when a worker has given out all that it has of this epoch."""
        self._ended = True
        self._shared.ended(self._worker[0])

    def _base(self):
        """What the program's own count of samples is added to."""
        if not self._own and self._shared.is_anew():
            self.progress.restart()
        return self.progress.taken

    def _load(self, worker, given, own):
        """Called when a state was loaded. ``own``: in one worker only."""
        self._worker, self.given, self._skip = worker, given, given
        self._own, self._ended = own, False
        if not own:
            self._shared.loaded()


class FileStream(_Stream):
    """Samples that are a file each, dealt to ranks and workers.

    ``read`` makes samples of a list of places in ``paths``. Which worker of a rank this process is,
    is said when it is iterated. ``shared``: what it has in common with its copies.
    """

    def __init__(self, read, progress, prefetch, shared=None):
        super().__init__(progress, shared)
        self.read, self.prefetch = read, prefetch

    def left(self):
        """How many samples the rank has yet to get of this epoch."""
        self._base()
        return self.progress.left()

    def iterate(self, worker, workers):
        """The samples of a worker, from where the state that was loaded left off."""
        self._begin(worker, workers)
        progress = self.progress
        deal, order = progress.deal, progress.order()
        places = deal.of_worker(progress.rank, worker, workers, progress.taken, self._skip)
        samples = (order[place] for place in places)
        for batch in ahead(batched(samples, deal.block), self.read, self.prefetch):
            for sample in batch:
                self.given += 1
                yield sample
        self._end()

    def state(self, taken=None):
        """Where it is. In a worker: where that worker is; else ``taken`` samples may be said."""
        worker, workers = self._worker or (0, 1)
        if taken is not None:
            return self.progress.state(self._base() + taken)
        if workers == 1:
            return self.progress.state(self.progress.taken + self.given)
        return {**self.progress.state(), "worker": [worker, workers], "given": self.given}

    def load(self, state, own=False):
        """Goes on there; ``own``: this worker alone does. Errors: ``ValueError`` if it cannot be,
        as with what one worker has given out and other ranks or batches: nobody knows then what the
        other workers have."""
        state = dict(state)
        worker, given = state.pop("worker", [0, 1]), state.pop("given", 0)
        if given and not self.progress.is_like(state):
            raise ValueError("a state of one worker, and of another rank, or ranks or batch size")
        self.progress.load(state)
        self._load(tuple(worker), given, own)


class TarStream(_Stream):
    """Samples of TAR archives, which are dealt to ranks and workers whole."""

    def __init__(self, fs, archives, options, shared=None):
        self.fs, self.archives, self.options = fs, archives, options
        progress = Progress(
            len(archives),
            1,
            seed=options["seed"],
            shuffle=options["shuffle"],
            rank=options["rank"],
            ranks=options["ranks"],
            data=digest(archives, options.get("root", "")),
        )
        super().__init__(progress, shared)

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
        read = [one.filled(list(itertools.islice(contents, len(one.files)))) for one in batch]
        # Where a file lies was read before, and perhaps in another archive of that name.
        for archive, version in {(one.archive, one.version) for one in batch}:
            if _tar.version(self.fs.stat(archive)) != version:
                raise ValueError(f"{archive}: it was changed while it was read")
        return read

    def iterate(self, worker, workers):
        """The samples of a worker, from where the state that was loaded left off. What it skips,
        it does not read: only the headers of the archives."""
        self._begin(worker, workers)
        found = itertools.islice(self._found(worker, workers), self._skip, None)
        batches = batched(found, self.options["batch_size"])
        for batch in ahead(batches, self._read, self.options["prefetch"]):
            for sample in batch:
                self.given += 1
                yield sample
        self._end()

    def state(self):
        """Where this process is."""
        worker = list(self._worker or (0, 1))
        state = {**self.progress.state(), "worker": worker, "given": self.given}
        return {**state, "buffer": self.options["buffer"]}

    def load(self, state, own=False):
        """Goes on there; ``own``: this worker alone does. Errors: ``ValueError`` if the state is of
        another rank or shape."""
        self.progress.check(state)
        here = self.progress.state()
        for name in ("rank", "ranks"):
            if state[name] != here[name]:
                raise ValueError(f"a state with {name} {state[name]}, and it is {here[name]} here")
        if state["buffer"] != self.options["buffer"]:
            raise ValueError("a state of another shuffle buffer")
        self.progress.seed, self.progress.shuffle = state["seed"], state["shuffle"]
        self.progress.set_epoch(state["epoch"])
        self._load(tuple(state["worker"]), state["given"], own)
