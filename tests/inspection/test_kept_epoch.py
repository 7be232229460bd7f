"""Where an object keeps the number of its epoch is read off its code."""

import pytest

from fastloader.inspection._kept_epoch import attribute_of_epoch


class Plain:
    def set_epoch(self, epoch):
        self.turn = epoch


class Whole:
    def set_epoch(self, number: int) -> None:
        if number < 0:
            raise ValueError(number)
        self.shift = self.base + number
        self.turn = int(number)


class Inherits(Plain):
    pass


class Computes:
    def set_epoch(self, epoch):
        self.half = epoch // 2
        self.kept = max(0, epoch)
        self.base = self.base
        self.own = self.of(epoch)
        self.some = 0 if self.own else epoch


class Seeded:
    def set_epoch(self, epoch):
        self.base_seed = epoch


class Forwards:
    def set_epoch(self, epoch):
        self.sampler.set_epoch(epoch)


class Any:
    def set_epoch(self, *epoch):
        self.turn = epoch


class Foreign:
    set_epoch = print


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (Plain, "turn"),
        (Whole, "turn"),
        (Inherits, "turn"),
        *((kind, None) for kind in (Computes, Seeded, Forwards, Any, Foreign, object)),
    ],
)
def test_only_the_number_itself_counts(kind, name):
    assert attribute_of_epoch(kind) == name
