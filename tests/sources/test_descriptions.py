"""What files say of an image beside its pixels is read in the words of the OME-Arrow schema."""

import datetime as dt

import numpy as np
import pyarrow as pa
import pytest
import tifffile

from fastloader.errors import SourceError
from fastloader.sources import (
    ChannelDescription,
    ImageDescription,
    OmeZarrFolder,
    TiffFolder,
    open_source,
)
from fastloader.sources._description import described_images
from tests.image_files import random_pixels, set_ome, write_ome_zarr, write_tiff
from tests.ome_arrow_tables import ome_arrow_value, random_image
from tests.ome_arrow_tables import write_images as write

MICROMETER = "\u00b5m"
HEADER = """<?xml version="1.0" encoding="UTF-8"?>
<OME xmlns="http://www.openmicroscopy.org/Schemas/OME/2016-06">
<Image ID="Image:0" Name="cells &amp; more">
<AcquisitionDate>2024-03-01T12:30:00+02:00</AcquisitionDate>
<Pixels ID="Pixels:0" DimensionOrder="XYZCT" Type="uint16" SizeX="6" SizeY="4" SizeZ="1" SizeC="2"
 SizeT="1" PhysicalSizeX="0.5" PhysicalSizeY="650" PhysicalSizeYUnit="nm">
<Channel ID="Channel:0:0" Name="DAPI" EmissionWavelength="461" ExcitationWavelength="0.358"
 ExcitationWavelengthUnit="&#181;m" IlluminationType="Epifluorescence" Color="65535"/>
<Channel ID="Channel:0:1" Color="-16776961" EmissionWavelength="5" EmissionWavelengthUnit="yd"/>
<TiffData/></Pixels></Image></OME>"""


def describe(source):
    return list(source.iterate_descriptions())


def write_ome_tiff(path, header=HEADER, pixels=None):
    pixels = random_pixels((2, 4, 6)) if pixels is None else pixels
    tifffile.imwrite(path, pixels, description=header.encode(), metadata=None)
    return path


def test_an_ome_header_tells_names_sizes_time_and_channels(tmp_path):
    path = write_ome_tiff(tmp_path / "a.ome.tif")

    (found,) = describe(TiffFolder(tmp_path))

    assert found == ImageDescription(
        id=path.name,
        name="cells & more",
        image_type="image",
        acquisition_datetime=dt.datetime(2024, 3, 1, 10, 30),
        physical_size_x=0.5,
        physical_size_x_unit=MICROMETER,
        physical_size_y=650.0,
        physical_size_y_unit="nm",
        channels=(
            ChannelDescription(
                id="Channel:0:0",
                name="DAPI",
                emission_um=pytest.approx(0.461),
                excitation_um=pytest.approx(0.358),
                illumination="Epifluorescence",
                color_rgba=0x0000FFFF,
            ),
            ChannelDescription(id="Channel:0:1", color_rgba=0xFF0000FF),
        ),
    )


def test_a_file_without_a_header_is_called_by_its_name(tmp_path):
    write_tiff(tmp_path / "sub" / "a.tif", random_pixels((4, 6)))

    (found,) = describe(TiffFolder(tmp_path))

    assert found == ImageDescription(id="sub/a.tif", name="a.tif", image_type="image")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("2024-03-01T12:30:00+02:00", "yesterday"),
        ('PhysicalSizeX="0.5"', 'PhysicalSizeX="wide"'),
        ('PhysicalSizeX="0.5"', 'PhysicalSizeX="1e999"'),
        ('EmissionWavelength="461"', 'EmissionWavelength=""'),
        ('Color="65535"', 'Color="red"'),
    ],
    ids=["time", "size", "infinite size", "wavelength", "color"],
)
def test_what_makes_no_sense_in_a_header_is_left_out(tmp_path, old, new):
    assert old in HEADER
    write_ome_tiff(tmp_path / "a.ome.tif", HEADER.replace(old, new))

    (found,) = describe(TiffFolder(tmp_path))

    assert found.name == "cells & more"
    assert len(found.channels) == 2


def test_each_sample_of_a_pixel_is_a_channel(tmp_path):
    pixels = random_pixels((8, 8, 3), "uint8")
    path = tmp_path / "rgb.ome.tif"
    tifffile.imwrite(path, pixels, photometric="rgb", metadata={"axes": "YXS"}, ome=True)

    (found,) = describe(TiffFolder(path))

    assert len(found.channels) == 3


