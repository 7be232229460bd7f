"""Pixels of Arrow files are found before they are read, over several record batches."""

import mmap
import re
import sys
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import ipc

from fastloader.engine._hazards import warn_of_hazards
from fastloader.errors import ImageDataError, SourceError
from fastloader.shm import ArrayWriter
from fastloader.sources import _ipc, _pixels_apart, _table_source, _vortex, open_source
from fastloader.sources._flatbuffer import FlatTable
from fastloader.sources._ipc_file import IpcFile
from fastloader.sources._mapped_pages import find_views, let_go_of_pages, read_view
from fastloader.sources._pixels_apart import ApartPixels
from fastloader.sources._stored_buffer import StoredBuffer
from tests.ome_arrow_tables import image_array, ome_arrow_value, random_image
from tests.sources.reading import assert_same, read_images

compressions = pytest.mark.parametrize("compression", [None, "lz4", "zstd"])


def write(path, table, compression, batch_rows=2):
    options = ipc.IpcWriteOptions(compression=compression)
    with ipc.new_file(path, table.schema, options=options) as file:
        file.write_table(table, max_chunksize=batch_rows)
    return path


def write_vortex(path, images):
    vortex = pytest.importorskip("vortex")
    table = pa.table({"image": image_array(list(map(ome_arrow_value, images)))})
    vortex.io.write(table, str(path))
    return path


def test_parts_are_loaded_when_they_are_asked_for_and_only_the_last_is_kept():
    loaded = []

    def loading(number):
        def load(num_items):
            loaded.append((number, num_items))
            return np.arange(num_items) + 10 * number

        return load

    pixels = ApartPixels([3, 0, 3], [loading(0), loading(1), loading(2)])

    pixels.need(np.array([0, 1, 3]), np.array([1, 2, 6]))

    assert loaded == []
    assert pixels[0:1].tolist() == [0]
    assert pixels[1:2].tolist() == [1]
    assert pixels[3:6].tolist() == [20, 21, 22]
    assert loaded == [(0, 2), (2, 3)]
    assert pixels[0:1].tolist() == [0]
    assert pixels[2:3].tolist() == [2]  # more than was said
    assert loaded[2:] == [(0, 2), (0, 3)]


@pytest.mark.parametrize("in_memory", [True, False])
def test_what_lies_in_a_file_is_read_where_it_belongs_and_not_looked_at(monkeypatch, in_memory):
    monkeypatch.setattr(_pixels_apart, "_STEP_BYTES", 6)
    content = np.arange(20, dtype=np.uint16)
    hidden = np.zeros_like(content)

    def read(view, targets):
        at = view.ctypes.data - hidden.ctypes.data
        for target in targets:
            target[:] = content.view(np.uint8)[at : at + len(target)]
            at += len(target)

    pixels = ApartPixels([20], [lambda _: hidden], read)
    block = np.zeros(24, np.uint8)
    writer = ArrayWriter(block)
    write = writer if in_memory else writer.__call__  # what has no view is called

    assert pixels.write(slice(3, 13), np.dtype(np.uint16), write, 4, are_bytes=False)
    assert block[4:].view(np.uint16).tolist() == list(range(3, 13))
    assert not block[:4].any()
    assert not pixels.write(slice(3, 13), np.dtype(np.uint8), write, 0, are_bytes=False)
    assert pixels[5:8].tolist() == [5, 6, 7]
    in_memory = ApartPixels([20], [lambda _: content])
    assert not in_memory.write(slice(3, 13), np.dtype(np.uint16), write, 4, are_bytes=False)


def test_pixels_are_not_read_from_another_file_than_was_mapped(tmp_path):
    images = [random_image((1, 1, 1, 512, 512), seed=seed) for seed in range(4)]
    table = pa.table({"image": image_array(list(map(ome_arrow_value, images)))})
    path = write(tmp_path / "a.arrow", table, None)
    source = open_source(path)
    source.read_table()
    other = write(tmp_path / "b.arrow", table.slice(1), None)
    other.replace(path)

    with pytest.raises(SourceError, match=r"a\.arrow was replaced"):
        read_images(source)


