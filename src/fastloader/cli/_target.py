"""What a command line names as ``module:name``: a dataset, a loader or a function of the user."""

import argparse
import importlib
import os
import sys
from collections.abc import Iterator
from typing import Any

from fastloader.errors import SettingsError

__all__ = ["add_target", "load_step", "load_target"]


def add_target(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that say what to measure."""
    parser.add_argument(
        "target",
        type=_spelled,
        metavar="MODULE:FACTORY",
        help="function without arguments that returns a dataset or a loader, as train:make_data",
    )
    parser.add_argument(
        "--step",
        type=_spelled,
        metavar="MODULE:FUNCTION",
        help="work of the consumer, called with each batch; nothing when left out",
    )


def _spelled(name: str) -> str:
    """Return what names an object of a module.

    Raises:
        argparse.ArgumentTypeError: If it cannot be one.
    """
    module_name, _, attribute = name.partition(":")
    if module_name and attribute:
        return name
    raise argparse.ArgumentTypeError(
        f"expected MODULE:NAME, such as train:make_dataset, but got {name!r}"
    )


def load_target(name: str) -> Any:
    """Return the dataset or loader that a factory makes.

    Args:
        name: As ``module:factory``; modules are also looked for in the working directory.

    Raises:
        SettingsError: If there is none, it raises, or it gives something else.
    """
    found = _find(name)
    if callable(found):
        try:
            found = found()
        except Exception as error:
            raise SettingsError(f"{name} raised {type(error).__name__}: {error}.") from error
    if not any(hasattr(found, method) for method in ("__getitem__", "__iter__")):
        raise SettingsError(
            f"{name} should be or return a dataset or a loader, but gave {found!r}, which has "
            "neither samples by index nor an iterator."
        )
    if isinstance(found, Iterator):
        raise SettingsError(
            f"{name} should be or return a dataset or a loader, but gave the iterator {found!r}, which "
            "can be read only once: put it into the __iter__ of an IterableDataset."
        )
    return found


def load_step(name: str | None) -> Any:
    """Return the function that is called with each batch.

    Args:
        name: As ``module:function``; None stands for none.

    Raises:
        SettingsError: If there is none of the name.
    """
    if name is None:
        return None
    step = _find(name)
    if not callable(step):
        raise SettingsError(f"{name} should be a function that takes a batch, but is {step!r}.")
    return step


def _find(name: str) -> Any:
    module_name, _, attribute = name.partition(":")
    folder = os.getcwd()  # noqa: PTH109 - as Python puts it there itself
    if folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        found: Any = importlib.import_module(module_name)
        for part in attribute.split("."):
            found = getattr(found, part)
    except Exception as error:
        raise SettingsError(
            f"{name} cannot be imported ({type(error).__name__}: {error}): is it spelled right, "
            "and is its module in the working directory or installed?"
        ) from error
    return found
