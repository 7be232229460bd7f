"""OME-Zarr stores: every version, layout and codec gives the pixels that zarr gives."""

import json
import multiprocessing
import os
import pickle
import shutil
import zlib
from pathlib import Path

import numcodecs
import numpy as np
import pyarrow.compute as pc
import pytest
import zarr
import zarr.codecs
from hypothesis import given, settings
from hypothesis import strategies as st

from fastloader.errors import ImageDataError, SettingsError, SourceError
from fastloader.sources import OmeZarrFolder, open_source
from tests.image_files import (
    assert_images,
    random_pixels,
    read_all,
    set_ome,
    write_ome_zarr,
    write_plate,
    write_tiff,
)

REAL = Path(__file__).parents[1] / "data" / "zarr" / "nf1_v04.ome.zarr"
VERSIONS = ["0.4", "0.5"]
DTYPES = ["bool", "uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64"]
DTYPES += ["float16", "float32", "float64"]

each_version = pytest.mark.parametrize("version", VERSIONS)


def as_stored(pixels, axes):
    """Return pixels with the axes T, C, Z, Y, X."""
    order = [axes.find(axis) for axis in "tczyx"]
    shape = [pixels.shape[axis] if axis >= 0 else 1 for axis in order]
    return pixels.transpose([axis for axis in order if axis >= 0]).reshape(shape)


@pytest.mark.parametrize("level", range(5))
def test_a_real_store_is_read_at_every_level(level):
    expected = zarr.open_array(REAL / f"s{level}", mode="r")[:]

    (image,) = read_all(OmeZarrFolder(REAL, level=level))

    np.testing.assert_array_equal(expected, image[0, :, 0])


@each_version
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_pixel_type_is_read(tmp_path, version, dtype):
    pixels = random_pixels((2, 9, 7), dtype)

    path = write_ome_zarr(tmp_path / "a.zarr", pixels, version=version, chunks=(1, 4, 4))

    assert_images([pixels[None, :, None]], read_all(OmeZarrFolder(path)))


V2_COMPRESSORS = [
    None,
    numcodecs.Blosc("zstd", 3, numcodecs.Blosc.SHUFFLE),
    numcodecs.Blosc("lz4", 3, numcodecs.Blosc.BITSHUFFLE),
    numcodecs.Zstd(3),
    numcodecs.GZip(3),
    numcodecs.Zlib(3),
    numcodecs.LZ4(),
    numcodecs.BZ2(3),
]
V3_COMPRESSORS = [
    None,
    zarr.codecs.BloscCodec(cname="zstd"),
    zarr.codecs.ZstdCodec(level=3),
    zarr.codecs.ZstdCodec(level=3, checksum=True),
    zarr.codecs.GzipCodec(level=3),
    [zarr.codecs.ZstdCodec(level=3), zarr.codecs.Crc32cCodec()],
    [zarr.codecs.GzipCodec(level=3), zarr.codecs.ZstdCodec(level=3)],
]


@st.composite
def stored_arrays(draw):
    axes = draw(st.sampled_from(["yx", "cyx", "zyx", "tyx", "czyx", "tczyx", "zcyx", "yxc"]))
    shape = tuple(draw(st.integers(1, 20)) if axis in "yx" else 2 for axis in axes)
    options = {"chunks": tuple(draw(st.integers(1, size)) for size in shape)}
    version = draw(st.sampled_from(VERSIONS))
    options["fill_value"] = 7
    if version == "0.4":
        options["compressors"] = draw(st.sampled_from(V2_COMPRESSORS))
        options["order"] = draw(st.sampled_from("CF"))
        separator = draw(st.sampled_from("./"))
        options["chunk_key_encoding"] = {"name": "v2", "separator": separator}
        options["dtype"] = draw(st.sampled_from(["<u2", ">u2"]))
    else:
        options["compressors"] = draw(st.sampled_from(V3_COMPRESSORS))
        if draw(st.booleans()):
            options["shards"] = tuple(
                size * draw(st.integers(1, 3)) for size in options["chunks"]
            )
        endian = draw(st.sampled_from(["big", "little"]))
        options["serializer"] = zarr.codecs.BytesCodec(endian=endian)
        if draw(st.booleans()):
            order = draw(st.permutations(range(len(shape))))
            options["filters"] = [zarr.codecs.TransposeCodec(order=tuple(order))]
    return axes, shape, version, options


