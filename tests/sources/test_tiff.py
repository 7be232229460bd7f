"""Folders of TIFF files: every kind of file gives the pixels that tifffile gives."""

import copy
import errno
import importlib.util
import os
import pickle
import shutil
import sys
from pathlib import Path

import numpy as np
import pyarrow.compute as pc
import pytest
import tifffile
from hypothesis import given, settings
from hypothesis import strategies as st

from fastloader import OMEArrowDataset
from fastloader.errors import (
    ImageDataError,
    MissingExtraError,
    SettingsError,
    SourceError,
    WorkerDiedError,
)
from fastloader.sources import TiffFolder, open_source
from tests.image_files import (
    DyingFolder,
    assert_images,
    random_pixels,
    read_all,
    write_ome_set,
    write_sparse_tiff,
    write_tiff,
)

REAL = Path(__file__).parents[1] / "data" / "tiff"
DTYPES = ["bool", "uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64"]
DTYPES += ["float16", "float32", "float64"]


def test_real_files_of_every_compression_are_read():
    source = TiffFolder(REAL)

    images = read_all(source)

    for name, image in zip(source.read_column("file_name"), images, strict=True):
        np.testing.assert_array_equal(tifffile.imread(REAL / name), image[0, :, 0])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("byte_order", ["<", ">"], ids=["little", "big"])
@pytest.mark.parametrize("compression", [None, "zlib"], ids=["raw", "deflate"])
def test_every_pixel_type_and_byte_order_is_read(tmp_path, dtype, byte_order, compression):
    pixels = random_pixels((2, 9, 16), dtype)

    path = write_tiff(
        tmp_path / "a.tif", pixels, "CYX", byteorder=byte_order, compression=compression
    )

    assert_images([pixels[None, :, None]], read_all(TiffFolder(path)))


@st.composite
def stored_images(draw):
    axes = draw(st.sampled_from(["YX", "CYX", "ZYX", "TYX", "CZYX", "TCYX", "TZCYX", "ZCYX"]))
    shape = tuple(draw(st.integers(4, 40)) if axis in "YX" else 2 for axis in axes)
    options = {
        "compression": draw(st.sampled_from([None, "zlib", "lzw", "packbits", "zstd"])),
        "byteorder": draw(st.sampled_from(["<", ">"])),
        "bigtiff": draw(st.booleans()),
    }
    if draw(st.booleans()):
        options["tile"] = draw(st.sampled_from([(16, 16), (32, 16)]))
    else:
        options["rowsperstrip"] = draw(st.integers(1, 40))
    if options["compression"] not in {None, "packbits"}:
        options["predictor"] = draw(st.booleans())
    return axes, random_pixels(shape, draw(st.sampled_from(["uint8", "uint16"]))), options


@settings(max_examples=60, deadline=None)
@given(case=stored_images(), in_place=st.booleans(), is_ome=st.booleans())
def test_any_file_gives_the_pixels_that_were_written(tmp_path_factory, case, in_place, is_ome):
    axes, pixels, options = case
    name = "a.ome.tif" if is_ome else "a.tif"
    path = write_tiff(tmp_path_factory.mktemp("any") / name, pixels, axes, **options)

    (image,) = read_all(TiffFolder(path), in_place=in_place)

    positions = [axes.find(axis) for axis in "TCZYX"]
    order = [position for position in positions if position >= 0]
    shape = [pixels.shape[position] if position >= 0 else 1 for position in positions]
    assert_images([pixels.transpose(order).reshape(shape)], [image])


@pytest.mark.parametrize("dtype", ["uint64", "int64"])
@pytest.mark.parametrize("compression", [None, "zlib"], ids=["raw", "deflate"])
def test_pixels_of_64_bits_become_tensors(tmp_path, dtype, compression):
    pixels = random_pixels((4, 3), dtype)
    write_tiff(tmp_path / "a.tif", pixels, compression=compression)

    dataset = OMEArrowDataset(tmp_path, dtype=None, axes="YX")

    np.testing.assert_array_equal(pixels, dataset[0].numpy())


@pytest.mark.parametrize("planar", [None, "separate"], ids=["interleaved", "planar"])
def test_colours_become_channels(tmp_path, planar):
    pixels = random_pixels((20, 24, 3), "uint8")
    stored = pixels if planar is None else np.moveaxis(pixels, -1, 0)
    path = tmp_path / "a.tif"
    tifffile.imwrite(path, stored, photometric="rgb", planarconfig=planar)

    (image,) = read_all(TiffFolder(path))

    assert_images([np.moveaxis(pixels, -1, 0)[None, :, None]], [image])


