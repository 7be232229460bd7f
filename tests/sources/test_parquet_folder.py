"""Several Parquet files as one: lists of files, folders, partitions, many open files."""

import json
import pickle

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from fastloader.errors import SourceError
from fastloader.sources import ParquetSource, open_source
from tests.ome_arrow_tables import ome_arrow_value, random_image, write_images
from tests.sources.reading import assert_same, read_images

IMAGES = [random_image((1, 2, 1, 3, 4), seed=seed) for seed in range(9)]


def write_part(path, numbers, **columns):
    path.parent.mkdir(parents=True, exist_ok=True)
    values = [ome_arrow_value(IMAGES[number]) for number in numbers]
    return write_images(path, values, number=list(numbers), **columns)


@pytest.fixture
def plates(tmp_path):
    root = tmp_path / "plates"
    write_part(root / "plate=7" / "well=A1" / "a.parquet", [0, 1])
    write_part(root / "plate=7" / "well=B%201" / "b.parquet", [2])
    write_part(root / "plate=12" / "well=A1" / "part-0.parquet", [3, 4])
    write_part(root / "plate=12" / "well=__HIVE_DEFAULT_PARTITION__" / "c.pq", [5])
    (root / "_SUCCESS").write_text("")
    (root / ".hidden.parquet").write_bytes(b"no Parquet")
    return root


def test_files_follow_one_another_in_the_order_given(tmp_path):
    paths = [
        write_part(tmp_path / "b.parquet", [0, 1, 2]),
        write_part(tmp_path / "a.parquet", [3]),
        write_part(tmp_path / "c.parquet", [4, 5]),
    ]

    source = open_source(paths)

    assert source.num_rows == 6
    assert_same(IMAGES[:6], read_images(source))
    assert_same(IMAGES[:6], read_images(source, num_threads=4))
    assert source.read_column("number").tolist() == [0, 1, 2, 3, 4, 5]
    assert source.read_channel_names() == [("channel 0", "channel 1")] * 6
    picked = read_images(source, [1, 3, 5])
    assert_same([None, IMAGES[1], None, IMAGES[3], None, IMAGES[5]], picked)
    assert source.where.startswith(f"{paths[0]}, column 'image' and 2 more files")


def write_log(root, lines, version=0):
    log = root / "_delta_log" / f"{version:020}.json"
    log.parent.mkdir(exist_ok=True)
    log.write_text("\n".join(map(json.dumps, lines)))


def write_snapshots(root, *operations):
    snapshots = [{"summary": {"operation": one}} for one in operations]
    (root / "metadata").mkdir(exist_ok=True)
    (root / "metadata" / "v1.metadata.json").write_text(json.dumps({"snapshots": snapshots}))


def test_a_table_whose_log_only_adds_files_is_a_folder_like_others(plates):
    write_log(plates, [{"protocol": {}}, {"add": {"path": "plate=7/well=A1/a.parquet"}}])
    write_part(plates / "_delta_log" / "00.checkpoint.parquet", [8])
    write_snapshots(plates, "append", "append")

    assert_same(IMAGES[3:5] + IMAGES[5:6] + IMAGES[:3], read_images(open_source(plates)))


@pytest.mark.parametrize(
    ("lines", "version"),
    [
        ([{"add": {"path": "b"}}, {"remove": {"path": "plate=7/well=A1/a.parquet"}}], 0),
        ([{"add": {"path": "b", "deletionVector": {"storageType": "u"}}}], 0),
        ([{"add": {"path": "b"}}], 1),
    ],
    ids=["a file removed", "rows deleted", "no beginning"],
)
def test_a_delta_table_of_which_not_all_files_count_is_refused(plates, lines, version):
    write_log(plates, lines, version)

    with pytest.raises(SourceError, match=r"plates is a Delta table .*file_uris\(\)"):
        open_source(plates)


def test_an_iceberg_table_of_which_not_all_files_count_is_refused(plates):
    write_snapshots(plates, "append", "overwrite")

    with pytest.raises(SourceError, match=r"plates is an Iceberg table .*plan_files\(\)"):
        open_source(plates)


