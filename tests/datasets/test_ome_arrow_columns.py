"""Filters, joined tables and several labels of OMEArrowDataset."""

import pickle
from contextlib import ExitStack
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import default_collate

from fastloader import FastLoader, split
from fastloader.datasets import OMEArrowDataset
from fastloader.errors import ImageDataError, SettingsError, SourceError
from tests.ome_arrow_tables import ome_arrow_value, random_image, write_images
from tests.sources.servers import object_store, web_server

IMAGES = [random_image((1, 1, 1, 4, 3), seed=seed) for seed in range(8)]
WELLS = ["A1", "A2", "B1", "B2"] * 2
LARGE = pa.scalar(2**63, pa.uint64())
SITES = [1, 1, 1, 1, 2, 2, 2, 2]


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    values = [ome_arrow_value(image) for image in IMAGES]
    return write_images(
        tmp_path_factory.mktemp("images") / "images.parquet",
        values,
        well=WELLS,
        site=SITES,
        dose=pa.array([0.1, None, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8]),
    )


@pytest.fixture(scope="module")
def plate():
    return pa.table({
        "well": ["B2", "A1", "B1", "C7"],
        "drug": ["x", "y", "x", "z"],
        "count": pa.array([4, 5, 6, 7], pa.uint8()),
    })


def image(row):
    return torch.from_numpy(IMAGES[row][0, :, 0].astype(np.float32))


def is_in_a():
    return pc.starts_with(pc.field("well"), "A")


def test_a_filter_leaves_rows_out(path):
    dataset = OMEArrowDataset(path, label_column="site", filter=is_in_a())

    assert dataset.rows.tolist() == [0, 1, 4, 5]
    assert dataset.metadata["well"] == ["A1", "A2"] * 2
    images, labels = dataset.get_batch([3, 0])
    assert torch.equal(torch.stack([image(5), image(0)]), images)
    assert labels.tolist() == [2, 1]


def test_rows_whose_condition_is_null_are_left_out(path):
    assert 1 not in OMEArrowDataset(path, filter=pc.field("dose") < 0.5).rows


@settings(max_examples=25, deadline=None)
@given(
    site=st.integers(0, 3),
    wells=st.sets(st.sampled_from(WELLS), min_size=1),
    join=st.booleans(),
    preload=st.booleans(),
)
def test_a_filter_gives_the_rows_that_python_would(path, plate, site, wells, join, preload):
    condition = (pc.field("site") >= site) & pc.field("well").isin(sorted(wells))
    options = {"join": plate, "join_on": "well"} if join else {}

    dataset = OMEArrowDataset(path, filter=condition, preload=preload, **options)

    expected = [row for row in range(8) if SITES[row] >= site and WELLS[row] in wells]
    assert dataset.rows.tolist() == expected
    for index, row in enumerate(expected):
        assert torch.equal(image(row), dataset[index])


def test_rows_left_out_may_be_broken_or_of_another_type(tmp_path):
    values = [ome_arrow_value(one, encoding="bytes") for one in IMAGES[:2]]
    values += [None, ome_arrow_value(IMAGES[0].astype(np.float64), encoding="bytes")]
    path = write_images(
        tmp_path / "a.parquet", values, encoding="bytes", keep=[True, True, False, False]
    )

    dataset = OMEArrowDataset(path, filter=pc.field("keep"), dtype=None)

    assert dataset[1].dtype == torch.uint16
    with pytest.raises(ImageDataError, match="row 2 has no image"):
        OMEArrowDataset(path)


def test_a_filter_that_leaves_nothing_is_an_empty_dataset(path):
    assert len(OMEArrowDataset(path, filter=pc.field("site") > 9)) == 0


@pytest.mark.parametrize("kind", ["table", "csv", "tsv", "parquet", "pandas"])
def test_a_joined_table_gives_metadata_and_labels(path, plate, tmp_path, kind):
    table = plate
    if kind == "pandas":
        pytest.importorskip("pandas")
        table = plate.to_pandas()
    elif kind != "table":
        table = tmp_path / f"plate.{kind}"
        if kind == "parquet":
            pq.write_table(plate, table)
        else:
            mark = "," if kind == "csv" else "\t"
            rows = zip(*(column.to_pylist() for column in plate.columns), strict=True)
            lines = [plate.column_names, *rows]
            table.write_text("\n".join(mark.join(map(str, line)) for line in lines))

    dataset = OMEArrowDataset(
        path,
        label_column="drug",
        join=table,
        join_on="well",
        filter=pc.field("drug").is_valid() & (pc.field("site") == 2),
    )

    assert dataset.rows.tolist() == [4, 6, 7]
    assert dataset.classes == ("x", "y")
    assert dataset.labels.tolist() == [1, 0, 0]
    assert list(dataset.metadata["count"]) == [5, 6, 4]


