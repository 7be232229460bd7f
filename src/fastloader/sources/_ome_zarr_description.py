"""What OME-Zarr attributes say of an image: its axes, name, pixel sizes and channels."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fastloader.sources._description import ChannelDescription, ImageDescription

__all__ = ["axis_letters", "channel_names", "describe_attributes", "level_scale"]

_LETTERS = {"time": "T", "channel": "C", **{name: name.upper() for name in "tczyx"}}
"""Of types, and of names of axes without one."""
_SPACE = "space"
_SYMBOLS = {
    "angstrom": "\u00c5", "centimeter": "cm", "meter": "m", "micrometer": "\u00b5m",
    "millimeter": "mm", "nanometer": "nm", "picometer": "pm",
}  # fmt: skip
"""OME's names of the units, which tables hold."""


def axis_letters(multiscale: Mapping[str, Any]) -> str:
    """Return a letter for each axis: T, C, Z, Y, X, or ``?`` for one that has no place.

    Types come before names, which are free. Axes of space that are not named x, y or z are the
    letters that are left, in the order in which they have to come: the last is X. One axis of no
    type or one of its own stands where channels would, if there are none.

    Args:
        multiscale: The image.

    Raises:
        ValueError: If its axes are given in the way of a later version.

    References:
        OME-Zarr 0.5, 2.3, https://ngff.openmicroscopy.org/0.5/.
    """
    if "coordinateSystems" in multiscale:
        raise ValueError("coordinateSystems are of a version after 0.5, which is not read")
    # Versions 0.1 and 0.2 have no others, 0.3 has names only.
    axes = [
        axis if isinstance(axis, Mapping) else {"name": axis}
        for axis in multiscale.get("axes", "tczyx")
    ]
    letters = [_letter(axis) for axis in axes]
    if letters.count("?") == 1 and "C" not in letters:
        letters[letters.index("?")] = "C"
    left = [letter for letter in "XYZ" if letter not in letters]
    for position in reversed(range(len(letters))):
        if letters[position] == _SPACE:
            letters[position] = left.pop(0) if left else "?"
    return "".join(letters)


def _letter(axis: Mapping[str, Any]) -> str:
    """Return what type and name of an axis say; `_SPACE` for one of space by another name."""
    name, kind = str(axis["name"]).lower(), axis.get("type")
    if kind == "space":
        return name.upper() if name in {"x", "y", "z"} else _SPACE
    return _LETTERS.get(str(kind)) or _LETTERS.get(name, "?")


def describe_attributes(
    attributes: Mapping[str, Any], level: Mapping[str, Any], letters: str
) -> ImageDescription:
    """Return what attributes say, as far as it makes sense.

    Args:
        attributes: Of the image.
        level: The level of resolution that is read.
        letters: Its axes.

    References:
        OME-Zarr 0.5, https://ngff.openmicroscopy.org/0.5/.
    """
    multiscale = attributes["multiscales"][0]
    sizes: dict[str, Any] = {}
    if any("scale" in part for part in _transformations(multiscale, level)):
        scale = level_scale(multiscale, level, len(letters)).tolist()
        for letter, size, axis in zip(letters, scale, multiscale["axes"], strict=True):
            if letter in "XYZ":
                unit = str(axis.get("unit") or "") if isinstance(axis, dict) else ""
                sizes[f"physical_size_{letter.lower()}"] = size
                sizes[f"physical_size_{letter.lower()}_unit"] = _SYMBOLS.get(unit, unit) or None
    name = multiscale.get("name")
    return ImageDescription(
        name=str(name) if name else None,
        channels=tuple(_channel(number, one) for number, one in enumerate(_listed(attributes))),
        **sizes,
    )


def level_scale(
    multiscale: Mapping[str, Any], level: Mapping[str, Any], num_axes: int
) -> "np.ndarray[Any, np.dtype[np.float64]]":
    """Return the size of a pixel along each axis, from scales of the level and of the whole.

    Args:
        multiscale: The image.
        level: One of its levels.
        num_axes: How many axes it has.
    """
    size = np.ones(num_axes)
    for transformation in _transformations(multiscale, level):
        if transformation["type"] == "scale":
            size *= np.array(transformation["scale"], np.float64)
    return size


def channel_names(attributes: Mapping[str, Any]) -> tuple[str | None, ...]:
    """Return the names of the channels, as far as there are some."""
    labels = (channel.get("label") for channel in _listed(attributes))
    return tuple(None if label is None else str(label) for label in labels)


def _transformations(
    multiscale: Mapping[str, Any], level: Mapping[str, Any]
) -> list[Mapping[str, Any]]:
    return [
        transformation
        for part in (level, multiscale)
        for transformation in part.get("coordinateTransformations") or ()
    ]


def _listed(attributes: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    return (attributes.get("omero") or {}).get("channels") or ()


def _channel(number: int, channel: Mapping[str, Any]) -> ChannelDescription:
    label, color = channel.get("label"), channel.get("color")
    try:
        rgba = None if color is None else (int(str(color), 16) << 8 | 0xFF) & 0xFFFFFFFF
    except ValueError:
        rgba = None
    return ChannelDescription(
        id=str(number), name=None if label is None else str(label), color_rgba=rgba
    )
