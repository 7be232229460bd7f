"""Batches arrive on the device as they were made, while later ones overwrite nothing."""

import gc
import logging
import os
import time
import warnings
from concurrent.futures import wait

import pytest
import torch

from fastloader import FastLoader
from fastloader.datasets import Augment
from fastloader.sampling._permutations import LEAST_AHEAD
from fastloader.stages import lock_pages
from fastloader.transforms import RandomFlip
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


def make_tensors(length, shape=(3, 32, 32)):
    images = torch.randint(0, 255, (length, *shape), dtype=torch.uint8)
    return images, torch.utils.data.TensorDataset(images, torch.arange(length))


@pytest.mark.parametrize("resident", [None, "device"])
@pytest.mark.parametrize("batch_size", [1, 7, 256])
def test_data_in_memory_arrives_in_stocks_order(resident, batch_size):
    images, data = make_tensors(5_000)
    loader = FastLoader(data, batch_size, shuffle=True, device="cuda", resident=resident)

    for seed in (3, 4):
        torch.manual_seed(seed)
        expected = [labels for _, labels in torch.utils.data.DataLoader(data, batch_size, True)]
        torch.manual_seed(seed)
        found = list(loader)
        assert len(found) == len(expected)
        for (batch, labels), wanted in zip(found, expected, strict=True):
            assert torch.equal(labels.cpu(), wanted)
            assert torch.equal(batch.cpu(), images[wanted])
    assert loader.settings.resident == resident


@pytest.mark.parametrize("own", [False, True], ids=["global", "own"])
@pytest.mark.parametrize("resident", [None, "device"])
def test_orders_that_are_drawn_ahead_are_stocks(resident, own):
    images, data = make_tensors(2 * LEAST_AHEAD)
    orders = []
    for kind in (torch.utils.data.DataLoader, FastLoader):
        torch.manual_seed(3)
        generator = torch.Generator().manual_seed(4) if own else None
        options = {"device": "cuda", "resident": resident} if kind is FastLoader else {}
        loader = kind(data, 1000, shuffle=True, generator=generator, **options)
        for _ in range(5):
            for batch, labels in loader:
                orders.append(labels.cpu())
                assert torch.equal(batch.cpu(), images[orders[-1]])
    middle = len(orders) // 2

    assert torch.equal(torch.cat(orders[:middle]), torch.cat(orders[middle:]))


def test_no_buffer_is_overwritten_while_its_copy_is_under_way():
    images, data = make_tensors(20_000)
    loader = FastLoader(data, 64, shuffle=True, device="cuda")
    on_device = images.cuda()
    busy = torch.rand(4096, 4096, device="cuda")
    wrong = torch.zeros((), dtype=torch.int64, device="cuda")

    for _ in range(5):
        for number, (batch, labels) in enumerate(loader):
            if number % 50 == 0:
                busy = (busy @ busy).clamp(0, 1)
            wrong += (batch != on_device[labels]).sum()

    assert wrong.item() == 0


def test_resident_batches_can_be_used_on_any_stream():
    images, data = make_tensors(20_000)
    loader = FastLoader(data, 64, shuffle=True, device="cuda", resident="device")
    on_device = images.cuda()
    streams = [torch.cuda.Stream() for _ in range(3)]
    wrong = torch.zeros(3, dtype=torch.int64, device="cuda")
    torch.cuda.synchronize()

    iterator = iter(loader)
    for number in range(len(loader)):
        with torch.cuda.stream(streams[number % 3]):
            batch, labels = next(iterator)
            wrong[number % 3] += (batch != on_device[labels]).sum()
    torch.cuda.synchronize()

    assert wrong.tolist() == [0, 0, 0]