@pytest.mark.parametrize("ending", [".csv.gz", ".tsv.zst", ".TXT.bz2"])
def test_a_joined_table_of_text_may_be_compressed(path, tmp_path, ending):
    table = tmp_path / f"plate{ending}"
    codec = {"gz": "gzip", "st": "zstd", "z2": "bz2"}[ending[-2:]]
    mark = "," if ".csv" in ending else "\t"
    with pa.CompressedOutputStream(table, codec) as file:
        file.write(f"well{mark}drug\nA1{mark}y\nB2{mark}x\n".encode())

    assert OMEArrowDataset(path, join=table, join_on="well").metadata["drug"] == [
        *("y", None, None, "x"),
        *("y", None, None, "x"),
    ]


def test_a_joined_folder_of_parquet_files_is_one_table(path, plate, tmp_path):
    for number, rows in enumerate([plate[:2], plate[2:]]):
        pq.write_table(rows, tmp_path / f"{number}.parquet")

    dataset = OMEArrowDataset(path, join=tmp_path, join_on="well")

    assert dataset.metadata["drug"] == ["y", None, "x", "x"] * 2


@pytest.mark.library_threads  # Arrow's and fsspec's live on
@pytest.mark.parametrize("name", ["plate.csv", "plate.csv.gz", "plate.parquet"])
@pytest.mark.parametrize("place", ["web", "web of whole files", "object store", "memory"])
def test_a_table_at_a_url_is_joined(path, plate, tmp_path, name, place):
    (tmp_path / "t").mkdir()
    if name.endswith(".parquet"):
        pq.write_table(plate, tmp_path / "t" / name)
    else:
        with pa.output_stream(tmp_path / "t" / name, compression="detect") as file:
            pa_csv.write_csv(plate, file)
    with ExitStack() as stack:
        end = ""
        if place == "memory":
            fsspec = pytest.importorskip("fsspec")
            fsspec.filesystem("memory").pipe(
                f"/tables/{name}", (tmp_path / "t" / name).read_bytes()
            )
            url = "memory://tables"
        elif place == "object store":
            url, end = stack.enter_context(object_store(tmp_path / "t"))
        else:
            gives_parts = place == "web"
            url = stack.enter_context(web_server(tmp_path / "t", gives_parts=gives_parts))

        dataset = OMEArrowDataset(
            path, join=f"{url}/{name}{end}", join_on="well", label_column="drug",
            filter=pc.field("drug") == "x",
        )  # fmt: skip
        with pytest.raises(SourceError, match=r"nosuch\.csv"):
            OMEArrowDataset(path, join=f"{url}/nosuch.csv{end}", join_on="well")

    assert dataset.rows.tolist() == [2, 3, 6, 7]
    assert dataset.classes == ("x",)


def test_storage_options_are_for_a_joined_table_too(path, plate, tmp_path):
    pytest.importorskip("fsspec")
    pq.write_table(plate, tmp_path / "plate.parquet")
    url = f"simplecache::{(tmp_path / 'plate.parquet').as_uri()}"
    options = {"simplecache": {"cache_storage": str(tmp_path / "kept")}}

    OMEArrowDataset(path, join=url, join_on="well", storage_options=options)

    assert len(list((tmp_path / "kept").iterdir())) == 1


@pytest.mark.parametrize(
    ("values", "condition"),
    [
        (pa.array([2**64 - 1, None, 1, 2], pa.uint64()), pc.field("x") > LARGE),
        (pa.nulls(4, pa.string()), ~pc.starts_with(pc.field("x"), "a")),
        (pa.nulls(4, pa.list_(pa.int8())), pc.list_value_length(pc.field("x")) == 0),
        (pa.nulls(4, pa.struct([("y", pa.int8())])), pc.field("x", "y") == 0),
        (pa.array([1, None, 3, 4], pa.duration("ns")), pc.field("x") == pa.scalar(3, pa.duration("ns"))),
    ],
    ids=lambda one: str(getattr(one, "type", "")),
)  # fmt: skip
def test_conditions_are_about_the_types_that_a_joined_table_has(path, values, condition):
    table = pa.table({"well": ["A1", "A2", "B1", "B2"], "x": values})
    expected = pa.table({"row": range(8), "x": pa.concat_arrays([values] * 2)})

    dataset = OMEArrowDataset(path, join=table, join_on="well", filter=condition)

    assert dataset.rows.tolist() == expected.filter(condition)["row"].to_pylist()


