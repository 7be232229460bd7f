"""What OME-Zarr attributes say of an image: name, pixel sizes and channels."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fastloader.sources._description import ChannelDescription, ImageDescription

__all__ = ["channel_names", "describe_attributes", "level_scale"]

_SYMBOLS = {
    "angstrom": "\u00c5", "centimeter": "cm", "meter": "m", "micrometer": "\u00b5m",
    "millimeter": "mm", "nanometer": "nm", "picometer": "pm",
}  # fmt: skip
"""OME's names of the units, which tables hold."""


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