def test_an_imagej_hyperstack_is_brought_into_order(tmp_path):
    pixels = random_pixels((2, 3, 4, 8, 8))
    tifffile.imwrite(tmp_path / "a.tif", pixels, imagej=True, metadata={"axes": "TZCYX"})

    images = read_all(TiffFolder(tmp_path))

    assert_images([pixels.transpose(0, 2, 1, 3, 4)], images)


def test_pages_without_a_name_need_one(tmp_path):
    pixels = random_pixels((3, 8, 8))
    tifffile.imwrite(tmp_path / "a.tif", pixels, photometric="minisblack", metadata=None)

    with pytest.raises(ImageDataError, match=r"a\.tif.*what the 3 pages are.*stack_axis='T'"):
        TiffFolder(tmp_path)
    assert TiffFolder(tmp_path, stack_axis="Z").read_table().shapes.tolist() == [
        [1, 1, 3, 8, 8]
    ]


@pytest.mark.parametrize("stack_axis", [None, "Z"])
def test_two_axes_without_a_name_need_names_in_the_file(tmp_path, stack_axis):
    pixels = random_pixels((2, 3, 8, 8))
    tifffile.imwrite(tmp_path / "a.tif", pixels, photometric="minisblack")

    with pytest.raises(ImageDataError, match=r"a\.tif.*'QQYX'.*2 of them.*metadata=.*'ZCYX'"):
        TiffFolder(tmp_path, stack_axis=stack_axis)


def test_an_axis_without_a_name_is_advised_none_that_there_is(tmp_path):
    pixels = random_pixels((2, 3, 8, 8))
    metadata = {"axes": "ZQYX"}
    tifffile.imwrite(tmp_path / "a.tif", pixels, photometric="minisblack", metadata=metadata)

    with pytest.raises(
        ImageDataError, match=r"3 pages are: say so with stack_axis='T' or 'C'\."
    ):
        TiffFolder(tmp_path, stack_axis="Z")


def test_a_level_of_a_pyramid_is_read():
    path = REAL / "nf1_pyramid_subifd.ome.tif"
    with tifffile.TiffFile(path) as file:
        expected = file.series[0].levels[1].asarray()

    assert_images([expected[None, :, None]], read_all(TiffFolder(path, level=1)))


def test_a_level_that_is_not_there_is_refused():
    with pytest.raises(SourceError, match=r"pyramid_subifd.* levels 0 to 1 .*level=2"):
        TiffFolder(REAL / "nf1_pyramid_subifd.ome.tif", level=2)


def test_a_series_that_is_not_there_is_refused():
    with pytest.raises(SourceError, match="has 1 series, but not series=1"):
        TiffFolder(REAL / "nf1_deflate.ome.tif", series=1)


def test_files_that_an_ome_header_joins_are_one_image(tmp_path):
    planes = random_pixels((3, 8, 9))
    write_ome_set(tmp_path, planes)

    source = TiffFolder(tmp_path)

    assert_images([planes[None, :, None]], read_all(source))
    assert source.read_channel_names() == [("marker 0", "marker 1", "marker 2")]


def test_sets_in_several_parts_of_a_scan_are_still_one_image_each(tmp_path, monkeypatch):
    monkeypatch.setattr("fastloader.sources._tiff._FILES_PER_PART", 2)
    for number in range(2):
        write_ome_set(tmp_path / str(number), random_pixels((3, 8, 9), seed=number))

    assert TiffFolder(tmp_path).read_column("path") == ["0/set_C0.ome.tif", "1/set_C0.ome.tif"]


def test_a_missing_file_of_a_set_is_told(tmp_path):
    paths = write_ome_set(tmp_path, random_pixels((3, 8, 9)))
    paths[2].unlink()

    with pytest.raises(ImageDataError, match="plane 2 of 3 is missing: it may be in a file"):
        TiffFolder(tmp_path)


def test_channels_are_chosen_in_any_order(tmp_path):
    pixels = random_pixels((4, 8, 8))
    write_tiff(tmp_path / "a.tif", pixels, "CYX")

    images = read_all(TiffFolder(tmp_path), channels=[2, 0])

    assert_images([pixels[None, [2, 0], None]], images)


def test_channels_have_the_names_of_the_header():
    source = TiffFolder(REAL / "nf1_deflate.ome.tif")

    assert source.read_channel_names() == [("DAPI", "GFP", "RFP")]