def test_pixels_of_a_coarser_level_are_larger(tmp_path):
    pixels = random_pixels((64, 64))
    path = tmp_path / "a.ome.tif"
    with tifffile.TiffWriter(path, ome=True) as writer:
        metadata = {"axes": "YX", "PhysicalSizeX": 0.5, "PhysicalSizeXUnit": "mm"}
        writer.write(pixels, subifds=1, metadata=metadata)
        writer.write(pixels[::2, ::2], subfiletype=1)

    (found,) = describe(TiffFolder(path, level=1))

    assert (found.physical_size_x, found.physical_size_x_unit) == (1.0, "mm")
    assert found.physical_size_y is None


@pytest.mark.parametrize("version", ["0.4", "0.5"])
def test_ome_zarr_tells_names_sizes_and_channels(tmp_path, version):
    path = write_ome_zarr(tmp_path / "a.zarr", random_pixels((2, 8, 6)), "cyx", version)
    axes = [{"name": "c", "type": "channel"}]
    axes += [{"name": name, "type": "space", "unit": "micrometer"} for name in "yx"]
    scales = [{"type": "scale", "scale": [1, 0.25, 0.5]}]
    levels = [{"path": "00", "coordinateTransformations": scales}]
    whole = [{"type": "scale", "scale": [1, 2, 1]}]
    multiscale = {"axes": axes, "datasets": levels, "coordinateTransformations": whole}
    channels = [{"label": "DNA", "color": "00FF80"}, {"color": "no color"}]
    omero = {"channels": channels}
    set_ome(path, {"multiscales": [{**multiscale, "name": "field"}], "omero": omero}, version)

    (found,) = describe(OmeZarrFolder(tmp_path))

    assert found == ImageDescription(
        id="a.zarr",
        name="field",
        image_type="image",
        physical_size_x=0.5,
        physical_size_x_unit=MICROMETER,
        physical_size_y=0.5,
        physical_size_y_unit=MICROMETER,
        channels=(
            ChannelDescription(id="0", name="DNA", color_rgba=0x00FF80FF),
            ChannelDescription(id="1"),
        ),
    )


@pytest.mark.parametrize(
    "attributes",
    [
        {"omero": {"channels": [{"color": [1, 2]}, {"label": {"a": 1}}]}},
        {"scale": [0.5, "wide", 0.5]},
        {"scale": [0.5]},
        {"scale": None},
    ],
    ids=["channels", "text", "one axis", "nothing"],
)
def test_ome_zarr_attributes_that_make_no_sense_do_no_harm(tmp_path, attributes):
    pixels = random_pixels((2, 8, 6))
    path = write_ome_zarr(tmp_path / "a.zarr", pixels, "cyx")
    scale = {"type": "scale", "scale": attributes.pop("scale", [1, 1, 1])}
    levels = [{"path": "00", "coordinateTransformations": [scale]}]
    axes = [{"name": name} for name in "cyx"]
    set_ome(path, {"multiscales": [{"axes": axes, "datasets": levels}], **attributes})

    (found,) = describe(OmeZarrFolder(path))

    assert found.name == "a.zarr"


def test_a_table_tells_what_it_holds(tmp_path):
    image = random_image((1, 2, 1, 4, 3), "uint16", 0)
    value = ome_arrow_value(image, encoding="bytes")
    value["name"] = "one"
    value["acquisition_datetime"] = dt.datetime(2024, 3, 1)
    value["pixels_meta"]["physical_size_z"] = 2.5
    value["pixels_meta"]["channels"][1]["color_rgba"] = 0xFF00FFFF
    path = write(tmp_path / "a.parquet", [value, None], encoding="bytes")

    first, second = describe(open_source(path))

    assert first.name == "one"
    assert first.acquisition_datetime == value["acquisition_datetime"]
    assert first.physical_size_z == 2.5
    assert first.channels[1].color_rgba == 0xFF00FFFF
    assert second == ImageDescription()


def test_interleaved_colours_are_named(tmp_path):
    wide = np.zeros((1, 1, 1, 4, 9), np.uint8)
    value = ome_arrow_value(wide, encoding="bytes")
    value["pixels_meta"]["size_x"] = 3
    path = write(tmp_path / "a.parquet", [value], encoding="bytes")

    (found,) = describe(open_source(path, rgb="interleaved"))

    assert [channel.name for channel in found.channels] == ["red", "green", "blue"]


def test_metadata_with_two_fields_of_one_name_is_an_error_that_names_the_column():
    twice = pa.StructArray.from_arrays([pa.array([1]), pa.array([2])], names=["id", "id"])

    with pytest.raises(SourceError, match=r"cells\.vortex, column 'image': its metadata"):
        described_images(twice, "cells.vortex, column 'image'")
