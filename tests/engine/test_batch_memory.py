"""What datasets, collate functions and transforms keep of what they made in a worker stays as it was."""

import gc
import itertools
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, default_collate, get_worker_info

from fastloader import FastLoader
from fastloader.engine._batch_memory import BatchMemory
from fastloader.engine._packing import pack
from fastloader.shm._arena import Arena, ArenaView
from fastloader.shm._mapping_over import can_map_over
from fastloader.tensors._buffers import empty_batch
from tests.engine.datasets import Growing, Images

LENGTH = 240


def workers(function):
    return pytest.mark.multiprocess(pytest.mark.usefixtures("no_leaks")(function))


def rows(index):
    return [torch.full((32, 32), float(index)) for _ in range(2)]


class Keeping(Images):
    """Keeps samples, each made by torch's default collate."""

    def __init__(self):
        super().__init__(LENGTH)
        self.kept = {}

    def __getitem__(self, index):
        return self.kept.setdefault(index % 12, default_collate(rows(index % 12)))


class KeepingBehindErrors(Keeping):
    """Cannot read each sample at first, and keeps what it has made of it."""

    def __getitem__(self, index):
        is_new = index % 12 not in self.kept
        sample = super().__getitem__(index)
        if is_new and index % 2:
            raise OSError(f"no label {index}")
        return sample


class Shuffling(IterableDataset):
    """Gives what it has collated a while later."""

    def __iter__(self):
        info = get_worker_info()
        worker, num_workers = (0, 1) if info is None else (info.id, info.num_workers)
        held = deque()
        for index in range(worker, LENGTH, num_workers):
            held.append(default_collate(rows(index)))
            if len(held) > 20:
                yield held.popleft()
        yield from held


class Threaded(Images):
    """Reads the samples to come by threads of its own."""

    def __init__(self):
        super().__init__(LENGTH)
        self.coming = None

    def __getitem__(self, index):
        if self.coming is None:
            self.pool = ThreadPoolExecutor(3)
            self.coming = {}
        for later in range(index, min(index + 16, LENGTH)):
            if later not in self.coming:
                self.coming[later] = self.pool.submit(lambda i=later: default_collate(rows(i)))
        return self.coming.pop(index).result()


class WholeBatches(Images):
    """Keeps batches that it has made as a loader asks for them."""

    def __init__(self):
        super().__init__(LENGTH)
        self.made = deque(maxlen=9)

    def get_batch(self, indices):
        batch = empty_batch((len(indices), 32, 32), torch.float32)
        for row, index in zip(batch, indices, strict=True):
            row.fill_(index)
        self.made.append(batch)
        return self.made[0].clone()


class Before:
    """Returns what it was given nine batches ago, as it is or as `look` shows it."""

    def __init__(self, look=lambda batch: batch):
        self.look = look
        self.given = deque(maxlen=9)

    def __call__(self, batch):
        self.given.append(self.look(batch))
        return torch.as_tensor(self.given[0])


class CollatedBefore(Before):
    def __call__(self, samples):
        return super().__call__(default_collate(samples))


class Plain(Images):
    def __getitem__(self, index):
        return torch.full((32, 32), float(index))


def batches_of(loader):
    return [batch[..., 0, 0].tolist() for batch in loader]


@workers
@pytest.mark.parametrize("num_workers", [1, 2])
@pytest.mark.parametrize(
    "make",
    [
        lambda kind, options: kind(Keeping(), 4, **options),
        lambda kind, options: kind(Shuffling(), 4, **options),
        lambda kind, options: kind(Threaded(), 4, **options),
        lambda kind, options: kind(Plain(LENGTH), 4, collate_fn=CollatedBefore(), **options),
    ],
    ids=["dataset", "stream", "threads of the dataset", "collate function"],
)
def test_batches_are_stocks_though_something_is_kept(make, num_workers):
    options = {"num_workers": num_workers, "multiprocessing_context": "fork"}

    assert batches_of(make(FastLoader, options)) == batches_of(make(DataLoader, options))


ways_to_keep = pytest.mark.parametrize(
    "look",
    [
        lambda tensor: tensor,
        lambda tensor: tensor[:],
        lambda tensor: tensor.numpy(),
        lambda tensor: tensor.detach().numpy()[:],
        lambda tensor: tensor.data,
    ],
    ids=["tensor", "view", "array", "view of an array", "data"],
)