def test_a_condition_may_be_about_large_numbers_on_both_sides(tmp_path, plate):
    path = write_images(
        tmp_path / "a.parquet",
        [ome_arrow_value(image) for image in IMAGES[:3]],
        well=["A1", "B2", "B1"],
        large=pa.array([2**64 - 1, None, 2**64 - 2], pa.uint64()),
    )
    condition = (pc.field("large") > LARGE) & (pc.field("drug") == "x")

    dataset = OMEArrowDataset(path, join=plate, join_on="well", filter=condition)

    assert dataset.rows.tolist() == [2]


def test_rows_without_partner_get_nulls(path, plate):
    dataset = OMEArrowDataset(path, join=plate, join_on=["well"])

    assert dataset.metadata["drug"] == ["y", None, "x", "x"] * 2
    with pytest.raises(SourceError, match="label column 'drug': label 1 is null"):
        OMEArrowDataset(path, label_column="drug", join=plate, join_on="well")


@pytest.mark.parametrize("keys", [[1, 2], [2, 7]], ids=["a range", "others"])
def test_a_key_may_be_the_index_of_a_table_of_pandas(path, keys):
    pandas = pytest.importorskip("pandas")
    table = pandas.DataFrame({"batch": ["x", "y"]}, pandas.Index(keys, name="site"))

    dataset = OMEArrowDataset(path, join=table, join_on="site")

    known = dict(zip(keys, ["x", "y"], strict=True))
    assert dataset.metadata["batch"] == [known.get(site) for site in SITES]


def test_several_keys_may_have_other_names(path):
    table = pa.table({
        "Well": ["A1", "A1", "B2"],
        "Site": [2, 1, 2],
        "quality": [0.25, 0.5, 0.75],
    })

    dataset = OMEArrowDataset(path, join=table, join_on={"well": "Well", "site": "Site"})

    quality = dataset.metadata["quality"]
    assert [(row, value) for row, value in enumerate(quality) if value is not None] == [
        (0, 0.5),
        (4, 0.25),
        (7, 0.75),
    ]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"join_on": "well"}, "join= and join_on= go together"),
        ({"join": pa.table({"well": ["A1"]})}, "join= and join_on= go together"),
        ({"join": pa.table({"x": [1]}), "join_on": "well"}, "has no key column 'well'"),
        ({"join": pa.table({"x": [1]}), "join_on": "x"}, "has no key column 'x'"),
        ({"join": pa.table({"well": ["A1"]}), "join_on": []}, "has no key column at all"),
        (
            {"join": pa.table({"well": ["A1", "B2", "A1"]}), "join_on": "well"},
            "rows 0 and 2 both have the key 'A1'",
        ),
        (
            {"join": pa.table({"site": ["1", "2"]}), "join_on": "site"},
            "none of the keys .* like 1, here like '1'. Text and numbers",
        ),
        (
            {"join": pa.table({"well": ["A1"], "dose": [1]}), "join_on": "well"},
            "both have columns 'dose'",
        ),
        ({"join": 42, "join_on": "well"}, "join= of type int is no table"),
        ({"join": pa.table({"well": ["A1"]}), "join_on": 3}, "join_on=3: expected the name"),
        (
            {"join": pa.table({"well": [["A1"]]}), "join_on": "well"},
            r"key column 'well' has \['A1'\]: expected .* single values",
        ),
        (
            {"join": pa.table([["A1"], [1], [2]], ["well", "x", "x"]), "join_on": "well"},
            "has several columns 'x': rename them",
        ),
        ({"filter": "site == 1"}, "expected an expression such as"),
        ({"filter": pc.field("nosuch") == 1}, "cannot be applied"),
        ({"label_mapping": {"A1": 1}}, "label_mapping= needs label_column="),
        ({"label_column": ["well"], "label_mapping": ["A1"]}, "with several label columns"),
    ],
)
def test_options_that_do_not_fit_are_errors(path, options, message):
    with pytest.raises(SettingsError, match=message):
        OMEArrowDataset(path, **options)


def test_a_table_that_cannot_be_read_is_an_error_that_names_it(path, tmp_path):
    with pytest.raises(SourceError, match=r"nosuch.csv cannot be read.*CSV, TSV or Parquet"):
        OMEArrowDataset(path, join=tmp_path / "nosuch.csv", join_on="well")