@pytest.mark.parametrize("streams", [1, 2])
def test_what_was_gathered_before_its_pass_began_is_there_and_in_order(monkeypatch, streams):
    monkeypatch.setattr("fastloader.epochs._next_start.LEAST_SECONDS", 0)
    images, data = make_tensors(20_000)
    options = {"batch_size": 64, "shuffle": True}
    stock = torch.utils.data.DataLoader(data, generator=generator(), **options)
    loader = FastLoader(
        data, generator=generator(), device="cuda", resident="device", **options
    )
    on_device = images.cuda()
    busy = torch.rand(4096, 4096, device="cuda")
    wrong = torch.zeros((), dtype=torch.int64, device="cuda")
    others = [torch.cuda.Stream() for _ in range(streams)]
    num_used = 0

    for number in range(8):
        start = loader._opener.residence._next_start
        if start is not None and start._job is not None:
            wait([start._job])
            num_used += 1
        seen = []
        stream = others[number % streams]
        with torch.cuda.stream(stream):
            for batch, labels in loader:
                busy = (busy @ busy).clamp(0, 1)
                wrong += (batch != on_device[labels]).sum()
                batch.zero_()  # which are the loop's own
                seen.append(labels)
        stream.synchronize()
        assert torch.equal(torch.cat(seen).cpu(), torch.cat([labels for _, labels in stock]))

    assert wrong.item() == 0
    assert num_used == 6


def test_gathering_on_the_device_waits_for_nothing():
    _, data = make_tensors(20_000)
    loader = FastLoader(data, 64, shuffle=True, device="cuda", resident="device")
    list(loader)  # copies the data

    try:
        with warnings.catch_warnings(action="ignore"):  # says that it is a prototype
            torch.cuda.set_sync_debug_mode("error")
        for _ in loader:
            pass
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_resident_data_is_augmented_on_the_device():
    _, data = make_tensors(300)
    augmented = Augment(data, RandomFlip())
    kept = FastLoader(augmented, 32, shuffle=True, seed=5, device="cuda", resident="device")
    made_here = FastLoader(augmented, 32, shuffle=True, seed=5)

    for _ in range(2):
        for (batch, labels), (wanted, numbers) in zip(kept, made_here, strict=True):
            assert torch.equal(labels.cpu(), numbers)
            assert torch.equal(batch.cpu(), wanted)
    assert kept.settings.resident == "device"


def test_resident_data_takes_memory_once_for_several_loaders():
    _, data = make_tensors(20_000)
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    loaders = [
        FastLoader(torch.utils.data.Subset(data, part), 64, device="cuda", resident="device")
        for part in (range(15_000), range(15_000, 20_000))
    ]

    for loader in loaders:
        next(iter(loader))
    taken = torch.cuda.memory_allocated() - before
    del loader, loaders

    assert taken < 1.6 * 20_000 * 3 * 32 * 32
    assert torch.cuda.memory_allocated() <= before


def test_data_that_does_not_fit_is_copied_batch_by_batch(monkeypatch, caplog):
    _, data = make_tensors(300)
    loader = FastLoader(data, 32, device="cuda", resident="device")
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (1000, 2000))

    assert sum(len(labels) for _, labels in loader) == 300

    assert loader.settings.resident is None
    assert "more than 60%" in loader.settings.reasons["resident"]
    assert "resident" in caplog.text


def test_memory_that_cannot_be_locked_is_copied_all_the_same(monkeypatch, caplog):
    def refuse(address, size_bytes):
        # Of memory that is not there: what CUDA says then must not reach who comes next.
        return lock_pages(1 << 46, size_bytes)

    monkeypatch.setattr("fastloader.epochs._worker_runs.lock_pages", refuse)
    loader = FastLoader(Images(64, shape=(3, 224, 224)), 4, num_workers=2, device="cuda")

    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            for images, labels in loader:
                assert torch.equal(images[:, 0, 0, 0], labels.float())

    assert caplog.text.count("cannot be locked") == 1


