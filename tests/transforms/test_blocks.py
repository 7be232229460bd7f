"""Work shared out over threads: all of it is done, once, and torch starts no threads in it."""

import threading

import pytest
import torch

from fastloader.threads._crew import Crew, working_with
from fastloader.transforms import (
    Cutout,
    Draws,
    GaussianBlur,
    GaussianNoise,
    RandomCrop,
    RandomFlip,
    RandomGamma,
    RandomQuarterTurn,
    RandomResizedCrop,
    RandomScale,
)
from fastloader.transforms._blocks import blocks, work_through


@pytest.fixture
def two_threads():
    number = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(number)


@pytest.mark.parametrize("crew", [None, Crew(1)], ids=["own", "lent"])
def test_each_image_has_its_turn_in_some_thread(two_threads, crew):
    images, seen = torch.zeros(65, 1, 256, 256), []

    def work(part):
        seen.append((part, torch.get_num_threads(), threading.current_thread()))

    with working_with(crew):
        work_through(images, work)
    if crew is not None:
        crew.close()

    assert sorted(n for part, _, _ in seen for n in range(65)[part]) == list(range(65))
    assert {number for _, number, _ in seen} == {1}
    assert len(seen) == 2
    assert torch.get_num_threads() == 2


@pytest.mark.parametrize(("part_values", "expected"), [(1, 3), (None, 1)])
def test_more_threads_than_the_interpreter_can_serve_are_not_used(part_values, expected):
    number = torch.get_num_threads()
    torch.set_num_threads(16)
    seen = []
    try:
        work_through(
            torch.zeros(65, 1, 256, 256),
            lambda _part: seen.append(torch.get_num_threads()),
            part_values,
        )
    finally:
        torch.set_num_threads(number)

    assert seen == [1] * expected


def test_blocks_of_a_part_divide_that_part():
    images = torch.zeros(100, 1, 128, 128)

    found = list(blocks(images, slice(30, 90)))

    assert [n for block in found for n in range(100)[block]] == list(range(30, 90))
    assert len(found) > 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.uint16], ids=str)
@pytest.mark.parametrize(
    "transform",
    [
        RandomFlip(),
        RandomQuarterTurn(),
        RandomCrop(120, padding=20),
        RandomResizedCrop(60),
        GaussianBlur(),
        RandomScale(),
        RandomGamma(),
        GaussianNoise(5.0),
        Cutout(fill="mean"),
    ],
    ids=repr,
)
def test_several_threads_give_the_bits_of_one(two_threads, transform, dtype):
    images = (torch.rand(70, 2, 128, 128) * 200).to(dtype)
    draws = Draws.of(1, 2, range(70))
    several = transform.batch(images, Draws(draws.keys))
    torch.set_num_threads(1)

    one = transform.batch(images, Draws(draws.keys))

    assert torch.equal(several, one)