def test_files_come_in_the_order_of_their_numbers_and_hidden_ones_do_not(tmp_path):
    for name in ("b/im10.tif", "b/im9.TIFF", "a/im1.tif", "b/._im9.tif", ".cache/im1.tif"):
        write_tiff(tmp_path / name, random_pixels((4, 4)))

    source = TiffFolder(tmp_path)

    assert source.read_column("path") == ["a/im1.tif", "b/im9.TIFF", "b/im10.tif"]
    assert source.read_column("file_name") == ["im1.tif", "im9.TIFF", "im10.tif"]
    assert source.read_column("folder") == ["a", "b", "b"]


@pytest.mark.skipif(sys.platform != "linux", reason="names are any bytes on Linux")
def test_names_that_are_no_text_are_written_out_and_pipes_left_alone(tmp_path):
    pixels = random_pixels((4, 5))
    path = write_tiff(tmp_path / "images" / "a.tif", pixels)
    path.rename(os.fsdecode(os.fsencode(path.parent) + b"/\xff.tif"))
    os.mkfifo(path)

    source = TiffFolder(path.parent)

    assert list(source.read_column("path")) == ["\\xff.tif"]
    assert list(source.read_column("file_name")) == ["\\xff.tif"]
    assert source.find_rows(pc.field("folder") == "images").tolist() == [0]
    assert_images([pixels[None, None, None]], read_all(source))


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [("*_w1.tif", ["p/a_w1.tif", "p/b_w1.tif"]), ("p/a*", ["p/a_w1.tif", "p/a_w2.tif"])],
)
def test_a_pattern_chooses_files(tmp_path, pattern, expected):
    for name in ("a_w1", "a_w2", "b_w1"):
        write_tiff(tmp_path / "p" / f"{name}.tif", random_pixels((4, 4)))

    assert TiffFolder(tmp_path, pattern=pattern).read_column("path") == expected


def test_rows_are_found_by_what_their_place_says(tmp_path):
    for name in ("cat/1.tif", "dog/1.tif", "dog/2.tif"):
        write_tiff(tmp_path / name, random_pixels((4, 4)))

    assert TiffFolder(tmp_path).find_rows(pc.field("folder") == "dog").tolist() == [1, 2]


def test_a_condition_over_something_else_is_refused(tmp_path):
    write_tiff(tmp_path / "a.tif", random_pixels((4, 4)))

    with pytest.raises(SettingsError, match="cannot be applied"):
        TiffFolder(tmp_path).find_rows(pc.field("nothing") == "dog")


def test_a_loop_of_links_ends(tmp_path):
    write_tiff(tmp_path / "a" / "1.tif", random_pixels((4, 4)))
    (tmp_path / "a" / "again").symlink_to(tmp_path / "a")

    assert TiffFolder(tmp_path).num_rows == 1


def test_a_link_that_leads_to_itself_is_no_folder(tmp_path):
    write_tiff(tmp_path / "1.tif", random_pixels((4, 4)))
    (tmp_path / "again").symlink_to("again")

    assert open_source(tmp_path).num_rows == 1


def test_a_folder_of_tiff_is_recognised(tmp_path):
    write_tiff(tmp_path / "deep" / "a.tif", random_pixels((4, 4)))

    assert isinstance(open_source(tmp_path), TiffFolder)
    assert open_source(tmp_path, format="tiff", level=0).num_rows == 1


def test_a_column_of_images_is_refused(tmp_path):
    write_tiff(tmp_path / "a.tif", random_pixels((4, 4)))

    with pytest.raises(SettingsError, match="a folder of images, which has no columns"):
        open_source(tmp_path, "image", format="tiff")


def test_a_folder_without_tiff_is_refused(tmp_path):
    with pytest.raises(SourceError, match=r"has no file of TIFF \(\.tif, \.tiff\)"):
        TiffFolder(tmp_path)


def test_a_path_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(SourceError, match="is not there: expected a folder"):
        TiffFolder(tmp_path / "nothing")


@pytest.mark.parametrize("kind", ["tiff", "ome-zarr", "parquet"])
def test_a_folder_that_may_not_be_listed_is_named(tmp_path, monkeypatch, kind):
    scan = os.scandir

    def refuse(path):
        if str(path).rstrip("/").endswith("closed"):
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return scan(path)

    (tmp_path / "closed").mkdir()
    monkeypatch.setattr(os, "scandir", refuse)

    with pytest.raises(SourceError, match=r"closed/? cannot be listed \(Permission denied\)"):
        open_source(tmp_path, format=kind)


