"""The data sets themselves."""

import torch
from torch import distributed
from torch.utils import data

from .._listing import list_samples
from .._loading import FileStream, TarStream
from .._sampling import Progress, digest
from .._shared import Shared


def _ranks(rank, ranks):
    """Which rank this is, of how many: what is said, or what torch.distributed knows."""
    known = distributed.is_available() and distributed.is_initialized()
    if ranks is None:
        ranks = distributed.get_world_size() if known else 1
    if rank is None:
        rank = distributed.get_rank() if known else 0
    return rank, ranks


def _worker():
    """Which worker of a DataLoader this is, of how many."""
    info = data.get_worker_info()
    return (0, 1) if info is None else (info.id, info.num_workers)


def _shared():
    """What copies in workers share, be they forked or spawned."""
    return Shared(torch.zeros(Shared.LENGTH, dtype=torch.int64).share_memory_())


class _Files:
    """Reads samples that are a file each."""

    def __init__(self, fs, source, transform, tensor, listing):
        self.fs = fs
        listed = not isinstance(source, (list, tuple))
        if listing and not listed:
            raise ValueError(f"{', '.join(listing)}: only for a directory that is listed")
        self.paths = list_samples(fs, source, **listing) if listed else list(source)
        #: Tells them from others, wherever the directory lies.
        self.digest = digest(self.paths, source if listed else "")
        self._transform = transform
        self._tensor = tensor

    def read(self, places):
        """The samples at these places of ``paths``, with few requests."""
        paths = [self.paths[place] for place in places]
        samples = self._tensors(paths) if self._tensor else self.fs.read_batch(paths)
        if self._transform is None:
            return samples
        return [self._transform(path, one) for path, one in zip(paths, samples, strict=True)]

    def _tensors(self, paths):
        dtype, shape = self._tensor
        room = torch.empty((len(paths), *shape), dtype=dtype)
        wanted = room.nbytes // max(len(paths), 1)
        for path, length in zip(paths, self.fs.read_batch(paths, out=room), strict=True):
            if length != wanted:
                raise ValueError(f"{path}: {length} bytes, and a sample has {wanted}")
        return list(room.unbind())


class WeftDataset(data.Dataset):
    """Map-style: sample ``i`` is file ``i`` below a directory, or of a list of paths.

    A sample is its ``bytes``; with ``tensor=(dtype, shape)`` a tensor that the file is the memory
    of, read into place; with ``transform``, what that makes of path and sample. ``listing`` are the
    options of what is listed: ``suffixes``, ``pattern``, ``accept``, ``recursive``.

    A ``DataLoader`` reads each of its batches at once. For shuffling over ranks, and to go on where
    a program stopped, give it a ``WeftBatchSampler``.
    """

    def __init__(self, fs, source, *, transform=None, tensor=None, **listing):
        self._files = _Files(fs, source, transform, tensor, listing)

    @property
    def paths(self):
        """The files."""
        return self._files.paths

    @property
    def digest(self):
        """Tells the files from others: what states keep."""
        return self._files.digest

    def __len__(self):
        return len(self._files.paths)

    def __getitem__(self, index):
        if not -len(self) <= index < len(self):
            raise IndexError(index)
        return self._files.read([index])[0]

    def __getitems__(self, indices):
        return self._files.read(indices)


