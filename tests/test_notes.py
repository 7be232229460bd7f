"""Exceptions of whatever class get notes, which are shown, and leave blocks as they are."""

import traceback
from dataclasses import dataclass

import pytest
import torch

from fastloader import FastLoader
from fastloader._notes import add_note, user_block
from fastloader.datasets import Augment, MixedDataset


@dataclass(frozen=True)
class FrozenError(Exception):
    """Lets nobody set an attribute."""

    plate: int


@pytest.mark.parametrize("error", [ValueError("text"), FrozenError(7)], ids=["plain", "frozen"])
def test_notes_are_shown_in_their_order(error):
    add_note(error, "first")
    add_note(error, "second")

    assert traceback.format_exception_only(error)[1:] == ["first\n", "second\n"]


def test_notes_of_a_caller_are_kept():
    error = ValueError("text")
    error.add_note("of the caller")

    add_note(error, "ours")

    assert error.__notes__ == ["of the caller", "ours"]


class Frozen:
    """Raises for its sixth sample."""

    def __len__(self):
        return 8

    def __getitem__(self, index):
        if index == 5:
            raise FrozenError(index)
        return index


@pytest.mark.parametrize(
    "options",
    [{"num_workers": 0}, {"num_workers": 1}, {"num_workers": 1, "workers": "threads"}],
    ids=["here", "worker", "thread"],
)
def test_an_error_that_lets_nobody_set_an_attribute_is_raised_and_names_the_sample(options):
    with pytest.raises(FrozenError) as caught:
        list(FastLoader(Frozen(), batch_size=4, **options))

    assert caught.value.plate == 5
    assert "sample at index 5" in caught.value.__notes__[0]


class FrozenAtStart(Frozen):
    """Raises when a worker loads it, and tells which epoch begins."""

    def __setstate__(self, state):
        raise FrozenError(3)

    def set_epoch(self, epoch):
        """Make passes over it wait for each other."""


def refuse(image):
    raise FrozenError(7)


@pytest.mark.parametrize(
    ("dataset", "options"),
    [
        (FrozenAtStart(), {"num_workers": 1, "multiprocessing_context": "forkserver"}),
        (MixedDataset({"good": Frozen(), "bad": FrozenAtStart()}), {"num_workers": 0}),
        (Augment(list(torch.ones(2, 1, 4, 4)), [refuse], global_rng=True), {"num_workers": 0}),
    ],
    ids=["loaded", "mixed", "transformed"],
)
def test_an_error_that_lets_nobody_set_an_attribute_passes_through_all_that_runs_the_users_code(
    dataset, options
):
    with pytest.raises(FrozenError):
        list(FastLoader(dataset, **options))


@user_block
def traced(steps):
    steps.append("in")
    try:
        yield "value"
    finally:
        steps.append("out")


def test_a_block_is_entered_and_left():
    steps = []
    with traced(steps) as value:
        steps.append(value)

    assert steps == ["in", "value", "out"]


@pytest.mark.parametrize(
    "error",
    [FrozenError(1), StopIteration(2), KeyboardInterrupt()],
    ids=["frozen", "stop", "interrupt"],
)
def test_a_block_is_left_with_the_error_that_was_raised_in_it(error):
    steps = []
    with pytest.raises(type(error)) as caught, traced(steps):
        raise error

    assert steps == ["in", "out"]
    assert caught.value is error


def test_what_a_block_raises_in_place_of_an_error_is_raised():
    @user_block
    def translating():
        try:
            yield
        except KeyError as error:
            raise LookupError("translated") from error

    with pytest.raises(LookupError, match="translated"), translating():
        raise KeyError("text")
