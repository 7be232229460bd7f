"""Ctrl-C wherever Python looks for signals within one call for a batch: no sample is lost or doubled."""

import dis
import functools
import signal
import sys

import pytest
import torch
from torch.utils.data import IterableDataset, TensorDataset

from fastloader import FastLoader
from fastloader.engine import Place
from fastloader.randomness._seeding import current_draw_scope
from fastloader.tensors import _buffers
from fastloader.threads._crew import current_crew
from tests.engine.test_placed_run import Moving
from tests.resume.datasets import Numbers

LENGTH = 24
INTERRUPTED = 4  # calls for batches, of twelve, before the one
OURS = ("/fastloader/", "/threading.py", "/concurrent/futures/", "/selectors.py")


pytestmark = pytest.mark.usefixtures("interruptible")


class Stream(IterableDataset):
    """Numbers from an iterator of C, which no signal ends, as it would a generator."""

    def __iter__(self):
        return map(torch.tensor, range(LENGTH))


class Order:
    """A sampler that is a generator of Python."""

    def __iter__(self):
        yield from range(LENGTH)

    def __len__(self):
        return LENGTH


def placed(place):
    loader = FastLoader(TensorDataset(torch.arange(LENGTH)), 2)
    loader._opener._placement = Moving(1, (place,))
    return loader


def resident(**options):
    loader = FastLoader(
        TensorDataset(torch.arange(LENGTH)), 2, num_workers=0, resident="device", **options
    )
    next(
        iter(loader)
    )  # tells how large batches are, of which it makes as many at once as it may
    return loader


LOADERS = {
    "here": lambda: FastLoader(Numbers(LENGTH), 2, num_workers=0),
    "here, transformed": lambda: FastLoader(
        Numbers(LENGTH), 2, num_workers=0, batch_transform=abs, device_transform=abs
    ),
    "here, single samples": lambda: FastLoader(Numbers(LENGTH), None, num_workers=0),
    "here, own sampler": lambda: FastLoader(Numbers(LENGTH), 2, num_workers=0, sampler=Order()),
    "here, stream": lambda: FastLoader(Stream(), 2, num_workers=0),
    "here, stream of single samples": lambda: FastLoader(Stream(), None, num_workers=0),
    "tensors": lambda: FastLoader(TensorDataset(torch.arange(LENGTH)), 2, num_workers=0),
    "tensors, by a thread": lambda: placed(Place.AHEAD),
    "resident, gathered": resident,
    "resident, cut": resident,
    "resident, ready": resident,
    "resident, transformed": lambda: resident(device_transform=lambda batch: batch),
    "automatic": lambda: FastLoader(Numbers(LENGTH), 2),
    "threads": lambda: FastLoader(Numbers(LENGTH), 2, num_workers=2, workers="threads"),
    "processes, own sampler": lambda: FastLoader(
        Numbers(LENGTH), 2, num_workers=2, sampler=Order()
    ),
}


FIRST_OF = {
    "resident, gathered": "fastloader.engine._merged.MOST_MERGED",
    "resident, transformed": "fastloader.engine._merged.MOST_MERGED",
    "resident, cut": "fastloader.stages._cut.CUT_AT_ONCE",
}
"""How many batches are made at once, so that the one whose call is interrupted is the first of others."""


@functools.cache
def places_of(code):
    """Return the offsets of the instructions before which Python may look for signals."""
    found, before = set(), None
    for instruction in dis.get_instructions(code):
        if before in {"CALL", "CALL_KW", "CALL_FUNCTION_EX", "JUMP_BACKWARD", "RESUME"}:
            found.add(instruction.offset)
        before = instruction.opname
    return found


class Interrupter:
    """Traces a call, and interrupts it at one of its places.

    Args:
        number: Of the place, from 1.
    """

    def __init__(self, number):
        self.num_left = number

    def __enter__(self):
        sys.settrace(self.enter)

    def __exit__(self, *error):
        sys.settrace(None)

    def enter(self, frame, event, argument):
        if not any(part in frame.f_code.co_filename for part in OURS):
            return None
        frame.f_trace_lines, frame.f_trace_opcodes = False, True
        return self.step

    def step(self, frame, event, argument):
        if event == "opcode" and frame.f_lasti in places_of(frame.f_code):
            self.num_left -= 1
            if self.num_left == 0:
                signal.raise_signal(signal.SIGINT)
        return self.step


def read_interrupted(loader, number):
    """Return the samples of a pass, and whether there was such a place."""
    iterator, interrupter = iter(loader), Interrupter(number)
    read = [next(iterator) for _ in range(INTERRUPTED)]
    try:
        with interrupter:
            batch = next(iterator)
        read.append(batch)
    except KeyboardInterrupt:
        left = current_draw_scope(), _buffers._current.allocator, current_crew()
        assert left == (None, None, None), number
    read.extend(iterator)
    flat = [part for batch in read for part in (batch if type(batch) is list else [batch])]
    return torch.cat([
        torch.as_tensor(part).reshape(-1) for part in flat
    ]).tolist(), interrupter.num_left <= 0


@pytest.mark.multiprocess
@pytest.mark.skipif(sys.gettrace() is not None, reason="something else traces")
@pytest.mark.parametrize("name", LOADERS)
def test_an_interrupt_anywhere_in_a_call_for_a_batch_loses_none(name, request, monkeypatch):
    if name.startswith("resident"):
        request.getfixturevalue("resident_here")
    if name in FIRST_OF:
        monkeypatch.setattr(FIRST_OF[name], INTERRUPTED)
    loader, number, was_interrupted = LOADERS[name](), 0, True
    while was_interrupted:
        number += 1
        read, was_interrupted = read_interrupted(loader, number)

        assert read == list(range(LENGTH)), number
    assert number > (3 if name == "resident, ready" else 30)


def test_a_generator_that_was_interrupted_is_no_end_of_the_data():
    class Interrupted(IterableDataset):
        def __iter__(self):
            yield 0
            signal.raise_signal(signal.SIGINT)
            yield 1

    iterator = iter(FastLoader(Interrupted(), 1, num_workers=0))
    next(iterator)
    with pytest.raises(KeyboardInterrupt):
        next(iterator)

    with pytest.raises(RuntimeError, match=r"begin another epoch"):
        next(iterator)