def test_a_log_that_cannot_be_read_is_named(plates):
    write_log(plates, [])
    (plates / "_delta_log" / f"{1:020}.json").write_text("{no json")

    with pytest.raises(SourceError, match=r"_delta_log/0+1\.json cannot be read"):
        open_source(plates)


def test_a_folder_gives_all_its_files_and_its_partitions_as_columns(plates):
    source = open_source(plates)

    assert source.column_names == ("number", "plate", "well")
    numbers = source.read_column("number").tolist()
    assert numbers == [3, 4, 5, 0, 1, 2]
    assert source.read_column("plate").tolist() == [12, 12, 12, 7, 7, 7]
    assert source.read_column("well") == ["A1", "A1", None, "A1", "A1", "B 1"]
    assert_same([IMAGES[number] for number in numbers], read_images(source))


@pytest.mark.parametrize(
    ("condition", "numbers"),
    [
        (pc.field("plate") == 7, [0, 1, 2]),
        ((pc.field("plate") == 12) & (pc.field("well") == "A1"), [3, 4]),
        (pc.field("well").is_null(), [5]),
        ((pc.field("well") == "A1") & (pc.field("number") > 0), [3, 4, 1]),
        (pc.field("plate") == 8, []),
    ],
    ids=["number", "text", "null", "with a column of the files", "none"],
)
def test_rows_are_found_by_partition(plates, condition, numbers):
    source = open_source(plates)

    rows = source.find_rows(condition)

    assert source.read_column("number")[rows].tolist() == numbers


def test_a_folder_may_have_a_question_mark_in_its_name(tmp_path):
    write_part(tmp_path / "plates?" / "plate=7" / "a?.parquet", [0, 1])

    source = open_source(tmp_path / "plates?", format="parquet")

    assert source.read_column("plate").tolist() == [7, 7]
    assert_same(IMAGES[:2], read_images(source))


def test_links_that_lead_upwards_repeat_no_row(tmp_path):
    root = tmp_path / "cells"
    write_part(root / "plate=1" / "a.parquet", [0, 1])
    write_part(tmp_path / "elsewhere" / "b.parquet", [2])
    (root / "plate=1" / "again").symlink_to("../../cells")
    (root / "plate=2").symlink_to("../elsewhere")

    source = open_source(root)

    assert source.read_column("number").tolist() == [0, 1, 2]
    assert source.read_column("plate").tolist() == [1, 1, 2]


def test_leading_zeros_make_a_partition_text(tmp_path):
    write_part(tmp_path / "plate=007" / "a.parquet", [0])
    write_part(tmp_path / "plate=010" / "a.parquet", [1])

    assert open_source(tmp_path).read_column("plate") == ["007", "010"]


def test_pixel_types_of_all_files_are_known(tmp_path):
    images = [random_image((1, 1, 1, 3, 4), dtype) for dtype in ("uint8", "float32", "uint8")]
    paths = [
        write_images(tmp_path / f"{number}.parquet", [ome_arrow_value(image)], image.dtype)
        for number, image in enumerate(images)
    ]

    assert_same(images, read_images(open_source(paths)))


def test_files_with_other_columns_are_refused(tmp_path):
    paths = [write_part(tmp_path / "a.parquet", [0])]
    paths.append(write_part(tmp_path / "b.parquet", [1], extra=[1]))

    with pytest.raises(SourceError, match=r"b\.parquet.*expected the columns of .*a\.parquet"):
        open_source(paths)


def test_a_folder_without_parquet_files_is_refused(tmp_path):
    with pytest.raises(SourceError, match="is a folder without Parquet files"):
        open_source(tmp_path, format="parquet")


def test_the_fingerprint_is_of_all_files(plates):
    before = open_source(plates).fingerprint
    assert open_source(plates).fingerprint == before

    write_part(plates / "plate=7" / "well=A1" / "a.parquet", [1, 0])

    assert open_source(plates).fingerprint != before


def test_an_error_names_the_file(plates):
    broken = plates / "plate=7" / "well=A1" / "a.parquet"
    values = [ome_arrow_value(IMAGES[0]) for _ in range(2)]
    values[1]["chunks"][0]["pixels"] = [0]
    write_images(broken, values, number=[0, 1])

    with pytest.raises(SourceError, match=r"well=A1/a\.parquet, column 'image', row 1: "):
        read_images(open_source(plates))


