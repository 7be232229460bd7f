"""The states of the generators that an order is drawn from, to draw the same order again."""

import base64
import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

__all__ = [
    "RandomStates",
    "as_saved",
    "capture_globals",
    "capture_own",
    "drawing_from",
    "restore_own",
]

RandomStates = dict[str, Any]
"""State of each generator by name: as it was captured, or `as_saved`."""


def capture_own(generators: Mapping[str, torch.Generator]) -> RandomStates:
    """Return the states of generators that belong to a loader and its samplers.

    Args:
        generators: By names that are the same in a loader made alike.
    """
    return {name: generator.get_state() for name, generator in generators.items()}


def as_saved(states: RandomStates | None) -> RandomStates | None:
    """Return captured states made of strings, numbers and lists, so they can be saved as JSON.

    Few epochs are saved, and to encode a state takes longer than to capture it.
    """
    if states is None:
        return None
    return {
        name: _encode(state) if isinstance(state, torch.Tensor) else state
        for name, state in states.items()
    }


def restore_own(generators: Mapping[str, torch.Generator], states: RandomStates) -> None:
    """Put generators back to a captured state.

    Args:
        generators: By the names they were captured with; others are left alone.
        states: From `capture_own`.
    """
    for name, generator in generators.items():
        if name in states:
            generator.set_state(_decode(states[name]))


def capture_globals(*, all_libraries: bool) -> RandomStates:
    """Return the states of the global generators.

    Args:
        all_libraries: Also those of Python and NumPy, which samplers of users may draw from;
            torch's own samplers do not.
    """
    states: RandomStates = {"torch": torch.get_rng_state()}
    if all_libraries:
        version, words, gauss = random.getstate()
        states["python"] = [version, list(words), gauss]
        name, keys, *rest = np.random.get_state(legacy=True)  # noqa: NPY002 - the global one
        if name == "MT19937":
            states["numpy"] = [name, np.asarray(keys).tolist(), *rest]
    return states


@contextmanager
def drawing_from(states: RandomStates | None) -> Iterator[None]:
    """Put the global generators into a captured state while the block runs.

    Args:
        states: From `capture_globals`; None leaves the generators as they are.
    """
    if states is None:
        yield
        return
    before = capture_globals(all_libraries=True)
    _restore_globals(states)
    try:
        yield
    finally:
        _restore_globals(before)


def _restore_globals(states: RandomStates) -> None:
    torch.set_rng_state(_decode(states["torch"]))
    if "python" in states:
        version, words, gauss = states["python"]
        random.setstate((version, tuple(words), gauss))
    if "numpy" in states:
        name, keys, *rest = states["numpy"]
        np.random.set_state((name, np.array(keys, dtype=np.uint32), *rest))  # noqa: NPY002


def _encode(state: torch.Tensor) -> str:
    return base64.b64encode(state.numpy().tobytes()).decode("ascii")


def _decode(state: torch.Tensor | str) -> torch.Tensor:
    if isinstance(state, torch.Tensor):
        return state
    return torch.frombuffer(bytearray(base64.b64decode(state)), dtype=torch.uint8)
