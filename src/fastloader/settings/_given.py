"""What the caller wrote and the environment says, in the form that settings are chosen from."""

import inspect
import warnings
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from multiprocessing.context import BaseContext
from operator import index
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader

from fastloader.errors import SettingsError
from fastloader.machine._environment import PROCESS_ENVIRONMENT
from fastloader.machine._machine import Machine
from fastloader.sampling._epoch_sampler import whole_number
from fastloader.settings._inputs import GivenOptions
from fastloader.settings._settings import Auto

__all__ = [
    "as_count",
    "as_epoch",
    "as_size",
    "check_callable",
    "check_callables",
    "check_current",
    "check_given",
    "check_known",
    "check_seconds",
    "check_seed",
    "check_words",
    "device_name",
    "read_override",
    "start_method_of",
    "warn_of_ignored",
    "warn_of_many_workers",
    "worker_options",
]


def check_seed(seed: int | str | None, generator: torch.Generator | None) -> None:
    """Refuse a seed that cannot be one, or one beside a generator.

    Raises:
        SettingsError: If the seed is out of range, the generator none, or if
            there are both.
    """
    if generator is not None and not isinstance(generator, torch.Generator):
        raise SettingsError(f"generator should be a torch.Generator, but got {generator!r}.")
    if seed is None:
        return
    if isinstance(seed, str):
        raise SettingsError(
            f"seed should be a whole number or None, but got {seed!r}: it is never chosen."
        )
    if generator is not None:
        raise SettingsError(
            "seed and generator both decide the order of samples: give one of them."
        )
    if not 0 <= seed < 2**64:
        raise SettingsError(f"seed must be from 0 to 2**64 - 1, but got {seed}.")


def as_count(name: str, value: Any) -> Any:
    """Return a whole number as an int, also one of NumPy or torch; None and "auto" as they are.

    Raises:
        SettingsError: If it is anything else.
    """
    if value is None or type(value) is int or (isinstance(value, str) and value == "auto"):
        return value
    try:
        return index(value)
    except TypeError:
        raise SettingsError(
            f"{name} should be a whole number (an integer value), but got {name}={value!r}."
        ) from None


def as_epoch(epoch: Any) -> int:
    """Return the number of an epoch as an int.

    Raises:
        SettingsError: If it is negative or no whole number.
    """
    number = whole_number("epoch", epoch)
    if number < 0:
        raise SettingsError(f"epoch must be 0 or more, but got {number}.")
    return number


def as_size(value: Any) -> Any:
    """Return a whole number of NumPy as an int; torch says what is wrong with anything but text.

    Raises:
        SettingsError: If it is text, which looks like a number in torch's words.
    """
    if isinstance(value, str):
        raise SettingsError(
            f"batch_size should be a positive integer value, but got batch_size={value!r}."
        )
    return int(value) if isinstance(value, np.integer) else value


def check_callable(name: str, value: object) -> None:
    """Refuse what cannot be called where a function is expected.

    Raises:
        SettingsError: If `value` is neither callable nor None.
    """
    if value is not None and not callable(value):
        raise SettingsError(f"{name} should be a function or None, but got {value!r}.")


def check_callables(**values: object) -> None:
    """Refuse any of several options that can be neither called nor left out.

    Raises:
        SettingsError: If one is neither callable nor None.
    """
    for name, value in values.items():
        if value is not None:
            check_callable(name, value)


def check_known(names: Iterable[str], options: Iterable[str]) -> None:
    """Refuse options that no loader has: torch's own would name itself for them.

    Args:
        names: Of options that are none of `FastLoader`.
        options: Those of `FastLoader`, one of which may be meant.

    Raises:
        TypeError: If torch's loader has one of the names neither.
    """
    for name in names:
        of_torch = inspect.signature(DataLoader.__init__).parameters
        takes_any = any(option.kind is option.VAR_KEYWORD for option in of_torch.values())
        if takes_any or name in of_torch:
            continue
        meant = get_close_matches(name, options, 1)
        raise TypeError(
            f"FastLoader.__init__() got an unexpected keyword argument {name!r}."
            + (f" Did you mean {meant[0]!r}?" if meant else "")
        )


def check_seconds(name: str, value: object) -> None:
    """Refuse what is no time.

    Raises:
        SettingsError: If `value` is negative or no number.
    """
    if not isinstance(value, int | float) or not value >= 0:
        raise SettingsError(f"{name} should be a number from 0 on, but got {value!r}.")


_WORDS: Mapping[str, tuple[str | bool | None, ...]] = {
    "pin_memory": (True, False, None, "auto"),
    "persistent_workers": (True, False, None, "auto"),
    "in_order": (True, False, "auto"),
    "workers": ("processes", "threads", "auto"),
    "transport": ("shared", "torch", "auto"),
    "resident": ("device", None),
    "on_error": ("raise", "skip"),
    "on_worker_death": ("raise", "restart"),
}
"""Options that take one of a few values."""


