"""Leaf columns of a Parquet file that make up an image column."""

from collections.abc import Sequence

from fastloader.sources._ome_arrow_layout import PLANE_PLACE, SIZES, ColumnLayout
from fastloader.sources._parquet_handle import ParquetHandle
from fastloader.sources._parquet_pixels import PagedPixels

__all__ = ["ImageLeaves"]


class ImageLeaves:
    """Paths of the columns of numbers, texts and bytes below an image column."""

    def __init__(self, file: ParquetHandle, column: str, layout: ColumnLayout) -> None:
        """Find them.

        Args:
            file: The file.
            column: Name of the image column.
            layout: How it stores its images.
        """
        self._file = file
        self._column = column
        self._layout = layout
        self.chunks = self._below("chunks", layout.chunk_fields)
        """Of chunks: their places and pixels."""
        self.planes = self._below("planes", (*PLANE_PLACE, "pixels"))
        """Of planes: the same."""
        self.sizes = self._below("pixels_meta", (*SIZES, "type"))
        """Of images: sizes and pixel type; and of chunks."""
        if layout.has_chunks:
            more = ("dtype",) if layout.has_byte_chunks else ()
            self.sizes += self._below("chunks", ("shape_z", "shape_y", "shape_x", *more))
        self.planes_present = self._below("planes", ("t",))
        """Says which images have planes."""
        pixels = {"chunks": _only_pixels(self.chunks), "planes": _only_pixels(self.planes)}
        self.pixels = {name: path for name, path in pixels.items() if path is not None}
        """Of chunks and planes, where they have some: the pixels."""

    def positions(self, paths: Sequence[str]) -> list[int]:
        """Return the positions of columns in the file."""
        return [self._file.leaf_paths.index(path) for path in paths]

    def paged(self) -> dict[str, PagedPixels]:
        """Return what reads chunks and planes by page, where that can be."""
        if not self._file.is_local:  # each page would be a request
            return {}
        kinds = {
            "chunks": (self.chunks, self._layout.chunk_dtype, self._layout.has_byte_chunks),
            "planes": (self.planes, self._layout.plane_dtype, False),
        }
        found = {}
        for name, path in self.pixels.items():
            leaves, dtype, is_bytes = kinds[name]
            if is_bytes or dtype is not None:
                places = [one for one in leaves if one != path]
                leaf = self._file.leaf_paths.index(path)
                found[name] = PagedPixels(
                    self._file, name, leaf, places, dtype, self._layout.samples_per_pixel
                )
        return found

    def _below(self, parent: str, fields: tuple[str, ...]) -> list[str]:
        """Return the paths of leaf columns below some fields of the image column."""
        prefix = f"{self._column}.{parent}."
        # Below a list, Parquet puts two levels ("list.element") before the fields of a struct.
        level = 0 if parent == "pixels_meta" else 2
        found = []
        for path in self._file.leaf_paths:
            names = path.removeprefix(prefix).split(".")
            if path.startswith(prefix) and len(names) > level and names[level] in fields:
                found.append(path)
        return found


def _only_pixels(leaves: Sequence[str]) -> str | None:
    found = [path for path in leaves if path.endswith(".pixel_bytes") or ".pixels." in path]
    return found[0] if len(found) == 1 else None
