"""Devices without streams get their batches one after the other, and what fails is the batch's own."""

from types import SimpleNamespace

import pytest
import torch

from fastloader import FastLoader
from fastloader.epochs import _staging
from fastloader.stages import LostBatchError, copied_ahead, copied_ahead_and_cut, copied_to
from fastloader.stages._waited_copies import WaitedCopies
from fastloader.streams._queue_state import QueueState
from fastloader.threads._standby import StandbyKeeper

CPU = torch.device("cpu")
APPLES = torch.device("mps:0")


class Source:
    is_on_demand = False

    def __init__(self, batches):
        self.batches = list(batches)
        self.is_closed = False

    def __next__(self):
        if not self.batches:
            raise StopIteration
        return self.batches.pop(0)

    def next_if_ready(self):
        return [next(self)] if self.batches else []

    def queue(self):
        return QueueState(num_asked=len(self.batches))

    def close(self):
        self.is_closed = True


class Own:
    """Moves by itself, with no option to go on at once."""

    def __init__(self, error=None):
        self.error = error

    def to(self, device):
        if self.error is not None:
            raise self.error
        return f"on {device}"


def test_batches_come_in_order_wherever_they_were_asked_for():
    source = Source([{"own": Own()}, torch.arange(2), [torch.arange(3), "name"]])
    stream = WaitedCopies(source, CPU)

    assert next(stream) == {"own": "on cpu"}
    assert stream.queue().num_asked == 2
    assert stream.next_if_ready()[0].tolist() == [0, 1]
    assert next(stream)[1] == "name"
    assert stream.next_if_ready() == []
    assert next(stream, None) is None
    stream.close()
    assert source.is_closed


def test_a_batch_that_cannot_be_copied_is_lost_alone():
    stream = WaitedCopies(Source([Own(KeyError("label")), torch.arange(2)]), CPU)

    with pytest.raises(LostBatchError) as lost:
        next(stream)

    assert isinstance(lost.value.reason, KeyError)
    assert next(stream).tolist() == [0, 1]


def test_all_ways_to_a_device_do_without_streams_where_there_are_none():
    keeper = StandbyKeeper()
    streams = [
        copied_to(Source([]), APPLES),
        copied_ahead(Source([]), APPLES, 2, keeper.lend()),
        copied_ahead_and_cut(Source([]), APPLES, 2, keeper.lend(), lambda: None),
    ]

    assert [next(stream, "over") for stream in streams] == ["over"] * 3
    for stream in streams:
        stream.close()
    keeper.close()


@pytest.mark.parametrize("num_workers", [0, 1])
@pytest.mark.parametrize("is_batched", [False, True], ids=["samples", "batches"])
def test_a_loader_gives_batches_on_such_a_device(monkeypatch, num_workers, is_batched):
    class Moved(torch.Tensor):
        pass

    def to(self, device, **options):
        assert device == APPLES
        assert options == {"non_blocking": False}
        return self.clone().as_subclass(Moved)

    monkeypatch.setattr(torch, "mps", SimpleNamespace(device_count=lambda: 1))
    monkeypatch.setattr(torch.Tensor, "to", to)
    _staging._module_of.cache_clear()
    data = torch.arange(12) if is_batched else list(range(12))
    loader = FastLoader(data, 4, num_workers=num_workers, device="mps")

    batches = [batch for _ in range(2) for batch in loader]

    assert torch.cat(batches).tolist() == [*range(12)] * 2
    assert {type(batch) for batch in batches} == {Moved}
    _staging._module_of.cache_clear()