@settings(max_examples=80, deadline=None)
@given(case=stored_arrays(), data=st.data(), in_place=st.booleans())
@pytest.mark.filterwarnings("ignore:.*order.*")
def test_any_store_gives_the_pixels_that_were_written(tmp_path_factory, case, data, in_place):
    axes, shape, version, options = case
    path = tmp_path_factory.mktemp("any") / "a.zarr"
    write_ome_zarr(path, np.zeros([1] * len(axes), "uint16"), axes, version)
    pixels = random_pixels(shape)
    kind = options.pop("dtype", "uint16")
    array = zarr.create_array(
        path / "00",
        shape=shape,
        dtype=kind,
        overwrite=True,
        zarr_format=3 if version == "0.5" else 2,
        **options,
    )
    hole = tuple(slice(0, size // 2) for size in shape)
    pixels[hole] = 7  # chunks that hold nothing else are not written
    array[...] = pixels

    expected = as_stored(pixels, axes)
    channels = data.draw(st.none() | st.permutations(range(expected.shape[1])))

    images = read_all(OmeZarrFolder(path), in_place=in_place, channels=channels)

    assert_images([expected if channels is None else expected[:, channels]], images)


@each_version
def test_a_level_is_chosen_by_the_size_of_its_pixels(tmp_path, version):
    path = write_ome_zarr(
        tmp_path / "a.zarr", random_pixels((1, 16, 16)), version=version, num_levels=3
    )
    expected = {0.1: 16, 0.5: 16, 0.99: 16, 1.0: 8, 1.9: 8, 2: 4, 50: 4}

    sizes = {
        size: int(OmeZarrFolder(path, pixel_size=size).read_table().shapes[0, 4])
        for size in expected
    }

    assert sizes == expected


def test_a_level_by_number_and_by_size_is_refused():
    with pytest.raises(SettingsError, match=r"level=1 and pixel_size=2\.0: expected one"):
        OmeZarrFolder(REAL, level=1, pixel_size=2.0)


def test_a_level_that_is_not_there_is_refused():
    with pytest.raises(SourceError, match="levels 0 to 4 of resolution, but not level=5"):
        OmeZarrFolder(REAL, level=5)


def test_a_folder_of_stores_is_read_in_natural_order(tmp_path):
    images = {name: random_pixels((2, 6, 6), seed=n) for n, name in enumerate(["a2", "a10"])}
    for (name, pixels), version in zip(images.items(), VERSIONS, strict=True):
        write_ome_zarr(tmp_path / "deep" / f"{name}.ome.zarr", pixels, version=version)

    source = open_source(tmp_path)

    assert isinstance(source, OmeZarrFolder)
    assert source.read_column("path") == ["deep/a2.ome.zarr", "deep/a10.ome.zarr"]
    assert source.read_column("file_name") == ["a2.ome.zarr", "a10.ome.zarr"]
    assert source.read_column("folder") == ["deep", "deep"]
    assert_images([pixels[None, :, None] for pixels in images.values()], read_all(source))


@each_version
def test_a_collection_gives_each_of_its_images(tmp_path, version):
    set_ome(tmp_path / "a.zarr", {"bioformats2raw.layout": 3}, version)
    set_ome(tmp_path / "a.zarr" / "OME", {"series": ["1", "0"]}, version)
    for name in "01":
        write_ome_zarr(tmp_path / "a.zarr" / name, random_pixels((1, 4, 4)), version=version)

    source = OmeZarrFolder(tmp_path)

    assert source.read_column("image") == ["1", "0"]
    assert source.read_column("path") == ["a.zarr/1", "a.zarr/0"]


@each_version
def test_a_collection_without_a_list_gives_its_groups_in_order(tmp_path, version):
    set_ome(tmp_path / "a.zarr", {"bioformats2raw.layout": 3}, version)
    for name in ("10", "9"):
        write_ome_zarr(tmp_path / "a.zarr" / name, random_pixels((1, 4, 4)), version=version)

    assert OmeZarrFolder(tmp_path / "a.zarr").read_column("image") == ["9", "10"]


def test_labels_are_left_out(tmp_path):
    pixels = random_pixels((1, 4, 4))
    write_ome_zarr(tmp_path / "a.zarr", pixels)
    set_ome(tmp_path / "a.zarr" / "labels", {"labels": ["cells"]})
    write_ome_zarr(tmp_path / "a.zarr" / "labels" / "cells", random_pixels((1, 4, 4), seed=1))

    assert_images([pixels[None, :, None]], read_all(OmeZarrFolder(tmp_path)))


@each_version
def test_a_plate_gives_its_fields_with_their_wells(tmp_path, version):
    images = {
        "B/2": [random_pixels((2, 5, 5), seed=1)],
        "A/10": [random_pixels((2, 5, 5), seed=2), random_pixels((2, 5, 5), seed=3)],
    }
    write_plate(tmp_path / "p.zarr", images, version)

    source = OmeZarrFolder(tmp_path / "p.zarr")

    assert source.read_column("plate") == ["plate one"] * 3
    assert source.read_column("well") == ["A10", "A10", "B2"]
    assert source.read_column("well_row") == ["A", "A", "B"]
    assert source.read_column("well_column") == ["10", "10", "2"]
    assert source.read_column("field") == ["0", "1", "0"]
    assert source.find_rows(pc.field("well") == "A10").tolist() == [0, 1]
    expected = [*images["A/10"], *images["B/2"]]
    assert_images([pixels[None, :, None] for pixels in expected], read_all(source))


def test_one_well_of_a_plate_is_read(tmp_path):
    write_plate(tmp_path / "p.zarr", {"A/1": [random_pixels((1, 4, 4))] * 2})

    assert OmeZarrFolder(tmp_path / "p.zarr" / "A" / "1").read_column("well") == ["A1", "A1"]


@pytest.mark.parametrize(
    ("opened", "missing", "message", "left"),
    [
        ("", ["A/1"], r"p\.zarr lists 1 wells or fields that are not there \(A/1\)", [2]),
        ("", ["A/1/0"], r"p\.zarr lists 1 .* \(A/1/0\)", [1, 2]),
        ("", ["A/1/0", "A/1/1"], r"p\.zarr lists 2 .* \(A/1/0, A/1/1\)", [2]),
        ("A/1", ["A/1/1"], r"A/1 lists 1 .* \(1\)", [0]),
    ],
)
@each_version
def test_a_plate_that_is_imaged_in_part_gives_what_is_there(
    tmp_path, version, opened, missing, message, left
):
    images = [random_pixels((1, 4, 4), seed=seed) for seed in range(3)]
    plate = write_plate(tmp_path / "p.zarr", {"A/1": images[:2], "B/2": images[2:]}, version)
    for path in missing:
        shutil.rmtree(plate / path)

    with pytest.warns(UserWarning, match=message):
        source = OmeZarrFolder(plate / opened)

    assert_images([images[number][None, :, None] for number in left], read_all(source))


@pytest.mark.parametrize("missing", ["A/1", "A/1/0"])
def test_a_plate_of_which_nothing_is_there_is_refused(tmp_path, missing):
    write_plate(tmp_path / "p.zarr", {"A/1": [random_pixels((1, 4, 4))]})
    shutil.rmtree(tmp_path / "p.zarr" / missing)

    with (
        pytest.warns(UserWarning, match="lists 1 wells or fields that are not there"),
        pytest.raises(SourceError, match="is a Zarr group without an image"),
    ):
        OmeZarrFolder(tmp_path)


def test_channels_have_the_labels_of_the_metadata(tmp_path):
    path = write_ome_zarr(tmp_path / "a.zarr", random_pixels((2, 4, 4)))
    set_ome(path, {**ome_of(path), "omero": {"channels": [{"label": "DNA"}, {}]}})

    assert OmeZarrFolder(path).read_channel_names() == [("DNA", None)]


def ome_of(path):
    return json.loads((path / "zarr.json").read_text())["attributes"]["ome"]


def test_an_array_alone_is_refused_with_what_to_do():
    with pytest.raises(
        SourceError, match=r"s0 is a Zarr array without .* give the group above"
    ):
        OmeZarrFolder(REAL / "s0")


def test_a_group_without_images_is_refused_with_what_it_has(tmp_path):
    group = zarr.open_group(tmp_path / "a.zarr", mode="w")
    group.create_array("pixels", shape=(4, 4), dtype="uint8")
    group.attrs["author"] = "me"

    with pytest.raises(SourceError, match=r"without an image.*'author' and inside it 'pixels'"):
        OmeZarrFolder(tmp_path)


def test_a_folder_without_stores_is_refused(tmp_path):
    with pytest.raises(SourceError, match="has no Zarr group in it or its subfolders"):
        OmeZarrFolder(tmp_path)


def named(names, types):
    pairs = zip(names.split(), types.split(), strict=True)
    return [{"name": name} | ({} if kind == "-" else {"type": kind}) for name, kind in pairs]


@pytest.mark.parametrize(
    ("axes", "letters"),
    [
        (named("C Y X", "- - -"), "cyx"),
        (named("channel y x", "- - -"), "cyx"),
        (named("time y x", "- space space"), "tyx"),
        (named("c depth height width", "channel space space space"), "czyx"),
        (named("row column", "space space"), "yx"),
        (named("y x depth", "space space space"), "yxz"),
        (named("plane x y", "space space space"), "zxy"),
        (named("z t x", "time space space"), "tyx"),
        (named("lambda y x", "spectrum space space"), "cyx"),
        (named("dim_0 y x", "- space space"), "cyx"),
        (named("t lifetime z y x", "time custom space space space"), "tczyx"),
    ],
    ids=lambda value: value if isinstance(value, str) else " ".join(a["name"] for a in value),
)
def test_axes_of_any_name_are_told_by_type_and_place(tmp_path, axes, letters):
    pixels = random_pixels(range(2, 2 + len(axes)))
    path = write_ome_zarr(tmp_path / "a.zarr", pixels, letters)
    ome = ome_of(path)
    ome["multiscales"][0]["axes"] = axes
    set_ome(path, ome)

    assert_images([as_stored(pixels, letters)], read_all(OmeZarrFolder(path)))


@pytest.mark.parametrize(
    "axes",
    [
        named("angle c y x", "angle channel space space"),
        named("angle lambda y x", "- - space space"),
        named("w z y x", "space space space space"),
    ],
    ids=["beside channels", "two", "four of space"],
)
def test_an_axis_without_a_place_is_refused(tmp_path, axes):
    path = write_ome_zarr(tmp_path / "a.zarr", random_pixels((3, 2, 4, 4)), "tcyx")
    ome = ome_of(path)
    ome["multiscales"][0]["axes"] = axes
    set_ome(path, ome)

    with pytest.raises(ImageDataError, match=r"a\.zarr.*no place for '\?' of size 3"):
        OmeZarrFolder(path)


def test_axes_in_the_way_of_a_later_version_are_refused(tmp_path):
    path = write_ome_zarr(tmp_path / "a.zarr", random_pixels((3, 4, 4)))
    ome = ome_of(path)
    multiscale = ome["multiscales"][0]
    multiscale["coordinateSystems"] = [{"name": "own", "axes": multiscale.pop("axes")}]
    set_ome(path, ome)

    with pytest.raises(ImageDataError, match=r"coordinateSystems are of a version after 0\.5"):
        OmeZarrFolder(path)


@pytest.mark.parametrize("name", ["zarr.json", "00/zarr.json"])
def test_metadata_that_are_no_json_are_told(tmp_path, name):
    path = write_ome_zarr(tmp_path / "a.zarr", random_pixels((3, 4, 4)))
    (path / name).write_text("{")

    with pytest.raises(SourceError, match=f"{name} cannot be read as JSON"):
        OmeZarrFolder(path)


def test_a_level_that_leads_out_of_the_store_is_refused(tmp_path):
    path = write_ome_zarr(tmp_path / "a.zarr", random_pixels((3, 4, 4)))
    ome = ome_of(path)
    ome["multiscales"][0]["datasets"][0]["path"] = "../b.zarr/0"
    set_ome(path, ome)

    with pytest.raises(ImageDataError, match="leads out"):
        OmeZarrFolder(path)


def change_array(path, **changes):
    metadata = json.loads((path / "00" / "zarr.json").read_text())
    metadata.update(changes)
    (path / "00" / "zarr.json").write_text(json.dumps(metadata))


ABSURD = {
    "pixels": ({"shape": [2**40, 2**20, 4]}, r"at most 2\*\*44"),
    "chunks": (
        {"chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [1, 2**40, 4]}}},
        "far larger than the array",
    ),
    "number of chunks": (
        {
            "shape": [1, 2**20, 2**20],
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [1, 1, 1]}},
        },
        "more than 4194304 chunks",
    ),
    "negative": ({"shape": [3, -4, 4]}, "sizes of 1 or more"),
    "type": ({"data_type": "complex64"}, "elements are 'complex64', expected numbers"),
    "dimensions": ({"shape": [4, 4]}, "do not fit an array"),
}


@pytest.mark.parametrize(("changes", "message"), ABSURD.values(), ids=ABSURD)
def test_absurd_metadata_are_refused_before_memory_is_taken(tmp_path, changes, message):
    path = write_ome_zarr(tmp_path / "a.zarr", random_pixels((3, 4, 4)))
    change_array(path, **changes)

    with pytest.raises(ImageDataError, match=message):
        OmeZarrFolder(path)


@pytest.mark.parametrize(
    "compressors",
    V3_COMPRESSORS[:-1],
    ids=["none", "blosc", "zstd", "zstd with checksum", "gzip", "zstd and crc32c"],
)
def test_a_chunk_of_another_length_is_told_by_name(tmp_path, compressors):
    path = write_ome_zarr(
        tmp_path / "a.zarr", random_pixels((1, 8, 8)), compressors=compressors
    )
    other = write_ome_zarr(
        tmp_path / "b.zarr", random_pixels((1, 8, 6)), compressors=compressors
    )
    source = OmeZarrFolder(path)
    shutil.copy(other / "00" / "c" / "0" / "0" / "0", path / "00" / "c" / "0" / "0" / "0")

    with pytest.raises(ImageDataError, match=r"00/c/0/0/0 cannot be decoded"):
        read_all(source)


def test_a_zstandard_chunk_without_a_stated_size_must_have_the_right_one(tmp_path):
    zstd = pytest.importorskip("imagecodecs")
    path = write_ome_zarr(
        tmp_path / "a.zarr", random_pixels((1, 8, 8)), compressors=zarr.codecs.ZstdCodec()
    )
    source = OmeZarrFolder(path)
    frame = bytearray(zstd.zstd_encode(bytes(126)))
    assert frame[4] & 0x20  # a single segment, whose size of one byte follows
    # The same frame with a window in place of the size.
    frame[4:6] = bytes([frame[4] & 0x1F & ~0xC0, 0])
    (path / "00" / "c" / "0" / "0" / "0").write_bytes(frame)

    with pytest.raises(ImageDataError, match="cannot be decoded"):
        read_all(source)


@pytest.mark.parametrize("position", [-30, 3], ids=["index", "chunk"])
def test_a_damaged_shard_is_told(tmp_path, position):
    path = write_ome_zarr(
        tmp_path / "a.zarr",
        random_pixels((1, 8, 8)),
        chunks=(1, 4, 4),
        shards=(1, 8, 8),
        compressors=[zarr.codecs.ZstdCodec(), zarr.codecs.Crc32cCodec()],
    )
    source = OmeZarrFolder(path)
    shard = path / "00" / "c" / "0" / "0" / "0"
    content = bytearray(shard.read_bytes())
    content[position] ^= 1
    shard.write_bytes(content)

    with pytest.raises(ImageDataError, match="checksum does not fit"):
        read_all(source)


def test_an_array_that_was_made_anew_is_refused(tmp_path):
    path = write_ome_zarr(tmp_path / "a.zarr", random_pixels((1, 8, 8)))
    source = OmeZarrFolder(path)
    change_array(path, shape=[1, 8, 9])

    with pytest.raises(SourceError, match="was changed since it was first looked at"):
        read_all(source)


def test_the_fingerprint_changes_with_a_chunk(tmp_path):
    path = write_ome_zarr(tmp_path / "a.zarr", random_pixels((1, 8, 8)))
    before = OmeZarrFolder(path).fingerprint
    assert OmeZarrFolder(path).fingerprint == before

    os.utime(path / "00" / "c" / "0" / "0" / "0", ns=(1, 1))

    assert OmeZarrFolder(path).fingerprint != before


def test_usual_stores_are_read_without_a_thread_or_an_open_file(no_leaks):
    source = pickle.loads(pickle.dumps(OmeZarrFolder(REAL)))

    images = read_all(source)

    assert images[0].shape == (1, 3, 1, 160, 160)


@pytest.mark.multiprocess
def test_stores_are_read_by_processes(tmp_path, monkeypatch, no_leaks):
    for number in range(40):
        shutil.copytree(REAL, tmp_path / f"{number}.zarr")
    monkeypatch.setattr("fastloader.sources._compiled_job.raw_reader", lambda: None)
    expected = read_all(OmeZarrFolder(REAL)) * 40
    monkeypatch.setattr("fastloader.sources._jobs._WORTH_STARTING_SECONDS", -1)

    images = read_all(OmeZarrFolder(tmp_path, num_cores=3), in_place=True, num_threads=3)

    assert_images(expected, images)


@pytest.mark.multiprocess
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_reads_unusual_codecs_while_zarrs_is_in_force(tmp_path):
    pytest.importorskip("zarrs")
    pixels = random_pixels((1, 64, 64))
    codecs = [zarr.codecs.GzipCodec(), zarr.codecs.ZstdCodec()]
    path = write_ome_zarr(tmp_path / "a.zarr", pixels, compressors=codecs, chunks=(1, 8, 8))
    source = OmeZarrFolder(path)
    with zarr.config.set({"codec_pipeline.path": "zarrs.ZarrsCodecPipeline"}):
        zarr.open_array(path / "00", mode="r")[...]  # starts its threads
        child = multiprocessing.get_context("fork").Process(
            target=check_child, args=(source, pixels)
        )
        child.start()

        child.join(30)

    child.kill()
    assert child.exitcode == 0


def check_child(source, pixels):
    assert_images([pixels[None, :, None]], read_all(source))


def test_zlib_is_checked_to_its_end():
    from fastloader.sources._zarr_codecs import decompress

    out = np.zeros(100, np.uint8)
    content = zlib.compress(bytes(range(100)))

    with pytest.raises(ValueError, match="end too early"):
        decompress("zlib", memoryview(content[:-2]), out)


def test_a_folder_of_both_kinds_needs_the_format(tmp_path):
    write_ome_zarr(tmp_path / "a.zarr", random_pixels((1, 4, 4)))
    write_tiff(tmp_path / "b.tif", random_pixels((4, 4)))

    with pytest.raises(SourceError, match=r"by format= .*, one of 'ome-zarr', 'tiff'\.$"):
        open_source(tmp_path)
    assert open_source(tmp_path, format="tiff").read_column("path") == ["b.tif"]
    assert open_source(tmp_path, format="ome-zarr").read_column("path") == ["a.zarr"]


def test_a_chunk_that_cannot_be_opened_is_not_called_damaged(tmp_path):
    store = write_ome_zarr(tmp_path / "a.zarr", random_pixels((1, 8, 6)))
    source = OmeZarrFolder(store)
    chunk = store / "00" / "c" / "0" / "0" / "0"
    chunk.unlink()
    chunk.mkdir()

    with pytest.raises(SourceError, match=r"c/0/0/0 cannot be read .*directory") as told:
        read_all(source)
    assert not isinstance(told.value, ImageDataError)


def test_a_link_that_leads_nowhere_is_a_missing_chunk(tmp_path):
    store = write_ome_zarr(tmp_path / "a.zarr", random_pixels((1, 8, 6)))
    before = OmeZarrFolder(store).fingerprint
    chunk = store / "00" / "c" / "0" / "0" / "0"
    chunk.unlink()
    chunk.symlink_to("nowhere")

    source = OmeZarrFolder(store)

    assert source.fingerprint != before
    assert not read_all(source)[0].any()
