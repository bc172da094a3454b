"""Which sample comes when, and who reads it. Needs no torch.

One epoch is a sequence of all samples, shuffled by seed and epoch. It is cut into blocks (of a
batch), which are dealt to the ranks in turn; what a rank gets is dealt to its workers in turn,
again by blocks. So every sample is given out exactly once, and what a rank sees does not depend on
how many workers it has. A place in an epoch is: where the dealing began, and how many samples of
the rank were taken since.
"""

import hashlib
import os

_MASK = (1 << 64) - 1
_ROUNDS = 4


def _mix(value):
    """A good hash of 64 bits (the finaliser of SplitMix64)."""
    value = (value + 0x9E3779B97F4A7C15) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


def digest(paths, root=""):
    """Tells lists of samples apart. What lies below a directory is the same when all of it moved
    to another one."""
    found = hashlib.sha256()
    for path in paths:
        found.update(os.fsencode(path)[len(os.fsencode(root)) :] + b"\0")
    return found.hexdigest()


class Permutation:
    """A shuffle of ``range(n)`` that takes no memory: any place can be asked for.

    A Feistel network over the next even number of bits, walked until it lands inside. The same
    seed and epoch give the same shuffle, on every machine and in every version of Python.
    """

    def __init__(self, n, seed, epoch):
        self._n = n
        self._half = max(1, ((max(n, 2) - 1).bit_length() + 1) // 2)
        self._low = (1 << self._half) - 1
        base = _mix(_mix(_mix(seed & _MASK) + (epoch & _MASK)) + n)
        self._keys = [_mix(base + round) for round in range(_ROUNDS)]

    def __len__(self):
        return self._n

    def __getitem__(self, place):
        if not 0 <= place < self._n:
            raise IndexError(place)
        half, low = self._half, self._low
        while True:
            left, right = place >> half, place & low
            for key in self._keys:
                left, right = right, left ^ (_mix(key ^ right) & low)
            place = left << half | right
            if place < self._n:
                return place


class Deal:
    """One epoch of ``n`` samples, dealt from place ``start`` on to ``ranks``, by ``block``."""

    def __init__(self, n, block=1, ranks=1, *, start=0, drop_uneven=False):
        if n < 0 or block < 1 or ranks < 1 or not 0 <= start <= n:
            raise ValueError(f"no deal: {n} samples from {start}, block {block}, ranks {ranks}")
        self.n, self.block, self.ranks, self.start = n, block, ranks, start
        left = n - start
        # Without it ranks differ by at most a block at the end.
        self._end = start + left - left % (block * ranks) if drop_uneven else n

    def length(self, rank):
        """How many samples a rank gets."""
        rounds, rest = divmod(self._end - self.start, self.block * self.ranks)
        return rounds * self.block + min(max(rest - rank * self.block, 0), self.block)

    def place(self, rank, at):
        """The place in the epoch of the sample that a rank gets as its number ``at``."""
        blocks, rest = divmod(at, self.block)
        return self.start + (blocks * self.ranks + rank) * self.block + rest

    def of_rank(self, rank, taken=0):
        """The places that a rank gets, behind the first ``taken``."""
        return (self.place(rank, at) for at in range(taken, self.length(rank)))

    def of_worker(self, rank, worker, workers, taken=0, skip=0):
        """The places that a worker of a rank gets, if the rank has taken ``taken`` before its
        workers began; but for the worker's own first ``skip``."""
        length, block = self.length(rank), self.block
        for begin in range(taken + worker * block, length, workers * block):
            end = min(begin + block, length)
            if skip >= end - begin:
                skip -= end - begin
                continue
            for at in range(begin + skip, end):
                yield self.place(rank, at)
            skip = 0

    def after(self, rank, taken):
        """The place that all have come to when this rank has taken so many, and the others as many
        blocks: where another number of ranks, or another block, goes on. Only at the end of a block
        are all at one place."""
        if taken % self.block and taken == self.length(rank):
            # The last block of all was a short one.
            return self.n
        if taken % self.block:
            what = f"{taken} samples of a rank end in the middle of a block of {self.block}"
            raise ValueError(f"{what}: only the same ranks and batch size can go on from there")
        return min(self.start + taken * self.ranks, self.n)


class Progress:
    """Where a rank is in a number of epochs: what ``state_dict`` keeps.

    The state of one rank is good for it with any number of workers, and, at the end of a batch,
    for all ranks of another number.
    """

    def __init__(
        self,
        n,
        block,
        *,
        seed=0,
        shuffle=True,
        rank=0,
        ranks=1,
        drop_uneven=False,
        data="",
    ):
        if not 0 <= rank < ranks:
            raise ValueError(f"rank {rank} of {ranks}")
        self.n, self.seed, self.shuffle, self.rank = n, seed, shuffle, rank
        #: The digest of the samples, if they are known.
        self.data = data
        self._drop_uneven = drop_uneven
        self.epoch = 0
        #: Samples that this rank has taken since the deal began.
        self.taken = 0
        self.deal = Deal(n, block, ranks, drop_uneven=drop_uneven)

    def set_epoch(self, epoch):
        """Begins another epoch; nothing happens if it is this one."""
        if epoch != self.epoch:
            self.epoch = epoch
            self.restart()

    def restart(self):
        """Begins this epoch anew."""
        self.taken = 0
        self._deal(0)

    def _deal(self, start):
        deal = self.deal
        self.deal = Deal(self.n, deal.block, deal.ranks, start=start, drop_uneven=self._drop_uneven)

    def left(self):
        """How many samples this rank has yet to take."""
        return max(self.deal.length(self.rank) - self.taken, 0)

    def sample(self, place):
        """The sample at a place of this epoch."""
        if not self.shuffle:
            return place
        return Permutation(self.n, self.seed, self.epoch)[place]

    def order(self):
        """Which sample is at which place of this epoch."""
        return Permutation(self.n, self.seed, self.epoch) if self.shuffle else range(self.n)

    def state(self, taken=None):
        """What to keep. ``taken``: how many samples the program has had of this rank since this
        object was made, loaded or came to this epoch, if that is not what was given out."""
        return {
            "version": 1,
            "samples": self.n,
            "data": self.data,
            "seed": self.seed,
            "shuffle": self.shuffle,
            "epoch": self.epoch,
            "start": self.deal.start,
            "taken": self.taken if taken is None else taken,
            "rank": self.rank,
            "ranks": self.deal.ranks,
            "block": self.deal.block,
        }

    def load(self, state):
        """Goes on where a state was taken. Errors: ``ValueError`` if it cannot be; then nothing is
        changed."""
        self.check(state)
        if state.get("given"):
            raise ValueError("a state of one worker: nobody knows what the others have given out")
        start, taken = state["start"], state["taken"]
        if not self.is_like(state):
            before = Deal(
                self.n,
                state["block"],
                state["ranks"],
                start=start,
                drop_uneven=self._drop_uneven,
            )
            start, taken = before.after(state["rank"], taken), 0
        self._deal(start)
        self.seed, self.shuffle, self.epoch = state["seed"], state["shuffle"], state["epoch"]
        self.taken = taken

    def check(self, state):
        """Errors: ``ValueError`` if a state is of other samples."""
        if state["version"] != 1:
            raise ValueError(f"a state of version {state['version']}, unknown here")
        if state["samples"] != self.n:
            raise ValueError(f"a state of {state['samples']} samples, and there are {self.n}")
        if self.data and state["data"] and state["data"] != self.data:
            raise ValueError("a state of other samples, or of the same ones in another order")

    def is_like(self, state):
        """Whether a state is of this rank, of as many, with the same batches."""
        own = self.rank, self.deal.ranks, self.deal.block
        return own == (state["rank"], state["ranks"], state["block"])