class WeftBatchSampler(data.Sampler):
    """Batches of a rank, for ``DataLoader(dataset, batch_sampler=...)``: shuffled by seed and
    epoch, dealt to ranks, and gone on with from a state.

    A ``DataLoader`` with workers asks for batches before they are wanted. So say in ``state_dict``
    how many samples the program has had since the state was loaded or the epoch set.
    """

    def __init__(
        self,
        samples,
        batch_size,
        *,
        seed=0,
        shuffle=True,
        rank=None,
        ranks=None,
        drop_uneven=False,
    ):
        n = samples if isinstance(samples, int) else len(samples)
        rank, ranks = _ranks(rank, ranks)
        self._progress = Progress(
            n,
            batch_size,
            seed=seed,
            shuffle=shuffle,
            rank=rank,
            ranks=ranks,
            drop_uneven=drop_uneven,
            data=getattr(samples, "digest", ""),
        )
        self._given = 0
        self._ended = False

    def __len__(self):
        return -(-self._progress.left() // self._progress.deal.block)

    def __iter__(self):
        progress, self._given = self._progress, 0
        if self._ended:
            # What was left of the epoch has been given out.
            progress.restart()
            self._ended = False
        deal, order, batch = progress.deal, progress.order(), []
        for place in deal.of_rank(progress.rank, progress.taken):
            batch.append(order[place])
            if len(batch) == deal.block:
                self._given += len(batch)
                yield batch
                batch = []
        if batch:
            self._given += len(batch)
            yield batch
        self._ended = True

    def set_epoch(self, epoch):
        """Begins another epoch."""
        if epoch != self._progress.epoch:
            self._progress.set_epoch(epoch)
            self._given, self._ended = 0, False

    def state_dict(self, taken=None):
        """Where the rank is, after ``taken`` samples; by default those that were given out."""
        given = self._given if taken is None else taken
        return self._progress.state(self._progress.taken + given)

    def load_state_dict(self, state):
        """Goes on there."""
        self._progress.load(state)
        self._given, self._ended = 0, False


class WeftIterableDataset(data.IterableDataset):
    """Iterable: the files below a directory, or of a list, in an order by seed and epoch.

    Give it the ``batch_size`` of the ``DataLoader``: batches are what is read together, and what
    workers take in turn, so that a rank sees the same samples with any number of workers.

    ``state_dict`` is where a rank is. Where the ``DataLoader`` has workers, say how many samples
    the program has had (``taken``); a ``StatefulDataLoader`` asks its workers itself. The state is
    good for any number of workers, and, at the end of a batch, for another number of ranks; that of
    one worker is for as many workers and ranks. What is left of an epoch is given out once: after
    that the epoch has all samples, and ``taken`` counts from its beginning. Samples are as in
    ``WeftDataset``. ``drop_uneven``: all ranks get as many full batches.
    """

    def __init__(
        self,
        fs,
        source,
        batch_size,
        *,
        seed=0,
        shuffle=True,
        rank=None,
        ranks=None,
        drop_uneven=False,
        prefetch=2,
        transform=None,
        tensor=None,
        **listing,
    ):
        self._files = _Files(fs, source, transform, tensor, listing)
        rank, ranks = _ranks(rank, ranks)
        progress = Progress(
            len(self._files.paths),
            batch_size,
            seed=seed,
            shuffle=shuffle,
            rank=rank,
            ranks=ranks,
            drop_uneven=drop_uneven,
            data=self._files.digest,
        )
        self._stream = FileStream(self._files.read, progress, prefetch, _shared())

    @property
    def paths(self):
        """The files, of all ranks."""
        return self._files.paths

    def __len__(self):
        return self._stream.left()

    def __iter__(self):
        return self._stream.iterate(*_worker())

    def set_epoch(self, epoch):
        """Begins another epoch."""
        self._stream.set_epoch(epoch)

    def state_dict(self, taken=None):
        """Where the rank is, after ``taken`` samples; by default those that were given out here."""
        return self._stream.state(taken)

    def load_state_dict(self, state):
        """Goes on there."""
        self._stream.load(state, own=data.get_worker_info() is not None)


class WeftTarDataset(data.IterableDataset):
    """Iterable: samples of TAR archives, as WebDataset lays them out.

    A sample is a ``dict`` of ``__key__``, ``__url__`` and the content of its files by extension;
    with ``transform``, what that makes of it. Archives are shuffled by seed and epoch and dealt,
    whole, to ranks and workers; samples are shuffled within a buffer of ``buffer`` of them, of
    which only the places are kept. Have at least as many archives as workers of all ranks.

    ``state_dict`` is where this process is, be it a worker or not: a ``StatefulDataLoader`` keeps
    one of each. It is good for the same ranks and workers.
    """

    def __init__(
        self,
        fs,
        source,
        *,
        batch_size=32,
        buffer=1000,
        seed=0,
        shuffle=True,
        rank=None,
        ranks=None,
        prefetch=2,
        transform=None,
        **listing,
    ):
        root = ""
        if not isinstance(source, (list, tuple)):
            root, source = source, list_samples(fs, source, **{"suffixes": ".tar", **listing})
        rank, ranks = _ranks(rank, ranks)
        options = {
            "batch_size": batch_size,
            "buffer": buffer,
            "seed": seed,
            "shuffle": shuffle,
            "rank": rank,
            "ranks": ranks,
            "prefetch": prefetch,
            "root": root,
        }
        self._stream = TarStream(fs, list(source), options, _shared())
        self._transform = transform

    def __iter__(self):
        samples = self._stream.iterate(*_worker())
        return samples if self._transform is None else map(self._transform, samples)

    def set_epoch(self, epoch):
        """Begins another epoch."""
        self._stream.set_epoch(epoch)

    def state_dict(self):
        """Where this process is."""
        return self._stream.state()

    def load_state_dict(self, state):
        """Goes on there."""
        self._stream.load(state, own=data.get_worker_info() is not None)
