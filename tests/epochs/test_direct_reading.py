"""Batches are of rows for the device while it can read them, and are gathered otherwise."""

import pytest
import torch

from fastloader.datasets._batched import as_batched
from fastloader.engine import MERGED_BYTES
from fastloader.epochs._direct_reading import DirectMaker, DirectReading
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
        "fastloader.epochs._direct_reading.merged_bytes_on", lambda _: 4 * MERGED_BYTES
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


def test_nothing_is_locked_for_other_devices_or_small_data():
    reading = DirectReading()
    tensor = torch.zeros(10, 4)

    assert reading.open(as_batched(tensor), CPU) is None
    assert reading.open(as_batched(tensor), torch.device("cuda:0")) is None
    assert reading.obstacles == []
