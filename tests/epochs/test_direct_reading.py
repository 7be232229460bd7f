"""Batches are of rows for the device while it can read them, and are gathered otherwise."""

from collections import deque

import pytest
import torch
from torch.utils.data import TensorDataset

from fastloader import FastLoader
from fastloader.datasets._batched import as_batched
from fastloader.engine import MERGED_BYTES, RowBytes
from fastloader.epochs._direct_reading import DirectMaker, DirectReading, KeptMaker
from fastloader.epochs._plan import plan_of
from fastloader.epochs._staging import made_here
from fastloader.sampling._drawn import DrawnBatches
from fastloader.stages import CutStream, ResidentStream
from fastloader.threads._crew import Crew
from fastloader.threads._standby import StandbyKeeper

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


class Moving:
    """Stands for rows until they are moved."""

    def to(self, device, **_options):
        return f"on {device}"


def test_kept_rows_and_what_is_gathered_beside_come_to_the_device_at_once(rows, maker):
    rows.batch = [Moving(), torch.arange(3)]
    lent = []
    keeper = StandbyKeeper()
    standby = keeper.lend()
    made = KeptMaker(maker, CPU, standby)

    images, labels = made.make([0, 1, 2], 0)
    made.close()
    lent.append(keeper.lend())

    assert (images, labels.tolist()) == ("on cpu", [0, 1, 2])
    assert made.first_bytes == made.most_bytes == 4 * MERGED_BYTES
    assert maker._maker.is_closed
    assert lent == [standby]
    keeper.close()


@pytest.mark.parametrize(
    ("are_kept", "seconds", "kind"),
    [(True, None, ResidentStream), (False, None, CutStream), (True, deque(), CutStream)],
    ids=["kept", "locked", "copies timed"],
)
def test_no_thread_asks_for_rows_that_the_device_keeps(
    rows, monkeypatch, are_kept, seconds, kind
):
    rows.are_kept, keeper = are_kept, StandbyKeeper()
    plan = plan_of(FastLoader(TensorDataset(torch.arange(8)), 2, num_workers=0))

    class Direct:
        row_bytes = RowBytes()

        def open(self, _batched, _device):
            return rows

    monkeypatch.setattr("fastloader.epochs._direct_reading.merged_bytes_on", lambda *_: 1)
    monkeypatch.setattr(
        "fastloader.epochs._staging.copied_ahead_and_cut", lambda *_: CutStream(None)
    )
    stream = made_here(
        None, plan, Maker(), DrawnBatches(iter(())), deque(), CPU, keeper.lend(), Direct(), seconds
    )  # fmt: skip

    assert type(stream) is kind
    keeper.close()


def test_nothing_is_locked_for_other_devices_or_small_data():
    reading = DirectReading()
    tensor = torch.zeros(10, 4)

    assert reading.open(as_batched(tensor), CPU) is None
    assert reading.open(as_batched(tensor), torch.device("cuda:0")) is None
    assert reading.obstacles == []
