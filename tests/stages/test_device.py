"""Batches arrive on the device as they were made, while later ones overwrite nothing."""

import os

import pytest
import torch

from fastloader import FastLoader
from tests.engine.datasets import Images

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not torch.cuda.is_available() and os.environ.get("FASTLOADER_REQUIRE_GPU") != "1",
        reason="needs a CUDA device",
    ),
]


@pytest.mark.parametrize("num_workers", [0, 1, 3])
def test_batches_arrive_on_the_device(num_workers):
    loader = FastLoader(Images(40), 4, num_workers=num_workers, device="cuda")

    for _ in range(2):
        labels = []
        for images, batch_labels in loader:
            assert images.is_cuda
            assert torch.equal(images[:, 0, 0, 0].cpu(), batch_labels.cpu().float())
            labels += batch_labels.tolist()
        assert labels == list(range(40))


@pytest.mark.parametrize("num_workers", [0, 2])
def test_pinned_batches_are_pinned(num_workers):
    loader = FastLoader(
        Images(16, shape=(3, 64, 64)), 4, num_workers=num_workers, pin_memory=True
    )

    for images, labels in loader:
        assert images.is_pinned()
        assert labels.is_pinned()
        assert torch.equal(images[:, 0, 0, 0], labels.float())


def test_batched_data_is_gathered_into_pinned_memory():
    images = torch.randint(0, 255, (500, 3, 64, 64), dtype=torch.uint8)
    data = torch.utils.data.TensorDataset(images, torch.arange(500))
    loader = FastLoader(data, 32, shuffle=True, device="cuda")

    seen = []
    for batch, indices in loader:
        assert torch.equal(batch.cpu(), images[indices.cpu()])
        seen += indices.tolist()

    assert sorted(seen) == list(range(500))


@pytest.mark.stress
def test_no_slot_is_overwritten_while_its_copy_is_under_way():
    data = Images(250, shape=(3, 224, 224), dtype=torch.uint8)
    order = [number % 250 for number in range(8 * 10_000)]
    loader = FastLoader(data, 8, sampler=order, num_workers=8, device="cuda")
    busy = torch.rand(4096, 4096, device="cuda")
    wrong = torch.zeros((), dtype=torch.int64, device="cuda")

    for number, (images, labels) in enumerate(loader):
        if number % 50 == 0:
            busy = (busy @ busy).clamp(0, 1)  # holds the stream up, so that copies queue
        expected = labels.to(torch.uint8)[:, None, None, None]
        wrong += (images != expected).sum()

    assert wrong.item() == 0


def test_memory_of_the_device_does_not_grow():
    loader = FastLoader(Images(400, shape=(3, 224, 224)), 8, num_workers=2, device="cuda")
    for _ in loader:
        pass
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()

    for _ in range(3):
        for _ in loader:
            pass
    torch.cuda.synchronize()

    assert torch.cuda.memory_allocated() <= before + 8 * 3 * 224 * 224 * 4


def test_a_device_transform_runs_where_the_batch_is():
    loader = FastLoader(
        Images(8, dtype=torch.uint8), 4, num_workers=1, device="cuda", device_transform=to_float
    )

    images, _ = next(iter(loader))

    assert images.is_cuda
    assert images.dtype == torch.float32


def to_float(batch):
    images, labels = batch
    return images.float() / 255, labels
