"""What a file says of an image beside its pixels, in the words of the OME-Arrow schema."""

import datetime as dt
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from fastloader.errors import SourceError

if TYPE_CHECKING:  # takes a while to import, and processes that decode images go without
    import pyarrow as pa

__all__ = [
    "ChannelDescription",
    "ImageDescription",
    "as_utc",
    "described_fields",
    "described_images",
]

_OF_IMAGE = ("id", "name", "image_type", "acquisition_datetime")


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelDescription:
    """One channel; None where nothing is known."""

    id: str | None = None
    name: str | None = None
    emission_um: float | None = None
    """Wavelength in micrometers."""
    excitation_um: float | None = None
    """Wavelength in micrometers."""
    illumination: str | None = None
    color_rgba: int | None = None
    """Red in the highest byte, opacity in the lowest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageDescription:
    """One image; None where nothing is known. Fields have the names of the schema."""

    id: str | None = None
    name: str | None = None
    image_type: str | None = None
    """``"image"`` or ``"label"``."""
    acquisition_datetime: dt.datetime | None = None
    """In UTC where the file names a zone, without a zone itself."""
    physical_size_x: float | None = None
    """Width of a pixel in its unit; the others likewise."""
    physical_size_y: float | None = None
    physical_size_z: float | None = None
    physical_size_x_unit: str | None = None
    physical_size_y_unit: str | None = None
    physical_size_z_unit: str | None = None
    channels: tuple[ChannelDescription, ...] = ()
    """Of all channels, or none."""

    def shrunk(self, factors: Mapping[str, float]) -> "ImageDescription":
        """Return the description of the image with larger pixels.

        Args:
            factors: How much larger, by axis: x, y, z.
        """
        sizes = {axis: getattr(self, f"physical_size_{axis}") for axis in factors}
        return replace(
            self,
            **{
                f"physical_size_{axis}": size * factors[axis]
                for axis, size in sizes.items()
                if size is not None
            },
        )

    @classmethod
    def of(cls, image: Mapping[str, Any] | None) -> "ImageDescription":
        """Take the fields that are known from a value of an OME-Arrow column.

        Args:
            image: Its fields by name, other ones among them; None for a row without image.
        """
        image = image or {}
        pixels_meta = image.get("pixels_meta") or {}
        sizes: dict[str, Any] = {}
        for size in (f"physical_size_{axis}" for axis in "xyz"):
            sizes[size] = _number(pixels_meta.get(size))
            sizes[f"{size}_unit"] = _text(pixels_meta.get(f"{size}_unit"))
        channels = pixels_meta.get("channels") or ()
        return cls(
            id=_text(image.get("id")),
            name=_text(image.get("name")),
            image_type=_text(image.get("image_type")),
            acquisition_datetime=as_utc(image.get("acquisition_datetime")),
            channels=tuple(_channel(channel or {}) for channel in channels),
            **sizes,
        )


def described_images(column: "pa.StructArray", where: str) -> Iterable[ImageDescription]:
    """Return what the rows of a column say.

    Args:
        column: Images, of which no pixels are needed.
        where: File and column, for error messages.

    Raises:
        SourceError: If it has texts that are none, or two fields of one name.
    """
    try:
        values = column.to_pylist()
    except ValueError as error:
        raise SourceError(f"{where}: its metadata cannot be read ({error}).") from error
    return map(ImageDescription.of, values)


def described_fields(kind: "pa.StructType") -> list[str]:
    """Return the fields of an image column that descriptions are made of."""
    return [name for name in (*_OF_IMAGE, "pixels_meta") if name in kind.names]


def as_utc(value: Any) -> dt.datetime | None:
    """Return a time without a zone, in UTC if it had one; None if it is no time.

    Args:
        value: A time, or text in ISO 8601.
    """
    if isinstance(value, str):
        try:
            value = dt.datetime.fromisoformat(value.strip())
        except ValueError:
            return None
    if not isinstance(value, dt.datetime):
        return None
    if value.tzinfo is None:
        return value
    return value.astimezone(dt.UTC).replace(tzinfo=None)


def _channel(channel: Mapping[str, Any]) -> ChannelDescription:
    color = channel.get("color_rgba")
    return ChannelDescription(
        id=_text(channel.get("id")),
        name=_text(channel.get("name")),
        emission_um=_number(channel.get("emission_um")),
        excitation_um=_number(channel.get("excitation_um")),
        illumination=_text(channel.get("illumination")),
        color_rgba=color & 0xFFFFFFFF if isinstance(color, int) else None,
    )


def _text(value: Any) -> str | None:
    return None if value is None else str(value)


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) else None
