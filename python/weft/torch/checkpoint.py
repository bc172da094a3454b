"""Distributed checkpoints (``torch.distributed.checkpoint``) straight into the filesystem.

    dcp.save(state, storage_writer=WeftWriter("/checkpoints/7", fs))
    dcp.load(state, storage_reader=WeftReader("/checkpoints/7", fs))

Each rank writes its shards to files of its own, several at a time, and syncs them. Then the
coordinator puts the metadata in place, by one rename: until then the directory holds the checkpoint
that was there before, or none. What a save that was killed has left is removed by the next one. Of
two saves into one directory at a time one may fail; what the other has saved stays whole.

Files are as torch's own ``FileSystemWriter`` lays them out, so that a checkpoint written here is
read through a mount by ``FileSystemReader``, and the other way round.
"""

import errno
import io
import os
import pickle
import secrets
from concurrent.futures import ThreadPoolExecutor

import torch
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import StorageMeta
from torch.distributed.checkpoint.planner import LoadItemType, WriteItemType
from torch.distributed.checkpoint.storage import StorageReader, StorageWriter, WriteResult
from torch.futures import Future

from .. import connect
from .._atomic import replaced
from . import _remains
from ._remains import METADATA, SUFFIX

__all__ = ["WeftReader", "WeftWriter"]

#: Bytes that a reader holds of what it has read together, unless one shard is larger.
_TOGETHER = 256 << 20


def _split(path):
    """The cluster of ``weft://HOST:PORT/path``, or none, and the path."""
    path = os.fspath(path)
    if not path.startswith("weft://"):
        return "", path
    cluster, slash, path = path.removeprefix("weft://").partition("/")
    return cluster, slash + path


def _servers(cluster):
    return {server.strip() for server in cluster.split(",")}


def _metadata_name(arguments):
    """Where the metadata are: of all ranks, or of one that does not speak with others."""
    if arguments.get("use_collectives", True):
        return METADATA
    return f"__{arguments['rank']}{METADATA}"


def _done(result):
    future = Future()
    future.set_result(result)
    return future


class _Storage:
    """What writer and reader have in common."""

    def __init__(self, path, fs=None):
        super().__init__()
        self.fs, self._is_given = fs, fs is not None
        self.path = self._place(path)
        self._name = METADATA

    def _place(self, path):
        """The path of a URL or a path, in the filesystem that is connected then."""
        cluster, path = _split(path)
        if self.fs is None and not cluster:
            raise ValueError(f"{path}: in which filesystem? fs=, or weft://HOST:PORT/path")
        # One of its servers may be enough to name a cluster.
        elsewhere = self.fs is None or not _servers(cluster) & _servers(self.fs.cluster)
        if cluster and elsewhere:
            if self._is_given:
                raise ValueError(f"the URL is of {cluster}, and fs of {self.fs.cluster}")
            self.fs = connect(cluster)
        return path

    def reset(self, checkpoint_id=None):
        """Begins anew, in another directory if one is named."""
        if checkpoint_id is not None:
            self.path = self._place(checkpoint_id)

    @property
    def checkpoint_id(self):
        """The directory."""
        return self.path

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id):
        """Whether the directory can be one of this kind, as far as its name tells."""
        return os.fspath(checkpoint_id).startswith("weft://")


