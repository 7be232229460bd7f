"""Notes are added to exceptions of whatever class, and shown."""

import traceback
from dataclasses import dataclass

import pytest

from fastloader import FastLoader
from fastloader._notes import add_note


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
