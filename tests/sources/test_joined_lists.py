"""Lists of several record batches become one array, of which what is large need not be there."""

import numpy as np
import pyarrow as pa
import pytest

from fastloader.sources._arrow_buffers import list_bounds
from fastloader.sources._joined_lists import join_fields, join_lists, num_items

KINDS = {
    "list": pa.list_(pa.uint16()),
    "large list": pa.large_list(pa.uint16()),
    "fixed size": pa.list_(pa.uint16(), 2),
    "bytes": pa.binary(),
    "large bytes": pa.large_binary(),
}
kinds = pytest.mark.parametrize("kind", KINDS)
outer = pytest.mark.parametrize("outer", [pa.list_, pa.large_list])


def values(kind, rows):
    """Return lists of structs: some of them null or empty, some with pixels that are null."""
    content = (b"ab" if "bytes" in kind else [1, 2]) if rows % 2 else None
    one = {"number": rows, "text": f"text {rows}", "pixels": content}
    return [[one] * rows, None, [], [one, {**one, "text": None}]]


def batches(kind, outer, counts=(3, 0, 2)):
    struct = pa.struct({"number": pa.int32(), "text": pa.string(), "pixels": KINDS[kind]})
    return pa.chunked_array([pa.array(values(kind, rows), outer(struct)) for rows in counts])


def list_of(structs, places, mask=None, null_count=0):
    buffers = [mask, pa.py_buffer(places)]
    kind, count = pa.list_(structs.type), len(places) - 1
    return pa.Array.from_buffers(kind, count, buffers, null_count, children=[structs])


def without(lists, *names):
    return [
        one
        if one is None
        else [{k: v for k, v in struct.items() if k not in names} for struct in one]
        for one in lists.to_pylist()
    ]


@kinds
@outer
def test_lists_of_nothing_are_as_long_and_null_where_pixels_are(kind, outer):
    lists = batches(kind, outer)

    joined = join_lists(lists, apart="pixels")

    assert without(joined, "pixels") == without(lists, "pixels")
    pixels = joined.values.field("pixels")
    expected = pa.concat_arrays([part.values.field("pixels") for part in lists.chunks])
    assert pixels.is_null().to_pylist() == expected.is_null().to_pylist()
    start, stop, items = list_bounds(pixels)
    assert (stop - start).tolist() == [len(one or ()) for one in expected.to_pylist()]
    assert pa.types.is_null(items.type)
    assert len(items) == sum(num_items(part.values.field("pixels")) for part in lists.chunks)


@kinds
@outer
def test_fields_are_left_out_of_lists(kind, outer):
    lists = batches(kind, outer)

    assert join_fields(lists, ("pixels", "text")).to_pylist() == without(
        lists, "pixels", "text"
    )
    assert join_fields(lists, ()).to_pylist() == lists.to_pylist()


def test_values_before_between_and_behind_lists_stay_where_they_are():
    """As places of their pixels tell where these are in each record batch."""
    structs = [pa.StructArray.from_arrays([pa.array([[0], [1], [2], [3]])], ["pixels"])] * 2
    lists = pa.chunked_array([
        pa.ListArray.from_arrays(pa.array([1, 2, 3], pa.int32()), one) for one in structs
    ])

    joined = join_lists(lists, apart="pixels")

    start, stop, values = list_bounds(joined)
    assert (start.tolist(), stop.tolist(), len(values)) == ([1, 2, 5, 6], [2, 3, 6, 7], 8)
    start, stop, items = list_bounds(joined.values.field("pixels"))
    assert start[[1, 2, 5, 6]].tolist() == [1, 2, 5, 6]
    assert len(items) == 8


def test_structs_that_are_null_stay_so():
    struct = pa.struct({"number": pa.int32(), "pixels": pa.binary()})
    lists = pa.chunked_array([
        pa.array([[None, {"number": 1, "pixels": b"a"}]], pa.list_(struct)),
        pa.array([[{"number": 2, "pixels": b"b"}]], pa.list_(struct)),
    ])

    assert join_lists(lists, apart="pixels").values.is_null().to_pylist() == [
        True,
        False,
        False,
    ]


@pytest.mark.parametrize("edges", [[-1, 1], [0, 2], [1, 0], [0, -1]])
@pytest.mark.parametrize("damaged", [0, 1])
def test_a_list_that_reaches_out_of_its_record_batch_is_refused(edges, damaged):
    """It would have what is in another one, or in none."""
    struct = pa.StructArray.from_arrays(
        [pa.array([[7, 8]]), pa.array([1])], ["pixels", "number"]
    )
    places = [np.array([0, 1], np.int32) for _ in range(2)]
    lists = pa.chunked_array([list_of(struct, one) for one in places])
    places[damaged][:] = edges  # Arrow would not make such lists

    for options in ({"apart": "pixels"}, {"without": ("pixels",)}):
        with pytest.raises((ValueError, pa.ArrowInvalid)):
            join_lists(lists, **options)


def test_another_number_of_nulls_than_is_said_is_refused():
    struct = pa.StructArray.from_arrays([pa.array([[7, 8]] * 2)], ["pixels"])
    mask = pa.py_buffer(bytes([1]))  # the first is there
    lists = list_of(struct, np.arange(3, dtype=np.int32), mask, null_count=2)

    with pytest.raises(ValueError, match="null"):
        join_lists(pa.chunked_array([lists]), apart="pixels")