class WeftWriter(_Storage, StorageWriter):
    """Writes a checkpoint. ``path``: a directory, of ``fs`` or as ``weft://HOST:PORT/path``;
    ``threads``: files that each rank writes at a time."""

    def __init__(self, path, fs=None, *, threads=2):
        super().__init__(path, fs)
        self._threads = max(threads, 1)
        self._rank, self._cleans, self._begun = 0, False, None

    def set_up_storage_writer(self, is_coordinator, *args, **kwargs):
        """Called by torch first."""
        self._name = _metadata_name(kwargs)
        self._rank = kwargs.get("rank", 0)
        self._cleans = is_coordinator or self._alone()

    def prepare_local_plan(self, plan):
        """Makes the directory."""
        self.fs.makedirs(self.path, exist_ok=True)
        if self._cleans:
            self._begun = _remains.now(self.fs, self.path)
        return self._named(plan, self._prefix()) if self._alone() else plan

    def _prefix(self):
        return f"__{self._rank}_{secrets.token_hex(4)}_"

    def _alone(self):
        return self._name != METADATA

    @staticmethod
    def _named(plan, prefix):
        return type(plan)(**{**vars(plan), "storage_data": prefix})

    def prepare_global_plan(self, plans):
        """Gives each rank names that no save had before."""
        if self._alone():
            return [self._named(plan, self._prefix()) for plan in plans]
        save = secrets.token_hex(4)
        return [self._named(plan, f"__{rank}_{save}_") for rank, plan in enumerate(plans)]

    def write_data(self, plan, planner):
        """Writes what is this rank's, and syncs it."""
        shares = [share for share in self._shares(plan.items) if share]
        # The planner is asked in one thread: it may copy from a GPU.
        loaded = [[(item, self._content(item, planner)) for item in share] for share in shares]
        with ThreadPoolExecutor(self._threads, "weft-checkpoint") as threads:
            names = [f"{plan.storage_data}{at}{SUFFIX}" for at in range(len(shares))]
            written = list(threads.map(self._write, names, loaded))
        return _done([result for results in written for result in results])

    def _shares(self, items):
        """The items, dealt to threads so that each has about as many bytes."""
        shares, sizes = [[] for _ in range(self._threads)], [0] * self._threads
        for item in sorted(items, key=_size, reverse=True):
            least = sizes.index(min(sizes))
            shares[least].append(item)
            sizes[least] += _size(item)
        return shares

    @staticmethod
    def _content(item, planner):
        data = planner.resolve_data(item)
        return data if item.type == WriteItemType.BYTE_IO else data.detach().cpu()

    def _write(self, name, share):
        results, offset = [], 0
        with self.fs.open(os.path.join(self.path, name), "xb", 0) as file:
            for item, data in share:
                if not isinstance(data, io.BytesIO):
                    tensor, data = data, io.BytesIO()
                    # A view would bring all of what it is a view of.
                    torch.save(tensor.clone() if _is_view(tensor) else tensor, data)
                length = file.write(data.getbuffer())
                where = _StorageInfo(name, offset, length)
                results.append(WriteResult(item.index, length, where))
                offset += length
            file.fsync()
        return results

    def finish(self, metadata, results):
        """Puts the checkpoint in place. Only the coordinator is asked to."""
        written = [result for of_rank in results for result in of_rank]
        metadata.storage_data = {result.index: result.storage_data for result in written}
        metadata.storage_meta = self.storage_meta()
        before = _remains.metadata(self.fs, self.path, [self._name])
        with replaced(self.fs, os.path.join(self.path, self._name)) as file:
            file.write(pickle.dumps(metadata))
            self._check(written)
        self.fs.sync_dir(os.path.dirname(self.path.rstrip("/")) or "/")
        # Without collectives each rank cleans up after itself.
        mine = f"__{self._rank}_" if self._alone() else ""
        _remains.clean(self.fs, self.path, self._name, before, mine, self._begun)

    def _check(self, written):
        """Whether all is there that the metadata will name: another save into this directory may
        have taken it for what was left of one that was killed."""
        ends = {}
        for result in written:
            where = result.storage_data
            end = where.offset + where.length
            ends[where.relative_path] = max(ends.get(where.relative_path, 0), end)
        for name, end in ends.items():
            path = os.path.join(self.path, name)
            size = self.fs.stat(path).st_size
            if size != end:
                raise OSError(errno.EIO, f"it has {size} bytes, and {end} were written", path)

    def storage_meta(self):
        """Which checkpoint it is."""
        return StorageMeta(checkpoint_id=self.path)


def _size(item):
    """About how many bytes an item has."""
    if item.tensor_data is None:
        return 0
    count = 1
    for length in item.tensor_data.chunk.sizes:
        count *= length
    return count * item.tensor_data.properties.dtype.itemsize


def _is_view(tensor):
    return tensor.untyped_storage().nbytes() != tensor.numel() * tensor.element_size()


class WeftReader(_Storage, StorageReader):
    """Reads a checkpoint. Its metadata are a pickle, as torch makes them: read none that comes from
    somebody whom you would not let run programs."""

    def __init__(self, path, fs=None):
        super().__init__(path, fs)
        self._stored = {}

    def read_metadata(self, *args, **kwargs):
        """What the checkpoint holds."""
        self._name = _metadata_name(kwargs)
        metadata = pickle.loads(self.fs.read_bytes(os.path.join(self.path, self._name)))
        if getattr(metadata, "storage_meta", None) is None:
            metadata.storage_meta = self.storage_meta()
        return metadata

    def storage_meta(self):
        """Which checkpoint it is."""
        return StorageMeta(checkpoint_id=self.path)

    def set_up_storage_reader(self, metadata, is_coordinator, *args, **kwargs):
        """Called by torch with what ``read_metadata`` answered."""
        self._stored = metadata.storage_data

    def prepare_local_plan(self, plan):
        """Leaves it as it is."""
        return plan

    def prepare_global_plan(self, plans):
        """Leaves them as they are."""
        return plans

    def read_data(self, plan, planner):
        """Reads what is this rank's, many shards together."""
        some, size = [], 0
        for item in sorted(plan.items, key=self._position):
            length = self._stored[item.storage_index].length
            if some and size + length > _TOGETHER:
                self._read(some, planner)
                some, size = [], 0
            some.append(item)
            size += length
        self._read(some, planner)
        return _done(None)

    def _position(self, item):
        where = self._stored[item.storage_index]
        return where.relative_path, where.offset

    def _range(self, item):
        where = self._stored[item.storage_index]
        if getattr(where, "transform_descriptors", None):
            raise ValueError(f"{where.relative_path}: written with extensions, unknown here")
        return os.path.join(self.path, where.relative_path), where.offset, where.length

    def _read(self, items, planner):
        contents = self.fs.read_batch([self._range(item) for item in items])
        for item, content in zip(items, contents, strict=True):
            if item.type == LoadItemType.BYTE_IO:
                planner.load_bytes(item, io.BytesIO(content))
                continue
            tensor = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
            for axis, (begin, length) in enumerate(
                zip(item.storage_offsets, item.lengths, strict=True)
            ):
                tensor = tensor.narrow(axis, begin, length)
            target = planner.resolve_tensor(item).detach()
            if target.size() != tensor.size():
                what = f"{tuple(tensor.size())}, and {tuple(target.size())} is wanted"
                raise ValueError(f"{item.storage_index}: a tensor of {what}")
            target.copy_(tensor)
            planner.commit_tensor(item, target)