def check_words(**values: object) -> None:
    """Refuse any of several options that is not one of the few values it may have.

    Raises:
        SettingsError: If there is one.
    """
    for name, value in values.items():
        if value not in _WORDS[name]:
            expected = " or ".join(map(repr, _WORDS[name]))
            raise SettingsError(f"{name} should be {expected}, but got {value!r}.")


def device_name(device: torch.device | str | int | None) -> str | None:
    """Return a device as torch writes it.

    Raises:
        SettingsError: If torch knows none of that name.
    """
    if device is None:
        return None
    try:
        return str(torch.device(device))
    except (RuntimeError, TypeError) as error:
        words = str(error).partition("\n")[0]
        raise SettingsError(
            "device should be one that torch knows, such as 'cpu', 'cuda' or 'cuda:1', or None, "
            f"but got {device!r}: {words}"
        ) from error


def check_given(given: GivenOptions) -> None:
    """Refuse values that cannot work.

    Raises:
        SettingsError: If there are any.
    """
    names = ("pin_memory", "persistent_workers", "in_order", "workers", "transport")
    check_words(**{name: getattr(given, name) for name in names})
    counts = {"num_workers": given.num_workers, "prefetch_factor": given.prefetch_factor}
    written = {name: value for name, value in counts.items() if value != "auto"}
    _check_numbers(**written, timeout=given.timeout)
    context = given.multiprocessing_context
    if given.num_workers == 0 and context not in {"auto", None}:
        raise SettingsError(
            "multiprocessing_context can only be used with multi-process loading "
            f"(num_workers > 0), but got num_workers=0: leave {context!r} out, or set "
            "num_workers to 1 or more."
        )


def check_current(loader: Any) -> None:
    """Refuse options that were set after the loader was made, if they cannot work.

    Args:
        loader: For its options as they are now.

    Raises:
        SettingsError: If there are any.
    """
    names = "num_workers", "prefetch_factor"
    counts = {name: as_count(name, getattr(loader, name)) for name in names}
    for name, value in counts.items():
        if value == "auto":
            raise SettingsError(
                f"{name} is chosen where a loader is made, so it cannot be set to 'auto' later: set "
                "it to a number, or make another loader."
            )
    _check_numbers(**counts, timeout=loader.timeout)
    words = ("in_order", "workers", "transport", "resident", "on_error", "on_worker_death")
    check_words(**{name: getattr(loader, name) for name in words})


def _check_numbers(*, num_workers: Any = 0, prefetch_factor: Any = None, timeout: Any) -> None:
    """Refuse numbers of workers, of batches ahead and of seconds that cannot be.

    Raises:
        SettingsError: If there are any.
    """
    for name, value in (("num_workers", num_workers), ("timeout", timeout)):
        if not (isinstance(value, int | float) and value >= 0):
            raise SettingsError(f"{name} option should be non-negative, but got {value!r}.")
    if prefetch_factor is not None and prefetch_factor < 1:
        raise SettingsError(
            "prefetch_factor option should be non-negative and at least 1, because workers "
            f"only load what is asked for ahead, but got {prefetch_factor}."
        )


def worker_options(given: GivenOptions) -> tuple[str, ...]:
    """Name the options given that only matter with workers."""
    candidates = {
        "prefetch_factor": given.prefetch_factor not in {"auto", None},
        "persistent_workers": given.persistent_workers not in {"auto", False},
        "timeout": given.timeout > 0,
        "multiprocessing_context": given.multiprocessing_context not in {"auto", None},
    }
    return tuple(
        f"{name}={getattr(given, name)!r}" for name, is_given in candidates.items() if is_given
    )


def read_override() -> int | None:
    """Return what stands in for the automatic number of workers, if anything.

    Raises:
        SettingsError: If the variable is no number.
    """
    value = PROCESS_ENVIRONMENT.get("FASTLOADER_NUM_WORKERS")
    if not value:
        return None
    if not value.isdecimal():
        raise SettingsError(
            f"FASTLOADER_NUM_WORKERS should be a number of workers, but is {value!r}."
        )
    return int(value)


def start_method_of(context: Any) -> str | None:
    """Return the name of a start method; torch refuses what is none."""
    if context is None or isinstance(context, str):
        return context
    if isinstance(context, BaseContext):
        return context.get_start_method()
    return repr(context)


def warn_of_ignored(given: GivenOptions) -> None:
    """Warn of options that the caller gave and that have no effect without workers."""
    if ignored := worker_options(given):
        warnings.warn(f"num_workers is 0, so {', '.join(ignored)} has no effect.", stacklevel=3)


def warn_of_many_workers(num_workers: int | Auto, machine: Machine) -> None:
    """Warn of more workers than CPUs where torch does not: it knows of affinity alone."""
    if num_workers == "auto":
        return
    if machine.affinity_cpus >= num_workers > machine.granted_cpus:
        warnings.warn(
            f"num_workers={num_workers} is more than the {machine.granted_cpus} CPUs that this "
            "process may use (control group or scheduler): workers will wait for each other. "
            "Lower num_workers, or leave it out.",
            stacklevel=3,
        )
