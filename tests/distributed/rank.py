"""One rank of a launch: reads through loaders of all kinds and writes down what it saw.

Run by torchrun: ``torchrun --nproc-per-node 2 tests/distributed/rank.py FOLDER nccl``. With
NCCL, batches arrive on the rank's own device.
"""

import json
import os
import sys
from pathlib import Path

import torch
import torch.distributed
from torch.utils.data import Dataset, IterableDataset, WeightedRandomSampler, get_worker_info

from fastloader import FastLoader
from fastloader.datasets import ShardedIterable
from fastloader.sampling import ClassBalancedSampler, LengthGroupedSampler, WeightedSampler

LENGTH = 23


class Indices(Dataset):
    """Each sample is its index."""

    def __len__(self):
        return LENGTH

    def __getitem__(self, index):
        return torch.tensor(index)


class Shards(IterableDataset):
    """Declares shards, and divides them among workers."""

    def __init__(self, shards):
        self.shards = shards
        self.num_shards = len(shards)

    def shard(self, num_shards, index):
        return Shards(self.shards[index::num_shards])

    def __iter__(self):
        info = get_worker_info()
        worker, num_workers = (0, 1) if info is None else (info.id, info.num_workers)
        for shard in self.shards[worker::num_workers]:
            yield from map(torch.tensor, shard)


class Plain(IterableDataset):
    """Knows nothing of ranks and workers."""

    def __iter__(self):
        return map(torch.tensor, range(LENGTH))


def loaders(device):
    labels = [index % 3 for index in range(LENGTH)]
    weighted = WeightedSampler([1 + index for index in range(LENGTH)], 40)
    torchs = WeightedRandomSampler([1.0] * LENGTH, LENGTH, replacement=False)
    common = {"batch_size": 2, "distributed": True, "num_workers": 0, "device": device}
    shuffled = {**common, "shuffle": True}
    yield "shuffled", FastLoader(Indices(), **shuffled)
    yield "seeded", FastLoader(Indices(), **shuffled, seed=3)
    yield "dropped", FastLoader(Indices(), **shuffled, drop_last=True)
    yield "evaluated", FastLoader(Indices(), **common)
    yield "workers", FastLoader(Indices(), **{**common, "num_workers": 1})
    yield "weighted", FastLoader(Indices(), sampler=weighted, **common)
    yield "torch's weighted", FastLoader(Indices(), sampler=torchs, **common)
    yield "balanced", FastLoader(Indices(), sampler=ClassBalancedSampler(labels), **common)
    yield "grouped", FastLoader(Indices(), sampler=LengthGroupedSampler(labels, 4), **common)
    yield "short epochs", FastLoader(Indices(), **shuffled, batches_per_epoch=2)
    yield "shards", FastLoader(Shards([[n] * 2 for n in range(9)]), **common)
    stream = ShardedIterable(Plain())
    yield "stream", FastLoader(stream, 2, num_workers=2, device=device)


def train(loader, device):
    """Take a step with each batch; every rank must have as many, or this never ends."""
    torch.manual_seed(0)
    model = torch.nn.Linear(1, 1).to(device or "cpu")
    model = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), 1e-4)
    for batch in loader:
        optimizer.zero_grad()
        model(batch.float()[:, None]).square().mean().backward()
        optimizer.step()
    return [value for parameter in model.parameters() for value in parameter.flatten().tolist()]


def main(folder, backend):
    torch.set_num_threads(1)
    device = None
    if backend == "nccl":
        device = f"cuda:{os.environ['LOCAL_RANK']}"
        torch.cuda.set_device(device)
    torch.distributed.init_process_group(backend)
    rank = torch.distributed.get_rank()
    torch.manual_seed(rank)  # ranks need not be seeded alike
    seen = {}
    for name, loader in loaders(device):
        batches = [list(loader) for _ in range(2)]
        if device is not None:
            assert {str(batch.device) for epoch in batches for batch in epoch} == {device}
        seen[name] = [
            [index for batch in epoch for index in batch.tolist()] for epoch in batches
        ]
    loader = FastLoader(
        Indices(), 2, shuffle=True, distributed=True, num_workers=0, device=device
    )
    parameters = train(loader, device)
    found = {"seen": seen, "parameters": parameters, "steps": len(loader)}
    Path(folder, f"{rank}.json").write_text(json.dumps(found), encoding="utf-8")
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
