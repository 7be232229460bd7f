"""The largest batch size whose step has run."""

import logging
from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import Any

import torch
import torch.distributed

from fastloader._notes import add_note
from fastloader.errors import BatchSizeError, SettingsError
from fastloader.measuring._kept_state import forget_unfinished_step, keeping_state
from fastloader.measuring._out_of_memory import free_memory, is_out_of_memory
from fastloader.settings._given import as_count, check_callable
from fastloader.typing import Stateful

__all__ = ["find_batch_size"]

logger = logging.getLogger("fastloader")

RUNS = 2
"""Of each size: an optimizer makes its state in the first step, and needs it in the second."""


class _Outcome(IntEnum):
    RAN = 0
    OUT_OF_MEMORY = 1
    FAILED = 2


def find_batch_size(
    step: Callable[[int], Any],
    *,
    keep: Sequence[Stateful] = (),
    smallest: int = 1,
    largest: int = 4096,
    multiple_of: int = 1,
) -> int:
    """Return the largest batch size with which a training step fits into memory.

    Sizes are doubled until memory runs out, then the gap is halved. Each is run twice, since
    an optimizer takes its memory in the first step. Only a size that has run is returned.

    With several ranks (`torch.distributed`), all try the same sizes, within the bounds of all, and go
    on only if all ranks had room, so that they return the same number. The step must not wait for other ranks: give it
    the bare model, not one wrapped in `DistributedDataParallel`.

    On the CPU, systems tend to end the process instead of refusing memory: choose `largest` so
    that it surely fits.

    Args:
        step: Does what a training step does with a batch of the size that it is given: forward,
            loss, backward, ``optimizer.step()``.
        keep: Model, optimizer, scheduler, gradient scaler: whatever the step changes. They are put
            back to what they were, with their gradients, and so are the global random generators.
        smallest: Size to begin with.
        largest: Where to stop.
        multiple_of: Sizes are multiples of this number; 8 suits matrix units.

    Raises:
        SettingsError: If the bounds leave no size, or an argument is of the wrong kind.
        BatchSizeError: If not even the smallest size fits.
        RuntimeError: If the step failed on another rank.

    Examples:
        >>> model = torch.nn.Linear(4, 1)
        >>> optimizer = torch.optim.SGD(model.parameters(), 0.1)
        >>> def step(batch_size):
        ...     optimizer.zero_grad()
        ...     model(torch.zeros(batch_size, 4)).sum().backward()
        ...     optimizer.step()
        >>> find_batch_size(step, keep=[model, optimizer], largest=64)
        64
    """
    check_callable("step", step)
    _check_kept(keep)
    smallest, largest = as_count("smallest", smallest), as_count("largest", largest)
    multiple_of = as_count("multiple_of", multiple_of)
    for name, number in (("smallest", smallest), ("multiple_of", multiple_of)):
        if number < 1:
            raise SettingsError(f"{name} must be 1 or more, but got {number}.")
    low, high = -(-smallest // multiple_of), largest // multiple_of
    low, high = _most_of_ranks(low), -_most_of_ranks(-high)
    if low > high:
        raise SettingsError(
            f"No batch size is a multiple of {multiple_of} from {smallest} to {largest}."
        )
    with keeping_state(keep):
        found = _search(lambda units: _fits(step, keep, units * multiple_of), low, high)
    if found is None:
        raise BatchSizeError(
            f"Not even a batch of {low * multiple_of} fits into memory: lower smallest, or make "
            "model or samples smaller."
        )
    return found * multiple_of


def _check_kept(keep: object) -> None:
    if not isinstance(keep, Sequence) or not all(isinstance(one, Stateful) for one in keep):
        raise SettingsError(
            "keep should be a list of models, optimizers and the like, which have state_dict and "
            f"load_state_dict, but got {keep!r}."
        )


def _search(fits: Callable[[int], bool], low: int, high: int) -> int | None:
    """Return the largest number found to fit, from `low` to `high`; None if `low` does not."""
    if not fits(low):
        return None
    best, limit = low, high + 1  # the smallest that is not to be tried
    while best < high:
        size = min(2 * best, high)
        if not fits(size):
            limit = size
            break
        best = size
    while limit - best > 1:
        size = (best + limit) // 2
        if fits(size):
            best = size
        else:
            limit = size
    return best


def _fits(step: Callable[[int], Any], keep: Sequence[Stateful], size: int) -> bool:
    """Run the step, and return whether all ranks had room for it.

    What it has left half done in the subjects to `keep`, so that another one would fail, is undone.

    Raises:
        RuntimeError: If it failed on another rank.
    """
    outcome, failure = _Outcome.RAN, None
    try:
        for _ in range(RUNS):
            step(size)
        if torch.accelerator.is_available():
            torch.accelerator.synchronize()  # errors of what was queued come here
    except Exception as error:  # noqa: BLE001 - raised below, once the other ranks know
        if is_out_of_memory(error):
            outcome = _Outcome.OUT_OF_MEMORY
        else:
            add_note(error, f"Raised by the step for a batch of {size}.")
            outcome, failure = _Outcome.FAILED, error
    # Not in the handler, where the error holds the frames, and they what filled the memory.
    if outcome is not _Outcome.RAN or torch.accelerator.is_available():
        free_memory()
    if outcome is not _Outcome.RAN:
        forget_unfinished_step(keep)
    worst = _Outcome(_most_of_ranks(outcome))
    if failure is not None:
        raise failure
    if worst is _Outcome.FAILED:
        raise RuntimeError(f"The step for a batch of {size} failed on another rank.")
    logger.debug("A batch of %d: %s.", size, worst.name.lower().replace("_", " "))
    return worst is _Outcome.RAN


def _most_of_ranks(number: int) -> int:
    """Return the greatest of the numbers that the ranks have; each must call this."""
    distributed = torch.distributed
    if not (distributed.is_available() and distributed.is_initialized()):
        return number
    device = "cpu"
    if distributed.get_backend() == "nccl":
        device = f"cuda:{torch.cuda.current_device()}"
    most = torch.tensor(number, device=device)
    distributed.all_reduce(most, op=distributed.ReduceOp.MAX)
    return int(most.item())
