"""A small training run: reads its samples, saves as it goes, and goes on where a checkpoint is.

    train.py CLUSTER SCRATCH STEPS [KILLED_AT] [CHECKPOINT]

Prints the digest of the weights at the end. With KILLED_AT it is killed in the middle of a save,
with CHECKPOINT (a path of the mount) it loads from there and not from the filesystem itself.
"""

import hashlib
import os
import signal
import sys

import torch
import torch.distributed.checkpoint as dcp

import weft
from weft.torch import WeftIterableDataset, WeftReader, WeftWriter

BATCH = 8
WORKERS = 2


class Killed(WeftWriter):
    """Dies when all data are written and the metadata are not."""

    def finish(self, metadata, results):
        """Does not."""
        os.kill(os.getpid(), signal.SIGKILL)


def load(state, fs, directory, checkpoint):
    """Loads the checkpoint if there is one."""
    if checkpoint:
        dcp.load(state, checkpoint_id=checkpoint)
    elif fs.exists(f"{directory}/.metadata"):
        dcp.load(state, storage_reader=WeftReader(directory, fs))


def main(cluster, scratch, steps, killed_at=0, checkpoint=""):
    """Trains."""
    torch.manual_seed(3)
    torch.use_deterministic_algorithms(True)
    fs = weft.connect(cluster)
    directory = f"{scratch}/checkpoint"
    model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    # One step of nothing, so that the momentum is there to be loaded into.
    model(torch.zeros(1, 16)).sum().mul(0).backward()
    optimizer.step()
    samples = WeftIterableDataset(
        fs, f"{scratch}/samples", BATCH, tensor=(torch.float32, (17,)), drop_uneven=True
    )
    state = {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "step": 0,
        "samples": samples.state_dict(taken=0),
    }
    load(state, fs, directory, checkpoint)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    samples.load_state_dict(state["samples"])
    step = state["step"]
    while step < steps:
        begin = step
        for batch in torch.utils.data.DataLoader(samples, BATCH, num_workers=WORKERS):
            optimizer.zero_grad()
            loss = (model(batch[:, :16]) - batch[:, 16:]).square().mean()
            loss.backward()
            optimizer.step()
            step += 1
            state = {
                "model": model.state_dict(),
                "optimizer": optimizer.state_dict(),
                "step": step,
                "samples": samples.state_dict(taken=(step - begin) * BATCH),
            }
            if step == killed_at:
                dcp.save(state, storage_writer=Killed(directory, fs))
            if step % 5 == 0:
                dcp.save(state, storage_writer=WeftWriter(directory, fs))
            if step >= steps:
                break
        else:
            samples.set_epoch(state["samples"]["epoch"] + 1)
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(name.encode() + tensor.numpy().tobytes())
    print(digest.hexdigest())
    fs.close()


if __name__ == "__main__":
    cluster, scratch, steps, *rest = sys.argv[1:]
    main(cluster, scratch, int(steps), int(rest[0]) if rest else 0, *rest[1:])
