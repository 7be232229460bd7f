"""What an OME header says of an image: names, sizes, time and channels."""

from typing import Any
from xml.etree import ElementTree as ET

from fastloader.sources._description import ChannelDescription, ImageDescription, as_utc

__all__ = ["describe_ome_xml"]

_MICROMETER = "\u00b5m"
_MICROMETERS = {
    "m": 1e6, "cm": 1e4, "mm": 1e3, _MICROMETER: 1.0, "nm": 1e-3, "\u00c5": 1e-4, "pm": 1e-6,
}  # fmt: skip
_MOST_CHANNELS = 1 << 15  # what the schema can count


def describe_ome_xml(header: str, series: int) -> ImageDescription:
    """Return what a header says of an image; nothing if it cannot be read.

    Args:
        header: OME-XML.
        series: Number of the image, negative ones from the end.

    References:
        OME model 2016-06, https://www.openmicroscopy.org/Schemas/OME/2016-06/ome.xsd.
    """
    try:
        root = ET.fromstring(header)  # noqa: S314 - expat bounds what entities grow to
    except ET.ParseError:
        return ImageDescription()
    images = root.findall("{*}Image")
    if not -len(images) <= series < len(images):
        return ImageDescription()
    image = images[series]
    pixels = image.find("{*}Pixels")
    if pixels is None:
        return ImageDescription(id=image.get("ID"), name=image.get("Name"))
    sizes: dict[str, Any] = {}
    for axis in "xyz":
        size = _number(pixels, f"PhysicalSize{axis.upper()}")
        if size is not None:
            unit = pixels.get(f"PhysicalSize{axis.upper()}Unit", _MICROMETER)
            sizes |= {f"physical_size_{axis}": size, f"physical_size_{axis}_unit": unit}
    return ImageDescription(
        id=image.get("ID"),
        name=image.get("Name"),
        acquisition_datetime=as_utc(image.findtext("{*}AcquisitionDate")),
        channels=_channels(pixels),
        **sizes,
    )


def _channels(pixels: ET.Element) -> tuple[ChannelDescription, ...]:
    """Return one description for each channel of the image: for each sample of a pixel."""
    channels: list[ChannelDescription] = []
    for channel in pixels.findall("{*}Channel"):
        color = _number(channel, "Color")
        described = ChannelDescription(
            id=channel.get("ID"),
            name=channel.get("Name"),
            emission_um=_wavelength(channel, "EmissionWavelength"),
            excitation_um=_wavelength(channel, "ExcitationWavelength"),
            illumination=channel.get("IlluminationType"),
            color_rgba=None if color is None else int(color) & 0xFFFFFFFF,  # stored signed
        )
        num_samples = min(_MOST_CHANNELS, int(_number(channel, "SamplesPerPixel") or 1))
        channels += [described] * num_samples
    return tuple(channels[:_MOST_CHANNELS])


def _wavelength(channel: ET.Element, name: str) -> float | None:
    """Return a wavelength in micrometers; None if it is missing or of an unknown unit."""
    value = _number(channel, name)
    factor = _MICROMETERS.get(channel.get(f"{name}Unit", "nm"))
    return None if value is None or factor is None else value * factor


def _number(element: ET.Element, name: str) -> float | None:
    try:
        value = float(element.get(name, ""))
    except ValueError:
        return None
    return value if abs(value) < float("inf") else None
