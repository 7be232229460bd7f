"""What a Zarr array's metadata says: sizes, chunks and how a chunk's bytes become pixels."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fastloader.errors import ImageDataError, SourceError
from fastloader.sources._file_tree import FileTree

__all__ = ["ZarrArray", "ZarrChunks", "ZarrShards", "parse_array", "read_json"]

_V3_TYPES = {
    name: np.dtype(name)
    for name in (
        *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
        *("float16", "float32", "float64"),
    )
}
_COMPRESSORS = frozenset({"blosc", "gzip", "lz4", "zlib", "zstd"})
_MOST_PIXELS = 1 << 44
_MOST_CHUNKS = 1 << 22
_LARGE_CHUNK = 1 << 28  # elements


@dataclass(frozen=True, slots=True)
class ZarrChunks:
    """How the bytes of a chunk become an array."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    """As stored, with its byte order."""
    permutation: tuple[int, ...] | None
    """Order in which the axes are stored; None for the order of the array."""
    compressor: str | None
    has_checksum: bool
    """True if four bytes of CRC-32C follow."""


@dataclass(frozen=True, slots=True)
class ZarrShards:
    """Files of many chunks each, with an index of where they are."""

    shape: tuple[int, ...]
    is_index_first: bool
    has_index_checksum: bool


@dataclass(frozen=True, slots=True)
class ZarrArray:
    """An array as its metadata describes it."""

    zarr_format: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    """In the machine's byte order."""
    chunks: ZarrChunks | None
    """None where only the zarr package knows how to decode."""
    shards: ZarrShards | None
    fill_value: bool | int | float
    """Of chunks that are not there."""
    key_prefix: str
    separator: str

    @property
    def metadata_name(self) -> str:
        """Name of the file that this was read from."""
        return "zarr.json" if self.zarr_format == 3 else ".zarray"

    @property
    def key_start(self) -> str:
        """What the names of all files begin with, up to the first number."""
        return f"{self.key_prefix}{self.separator}" if self.key_prefix else ""

    @property
    def file_shape(self) -> tuple[int, ...]:
        """Sizes of what one file holds."""
        assert self.chunks is not None  # noqa: S101 - asked for those only
        return self.chunks.shape if self.shards is None else self.shards.shape


def read_json(tree: FileTree, inside: str) -> Mapping[str, Any] | None:
    """Return what a file of metadata holds, None if there is no such file.

    Raises:
        SourceError: If it cannot be read or holds something else.
    """
    try:
        content = json.loads(tree.read(inside))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError, RecursionError) as error:
        raise SourceError(f"{tree.path(inside)} cannot be read as JSON ({error}).") from error
    if not isinstance(content, dict):
        raise SourceError(
            f"{tree.path(inside)}: expected a JSON object, but got {type(content).__name__}."
        )
    return content


def parse_array(tree: FileTree, folder: str) -> ZarrArray | None:
    """Return the array in a folder, None if there is none.

    Args:
        tree: What it is in.
        folder: Path of the array there.

    Raises:
        SourceError: If its metadata cannot be read.
        ImageDataError: If it makes no sense, or its elements are no pixels.
    """
    for name, parse in (("zarr.json", _parse_v3), (".zarray", _parse_v2)):
        path = tree.path(f"{folder}/{name}")
        metadata = read_json(tree, f"{folder}/{name}")
        if metadata is None or metadata.get("node_type", "array") != "array":
            continue
        try:
            array = parse(metadata)
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise ImageDataError(
                f"{path}: the metadata of the array make no sense ({type(error).__name__}: "
                f"{error})."
            ) from error
        _check_sizes(array, path)
        return array
    return None


def _parse_v3(metadata: Mapping[str, Any]) -> ZarrArray:
    shape = _sizes(metadata["shape"])
    name = metadata["data_type"]
    if name not in _V3_TYPES:
        raise ValueError(f"elements are {name!r}, expected numbers of up to 64 bits")
    dtype = _V3_TYPES[name]
    grid = metadata["chunk_grid"]
    encoding = metadata["chunk_key_encoding"]
    is_default = encoding["name"] == "default"
    separator = encoding.get("configuration", {}).get("separator", "/" if is_default else ".")
    chunks, shards = None, None
    is_known = grid["name"] == "regular" and not metadata.get("storage_transformers")
    if is_known and encoding["name"] in {"default", "v2"} and separator in {"/", "."}:
        file_shape = _sizes(grid["configuration"]["chunk_shape"])
        chunks, shards = _parse_codecs(metadata["codecs"], file_shape, dtype)
    return ZarrArray(
        3,
        shape,
        dtype,
        chunks,
        shards,
        _fill_value(metadata["fill_value"], dtype),
        "c" if is_default else "",
        separator,
    )


