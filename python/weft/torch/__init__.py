"""Data sets for torch, straight from the filesystem.

``WeftDataset`` (map-style), ``WeftBatchSampler``, ``WeftIterableDataset`` and ``WeftTarDataset``;
``weft.torch.checkpoint`` for distributed checkpoints. torch is imported when one of these is used
first.

Samples are listed by the client and shuffled by seed and epoch: call ``set_epoch`` before each.
Workers that stay for several (``persistent_workers``) see it; load a state before there are any.
They are dealt to ranks and workers so that each is given out once, and read by batches, many
requests in one, ahead of who takes them. With ``state_dict`` and ``load_state_dict`` a program goes
on at the exact sample: see ``WeftIterableDataset``.
"""

_FROM = {
    "WeftBatchSampler": "_datasets",
    "WeftDataset": "_datasets",
    "WeftIterableDataset": "_datasets",
    "WeftTarDataset": "_datasets",
    "WeftReader": "checkpoint",
    "WeftWriter": "checkpoint",
}

__all__ = sorted(_FROM)


def __getattr__(name):
    if name not in _FROM:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(f"{__name__}.{_FROM[name]}"), name)


def __dir__():
    return [*globals(), *__all__]
