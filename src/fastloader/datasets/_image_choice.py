"""Which images of a source a dataset shows, with which channels and as which type."""

import math
import operator
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from fastloader.errors import ImageDataError, SettingsError
from fastloader.sources import PIXEL_TYPES, ImageSource, ImageTable

__all__ = ["OnNull", "choose_channels", "choose_dtype", "resolve_nulls"]

_DTYPES = {torch.bfloat16, torch.complex64, torch.complex128} | {
    getattr(torch, name) for name in PIXEL_TYPES
}
Integers: TypeAlias = npt.NDArray[np.int64]
OnNull: TypeAlias = Literal["error", "skip", "zeros"]


def resolve_nulls(
    table: ImageTable, rows: Integers, on_null: OnNull, where: str
) -> tuple[ImageTable, Integers]:
    """Return the table with a size for each image to show, and which rows those are.

    Args:
        table: Sizes and pixel types of all images of a source.
        rows: The rows to choose from, ascending.
        on_null: What to do with those of them that have no image.
        where: File and column, for error messages.

    Raises:
        ImageDataError: If rows have no image and that is an error, or there is no size for them.
        SettingsError: If `on_null` is none of its values.
    """
    if on_null not in ("error", "skip", "zeros"):
        raise SettingsError(f"on_null={on_null!r}: expected 'error', 'skip' or 'zeros'.")
    has_image = table.has_image[rows]
    if has_image.all() or on_null == "skip":
        return _used(table, rows[has_image]), rows[has_image]
    first = int(rows[np.argmin(has_image)])
    if on_null == "error":
        raise ImageDataError(
            f"{where}, row {first} has no image ({int((~has_image).sum())} of {len(rows)} "
            f"rows have none): leave such rows out with on_null='skip', or fill them with "
            f"on_null='zeros'."
        )
    known = np.unique(table.shapes[rows[has_image]], axis=0)
    if len(known) != 1:
        raise ImageDataError(
            f"{where}, row {first} has no image, and on_null='zeros' needs images of one size, "
            f"but there are {len(known)}: use on_null='skip'."
        )
    shapes, codes = table.shapes.copy(), table.dtype_codes.copy()
    missing = rows[~has_image]
    shapes[missing] = known
    codes[missing] = codes[rows[np.argmax(has_image)]]
    return _used(replace(table, shapes=shapes, dtype_codes=codes), rows), rows


def _used(table: ImageTable, rows: Integers) -> ImageTable:
    """Return the table without pixel types that none of some rows has."""
    used = np.unique(table.dtype_codes[rows])
    if len(used) in {0, len(table.dtypes)}:
        return table
    codes = np.searchsorted(used, table.dtype_codes).astype(np.uint8)
    codes[codes == len(used)] = 0  # of rows that are not shown
    return replace(table, dtypes=tuple(table.dtypes[code] for code in used), dtype_codes=codes)


def choose_dtype(
    table: ImageTable, dtype: torch.dtype | None, scale: Any, where: str
) -> torch.dtype:
    """Return the type of the tensors, one that holds every pixel or is floating.

    Args:
        table: Pixel types of the images to show.
        dtype: The type asked for; None keeps the only one there is.
        scale: Factor for all pixels, if any.
        where: File and column, for error messages.

    Raises:
        SettingsError: If it is no type of tensors, `scale` is no number, or the type would lose values, is ambiguous, or does not go
            with `scale`.
    """
    if dtype is not None and not isinstance(dtype, torch.dtype):
        raise SettingsError(
            f"dtype={dtype!r}: expected one of torch, as torch.float32, or None."
        )
    if dtype is not None and dtype not in _DTYPES:
        raise SettingsError(
            f"dtype={dtype} is no type of pixels: expected torch.bool, an integer type, or a "
            f"floating or complex one of 16 bits a number or more, or None for that of the file."
        )
    is_number = isinstance(scale, int | float | np.number)
    if scale is not None and not (is_number and math.isfinite(scale)):
        raise SettingsError(
            f"scale={scale!r}: expected a finite number, or None to leave pixels as they are."
        )
    natives = {kind.name: getattr(torch, kind.name) for kind in table.dtypes}
    if dtype is None and len(natives) > 1:
        raise SettingsError(
            f"{where}: dtype=None keeps the type of the file, but its images are of several "
            f"({', '.join(sorted(natives))}): choose one with dtype=."
        )
    chosen = dtype if dtype is not None else next(iter(natives.values()), torch.float32)
    if scale is not None and not chosen.is_floating_point:
        raise SettingsError(f"scale={scale} needs a floating dtype, but dtype is {chosen}.")
    for name in natives if not chosen.is_floating_point else ():
        if not np.can_cast(
            np.dtype(name), np.dtype(str(chosen).removeprefix("torch.")), "safe"
        ):
            raise SettingsError(
                f"{where}: dtype={chosen} cannot hold all values of the file's {name}: choose a "
                f"wider or a floating one, or None to keep {name}."
            )
    return chosen


def choose_channels(
    source: ImageSource,
    shapes: Integers,
    channels: Sequence[int] | Sequence[str] | None,
) -> list[int] | None:
    """Return the numbers of the channels to keep, which all images have.

    Args:
        source: Has the channels' names.
        shapes: Sizes T, C, Z, Y, X of the images to show.
        channels: Numbers or names; None keeps all.

    Raises:
        SettingsError: If an image does not have them.
    """
    if channels is None:
        return None
    if isinstance(channels, str) or not isinstance(channels, Iterable):
        raise SettingsError(
            f"channels={channels!r}: expected a list of numbers or names, as [{channels!r}]."
        )
    fewest = int(shapes[:, 1].min(initial=2**31))
    wanted: list[Any] = list(channels)
    if any(isinstance(channel, str) for channel in wanted):
        names = {names for names in source.read_channel_names() if names}
        if not names:
            raise SettingsError(
                f"{source.where}: channels={channels!r}, but its channels have no names: choose them "
                f"by their numbers, from 0 on."
            )
        if len(names) != 1:
            raise SettingsError(
                f"{source.where}: channels by name need the same names in each image, but "
                f"there are {len(names)} sets of names: {sorted(map(str, names))[:3]}."
            )
        known = list(names.pop())
        unknown = [channel for channel in wanted if channel not in known]
        if unknown:
            raise SettingsError(f"{source.where} has channels {known}, but not {unknown}.")
        wanted = [known.index(channel) for channel in wanted]
    numbers = [_number(channel, channels) for channel in wanted]
    if len(set(numbers)) != len(numbers) or not numbers:
        raise SettingsError(f"channels={channels!r}: expected one or more, each once.")
    if min(numbers) < 0 or max(numbers) >= fewest:
        raise SettingsError(
            f"{source.where}: channels={channels!r}, but there are images with only channels "
            f"0 to {fewest - 1}."
        )
    return numbers


def _number(channel: Any, channels: Any) -> int:
    """Return a channel as a number.

    Raises:
        SettingsError: If it is none, also of a mask, in which True would be channel 1.
    """
    is_truth = getattr(channel, "dtype", type(channel)) in {bool, np.bool_, torch.bool}
    if is_truth or not hasattr(channel, "__index__"):
        raise SettingsError(
            f"channels={channels!r}: expected numbers from 0 on, or names, but got {channel!r}."
        )
    return operator.index(channel)
