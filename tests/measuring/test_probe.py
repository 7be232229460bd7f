"""What samples cost is told apart from what others on the machine do."""

import pytest

from fastloader.machine._busy_clock import ThreadTime
from fastloader.measuring._probe import _Part, _summed


def part_of(*, wall, ran, queued):
    return _Part(
        indices=[0, 1],
        own_seconds=[0.01, 0.01],
        wall_seconds=wall,
        cpu_seconds=ran,
        threads={1: ThreadTime(ran, queued)},
        collate_seconds=0.0,
        transform_seconds=0.0,
    )


@pytest.mark.parametrize(
    ("part", "share"),
    [
        (part_of(wall=0.1, ran=0.1, queued=0.0), 1.0),
        (part_of(wall=0.4, ran=0.1, queued=0.3), 1.0),
        (part_of(wall=0.1, ran=0.01, queued=0.0), 0.1),
        (part_of(wall=0.4, ran=0.01, queued=0.3), 0.1),
    ],
    ids=["computes", "computes, crowded", "waits", "waits, crowded"],
)
def test_to_stand_in_line_for_a_core_is_neither_computing_nor_waiting(part, share):
    assert _summed([part], 0.0).computing_share == pytest.approx(share)