def test_memory_that_is_locked_already_is_locked_anew(caplog):
    block = torch.empty(1 << 20, dtype=torch.uint8)
    address = -(-block.data_ptr() // 4096) * 4096
    lock_pages(address, 1 << 16)

    unlock = lock_pages(address, 1 << 16)
    torch.ones(8, device="cuda").add_(1)  # an error left behind would be raised here
    offset = address - block.data_ptr()
    # As a storage of its own: torch looks where that begins.
    part = torch.from_numpy(block.numpy()[offset : offset + 16])
    assert part.is_pinned()
    unlock()

    assert not part.is_pinned()
    assert not caplog.records


def draw_noise(image):
    return image + torch.rand((), device=image.device) + torch.rand(())


def test_foreign_transforms_of_resident_images_draw_by_key_on_the_device():
    data = torch.utils.data.TensorDataset(torch.zeros(32, 1, 4, 4), torch.arange(32))
    dataset = Augment(data, draw_noise, seed=3, global_rng=True)
    before = torch.cuda.get_rng_state()

    passes = []
    for batch_size in (8, 4):
        torch.cuda.manual_seed(batch_size)
        state = torch.cuda.get_rng_state()
        loader = FastLoader(dataset, batch_size, device="cuda", resident="device")
        passes.append(torch.cat([images for images, _ in loader]))
        assert torch.equal(torch.cuda.get_rng_state(), state)
    torch.cuda.set_rng_state(before)

    assert torch.equal(*passes)
    assert len(passes[0].flatten(1)[:, 0].unique()) == 32


@pytest.mark.parametrize("num_workers", [0, 2])
def test_copies_are_timed_by_their_events(num_workers):
    loader = FastLoader(
        Images(64, shape=(3, 64, 64)), 4, num_workers=num_workers, device="cuda"
    )
    list(loader)
    assert loader.stats.snapshot().copy_p50_seconds is None

    loader.stats.also_measure(copies=True)
    list(loader)
    snapshot = loader.stats.snapshot()

    assert 0 < snapshot.copy_p50_seconds <= snapshot.copy_max_seconds < 1


def test_the_share_of_time_that_the_gpu_is_busy_is_told():
    pytest.importorskip("pynvml")
    loader = FastLoader(Images(8), 4, num_workers=0, device="cuda")
    loader.stats.also_measure(gpu=True)
    list(loader)
    matrix = torch.rand(4096, 4096, device="cuda")

    deadline = time.monotonic() + 10
    while (share := loader.stats.snapshot().gpu_share) == 0 and time.monotonic() < deadline:
        for _ in range(50):
            matrix = (matrix @ matrix).clamp(0, 1)
        torch.cuda.synchronize()

    assert 0 < share <= 1


def test_resident_subsets_arrive_in_stocks_order():
    _, data = make_tensors(3_000)
    subset = torch.utils.data.Subset(data, range(2_999, 0, -2))
    loader = FastLoader(
        subset, 64, shuffle=True, device="cuda", resident="device", generator=generator()
    )
    stock = torch.utils.data.DataLoader(subset, 64, shuffle=True, generator=generator())

    for (batch, labels), (wanted, numbers) in zip(loader, stock, strict=True):
        assert torch.equal(labels.cpu(), numbers)
        assert torch.equal(batch.cpu(), wanted)


def generator():
    return torch.Generator().manual_seed(7)


@pytest.mark.stress
def test_no_slot_is_overwritten_while_its_copy_is_under_way():
    data = Images(250, shape=(3, 224, 224), dtype=torch.uint8)
    order = [number % 250 for number in range(8 * 100_000)]
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


@pytest.mark.parametrize("num_workers", [0, 2])
def test_memory_that_torch_keeps_for_batches_does_not_grow_with_the_epochs(num_workers):
    data = Images(100, shape=(3, 224, 224))
    if num_workers == 0:
        _, data = make_tensors(5_000, (3, 64, 64))
    loader = FastLoader(data, 10, num_workers=num_workers, device="cuda")
    reserved = []

    for _ in range(8):
        list(loader)
        torch.cuda.synchronize()
        reserved.append(torch.cuda.memory_reserved())

    assert reserved[-1] <= 1.5 * reserved[1]


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


class OneByOne(torch.utils.data.Dataset):
    """The samples of a dataset, whose loader knows nothing of them."""

    def __init__(self, dataset):
        self.dataset = dataset

    def __len__(self):
        return len(self.dataset)

    def __getitem__(self, index):
        return self.dataset[index]


KINDS = {
    "ahead": {},
    "resident": {"resident": "device"},
    "processes": {"num_workers": 2},
    "threads": {"num_workers": 2, "workers": "threads"},
}


def of_kind(kind, data, batch_size, **options):
    dataset = OneByOne(data) if "num_workers" in KINDS[kind] else data
    return FastLoader(dataset, batch_size, shuffle=True, **KINDS[kind], **options)


@pytest.mark.parametrize("options", [{"device": "cuda"}, {"pin_memory": True}], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_graphs_are_captured_while_batches_are_made_ahead(kind, options):
    if kind == "resident" and "device" not in options:
        pytest.skip("needs a device")
    images, data = make_tensors(10_000, (3, 64, 64))
    loader = of_kind(kind, data, 64, **options)
    counter = torch.zeros(1024, device="cuda")
    num_captures = 0

    for number, (batch, labels) in enumerate(loader):
        assert torch.equal(batch.cpu(), images[labels.cpu()])
        if number % 8 == 0:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                for _ in range(100):
                    counter.add_(1)
            graph.replay()
            num_captures += 1

    assert counter[0].item() == 100 * num_captures


@pytest.mark.parametrize("kind", KINDS)
def test_another_default_device_changes_nothing(kind):
    images, data = make_tensors(500)
    loader = of_kind(kind, data, 64, device="cuda", generator=torch.Generator())
    torch.set_default_device("cuda")
    try:
        found = list(loader)
    finally:
        torch.set_default_device("cpu")

    for batch, labels in found:
        assert torch.equal(batch.cpu(), images[labels.cpu()])


@pytest.mark.parametrize("kind", ["ahead", "resident"])
def test_batches_that_are_made_together_come_singly_where_memory_is_short(kind):
    images, data = make_tensors(20_000, (3, 96, 96))
    loader = of_kind(kind, data, 64, device="cuda")
    sum(len(labels) for _, labels in loader)
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    total = torch.cuda.get_device_properties(0).total_memory
    most = torch.cuda.memory_reserved() + (60 << 20)  # a single one takes 1.8 MB
    torch.cuda.set_per_process_memory_fraction(most / total)
    try:
        seen = []
        for batch, labels in loader:
            assert torch.equal(batch.cpu(), images[labels.cpu()])
            seen += labels.tolist()
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)

    assert sorted(seen) == list(range(20_000))


def test_a_forked_child_reads_on_the_cpu():
    images, data = make_tensors(200)
    loader = FastLoader(data, 64)
    for batch, labels in loader:
        assert torch.equal(batch.cuda().cpu(), images[labels])

    child = os.fork()
    if child == 0:
        is_right = all(torch.equal(batch, images[labels]) for batch, labels in loader)
        os._exit(0 if is_right else 1)

    assert os.waitpid(child, 0)[1] == 0


@pytest.mark.parametrize(
    "kind", ["sparse_coo", "sparse_csr", "sparse_csc", "strided", "quantized"]
)
def test_sparse_nested_and_quantized_tensors_arrive(kind):
    def make(_samples):
        if kind == "quantized":
            return torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.quint8)
        if kind == "strided":
            return torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])
        return torch.eye(3).to_sparse(layout=getattr(torch, kind))

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # those layouts are said to be in beta
        loader = FastLoader(range(4), 2, collate_fn=make, device="cuda", num_workers=0)
        for batch in loader:
            assert batch.is_cuda
            assert batch.is_quantized or batch.layout is getattr(torch, kind)