def test_several_label_columns_are_a_dict(path):
    dataset = OMEArrowDataset(
        path,
        label_column=["well", "site"],
        label_mapping={"well": ["B2", "B1", "A2", "A1"]},
    )
    indices = [2, 7, 0]

    images, labels = dataset.get_batch(indices)

    assert labels["well"].tolist() == [1, 0, 3]
    assert labels["site"].tolist() == [1, 2, 1]
    assert dataset.classes == {"well": ("B2", "B1", "A2", "A1"), "site": None}
    assert dataset.labels["site"].tolist() == SITES
    collated = default_collate([dataset[index] for index in indices])
    torch.testing.assert_close(collated, [images, labels], rtol=0, atol=0)
    _, from_loader = next(iter(FastLoader(dataset, 3)))
    assert from_loader["well"].tolist() == [3, 2, 1]


@pytest.fixture
def numbered(tmp_path):
    return write_images(
        tmp_path / "numbered.parquet",
        [ome_arrow_value(image) for image in IMAGES[:4]],
        name=["001", "02", None, "1"],
        number=pa.array([1, None, 3, 4], pa.int32()),
    )


@pytest.mark.parametrize(("suffix", "mark"), [("csv", ","), ("tsv", "\t")])
def test_keys_that_are_text_are_text_in_a_file_without_types(numbered, tmp_path, suffix, mark):
    table = tmp_path / f"table.{suffix}"
    lines = [("name", "x"), ("001", "5"), ("1", "6"), ('"02"', '"a ""b""\nc"'), ("", "8")]
    table.write_text("".join(mark.join(line) + "\n" for line in lines))

    dataset = OMEArrowDataset(numbered, join=table, join_on="name")

    assert dataset.metadata["x"] == ["5", 'a "b"\nc', None, "6"]


@pytest.mark.parametrize(
    "keys",
    [
        pa.array([Decimal("1.10"), Decimal(2), None], pa.decimal128(5, 2)),
        pa.array([2**64 - 1, 2**64 - 2, None], pa.uint64()),
        pa.array([1, 2**62 + 1, None]),
        pa.array([b"7", b"007", None]),
        pa.array([True, False, None]),
        pa.array([0.1, 1e300, None]),
        pa.array([1, 2**40, None], pa.timestamp("us", "UTC")),
        pa.array(["007", "7", None]).dictionary_encode(),
    ],
    ids=lambda keys: str(keys.type).partition("<")[0],
)
def test_keys_in_a_file_without_types_are_those_of_the_images(tmp_path, keys):
    values = [ome_arrow_value(image) for image in IMAGES[:3]]
    path = write_images(tmp_path / "a.parquet", values, key=keys)
    as_text = keys.cast(pa.string()) if pa.types.is_dictionary(keys.type) else keys
    pa_csv.write_csv(pa.table({"key": as_text, "x": [1, 2, 3]}), tmp_path / "table.csv")

    dataset = OMEArrowDataset(path, join=tmp_path / "table.csv", join_on="key")

    assert dataset.metadata["x"] == [1, 2, None]


def test_a_key_that_is_null_has_no_partner(numbered):
    table = pa.table({"number": pa.array([None, 1, None]), "x": ["a", "b", "c"]})

    dataset = OMEArrowDataset(numbered, join=table, join_on="number")

    assert dataset.metadata["x"] == ["b", None, None, None]


def test_a_table_without_rows_has_none_of_the_keys(numbered, tmp_path):
    (tmp_path / "table.csv").write_text("name,x\n")

    with pytest.raises(SettingsError, match=r"keys there are like '001', here there are none"):
        OMEArrowDataset(numbered, join=tmp_path / "table.csv", join_on="name")


def test_joined_columns_split_a_dataset(path, plate):
    dataset = OMEArrowDataset(
        path, join=plate, join_on="well", filter=pc.field("drug").is_valid()
    )

    parts = split(dataset, [0.5, 0.5], seed=0, groups="drug")

    drugs = [{dataset.metadata["drug"][i] for i in part.indices} for part in parts]
    assert not drugs[0] & drugs[1]


def test_a_pickle_holds_no_arrow_object(path, plate):
    dataset = OMEArrowDataset(
        path, label_column="drug", join=plate, join_on="well", filter=is_in_a(),
        label_mapping={"x": 0, "y": 1, None: 2},
    )  # fmt: skip

    pickled = pickle.dumps(dataset)

    assert b"pyarrow" not in pickled
    twin = pickle.loads(pickled)
    assert twin.metadata["drug"] == ["y", None] * 2
    assert torch.equal(dataset[1][0], twin[1][0])