def test_a_file_in_a_folders_place_is_told_as_one(tmp_path):
    (tmp_path / "a.zarr").write_bytes(b"no folder")

    with pytest.raises(SourceError, match=r"a\.zarr is a file: expected a folder"):
        open_source(tmp_path / "a.zarr")


def test_a_missing_codec_is_told_before_pixels_are_read(monkeypatch):
    without = importlib.import_module("tifffile._imagecodecs")
    monkeypatch.setattr(tifffile.TIFF.DECOMPRESSORS, "_codecs", {1: None})
    monkeypatch.setattr(tifffile.tifffile, "imagecodecs", without)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)

    with pytest.raises(MissingExtraError, match=r'lzw.*LZW.*pip install "fastloader\[tiff\]"'):
        TiffFolder(REAL / "nf1_lzw.ome.tif")


def test_a_compression_that_nobody_knows_is_told(tmp_path):
    path = write_tiff(tmp_path / "a.tif", random_pixels((64, 64)), compression="zlib")
    with tifffile.TiffFile(path, mode="r+b") as file:
        file.pages[0].tags["Compression"].overwrite(4711)

    with pytest.raises(ImageDataError, match=r"a\.tif is compressed by 4711.*no decoder"):
        TiffFolder(tmp_path)


def test_what_is_no_tiff_is_refused_by_name(tmp_path):
    write_tiff(tmp_path / "1.tif", random_pixels((4, 4)))
    (tmp_path / "2.tif").write_bytes(b"hello")

    with pytest.raises(SourceError, match=r"2\.tif cannot be read as TIFF"):
        TiffFolder(tmp_path)


@pytest.mark.parametrize("compression", [None, "zlib"], ids=["raw", "deflate"])
def test_a_file_that_was_cut_off_is_refused(tmp_path, compression):
    path = write_tiff(
        tmp_path / "a.tif", random_pixels((64, 64)), compression=compression, rowsperstrip=8
    )
    os.truncate(path, path.stat().st_size - 200)

    with pytest.raises(SourceError, match=r"a\.tif.*(cut off|cannot be read)"):
        TiffFolder(tmp_path)


LEFT_OUT = [
    [{0}, set(), set()],
    [set(), {0, 1, 2, 3}, set()],
    [{0, 1, 2, 3}] * 3,
    [{1}, set(), {3}],
]


