"""Images are marked when their last byte is written, not before."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fastloader.cache import PixelLayout
from fastloader.cache._pixel_bytes import FilePixels
from fastloader.cache._ready_marker import ReadyMarker
from fastloader.shm import MemoryFile


@given(
    heights=st.lists(st.integers(1, 6), min_size=1, max_size=8),
    is_mixed=st.booleans(),
    data=st.data(),
)
def test_an_image_is_marked_by_its_last_byte_whatever_the_order(heights, is_mixed, data):
    shapes = np.array([(1, 1, 1, height, 1) for height in heights])
    dtypes = [np.dtype(np.uint8), np.dtype(np.uint16)][: 1 + is_mixed]
    codes = np.array([i % len(dtypes) for i in range(len(heights))], np.uint8)
    layout = PixelLayout(shapes, dtypes, codes)
    marked = set()
    with MemoryFile.create(8 + layout.num_bytes) as file:
        pixels = FilePixels(file, 8, layout.num_bytes)
        images = slice(0, len(heights))
        marker = ReadyMarker(
            pixels, layout, images, lambda run: marked.update(range(run.start, run.stop))
        )
        pieces = [
            (image, int(layout.offsets[image]) + y)
            for image in range(len(heights))
            for y in range(int(layout.content_bytes[image]))
        ]
        left = {image: int(layout.content_bytes[image]) for image in range(len(heights))}
        for image, offset in data.draw(st.permutations(pieces)):
            marker(offset, np.array([7], np.uint8))
            left[image] -= 1
            assert marked == {image for image, count in left.items() if not count}


def test_one_write_may_hold_several_images_and_parts_of_others():
    layout = PixelLayout(
        np.array([(1, 1, 1, 2, 2)] * 5), [np.dtype(np.uint8)], np.zeros(5, np.uint8)
    )
    marked = []
    with MemoryFile.create(20) as file:
        pixels = FilePixels(file, 0, 20)
        marker = ReadyMarker(pixels, layout, slice(1, 5), marked.append)

        marker(6, np.arange(10, dtype=np.uint8))
        assert marked == [slice(2, 3), slice(3, 4)]
        marker(4, np.arange(2, dtype=np.uint8))
        assert marked[2:] == [slice(1, 2)]
        marker(16, np.arange(4, dtype=np.uint8))
        assert marked[3:] == [slice(4, 5)]
        assert pixels.view()[6:16].tolist() == list(range(10))