@pytest.mark.parametrize("is_there", [True, False])
def test_a_view_that_is_no_part_of_the_file_is_copied(tmp_path, is_there):
    path = tmp_path / "a.arrow"
    path.write_bytes(bytes(range(10)))
    view, target = np.full(6, 77, np.uint8), np.empty(6, np.uint8)
    start = view.ctypes.data - 2 if is_there else view.ctypes.data + 6

    with pa.OSFile(str(path)) as file:
        read_view("a.arrow", file, range(start, start + 10), view, [target[:2], target[2:]])

        assert target.tolist() == (list(range(2, 8)) if is_there else [77] * 6)
        addresses = range(view.ctypes.data - 5, view.ctypes.data + 6)
        with pytest.raises(SourceError, match=r"a\.arrow has become shorter"):
            read_view("a.arrow", file, addresses, view, [target])


@pytest.mark.skipif(sys.platform != "linux", reason="other systems keep the pages")
@compressions
def test_pages_of_a_file_that_was_read_are_let_go_of_and_are_there_again(tmp_path, compression):
    images = [random_image((1, 1, 1, 512, 512), seed=seed) for seed in range(8)]
    table = pa.table({"image": image_array(list(map(ome_arrow_value, images)))})
    path = write(tmp_path / "a.arrow", table, compression)
    source = open_source(path)

    assert_same(images, read_images(source))
    assert _resident_bytes(path) < path.stat().st_size / 4
    assert_same(images[2:4], read_images(source, [2, 3])[2:4])
    assert_same(images, read_images(source))


def _resident_bytes(path):
    """Return how much of a mapped file this process has in memory."""
    maps = Path("/proc/self/smaps").read_text("utf-8")
    resident = re.findall(rf"{re.escape(str(path))}\n(?:.*\n)*?Rss: +(\d+) kB", maps)
    assert resident, "the file is not mapped"
    return 1024 * sum(map(int, resident))


@pytest.mark.skipif(sys.platform != "linux", reason="other systems keep the pages")
@pytest.mark.library_threads
@pytest.mark.parametrize("num_threads", [1, 2])
def test_pages_of_a_vortex_file_are_let_go_of_while_it_is_read(
    tmp_path, monkeypatch, num_threads
):
    monkeypatch.setattr(_table_source, "_WRITTEN_BYTES", 1 << 20)
    images = [random_image((1, 1, 1, 512, 512), seed=seed) for seed in range(16)]
    path = write_vortex(tmp_path / "a.vortex", images)
    source = open_source(path)
    resident = []

    source.read_images(
        np.arange(16),
        np.arange(16) * images[0].nbytes,
        lambda *_: resident.append(_resident_bytes(path)),
        num_threads=num_threads,
    )

    assert max(resident) < path.stat().st_size / 2
    assert_same(images, read_images(source))


@pytest.mark.library_threads
def test_a_few_rows_of_a_vortex_file_are_read_without_a_look_at_what_is_mapped(
    tmp_path, monkeypatch
):
    images = [random_image((1, 1, 1, 64, 64), seed=seed) for seed in range(4)]
    source = open_source(write_vortex(tmp_path / "a.vortex", images))
    looks = []
    monkeypatch.setattr(_vortex, "find_views", lambda *_: looks.append(1) or [])

    assert_same(images[1:3], read_images(source, [1, 2])[1:3])
    assert not looks
    monkeypatch.setattr(_table_source, "_WRITTEN_BYTES", images[0].nbytes)
    assert_same(images, read_images(source))
    assert looks


@pytest.mark.skipif(sys.platform != "linux", reason="other systems tell of no mapping")
def test_only_buffers_that_are_views_of_a_mapped_file_are_found(tmp_path):
    (tmp_path / "a b").write_bytes(bytes(100_000))
    (tmp_path / "link").symlink_to(tmp_path / "a b")
    with pa.memory_map(str(tmp_path / "a b")) as file:
        view = pa.Array.from_buffers(pa.uint8(), 1000, [None, file.read_buffer(1000)])
    array = pa.StructArray.from_arrays([view, pa.array(range(1000))], ["a", "b"])

    ((addresses, content),) = find_views(array, str(tmp_path / "link"))

    assert addresses.start == content.ctypes.data == view.buffers()[1].address
    assert len(content) == 1000
    assert len(addresses) == 102_400  # whole pages
    assert find_views(array, str(tmp_path / "b")) == []