@pytest.mark.parametrize("left_out", LEFT_OUT, ids=["first", "page", "all", "some"])
@pytest.mark.parametrize("compression", [None, "zlib", "lzw"])
@pytest.mark.parametrize(
    ("dtype", "nodata", "value"),
    [("uint8", None, 0), ("uint16", "7", 7), ("float32", "nan", np.nan)],
)
@pytest.mark.parametrize(
    ("sizes", "layout"),
    [
        ((16, 16), {"tile": (16, 16)}),
        ((8, 20), {"rowsperstrip": 8}),
        ((32, 20), {"rowsperstrip": 32}),
    ],
    ids=["tiles", "strips", "pages"],
)
def test_what_is_left_out_of_a_file_is_filled(
    tmp_path, left_out, compression, dtype, nodata, value, sizes, layout
):
    pixels = random_pixels((3, 32, 20), dtype)
    options = {"compression": compression, **layout}
    path = write_sparse_tiff(tmp_path / "a.tif", pixels, left_out, nodata, **options)

    images = read_all(TiffFolder(path, stack_axis="C"))

    across, down = -(-20 // sizes[1]), 32 // sizes[0]
    for plane, numbers in zip(pixels, left_out, strict=True):
        for number in numbers & set(range(across * down)):
            y, x = number // across * sizes[0], number % across * sizes[1]
            plane[y : y + sizes[0], x : x + sizes[1]] = value
    assert_images([pixels[None, :, None]], images)


def test_images_with_parts_left_out_share_what_is_known_of_their_kind(tmp_path):
    pixels = random_pixels((1, 32, 32), "float32")
    for number in range(3):
        path = tmp_path / f"{number}.tif"
        write_sparse_tiff(path, pixels, [{number}], "nan", tile=(16, 16))

    source = TiffFolder(tmp_path)

    assert source.layout(0) is source.layout(2)


def test_a_page_that_is_left_out_among_many_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("fastloader.sources._tiff_layout.MOST_SEGMENTS", 1)
    path = write_sparse_tiff(tmp_path / "a.tif", random_pixels((2, 30, 4)), [set(), {0}])

    with pytest.raises(ImageDataError, match=r"a\.tif, page 1: .* scattered or left out"):
        TiffFolder(path, stack_axis="Z")


@pytest.mark.parametrize("most_segments", [1, 256], ids=["many", "few"])
def test_strips_that_are_scattered_are_refused_or_read_right(
    tmp_path, monkeypatch, most_segments
):
    monkeypatch.setattr("fastloader.sources._tiff_layout.MOST_SEGMENTS", most_segments)
    pixels = random_pixels((3, 32, 20))
    path = write_tiff(tmp_path / "a.ome.tif", pixels, "ZYX", rowsperstrip=8)
    with tifffile.TiffFile(path, mode="r+b") as file:
        tag = file.pages[1].tags["StripOffsets"]
        tag.overwrite([tag.value[1], tag.value[0], *tag.value[2:]])

    if most_segments == 1:
        with pytest.raises(ImageDataError, match=r"a\.ome\.tif, page 1: .* scattered"):
            TiffFolder(path)
    else:
        pixels[1, :16] = np.roll(pixels[1, :16], 8, axis=0)
        assert_images([pixels[None, None]], read_all(TiffFolder(path)))


@pytest.mark.parametrize("tag", ["StripOffsets", "StripByteCounts"])
def test_a_strip_without_a_place_or_a_length_is_damage(tmp_path, tag):
    path = write_tiff(tmp_path / "a.tif", random_pixels((64, 64)), compression="zlib")
    with tifffile.TiffFile(path, mode="r+b") as file:
        file.pages[0].tags[tag].overwrite(0)

    with pytest.raises(ImageDataError, match="was cut off or is damaged"):
        TiffFolder(tmp_path)


@pytest.mark.parametrize("tile", [None, (16, 16)], ids=["strips", "tiles"])
@pytest.mark.parametrize("compression", ["zlib", "lzw"])
def test_samples_that_lie_in_no_known_way_are_damage(tmp_path, compression, tile):
    path = write_tiff(
        tmp_path / "a.tif",
        random_pixels((40, 36, 3)),
        "YXS",
        photometric="rgb",
        compression=compression,
        tile=tile,
    )
    with tifffile.TiffFile(path, mode="r+") as file:
        file.pages[0].tags["PlanarConfiguration"].overwrite(7)

    with pytest.raises(ImageDataError, match=r"a\.tif.*planar configuration is 7"):
        read_all(TiffFolder(path))


def test_a_huge_image_of_which_all_is_left_out_is_damage(tmp_path):
    path = write_sparse_tiff(tmp_path / "a.tif", random_pixels((1, 64, 64)), [{0}])
    with tifffile.TiffFile(path, mode="r+b") as file:
        for name in ("ImageLength", "RowsPerStrip", "ImageWidth"):
            file.pages[0].tags[name].overwrite(2**15)

    with pytest.raises(ImageDataError, match=r"a\.tif.* left out, but expected at most"):
        TiffFolder(tmp_path)


def test_damaged_pixels_are_told_by_name(tmp_path):
    path = write_tiff(
        tmp_path / "a.tif", random_pixels((64, 64)), compression="zlib", rowsperstrip=64
    )
    source = TiffFolder(tmp_path)
    with tifffile.TiffFile(path) as file:
        offset = file.pages[0].dataoffsets[0]
    state = path.stat()
    with path.open("r+b") as file:
        file.seek(offset + 40)
        file.write(bytes(20))
    os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns))

    with pytest.raises(ImageDataError, match=r"a\.tif: its pixels cannot be decoded"):
        read_all(source)


def test_a_header_that_claims_absurdly_many_pixels_is_refused(tmp_path):
    path = write_tiff(tmp_path / "a.tif", random_pixels((64, 64)), compression="zlib")
    with tifffile.TiffFile(path, mode="r+b") as file:
        page = file.pages[0]
        for name in ("ImageLength", "RowsPerStrip"):
            page.tags[name].overwrite(2**30)
        page.tags["ImageWidth"].overwrite(2**10)

    with pytest.raises(SourceError, match=r"a\.tif"):
        TiffFolder(tmp_path)


def test_a_file_that_was_changed_is_refused(tmp_path):
    path = write_tiff(tmp_path / "a.tif", random_pixels((4, 4)))
    source = TiffFolder(tmp_path)
    write_tiff(path, random_pixels((4, 5)))

    with pytest.raises(SourceError, match="was changed since it was first looked at"):
        read_all(source)