@workers
@ways_to_keep
def test_a_transform_may_keep_the_batches_before(look):
    loader = FastLoader(Plain(LENGTH), 4, num_workers=1, batch_transform=Before(look))

    given = [list(range(start, start + 4)) for start in range(0, LENGTH, 4)]
    assert batches_of(loader) == given[:1] * 8 + given[: len(given) - 8]


@workers
def test_what_get_batch_keeps_stays_as_it_was():
    loader = FastLoader(WholeBatches(), 4, num_workers=1)

    given = [list(range(start, start + 4)) for start in range(0, LENGTH, 4)]
    assert batches_of(loader) == given[:1] * 8 + given[: len(given) - 8]


@workers
def test_what_is_kept_behind_an_error_stays_as_it_was():
    iterator = iter(FastLoader(KeepingBehindErrors(), 3, num_workers=1))
    found = []
    for _ in itertools.count():
        try:
            found += next(iterator)[..., 0, 0].tolist()
        except OSError:
            continue
        except StopIteration:
            break

    # By then each has been made once.
    assert found[-216:] == [[index % 12] * 2 for index in range(24, LENGTH)]


class WithBefore(Before):
    """Returns a batch and the start of the one nine batches ago."""

    def __call__(self, batch):
        before = super().__call__(batch)
        return batch, before[:, :2]


@workers
def test_batches_that_outgrow_their_slots_may_be_kept():
    loader = FastLoader(Growing(40), 1, num_workers=1, batch_transform=WithBefore())

    pairs = [(batch[0, -1].item(), before.tolist()) for batch, before in loader]

    assert pairs == [(n, [[max(0, n - 8)] * 2]) for n in range(40)]


class KeepingLabels:
    """Keeps the labels of all but the first image, and returns how many are no longer what they were."""

    def __init__(self):
        self.kept = []

    def __call__(self, batch):
        label, image = batch
        if (value := label[0, 0].item()) > 1:
            self.kept.append((label, value))
        changed = sum(bool((kept != value).any()) for kept, value in self.kept)
        return image, torch.tensor(changed)


class LabelledGrowing(Growing):
    """Every next image does not fit in a slot that the labels before it do."""

    def __getitem__(self, index):
        return torch.full((10_000,), index + 1.0), torch.zeros(1 << (18 + index))


@workers
def test_a_batch_that_outgrew_its_slot_may_be_kept_though_its_run_is_broken_off():
    loader = FastLoader(
        LabelledGrowing(3), 1, num_workers=1, prefetch_factor=1, batch_transform=KeepingLabels()
    )

    for _ in loader:
        time.sleep(0.2)  # until the next one has been made, and its reply not read
        break

    assert [changed.item() for _, changed in loader] == [0, 0, 0]


@pytest.fixture
def memory():
    arena = Arena()
    made = BatchMemory(ArenaView(arena.file))
    made.arena = arena
    yield made
    arena.close()


def make_batch(memory, slot, value, keep):
    memory.begin(slot.place)
    tensor = memory.allocate((64,), torch.uint8).fill_(value)
    kept = keep(tensor)
    pack([tensor], memory.writer)
    del tensor
    memory.leave()
    return kept


@pytest.mark.skipif(not can_map_over(), reason="needs Linux")
def test_who_keeps_nothing_has_batches_made_in_their_slots(memory):
    slot = memory.arena.lend()

    for value in range(3):
        make_batch(memory, slot, value, lambda _: None)
        assert slot.copy(64) == bytes([value]) * 64

    make_batch(memory, slot, 7, lambda tensor: tensor[:3])
    memory.begin(slot.place)
    elsewhere = memory.allocate((64,), torch.uint8).fill_(9)
    assert slot.copy(64) == b"\7" * 64
    pack([elsewhere], memory.writer)
    assert slot.copy(64) == b"\t" * 64


@ways_to_keep
def test_what_is_kept_is_left_to_its_user_alone(memory, look):
    slot = memory.arena.lend()

    kept = make_batch(memory, slot, 5, look)
    slot.buffer()[:64] = b"x" * 64  # as another worker may
    torch.as_tensor(kept)[...] += 1
    gc.collect()

    assert set(torch.as_tensor(kept).flatten().tolist()) == {6}
    assert slot.copy(64) == b"x" * 64
