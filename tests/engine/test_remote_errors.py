"""Errors arrive with their type, their message and where they were raised."""

import errno
from dataclasses import dataclass

import pytest

from fastloader.engine._remote_errors import pack_error, unpack_error


class PickyError(Exception):
    """Wants two arguments that `args` does not hold."""

    def __init__(self, path, line):
        super().__init__(f"{path}:{line}")
        self.path = path
        self.line = line


class SilentError(Exception):
    """Cannot even be told."""

    def __str__(self):
        raise ValueError("no text")


class KeywordError(Exception):
    """Cannot be made of `args` at all."""

    def __new__(cls, *args, plate):
        return super().__new__(cls, *args)

    def __init__(self, *args, plate):
        super().__init__(f"no plate {plate}")
        self.plate = plate


class SlottedError(Exception):
    """Has an attribute that is not pickled with an exception."""

    __slots__ = ("plate",)

    def __init__(self, plate):
        super().__init__("no such plate")
        self.plate = plate


class MissingScanError(FileNotFoundError):
    """Its class makes more of the arguments than it keeps, and wants others."""

    def __init__(self, path):
        super().__init__(errno.ENOENT, "no such scan", path)


class LabelError(UnicodeDecodeError):
    """The same, of another class."""

    def __init__(self, data):
        super().__init__("utf-8", data, 0, 1, "no label")


@dataclass(frozen=True)
class FrozenError(Exception):
    """Lets nobody set an attribute."""

    plate: int


class HandleError(Exception):
    """Holds what cannot be pickled."""

    def __init__(self, text):
        super().__init__(text, lambda: None)


def arrived(error):
    try:
        fail_with(error)
    except type(error) as caught:
        return unpack_error(pack_error(caught), "worker 3, batch 7")


def fail_with(error):
    raise error


@pytest.mark.parametrize(
    "error",
    [
        KeyError("label"),
        FileNotFoundError(2, "No such file", "cells.tif"),
        UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte"),
        MissingScanError("cells.tif"),
        LabelError(b"\xff"),
        PickyError("cells.csv", 12),
        KeywordError(plate=7),
        SlottedError(7),
        FrozenError(7),
    ],
    ids=lambda error: type(error).__name__,
)
def test_type_and_message_are_kept(error):
    again = arrived(error)

    assert type(again) is type(error)
    assert str(again) == str(error)


def test_attributes_are_kept():
    again = arrived(PickyError("cells.csv", 12))

    assert (again.path, again.line) == ("cells.csv", 12)


@pytest.mark.parametrize(
    "error",
    [KeywordError(plate=7), SlottedError(7), FrozenError(7)],
    ids=lambda e: type(e).__name__,
)
def test_attributes_are_kept_however_they_are_held(error):
    assert arrived(error).plate == 7


def test_what_a_built_in_class_knows_is_kept():
    again = arrived(MissingScanError("cells.tif"))

    assert (again.errno, again.filename) == (errno.ENOENT, "cells.tif")
    assert arrived(NameError("unknown", name="plate")).name == "plate"


def test_the_object_that_was_asked_for_an_attribute_stays_where_it_is():
    again = arrived(AttributeError("no plate", name="plate", obj=lambda: None))

    assert (again.name, again.obj) == ("plate", None)


def test_attributes_in_slots_that_cannot_be_pickled_are_left_out():
    error = SlottedError(lambda: None)

    again = arrived(error)

    assert type(again) is SlottedError
    assert not hasattr(again, "plate")


@pytest.mark.parametrize("error", [KeyError("label"), FrozenError(7)], ids=["plain", "frozen"])
def test_the_traceback_and_the_place_are_noted(error):
    (note,) = arrived(error).__notes__

    assert "worker 3, batch 7" in note
    assert "raise error" in note


def test_an_error_that_holds_what_cannot_be_pickled_arrives_with_that_as_text():
    again = arrived(HandleError("disk gone"))

    assert type(again) is HandleError
    assert "disk gone" in str(again)


def local_class():
    class MissingPlateError(FileNotFoundError):
        """Not to be found in any module."""

        def __init__(self, *, number):
            super().__init__(f"no plate {number}")
            self.number = number

    return MissingPlateError


def test_an_error_of_a_local_class_arrives_as_such_where_it_is_known():
    kind = local_class()

    again = arrived(kind(number=7))

    assert type(again) is kind
    assert str(again) == "no plate 7"
    assert again.number == 7


def test_an_error_of_a_class_that_is_not_known_arrives_as_what_it_inherits_from():
    one, other = local_class(), local_class()  # nobody can tell which
    error = one(number=7)
    error.add_note("Raised at index 3.")

    again = arrived(error)

    assert other is not one
    assert type(again) is FileNotFoundError
    assert str(again) == "MissingPlateError: no plate 7"
    assert again.__notes__[0] == "Raised at index 3."


def test_an_error_without_a_message_of_its_own_arrives():
    again = arrived(SilentError("disk gone"))

    assert type(again) is SilentError
