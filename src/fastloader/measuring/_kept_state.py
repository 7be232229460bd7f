"""Models, optimizers and generators put back to what they were."""

import copy
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch

from fastloader._torch_internals import forget_scaled_step, registered_tensors
from fastloader.errors import SettingsError
from fastloader.sampling._random_states import capture_globals, drawing_from
from fastloader.stages import map_tensors
from fastloader.typing import Stateful

__all__ = ["forget_unfinished_step", "keeping_state"]


@contextmanager
def keeping_state(subjects: Sequence[Stateful]) -> Iterator[None]:
    """Put everything back to what it was when the block is left, also by an error.

    Kept are the states of the subjects, gradients, buffers, modes and other attributes of modules,
    which tensors these are and whether they are trained, and the generators of Python, NumPy and
    torch, those of devices included. The copies lie in host memory, so that they take no room of what
    is measured.

    Args:
        subjects: Modules, optimizers, schedulers, gradient scalers.

    Raises:
        SettingsError: If a module is lazy and has not run.
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
    groups = getattr(subject, "param_groups", [])
    num_groups = len(groups)
    try:
        yield
    finally:
        del groups[num_groups:]  # an optimizer loads no state of fewer
        subject.load_state_dict(state)


@contextmanager
def _keeping_module(module: torch.nn.Module) -> Iterator[None]:
    parts = [*module.modules()]
    tables = [dict(table) for part in parts for table in registered_tensors(part)]
    found = {
        id(tensor): tensor
        for table in tables
        for tensor in table.values()
        if tensor is not None
    }
    if any(torch.nn.parameter.is_lazy(tensor) for tensor in found.values()):
        raise SettingsError(
            "keep has a lazy module that does not know its sizes yet, so it cannot be put back: run "
            "the model once before."
        )
    kept = [
        (one, one.requires_grad, one.device, _on_host(one.detach()), _on_host(one.grad))
        for one in found.values()
    ]
    modes = [(part, part.training) for part in parts]
    attributes = [(vars(part), dict(vars(part))) for part in parts]
    containers = [
        (value, copy.copy(value))
        for _, before in attributes
        for value in before.values()
        if type(value) in _CONTAINERS
    ]
    try:
        yield
    finally:
        # A step may have put other tensors in their places, or count what it has done.
        for now, before in (*attributes, *containers):
            _refill(now, before)
        with torch.no_grad():
            for tensor, is_trained, device, value, gradient in kept:
                tensor.requires_grad_(is_trained)
                if (tensor.dtype, tensor.device) == (value.dtype, device):
                    tensor.copy_(value)
                else:
                    tensor.data = value.to(device)
                tensor.grad = None if gradient is None else gradient.to(device)
        for part, is_training in modes:
            part.training = is_training


_CONTAINERS = {dict, OrderedDict, list, set}


def _refill(container: Any, before: Any) -> None:
    """Let a container have the contents that it had, and stay the same object."""
    container.clear()
    if isinstance(container, list):
        container.extend(before)
    else:
        container.update(before)


def _on_host(state: Any) -> Any:
    return map_tensors(state, lambda tensor: tensor.detach().to("cpu", copy=True))