@pytest.mark.skipif(sys.platform != "linux", reason="other systems keep the pages")
def test_only_whole_pages_of_the_file_are_let_go_of():
    # Of no file: what is let go of is lost.
    block = mmap.mmap(-1, 4 * mmap.PAGESIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    view = np.frombuffer(block, np.uint8)
    view[:] = 1
    start = view.ctypes.data

    let_go_of_pages(range(start, start + 2 * mmap.PAGESIZE), view)
    assert view.all()
    let_go_of_pages(range(start, start + len(view)), view[1 : 3 * mmap.PAGESIZE - 1])

    lost = np.flatnonzero(view == 0)
    assert lost.tolist() == list(range(mmap.PAGESIZE, 2 * mmap.PAGESIZE))


def test_parts_that_are_loaded_ahead_come_in_any_order():
    loads = [lambda num_items, number=number: np.full(num_items, number) for number in range(9)]
    with ThreadPoolExecutor(2) as pool:
        pixels = ApartPixels([4] * 9, loads)
        pixels.load_ahead(pool, 3)
        order = [0, 1, 2, 5, 3, 4, 5, 6, 0, 8, 7]

        found = [int(pixels[4 * number : 4 * number + 4][0]) for number in order]

    assert found == order


def test_an_error_of_a_part_that_is_loaded_ahead_comes_where_it_is_asked_for():
    def fail(num_items):
        raise SourceError("damaged.")

    with ThreadPoolExecutor(1) as pool:
        pixels = ApartPixels([2, 2], [np.zeros, fail])
        pixels.load_ahead(pool, 2)

        assert pixels[0:2].tolist() == [0, 0]
        with pytest.raises(SourceError, match="damaged"):
            pixels[2:4]


@pytest.mark.parametrize("joined_images", [1, 2, 100])
@compressions
@pytest.mark.parametrize("num_threads", [1, 3])
@pytest.mark.parametrize("encoding", ["list", "bytes"])
def test_images_are_counted_once_their_pixels_are_there(
    tmp_path, monkeypatch, joined_images, compression, num_threads, encoding
):
    images = [random_image((1, 2, 1, 5, 4), seed=seed) for seed in range(9)]
    num_bytes = images[0].nbytes
    for name in ("_JOINED_BYTES", "_JOINED_READ_BYTES"):
        monkeypatch.setattr(_ipc, name, joined_images * num_bytes)
    monkeypatch.setattr(_table_source, "_WORTH_A_THREAD_BYTES", 0)
    values = [
        ome_arrow_value(one, as_planes=row > 6, encoding=encoding)
        for row, one in enumerate(images)
    ]
    table = pa.table({"image": image_array(values, encoding=encoding)})
    source = open_source(write(tmp_path / "a.arrow", table, compression))
    block = np.zeros(9 * num_bytes, np.uint8)
    counts = []

    def count(num_rows):
        counts.append(num_rows)
        done = sum(counts)
        expected = np.concatenate([one.reshape(-1).view(np.uint8) for one in images[:done]])
        assert np.array_equal(expected, block[: done * num_bytes])

    source.read_images(
        np.arange(9),
        np.arange(9) * num_bytes,
        ArrayWriter(block),
        on_rows=count,
        num_threads=num_threads,
    )

    assert sum(counts) == 9
    if joined_images == 100:
        assert counts == [7, 2]  # chunks, then planes


@compressions
@pytest.mark.parametrize("encoding", ["list", "bytes"])
def test_record_batches_of_any_kind_are_joined(tmp_path, compression, encoding):
    """Null rows, null lists that have a length, slices and batches without any image."""
    images = [random_image((1, 2, 1, 3, row + 2), seed=row) for row in range(12)]
    values = [ome_arrow_value(one, encoding=encoding) for one in images]
    for row in (0, 4, 5, 6, 11):
        values[row] = None
    table = pa.table({"image": image_array(values, encoding=encoding)})
    parts = [table.slice(1, 1), table.slice(0, 3), table.slice(4, 2), table.slice(3, 9)]
    path = write(tmp_path / "a.arrow", pa.concat_tables(parts), compression)
    rows = [1, 0, 1, 2, 4, 5, *range(3, 12)]
    expected = [None if values[row] is None else images[row] for row in rows]
    source = open_source(path)

    assert_same(expected, read_images(source))
    some = np.array([2, 6, 13])
    found = read_images(source, some)
    assert_same([expected[row] for row in some], [found[row] for row in some])


@compressions
def test_a_null_among_pixels_is_named_where_other_batches_have_none(tmp_path, compression):
    images = [random_image((1, 1, 1, 3, 4), seed=row) for row in range(8)]
    values = [ome_arrow_value(image) for image in images]
    values[5]["chunks"][0]["pixels"] = [*values[5]["chunks"][0]["pixels"][:-1], None]
    table = pa.table({"image": image_array(values)})
    source = open_source(write(tmp_path / "a.arrow", table, compression))

    with pytest.raises(ImageDataError, match=r"a\.arrow, column 'image', row 5: .*are null"):
        read_images(source)
    assert_same([images[2]], read_images(source, [2])[2:3])


@pytest.mark.parametrize("num_threads", [1, 2])
def test_damaged_pixels_are_an_error_that_names_the_file(tmp_path, monkeypatch, num_threads):
    monkeypatch.setattr(_table_source, "_WORTH_A_THREAD_BYTES", 0)
    values = [ome_arrow_value(random_image((1, 1, 1, 40, 50), seed=row)) for row in range(4)]
    path = write(tmp_path / "a.arrow", pa.table({"image": image_array(values)}), "zstd")
    content = bytearray(path.read_bytes())
    magic = b"\x28\xb5\x2f\xfd"
    frames = [at for at in range(len(content)) if content[at : at + 4] == magic]
    largest = max(range(len(frames) - 1), key=lambda at: frames[at + 1] - frames[at])
    content[frames[largest] + 4 : frames[largest] + 20] = b"\xff" * 16
    path.write_bytes(content)

    with pytest.raises(SourceError, match=r"a\.arrow cannot be read"):
        read_images(open_source(path), num_threads=num_threads)


def test_a_buffer_that_compression_would_not_shorten_is_taken_as_it_is():
    buffer = np.frombuffer((-1).to_bytes(8, "little", signed=True) + b"abcd", np.uint8)

    stored = StoredBuffer(buffer, "lz4")

    assert stored.num_bytes == 4
    assert stored.first(4).tobytes() == b"abcd"
    assert stored.first(3).tobytes() == b"abc"


@pytest.mark.parametrize("codec", ["lz4", "zstd"])
@pytest.mark.parametrize(
    "asked", [[1], [1000], [1_999_999], [2_000_000], [1000, 1, 900_000, 2_000_000, 1_500_000]]
)
def test_the_first_bytes_of_a_buffer_are_those_of_the_whole(codec, asked):
    content = np.random.default_rng(5).integers(0, 20, 2_000_000, np.uint8).tobytes()
    packed = len(content).to_bytes(8, "little") + pa.Codec(codec).compress(
        content, asbytes=True
    )

    stored = StoredBuffer(np.frombuffer(packed, np.uint8), codec)
    found = [stored.first(num_bytes).tobytes() for num_bytes in asked]

    assert found == [content[:num_bytes] for num_bytes in asked]


@pytest.mark.parametrize("codec", ["lz4", "zstd"])
def test_a_small_buffer_keeps_no_stream_which_takes_as_much_as_it(codec):
    content = np.random.default_rng(5).integers(0, 20, 100_000, np.uint8).tobytes()
    packed = len(content).to_bytes(8, "little") + pa.Codec(codec).compress(
        content, asbytes=True
    )
    before = pa.total_allocated_bytes()

    kept = [StoredBuffer(np.frombuffer(packed, np.uint8), codec) for _ in range(20)]

    assert [stored.first(10).tobytes() for stored in kept] == [content[:10]] * 20
    assert pa.total_allocated_bytes() - before <= 20 * 110_000


@pytest.mark.parametrize("codec", ["lz4", "zstd"])
def test_a_buffer_that_is_cut_off_is_an_error(codec):
    content = np.random.default_rng(5).integers(0, 20, 2_000_000, np.uint8).tobytes()
    packed = len(content).to_bytes(8, "little") + pa.Codec(codec).compress(
        content, asbytes=True
    )

    for num_bytes in (1_000_000, 2_000_000):
        with pytest.raises(OSError, match=r"ends after|ompress"):
            StoredBuffer(np.frombuffer(packed[:200_000], np.uint8), codec).first(num_bytes)


@pytest.mark.parametrize("codec", ["lz4", "zstd"])
@pytest.mark.parametrize("num_bytes", [1000, 1 << 60])
def test_a_buffer_that_states_more_than_all_memory_is_an_error(codec, num_bytes):
    packed = (1 << 60).to_bytes(8, "little") + pa.Codec(codec).compress(b"abcd", asbytes=True)
    stored = StoredBuffer(np.frombuffer(packed, np.uint8), codec)

    with pytest.raises(OSError, match="no memory"):
        stored.first(num_bytes)


def test_of_many_record_batches_few_are_decompressed_at_a_time(tmp_path):
    values = [ome_arrow_value(random_image((1, 1, 1, 600, 500), seed=row)) for row in range(9)]
    path = write(tmp_path / "a.arrow", pa.table({"image": image_array(values)}), "lz4", 1)
    source = open_source(path)
    sizes = source.read_table().shapes.prod(axis=1) * 2
    before = pa.total_allocated_bytes()
    held = []

    source.read_images(
        np.arange(9),
        np.cumsum(sizes) - sizes,
        lambda *_: held.append(pa.total_allocated_bytes() - before),
    )

    assert len(held) == 9
    assert max(held) < 2 * sizes[0]


@compressions
@pytest.mark.parametrize("length", [0, 1, 1 << 40])
def test_columns_that_claim_another_length_are_a_documented_error(
    tmp_path, compression, length
):
    images = [random_image((1, 2, 1, 3, 4), seed=row) for row in range(2)]
    table = pa.table({"image": image_array([ome_arrow_value(image) for image in images])})
    path = write(tmp_path / "a.arrow", table, compression)
    content = path.read_bytes()
    (header,) = IpcFile(path)._headers
    first, count = FlatTable.root(header.header).table(2).vector(1, 16)
    outcomes = []

    for node in range(count):
        damaged, at = bytearray(content), header.header_at + first + 16 * node
        damaged[at : at + 8] = length.to_bytes(8, "little")
        path.write_bytes(damaged)
        try:
            assert_same(images, read_images(open_source(path)))
        except (SourceError, ImageDataError) as error:
            outcomes.append(str(error))

    assert outcomes
    assert all("a.arrow" in message for message in outcomes)


@pytest.mark.parametrize("encoding", ["list", "bytes"])
@pytest.mark.parametrize("rows", [None, [3]])
def test_pixels_that_end_too_soon_are_an_error_that_names_the_file(tmp_path, encoding, rows):
    images = [random_image((1, 1, 1, 64, 64), seed=row) for row in range(4)]
    values = [ome_arrow_value(one, encoding=encoding) for one in images]
    path = write(
        tmp_path / "a.arrow", pa.table({"image": image_array(values, encoding=encoding)}), None
    )
    content, header = bytearray(path.read_bytes()), IpcFile(path)._headers[1]
    places = [header.place(number) for number in range(header.num_buffers)]
    longest = max(range(len(places)), key=lambda number: places[number][1])
    at = header.header_at + header.buffers_at + 16 * longest + 8
    content[at : at + 8] = (places[longest][1] - 4096).to_bytes(8, "little")
    path.write_bytes(content)
    source = open_source(path)

    with pytest.raises(SourceError, match=r"a\.arrow"):
        read_images(source, None if rows is None else np.array(rows))


@compressions
def test_a_file_that_was_read_here_is_no_hazard_to_forked_workers(tmp_path, compression):
    table = pa.table({"image": image_array([ome_arrow_value(random_image((1, 1, 1, 3, 4)))])})
    source = open_source(write(tmp_path / "a.arrow", table, compression))
    read_images(source)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_of_hazards(source, forks=True)
