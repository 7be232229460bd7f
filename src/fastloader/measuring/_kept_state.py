"""Models, optimizers and generators put back to what they were."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch

from fastloader._torch_internals import forget_scaled_step, registered_tensors
from fastloader.sampling._random_states import capture_globals, drawing_from
from fastloader.stages import map_tensors
from fastloader.typing import Stateful

__all__ = ["forget_unfinished_step", "keeping_state"]


@contextmanager
def keeping_state(subjects: Sequence[Stateful]) -> Iterator[None]:
    """Put everything back to what it was when the block is left, also by an error.

    Kept are the states of the subjects, gradients, buffers and modes of modules, which tensors these
    are and whether they are trained, and the generators of Python, NumPy and torch, those of devices included. The copies lie in host
    memory, so that they take no room of what is measured.

    Args:
        subjects: Modules, optimizers, schedulers, gradient scalers.
    """
    with ExitStack() as stack:
        stack.enter_context(drawing_from(capture_globals(all_libraries=True)))
        if torch.accelerator.is_available():
            device = torch.accelerator.current_accelerator()
            assert device is not None  # noqa: S101 - there is one
            count = torch.accelerator.device_count()
            stack.enter_context(
                torch.random.fork_rng(devices=range(count), device_type=device.type)
            )
        # Modules last, so that they are put back first: an optimizer's state follows them.
        for subject in subjects:
            if isinstance(subject, torch.nn.Module):
                stack.enter_context(_keeping_module(subject))
            else:
                stack.enter_context(_keeping_stateful(subject))
        yield


def forget_unfinished_step(subjects: Sequence[Stateful]) -> None:
    """Let the next step begin as if the last one, which an error has ended, had not been.

    Args:
        subjects: As for `keeping_state`; it matters to gradient scalers.
    """
    for subject in subjects:
        if isinstance(subject, torch.amp.GradScaler):
            forget_scaled_step(subject)


@contextmanager
def _keeping_stateful(subject: Stateful) -> Iterator[None]:
    state = _on_host(subject.state_dict())
    try:
        yield
    finally:
        subject.load_state_dict(state)


@contextmanager
def _keeping_module(module: torch.nn.Module) -> Iterator[None]:
    parts = [*module.modules()]
    tables = [(table, dict(table)) for part in parts for table in registered_tensors(part)]
    found = {
        id(tensor): tensor
        for _, before in tables
        for tensor in before.values()
        if tensor is not None
    }
    kept = [
        (one, one.requires_grad, _on_host(one.detach()), _on_host(one.grad))
        for one in found.values()
    ]
    modes = [(part, part.training) for part in parts]
    try:
        yield
    finally:
        # A step may have put other tensors in their places.
        for table, before in tables:
            table.clear()
            table.update(before)
        with torch.no_grad():
            for tensor, is_trained, value, gradient in kept:
                tensor.requires_grad_(is_trained)
                tensor.copy_(value)
                tensor.grad = None if gradient is None else gradient.to(tensor.device)
        for part, is_training in modes:
            part.training = is_training


def _on_host(state: Any) -> Any:
    return map_tensors(state, lambda tensor: tensor.detach().to("cpu", copy=True))
