"""Batches are of rows for the device while it can read them, and are gathered otherwise."""

import pytest
import torch
from torch.utils.data import TensorDataset

from fastloader import FastLoader
from fastloader.datasets._batched import as_batched
from fastloader.datasets._resident import NotResidentError
from fastloader.engine import MERGED_BYTES
from fastloader.epochs import _direct_reading as module
from fastloader.epochs._direct_reading import DirectMaker, DirectReading
from fastloader.stages import ResidentStream
from fastloader.threads._crew import Crew

CPU = torch.device("cpu")


class Rows:
    """Gives rows while they are locked."""

    def __init__(self):
        self.is_ready = True
        self.batch = "rows"

    def take(self, _indices):
        return self.batch


class Maker:
    """Gathers."""

    most_bytes = first_bytes = MERGED_BYTES
    is_closed = False

    def make(self, _indices, _number):
        return "gathered"

    def close(self):
        self.is_closed = True


@pytest.fixture
def rows():
    return Rows()


@pytest.fixture
def maker(rows, monkeypatch):
    monkeypatch.setattr(
        "fastloader.epochs._direct_reading.merged_bytes_on", lambda *_: 4 * MERGED_BYTES
    )
    return DirectMaker(rows, CPU, Maker(), torch.empty, Crew(0))


def test_the_way_is_chosen_for_each_batch(rows, maker):
    found = []
    for rows.is_ready in (False, True, False):
        found.append(maker.make([0], 0))

    assert found == ["gathered", "rows", "gathered"]


def test_what_only_the_dataset_can_make_is_made_by_it(rows, maker):
    rows.batch = None

    assert maker.make([True], 0) == "gathered"


def test_more_is_made_at_once_only_where_it_lies_on_the_device(rows, maker):
    assert maker.most_bytes == 4 * MERGED_BYTES
    assert maker.first_bytes == MERGED_BYTES
    rows.is_ready = False

    assert maker.most_bytes == MERGED_BYTES


def test_the_gatherer_is_closed_with_it(maker):
    maker.close()

    assert maker._maker.is_closed


class Read(Rows):
    """Of the passes before."""

    fixed_bytes = 1000


@pytest.mark.parametrize(
    ("is_ready", "fixed_bytes", "room", "is_kept"),
    [
        (True, 1000, 1000, True),
        (True, 1001, 1000, False),
        (True, None, 1000, False),
        (False, 1000, 1000, False),
    ],
    ids=["fits", "too large", "the caller's", "not locked"],
)
def test_images_that_were_read_are_kept_where_they_take_little_room(
    monkeypatch, is_ready, fixed_bytes, room, is_kept
):
    reading, rows = DirectReading(), Read()
    rows.is_ready, rows.fixed_bytes = is_ready, fixed_bytes
    monkeypatch.setattr(module, "_room_to_keep", lambda _device: room)

    assert not reading.is_kept(CPU)  # nothing was read
    reading._rows = rows

    assert reading.is_kept(CPU) is is_kept


def test_images_that_are_kept_stay_until_the_device_cannot_have_them(monkeypatch):
    reading = DirectReading()
    reading._rows = Read()
    monkeypatch.setattr(module, "_room_to_keep", lambda _device: 1000)
    assert reading.is_kept(CPU)
    monkeypatch.setattr(module, "_room_to_keep", lambda _device: 0)  # they take it themselves

    assert reading.is_kept(CPU)
    reading.keep_nothing()

    assert not reading.is_kept(CPU)


@pytest.mark.parametrize("share", ["of all", "of what is free"])
def test_the_room_is_a_small_share_of_a_device(monkeypatch, share):
    total, free = (64 * 1000, 64 * 1000) if share == "of all" else (10**9, 4 * 1000)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _device: (free, total))

    assert module._room_to_keep(CPU) == 1000


def test_nothing_is_locked_for_other_devices_or_small_data():
    reading = DirectReading()
    tensor = torch.zeros(10, 4)

    assert reading.open(as_batched(tensor), CPU) is None
    assert reading.open(as_batched(tensor), torch.device("cuda:0")) is None
    assert reading.obstacles == []


class Keeping:
    """Says that the device has all that it has read, until it is told otherwise."""

    obstacles = ()
    keeps = True

    def is_kept(self, _device):
        return self.keeps

    def keep_nothing(self):
        self.keeps = False

    def open(self, _batched, _device):
        return None


@pytest.mark.parametrize("has_room", [True, False])
def test_what_is_kept_without_being_asked_for_is_resident_or_nobody_is_told(
    monkeypatch, caplog, has_room
):
    loader = FastLoader(TensorDataset(torch.arange(8)), 2, num_workers=0)
    opener = loader._opener
    opener.__dict__["_direct"] = reading = Keeping()
    monkeypatch.setattr("fastloader.epochs._epoch.device_of", lambda _loader: CPU)
    monkeypatch.setattr("fastloader.epochs._epoch.made_here", lambda *_: iter(()))
    monkeypatch.setattr(
        "fastloader.epochs._opening.Opening.iterator", lambda _, stream, **__: stream
    )
    if not has_room:

        def refuse(_batched, _device):
            raise NotResidentError("no room")

        monkeypatch.setattr("fastloader.epochs._residence.make_resident", refuse)

    stream = iter(loader)

    assert isinstance(stream, ResidentStream) is has_room
    assert reading.keeps is has_room
    assert opener.residence.obstacle is None
    assert loader.stats.snapshot().fallbacks == ()
    assert not caplog.records
