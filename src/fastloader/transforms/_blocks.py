"""Blocks of a batch, small enough that what is computed on the way stays in the cache."""

from collections.abc import Callable, Iterator

import torch

from fastloader.threads._crew import share_out
from fastloader.threads._openmp import without_openmp

__all__ = ["COSTLY_PART_VALUES", "PART_VALUES", "blocks", "num_at_once", "work_through"]

_BLOCK_VALUES = 262_144  # temporaries of one megabyte stay in the cache of a core
# Values for each thread, at least, as starting it takes a tenth of a millisecond: of work that
# reads and writes them, and of work that computes for longer than that.
PART_VALUES = 1 << 20
COSTLY_PART_VALUES = 1 << 18
_SERIAL_VALUES = 32_768  # up to so many, torch uses one thread
# Each call of NumPy or torch needs the interpreter twice, and threads that wait for it are woken
# one after the other: on 16 cores, nearly all batches took longer with six threads than with three,
# and with 16 than with one.
_MOST_PARTS = 3


def num_at_once(images: torch.Tensor, num_values: int | None = None) -> int:
    """Return how many images make a block; on an accelerator all do.

    Args:
        images: Shape ``(N, C, H, W)``.
        num_values: Values of a block; None: as many as stay in the cache of a core.
    """
    if images.device.type != "cpu":
        return max(1, len(images))
    return max(1, (num_values or _BLOCK_VALUES) // max(1, images[:1].numel()))


def blocks(
    images: torch.Tensor, part: slice = slice(None), num_values: int | None = None
) -> Iterator[slice]:
    """Yield which images make each block, in order.

    Args:
        images: Shape ``(N, C, H, W)``.
        part: Which of them to divide.
        num_values: Values of a block, as for `num_at_once`.
    """
    start, end, _ = part.indices(len(images))
    step = num_at_once(images, num_values)
    for first in range(start, end, step):
        yield slice(first, min(first + step, end))


def work_through(
    images: torch.Tensor, work: Callable[[slice], None], part_values: int | None = PART_VALUES
) -> None:
    """Do some work for all images, in up to three threads if there are many.

    Never more than torch may use, but not torch's own, which spin while they wait for each other:
    see `without_openmp`.

    Args:
        images: Shape ``(N, C, H, W)``.
        work: Gets which images it is for; within it torch uses one thread.
        part_values: Values that are enough work to start a thread for; None: no work of this kind.
    """
    num_threads = min(torch.get_num_threads(), _MOST_PARTS)
    is_small = images.numel() <= _SERIAL_VALUES
    if images.device.type != "cpu" or num_threads == 1 or is_small:
        work(slice(0, len(images)))
        return

    def work_alone(first: int, end: int) -> None:
        with without_openmp():
            work(slice(first, end))

    num_parts = min(num_threads, images.numel() // (part_values or images.numel()), len(images))
    share_out(len(images), max(1, num_parts), work_alone)
