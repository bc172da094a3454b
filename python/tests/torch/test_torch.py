"""torch: data sets under a DataLoader, memory of tensors, checkpoints, a whole training run."""

import pathlib
import shutil
import signal
import subprocess
import sys

import numpy
import pytest
import safetensors.torch
import torch

from weft import safetensors as weft_safetensors
from weft.torch import (
    WeftBatchSampler,
    WeftDataset,
    WeftIterableDataset,
    WeftTarDataset,
)

TRAIN = pathlib.Path(__file__).parent / "train.py"
COUNT = 103


@pytest.fixture
def samples(fs, scratch):
    """Files of 17 floats."""
    directory = f"{scratch}/samples"
    fs.mkdir(directory)
    chance = numpy.random.default_rng(2)
    for number in range(COUNT):
        floats = chance.standard_normal(17).astype("f4")
        floats[0] = number
        fs.write_bytes(f"{directory}/{number:04}", floats.tobytes())
    return directory


def loader(dataset, workers, method, **options):
    context = method if workers else None
    return torch.utils.data.DataLoader(
        dataset, num_workers=workers, multiprocessing_context=context, **options
    )


def numbers(batches):
    return [int(sample[0]) for batch in batches for sample in batch]


@pytest.mark.parametrize(("workers", "method"), [(0, None), (3, "fork"), (2, "spawn")])
def test_loaders_see_each_sample_once(fs, samples, workers, method):
    shape = (torch.float32, (17,))
    whole = WeftIterableDataset(fs, samples, 8, tensor=shape, seed=4)
    seen = numbers(loader(whole, workers, method, batch_size=8))
    assert sorted(seen) == list(range(COUNT)) != seen
    mapped = WeftDataset(fs, samples, tensor=shape)
    sampler = WeftBatchSampler(mapped, 8, seed=4)
    assert len(sampler) == 13
    assert numbers(loader(mapped, workers, method, batch_sampler=sampler)) == seen
    # Gone on with in the middle, by another number of workers.
    state = whole.state_dict(taken=40)
    again = WeftIterableDataset(fs, samples, 8, tensor=shape)
    again.load_state_dict(state)
    assert numbers(loader(again, 1 - min(workers, 1), "fork", batch_size=8)) == seen[40:]
    halves = []
    for rank in range(2):
        half = WeftIterableDataset(fs, samples, 4, tensor=shape, rank=rank, ranks=2)
        halves += numbers(loader(half, workers, method, batch_size=4))
    assert sorted(halves) == list(range(COUNT))


def test_archives_under_a_loader(fs, scratch):
    import io
    import tarfile

    for shard in range(4):
        out = io.BytesIO()
        with tarfile.open(fileobj=out, mode="w") as tar:
            for number in range(25):
                info = tarfile.TarInfo(f"{shard}-{number}.txt")
                info.size = 3
                tar.addfile(info, io.BytesIO(b"abc"))
        fs.write_bytes(f"{scratch}/{shard}.tar", out.getvalue())
    dataset = WeftTarDataset(fs, scratch, transform=lambda sample: sample["__key__"])
    for workers in (0, 2):
        keys = [key for batch in loader(dataset, workers, "fork", batch_size=7) for key in batch]
        assert sorted(keys) == sorted(f"{s}-{n}" for s in range(4) for n in range(25))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.uint8, torch.bool])
def test_batches_fill_tensors(fs, scratch, dtype):
    tensor = (torch.arange(60) % 2).to(dtype).reshape(3, 4, 5)
    for row in range(3):
        fs.write_bytes(f"{scratch}/{row}", tensor[row].contiguous().view(torch.uint8).numpy())
    out = torch.zeros_like(tensor)
    lengths = fs.read_batch([f"{scratch}/{row}" for row in range(3)], out=out)
    assert lengths == [20 * tensor.element_size()] * 3
    assert torch.equal(out, tensor)
    with pytest.raises(ValueError, match="contiguous"):
        fs.read_batch([f"{scratch}/0"], out=out.transpose(0, 1))


