"""What is known of a kind of storage before it is opened."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from fastloader.sources._protocol import ImageSource

__all__ = ["Format"]


@dataclass(frozen=True, slots=True)
class Format:
    """One kind of storage and how to recognise and open it."""

    name: str
    """What ``format=`` calls it."""
    suffixes: tuple[str, ...]
    """Endings of names, lower case, of files or folders that are of this kind."""
    open: Callable[..., ImageSource]
    """Takes a path, the name of an image column or None, and the options of the format."""
    is_folder_of_it: Callable[[Path], bool] = lambda folder: False  # noqa: ARG005
    """Whether a local folder without such an ending is of this kind."""
    options: tuple[str, ...] = ()
    """Options of `open` beyond ``image_column``."""