def test_few_of_many_files_are_open_at_once(tmp_path, monkeypatch):
    monkeypatch.setattr("fastloader.sources._concatenated._MAX_OPEN", 3)
    paths = [write_part(tmp_path / f"{n}.parquet", [n]) for n in range(9)]
    before = psutil.Process().num_fds()

    source = open_source(paths)
    assert_same(IMAGES, read_images(source))

    assert psutil.Process().num_fds() - before <= 4


def test_a_pickle_of_many_files_holds_no_arrow_object(plates):
    source = open_source(plates)
    images = read_images(source)

    pickled = pickle.dumps(source)

    assert b"pyarrow" not in pickled
    assert_same(images, read_images(pickle.loads(pickled)))
    assert isinstance(open_source(plates / "plate=7" / "well=A1" / "a.parquet"), ParquetSource)
    np.testing.assert_array_equal(source.read_column("plate"), [12, 12, 12, 7, 7, 7])


@pytest.mark.parametrize(
    ("values", "condition", "numbers"),
    [
        (["1", None, "2"], pc.field("key") > 0, [0, 2]),
        (["1", None, "2"], pc.field("key").isin([2]), [2]),
        (["a", None, "b"], pc.field("key").isin(["b"]), [2]),
        (["a", None, "b"], pc.starts_with(pc.field("key"), "a"), [0]),
        (["a", None, "b"], pc.field("key").is_null(), [1]),
    ],
)
def test_a_missing_partition_is_of_the_type_of_the_others(tmp_path, values, condition, numbers):
    for number, value in enumerate(values):
        folder = tmp_path / f"n={number}" / f"key={value or '__HIVE_DEFAULT_PARTITION__'}"
        write_part(folder / "a.parquet", [number])

    source = open_source(tmp_path)

    rows = pickle.loads(pickle.dumps(source)).find_rows(condition)
    assert numbers == source.read_column("number")[rows].tolist()


def test_zeros_are_found_among_numbers(tmp_path):
    # Of zeros alone the least is stated to be -0, which Arrow finds in no set.
    path = write_part(tmp_path / "a.parquet", [0, 1], area=[0.0, 0.0])

    assert open_source(path).find_rows(pc.field("area").isin([0.0, 1.0])).tolist() == [0, 1]


@pytest.mark.parametrize("value", [str(2**63), str(-(2**63) - 1), "9" * 100])
def test_a_partition_that_int64_cannot_hold_is_text(tmp_path, value):
    write_part(tmp_path / "key=1" / "a.parquet", [0])
    write_part(tmp_path / f"key={value}" / "a.parquet", [1])

    assert sorted(open_source(tmp_path).read_column("key")) == sorted(["1", value])


@pytest.mark.parametrize(
    ("condition", "rows"),
    [
        (pc.field("area").is_nan(), [1]),
        (pc.field("area") != 1.0, [1, 2, 3]),
        (~(pc.field("area") > 1.5), [0, 1]),
        ((pc.field("area") > 0.5) == False, [1]),  # noqa: E712
        (pc.xor(pc.field("area") > 0.5, pc.field("number") >= 0), [1]),
        (pc.field("area").is_null(nan_is_null=True), [1]),
        (pc.field("area").isin([5.0, np.nan]), [1]),
        ((pc.field("number") > 3) | pc.field("area").is_nan(), [1]),
        (pc.field("area") > 0.5, [0, 2, 3]),
        (pc.field("s", "area").is_nan(), [1]),
    ],
    ids=str,
)
@pytest.mark.parametrize("kind", [pa.float32(), pa.float64()], ids=str)
def test_what_is_no_number_counts_in_conditions_although_in_no_statistics(
    tmp_path, condition, rows, kind
):
    areas = pa.array(np.array([1.0, np.nan, 2.0, 2.0], np.float64)).cast(kind)
    write_part(
        tmp_path / "a.parquet",
        [0, 1, 2, 3],
        area=areas,
        s=pa.StructArray.from_arrays([areas], ["area"]),
    )

    assert open_source(tmp_path / "a.parquet").find_rows(condition).tolist() == rows
