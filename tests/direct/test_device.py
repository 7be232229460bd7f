"""What a CUDA device reads by itself out of the caller's memory is what lies there."""

import gc
import math
import mmap
import multiprocessing
import os
import pickle

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, StackDataset, Subset, TensorDataset

from fastloader import FastLoader, OMEArrowDataset
from fastloader.datasets import _direct_rows
from fastloader.direct import locked_memory
from fastloader.epochs import _direct_reading
from fastloader.shm import collecting_memory_files
from fastloader.writing import write_images

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not torch.cuda.is_available() and os.environ.get("FASTLOADER_REQUIRE_GPU") != "1",
        reason="needs a CUDA device",
    ),
]


@pytest.fixture(autouse=True)
def small_data_too(monkeypatch):
    monkeypatch.setattr(_direct_rows, "LEAST_BYTES", 1)


def images(length, shape=(3, 128, 128), dtype=torch.uint8):
    # In pages of its own, so that what is locked beside it makes no difference.
    size_bytes = length * math.prod(shape) * dtype.itemsize
    memory = mmap.mmap(-1, size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    made = torch.frombuffer(memory, dtype=torch.uint8)
    made.random_(0, 100)
    return made.view(dtype).view(length, *shape)


def locked(loader):
    """Return the loader, when the device may read its data."""
    next(iter(loader))
    for column in loader._opener._direct._rows._columns.values():
        column.memory._thread.join()
        assert column.memory.is_locked, column.memory.obstacle
    return loader


def assert_stocks(loader, dataset, batch_size, **options):
    for seed in (3, 4):
        torch.manual_seed(seed)
        expected = list(DataLoader(dataset, batch_size, shuffle=True, **options))
        torch.manual_seed(seed)
        found = list(loader)
        assert len(found) == len(expected)
        for batch, wanted in zip(found, expected, strict=True):
            for part, wanted_part in zip(batch, wanted, strict=True):
                assert part.is_cuda
                assert part.dtype == wanted_part.dtype
                assert part.stride() == wanted_part.stride()
                assert torch.equal(bytes_of(part.cpu()), bytes_of(wanted_part))


def bytes_of(tensor):
    return tensor.contiguous().view(-1).view(torch.uint8)


@pytest.mark.parametrize("row_bytes", [512, 8176, 8192, 8208, 40_960, 60_000, 100_004])
def test_rows_of_any_size_are_stocks(row_bytes):
    dataset = TensorDataset(images(97, (row_bytes,)), torch.arange(97))
    loader = locked(FastLoader(dataset, 10, shuffle=True, device="cuda"))

    assert_stocks(loader, dataset, 10)


DTYPES = [
    torch.bool, torch.uint8, torch.uint16, torch.bfloat16, torch.float32, torch.uint64,
    torch.float64, torch.complex64, torch.complex128,
]  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("drop_last", [False, True])
def test_batches_of_any_type_are_stocks(dtype, drop_last):
    pixels = torch.randint(0, 2, (300, 3, 128, 128)).to(dtype)
    data = TensorDataset(pixels, torch.arange(300))
    loader = locked(FastLoader(data, 32, shuffle=True, device="cuda", drop_last=drop_last))

    assert_stocks(loader, data, 32, drop_last=drop_last)


@pytest.mark.parametrize("row_bytes", [516, 520, 528, 2044, 2048, 2064, 2100, 49152])
@pytest.mark.parametrize("batch_size", [1, 7, 64])
def test_rows_of_any_size_are_read_to_the_last_byte(row_bytes, batch_size):
    data = TensorDataset(images(500, (row_bytes,)), torch.arange(500))
    loader = locked(FastLoader(data, batch_size, shuffle=True, device="cuda"))

    assert_stocks(loader, data, batch_size)


def test_rows_that_begin_anywhere_are_read_in_units_that_fit():
    whole = images(1, (500 * 2048 + 64,)).view(-1)
    for offset in (4, 8, 12, 16):
        pixels = whole[offset : offset + 500 * 2048].view(500, 2048)
        data = TensorDataset(pixels, torch.arange(500))

        assert_stocks(locked(FastLoader(data, 32, shuffle=True, device="cuda")), data, 32)


def test_tensors_that_lie_side_by_side_are_each_locked():
    parts = [torch.full((300, 1024), number, dtype=torch.uint8) for number in range(8)]
    loaders = [locked(FastLoader(TensorDataset(part), 32, device="cuda")) for part in parts]

    for _ in range(2):
        for number, loader in enumerate(loaders):
            for [batch] in loader:
                assert bool((batch == number).all())
        gc.collect()


@pytest.mark.parametrize(
    "cut",
    [
        lambda pixels: pixels[::2],
        lambda pixels: pixels[7:150],
        lambda pixels: pixels[:, 1:],
        lambda pixels: pixels.to(memory_format=torch.channels_last),
    ],
    ids=["every second", "a part", "some channels", "channels last"],
)
def test_views_of_data_are_read_where_they_lie(cut):
    pixels = cut(images(300))
    data = TensorDataset(pixels, torch.arange(len(pixels)))
    loader = FastLoader(data, 16, shuffle=True, device="cuda")
    next(iter(loader))

    assert_stocks(loader, data, 16)


def test_subsets_and_stacks_are_read_too():
    data = TensorDataset(images(400), torch.arange(400))
    subset = Subset(data, list(range(399, 0, -2)))
    loader = locked(FastLoader(subset, 16, shuffle=True, device="cuda"))
    assert_stocks(loader, subset, 16)

    stack = StackDataset(image=data.tensors[0], label=data.tensors[1])
    [[image, label]] = [
        (batch["image"], batch["label"])
        for batch in locked(FastLoader(stack, 400, shuffle=True, device="cuda"))
    ]
    assert torch.equal(image.cpu(), data.tensors[0][label.cpu()])


def test_images_of_the_pixel_cache_are_read_where_they_lie(tmp_path, monkeypatch):
    monkeypatch.setattr(_direct_reading, "_room_to_keep", lambda _device: 0)
    pixels = np.random.default_rng(0).integers(0, 4096, (200, 3, 100, 100), dtype=np.uint16)
    path = tmp_path / "images.parquet"
    write_images(pixels, path, columns={"label": list(range(200))}, progress=False)
    data = OMEArrowDataset(path, label_column="label", dtype=None, progress=False)
    loader = locked(FastLoader(data, 16, shuffle=True, device="cuda"))

    assert_arrive(loader, pixels)
    with collecting_memory_files():
        pickle.dumps(data)  # moves the pixels to where others see them
    assert_arrive(loader, pixels)
    assert_arrive(locked(loader), pixels)


def test_images_of_the_pixel_cache_are_kept_on_the_device_after_a_pass(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 4096, (200, 3, 100, 100), dtype=np.uint16)
    path = tmp_path / "images.parquet"
    write_images(pixels, path, columns={"label": list(range(200))}, progress=False)
    data = OMEArrowDataset(path, label_column="label", dtype=None, progress=False)
    loader = locked(FastLoader(data, 16, shuffle=True, device="cuda"))
    opener = loader._opener

    for _ in range(3):
        assert_arrive(loader, pixels)
    assert opener._direct.is_kept(torch.device("cuda:0"))
    assert opener.residence._kept is not None
    assert loader.settings.resident is None
    loader.stats.also_measure(copies=True)
    assert_arrive(loader, pixels)
    assert loader.stats.snapshot().copy_p50_seconds > 0


def assert_arrive(loader, pixels):
    seen = []
    for batch, labels in loader:
        found = batch.cpu().view(torch.int16)
        assert torch.equal(
            found, torch.from_numpy(pixels[labels.cpu().numpy()]).view(torch.int16)
        )
        seen += labels.tolist()
    assert sorted(seen) == list(range(200))


def test_the_way_changes_in_the_middle_of_an_epoch_and_nobody_sees_it():
    pixels = images(4_000)
    data = TensorDataset(pixels, torch.arange(4_000))
    loader = FastLoader(data, 8, shuffle=True, device="cuda")
    on_device = pixels.cuda()
    wrong = torch.zeros((), dtype=torch.int64, device="cuda")

    for _ in range(3):
        for batch, labels in loader:
            wrong += (batch != on_device[labels]).sum()

    assert wrong.item() == 0


def test_data_may_be_changed_as_soon_as_a_batch_is_there():
    pixels = torch.zeros((64, 3, 512, 512), dtype=torch.uint8)
    loader = locked(FastLoader(TensorDataset(pixels), 64, device="cuda"))
    busy = torch.rand(4096, 4096, device="cuda")

    for number in range(1, 40):
        pixels.fill_(number)
        busy = (busy @ busy).clamp(0, 1)
        [[batch]] = list(loader)
        pixels.fill_(255)
        assert torch.equal(batch.unique().cpu(), torch.tensor([number], dtype=torch.uint8))


def test_copies_are_not_overwritten_while_the_device_is_busy():
    pixels = images(4_000, (1, 200, 200))
    loader = locked(
        FastLoader(TensorDataset(pixels, torch.arange(4_000)), 64, shuffle=True, device="cuda")
    )
    on_device = pixels.cuda()
    busy = torch.rand(4096, 4096, device="cuda")
    wrong = torch.zeros((), dtype=torch.int64, device="cuda")

    for _ in range(5):
        for number, (batch, labels) in enumerate(loader):
            if number % 10 == 0:
                busy = (busy @ busy).clamp(0, 1)
            wrong += (batch != on_device[labels]).sum()

    assert wrong.item() == 0


def test_two_loaders_share_what_is_locked_and_the_last_one_unlocks_it():
    pixels = images(300)
    data = TensorDataset(pixels, torch.arange(300))
    first = locked(FastLoader(data, 32, shuffle=True, device="cuda"))
    second = locked(FastLoader(Subset(data, range(100, 300)), 32, device="cuda"))
    memory = locked_memory(pixels, torch.device("cuda:0"))
    assert pixels.is_pinned()

    del first
    gc.collect()
    assert memory.is_locked
    assert sum(len(labels) for _, labels in second) == 200
    del second, memory
    gc.collect()

    assert not pixels.is_pinned()


def test_a_resumed_epoch_goes_on_where_it_was():
    data = TensorDataset(images(320), torch.arange(320))
    loader = locked(FastLoader(data, 16, shuffle=True, seed=3, device="cuda"))
    expected = [labels.tolist() for _, labels in loader]
    again = FastLoader(data, 16, shuffle=True, seed=3, device="cuda")
    iterator = iter(again)
    next(iterator)
    state = again.state_dict()
    del iterator
    resumed = FastLoader(data, 16, shuffle=True, seed=3, device="cuda")
    resumed.load_state_dict(state)

    found = list(resumed)

    assert len(found) == len(expected) - 1
    for batch, labels in found:
        assert torch.equal(batch.cpu(), data.tensors[0][labels.cpu()])


def read_sum(pixels, result):
    result.value = int(pixels.numpy().sum())  # torch's threads do not live on in a child


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_forked_child_reads_the_data_and_copies_none_of_it():
    pixels = images(3_000)
    loader = locked(FastLoader(TensorDataset(pixels, torch.arange(3_000)), 64, device="cuda"))
    context = multiprocessing.get_context("fork")
    result = context.Value("q", 0)

    for number, (batch, labels) in enumerate(loader):
        if number == 3:
            child = context.Process(target=read_sum, args=(pixels, result))
            child.start()
        assert torch.equal(batch.cpu(), pixels[labels.cpu()])
    child.join()

    assert result.value == int(pixels.sum())
    assert not pixels.is_pinned()
    locked(loader)
    assert pixels.is_pinned()


def test_a_graph_is_captured_while_memory_is_being_locked():
    pixels = torch.ones((4_000, 3, 512, 512), dtype=torch.uint8)
    loader = FastLoader(TensorDataset(pixels), 16, device="cuda")
    value = torch.ones(16, device="cuda")
    torch.cuda.synchronize()

    iterator = iter(loader)
    for _ in range(5):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            for _ in range(200):
                value = value + 1
    [batch] = next(iterator)
    graph.replay()

    assert int(batch.sum()) == batch.numel()
    del iterator
    locked(loader)


def test_data_that_the_caller_has_pinned_is_read_as_it_is():
    pixels = images(300).pin_memory()
    loader = FastLoader(TensorDataset(pixels, torch.arange(300)), 32, device="cuda")

    for batch, labels in loader:
        assert torch.equal(batch.cpu(), pixels[labels.cpu()])
    del loader
    gc.collect()

    assert pixels.is_pinned()


def test_data_in_a_file_is_gathered_by_threads_and_stats_say_so(tmp_path):
    (tmp_path / "pixels").write_bytes(bytes(32 << 20))
    pixels = torch.from_file(str(tmp_path / "pixels"), size=32 << 20, dtype=torch.uint8)
    loader = FastLoader(TensorDataset(pixels.view(-1, 4096)), 64, device="cuda")

    next(iter(loader))
    for column in loader._opener._direct._rows._columns.values():
        column.memory._thread.join()
    [batch] = next(iter(loader))

    assert not batch.any()
    [reason] = loader.stats.snapshot().fallbacks
    assert "it lies in a file" in reason


def test_copying_the_same_data_by_hand_works_beside():
    pixels = images(300)
    loader = locked(FastLoader(TensorDataset(pixels, torch.arange(300)), 32, device="cuda"))
    wide = torch.empty(0, dtype=torch.uint8).set_(pixels.untyped_storage())

    assert torch.equal(pixels.to("cuda", non_blocking=True).cpu(), pixels)
    assert torch.equal(wide.to("cuda").cpu(), wide)
    del loader
    gc.collect()
    assert torch.equal(pixels.to("cuda").cpu(), pixels)