def state_of(seed):
    torch.manual_seed(seed)
    return {
        "weights": torch.randn(200, 30),
        "view": torch.randn(50, 4)[10:20],
        "half": torch.randn(7).to(torch.bfloat16),
        "nested": {"step": seed, "name": "x"},
    }


def test_safetensors_are_those_of_its_library(fs, scratch, mount):
    tensors = {name: one for name, one in state_of(1).items() if name != "nested"}
    tensors["view"] = tensors["view"].clone()
    weft_safetensors.save_file(fs, tensors, f"{scratch}/a")
    theirs = safetensors.torch.load_file(f"{mount}{scratch}/a")
    safetensors.torch.save_file(tensors, f"{mount}{scratch}/b", metadata={"k": "v"})
    ours = weft_safetensors.load_file(fs, f"{scratch}/b")
    for name, tensor in tensors.items():
        assert torch.equal(theirs[name], tensor) and torch.equal(ours[name], tensor)
        assert ours[name].dtype == tensor.dtype


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_workers_that_stay_see_other_epochs(fs, samples, method):
    def dataset():
        return WeftIterableDataset(fs, samples, 8, tensor=(torch.float32, (17,)), seed=4)

    def expected(epoch):
        whole = dataset()
        whole.set_epoch(epoch)
        return numbers(loader(whole, 0, None, batch_size=8))

    mine = dataset()
    mine.load_state_dict(dataset().state_dict(taken=40))
    # What others load and set is theirs.
    dataset().set_epoch(7)
    stay = loader(mine, 2, method, batch_size=8, persistent_workers=True)
    assert numbers(stay) == expected(0)[40:]
    assert numbers(stay) == expected(0)
    for epoch in (1, 2, 0):
        mine.set_epoch(epoch)
        assert numbers(stay) == expected(epoch)
    mine.load_state_dict(dataset().state_dict(taken=16))
    with pytest.raises(RuntimeError, match="state was loaded"):
        numbers(stay)
    # Others are made anew, and have it.
    again = loader(mine, 2, method, batch_size=8)
    assert numbers(again) == expected(0)[16:]
    assert numbers(again) == expected(0)
    assert len(mine) == COUNT


def test_states_know_their_samples(fs, samples):
    shape = (torch.float32, (17,))
    paths = WeftDataset(fs, samples).paths
    one = WeftIterableDataset(fs, paths, 8, tensor=shape)
    others = [
        WeftIterableDataset(fs, paths[::-1], 8, tensor=shape),
        WeftBatchSampler(WeftDataset(fs, paths[::-1]), 8),
    ]
    for other in others:
        with pytest.raises(ValueError, match="other samples"):
            other.load_state_dict(one.state_dict(taken=8))
    WeftBatchSampler(WeftDataset(fs, paths), 8).load_state_dict(one.state_dict(taken=8))
    WeftBatchSampler(COUNT, 8).load_state_dict(one.state_dict(taken=8))
    sampler = WeftBatchSampler(COUNT, 8, seed=4)
    sampler.load_state_dict(WeftBatchSampler(COUNT, 8, seed=4).state_dict(taken=16))
    whole = list(WeftBatchSampler(COUNT, 8, seed=4))
    assert [list(sampler), list(sampler)] == [whole[2:], whole]


def train(*args):
    """Runs the training; its exit code and what it printed."""
    words = [sys.executable, str(TRAIN), *map(str, args)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=300)
    return done.returncode, done.stdout.strip(), done.stderr


def test_a_training_that_is_killed_goes_on_bit_by_bit(cluster, fs, scratch, samples, mount):
    code, expected, said = train(cluster, scratch, 40)
    assert code == 0, said
    fs.rmtree(f"{scratch}/checkpoint")
    # It dies in the middle of the save after step 23: that of step 20 holds.
    code, _, said = train(cluster, scratch, 40, 23)
    assert code == -signal.SIGKILL, said
    shutil.copytree(f"{mount}{scratch}/checkpoint", f"{mount}{scratch}/copy")
    code, found, said = train(cluster, scratch, 40)
    assert (code, found) == (0, expected), said
    code, found, said = train(cluster, scratch, 40, 0, f"{mount}{scratch}/copy")
    assert (code, found) == (0, expected), said