def _parse_codecs(
    codecs: Sequence[Mapping[str, Any]], file_shape: tuple[int, ...], dtype: np.dtype[Any]
) -> tuple[ZarrChunks | None, ZarrShards | None]:
    """Return how files are decoded, (None, None) if that takes more than is known here.

    Raises:
        ValueError: If chunks do not divide shards.
    """
    if len(codecs) == 1 and codecs[0]["name"] == "sharding_indexed":
        options = codecs[0]["configuration"]
        index_codecs = [codec["name"] for codec in options["index_codecs"]]
        is_little = (
            options["index_codecs"][0].get("configuration", {}).get("endian") == "little"
        )
        if index_codecs not in (["bytes"], ["bytes", "crc32c"]) or not is_little:
            return None, None
        inner = _sizes(options["chunk_shape"])
        if len(inner) != len(file_shape) or any(
            whole % part for whole, part in zip(file_shape, inner, strict=True)
        ):
            raise ValueError(f"chunks of {inner} do not divide shards of {file_shape}")
        chunks = _parse_chunk_codecs(options["codecs"], inner, dtype)
        is_first = options.get("index_location", "end") == "start"
        return chunks, ZarrShards(file_shape, is_first, "crc32c" in index_codecs)
    return _parse_chunk_codecs(codecs, file_shape, dtype), None


def _parse_chunk_codecs(
    codecs: Sequence[Mapping[str, Any]], shape: tuple[int, ...], dtype: np.dtype[Any]
) -> ZarrChunks | None:
    rest = [(codec["name"], codec.get("configuration") or {}) for codec in codecs]
    permutation: tuple[int, ...] | None = None
    if rest and rest[0][0] == "transpose":
        permutation = tuple(int(axis) for axis in rest.pop(0)[1]["order"])
        if sorted(permutation) != list(range(len(shape))):
            raise ValueError(f"no order of {len(shape)} axes: {permutation}")
    if not rest or rest[0][0] != "bytes":
        return None
    is_big = rest.pop(0)[1].get("endian", "little") == "big"
    stored: np.dtype[Any] = dtype.newbyteorder(">" if is_big else "<")
    has_checksum = bool(rest) and rest[-1][0] == "crc32c"
    names = [name for name, _ in rest[: len(rest) - has_checksum]]
    if len(names) > 1 or not set(names) <= _COMPRESSORS - {"lz4", "zlib"}:
        return None
    compressor = names[0] if names else None
    return ZarrChunks(shape, stored, permutation, compressor, has_checksum)


def _parse_v2(metadata: Mapping[str, Any]) -> ZarrArray:
    if metadata["zarr_format"] != 2:
        raise ValueError(f"zarr_format is {metadata['zarr_format']}")
    shape, chunk_shape = _sizes(metadata["shape"]), _sizes(metadata["chunks"])
    dtype = np.dtype(metadata["dtype"])
    native: np.dtype[Any] = dtype.newbyteorder("=")
    if native not in _V3_TYPES.values():
        raise ValueError(f"elements are {dtype.str!r}, expected numbers of up to 64 bits")
    compressor = metadata["compressor"]
    name = None if compressor is None else compressor["id"]
    chunks = None
    if not metadata.get("filters") and (name is None or name in _COMPRESSORS):
        is_fortran = metadata["order"] == "F"
        permutation = tuple(reversed(range(len(shape)))) if is_fortran else None
        chunks = ZarrChunks(chunk_shape, dtype, permutation, name, has_checksum=False)
    separator = metadata.get("dimension_separator", ".")
    if separator not in {"/", "."}:
        raise ValueError(f"dimension_separator is {separator!r}")
    fill_value = metadata["fill_value"]
    return ZarrArray(
        2,
        shape,
        native,
        chunks,
        None,
        _fill_value(0 if fill_value is None else fill_value, native),
        "",
        separator,
    )


def _sizes(values: Any) -> tuple[int, ...]:
    sizes = tuple(values)
    if not sizes or any(type(size) is not int or size < 1 for size in sizes):
        raise ValueError(f"sizes of 1 or more expected, got {values!r}")
    return sizes


def _fill_value(value: Any, dtype: np.dtype[Any]) -> bool | int | float:
    """Return a number for what JSON says, such as ``"NaN"`` or ``"0x7fc00000"``."""
    if isinstance(value, str) and value.startswith("0x"):
        bits = int(value, 16).to_bytes(dtype.itemsize, "big")
        value = np.frombuffer(bits, dtype.newbyteorder(">"))[0]
    return np.array(value).astype(dtype).item()  # type: ignore[no-any-return]


def _check_sizes(array: ZarrArray, path: str) -> None:
    """Refuse what would take absurd time or memory.

    Raises:
        ImageDataError: If so.
    """
    num_pixels = math.prod(array.shape)
    if num_pixels > _MOST_PIXELS:
        raise ImageDataError(
            f"{path}: shape {array.shape} has {num_pixels} pixels, but at most 2**44 are possible."
        )
    if array.chunks is None:
        return
    if not len(array.shape) == len(array.file_shape) == len(array.chunks.shape):
        raise ImageDataError(
            f"{path}: chunks of {array.file_shape} do not fit an array of {array.shape}."
        )
    for shape in (array.file_shape, array.chunks.shape):
        if array.shards is not None and shape == array.file_shape:
            continue  # is never in memory as a whole
        if math.prod(shape) > max(_LARGE_CHUNK, 4 * num_pixels):
            raise ImageDataError(
                f"{path}: chunks of {shape} are far larger than the array of {array.shape}."
            )
    counts = [
        -(-size // chunk) for size, chunk in zip(array.shape, array.chunks.shape, strict=True)
    ]
    if math.prod(counts) > _MOST_CHUNKS:
        raise ImageDataError(
            f"{path}: an array of {array.shape} in chunks of {array.chunks.shape} has more than "
            f"{_MOST_CHUNKS} chunks."
        )