def test_a_file_that_is_gone_is_told(tmp_path):
    path = write_tiff(tmp_path / "a.tif", random_pixels((4, 4)))
    source = TiffFolder(tmp_path)
    path.unlink()

    with pytest.raises(SourceError, match=r"a\.tif is not there any more"):
        read_all(source)


def test_a_file_that_cannot_be_opened_is_not_called_damaged(tmp_path):
    path = write_tiff(tmp_path / "a.tif", random_pixels((4, 4)))
    source = TiffFolder(tmp_path)
    path.unlink()
    path.mkdir()

    with pytest.raises(SourceError, match=r"a\.tif cannot be read .*directory") as told:
        read_all(source)
    assert not isinstance(told.value, ImageDataError)


def test_the_fingerprint_changes_with_a_file(tmp_path):
    path = write_tiff(tmp_path / "a.tif", random_pixels((4, 4)))
    before = TiffFolder(tmp_path).fingerprint
    assert TiffFolder(tmp_path).fingerprint == before

    write_tiff(path, random_pixels((4, 4), seed=1))
    os.utime(path, ns=(1, 1))

    assert TiffFolder(tmp_path).fingerprint != before


def test_a_pickle_has_no_open_file_and_reads_the_same(tmp_path, no_leaks):
    shutil.copytree(REAL, tmp_path / "real")
    source = TiffFolder(tmp_path / "real")
    expected = read_all(source)

    again = pickle.loads(pickle.dumps(copy.deepcopy(source)))

    no_leaks()
    assert_images(expected, read_all(again))
    assert again.read_column("path") == source.read_column("path")


def test_large_images_are_decoded_by_threads(tmp_path, monkeypatch, no_leaks):
    monkeypatch.setattr("fastloader.sources._decode_images._LARGE_IMAGE_BYTES", 1)
    pixels = [random_pixels((30, 20), seed=seed) for seed in range(9)]
    for number, one in enumerate(pixels):
        write_tiff(tmp_path / f"{number}.tif", one, compression="zlib")
    counts = []

    images = read_all(TiffFolder(tmp_path), in_place=True, num_threads=3, on_rows=counts.append)

    assert_images([one[None, None, None] for one in pixels], images)
    assert sum(counts) == 9


@pytest.fixture
def many_files(tmp_path, monkeypatch):
    """Return the pixels of forty small files in `tmp_path`, which children will read."""
    monkeypatch.setattr("fastloader.sources._jobs._WORTH_STARTING_SECONDS", -1)
    monkeypatch.setattr("fastloader.sources._compiled_job.raw_reader", lambda: None)
    pixels = [random_pixels((30, 20), seed=seed) for seed in range(40)]
    for number, one in enumerate(pixels):
        write_tiff(tmp_path / f"{number}.tif", one, compression="zlib")
    return pixels


@pytest.mark.multiprocess
def test_small_images_are_decoded_by_processes(tmp_path, many_files, no_leaks):
    counts = []
    source = TiffFolder(tmp_path, num_cores=3)

    images = read_all(source, in_place=True, num_threads=3, on_rows=counts.append)

    assert_images([one[None, None, None] for one in many_files], images)
    assert sum(counts) == 40


@pytest.mark.multiprocess
def test_an_error_of_a_process_is_raised_here(tmp_path, many_files, no_leaks):
    source = TiffFolder(tmp_path)
    for number in range(20, 40):
        (tmp_path / f"{number}.tif").unlink()

    with pytest.raises(SourceError, match="is not there any more"):
        read_all(source, in_place=True, num_threads=2)


@pytest.mark.multiprocess
def test_a_process_that_ends_by_itself_is_told_with_its_files(tmp_path, many_files, no_leaks):
    source = DyingFolder(tmp_path, num_cores=1)
    source.owner = os.getpid()

    with pytest.raises(WorkerDiedError, match=r"exit code 3 while it worked on .*\.tif to"):
        read_all(source, in_place=True, num_threads=2)


def test_names_with_question_marks_are_found(tmp_path):
    pixels = [random_pixels((4, 4), seed=seed) for seed in range(2)]
    paths = [write_tiff(tmp_path / f"is it {n}?.tif", one) for n, one in enumerate(pixels)]

    for path in (tmp_path, paths):
        assert_images([one[None, None, None] for one in pixels], read_all(open_source(path)))
    assert open_source(paths[1]).num_rows == 1
