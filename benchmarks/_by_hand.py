"""Datasets as people write them by hand: one image at a time, by the format's own library."""

import importlib
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import tifffile
import torch
import zarr
from torch.utils.data import Dataset

from _data import Images

__all__ = ["ByHand"]

Read: TypeAlias = Callable[[int], npt.NDArray[Any]]


class ByHand(Dataset[tuple[torch.Tensor, int]]):
    """Images as float32 tensors ``(C, H, W)`` and the number of their label.

    Files are opened in each process when it first asks for an image, since connections and file
    handles do not survive a fork, nor can they be pickled.
    """

    def __init__(self, images: Images) -> None:
        self.images = images
        labels, self._paths = _read_labels(images)
        self.classes = sorted(set(labels))
        self._labels = [self.classes.index(label) for label in labels]
        self._read: Read | None = None
        self._pid = 0

    @property
    def start_method(self) -> str | None:
        """How workers that read images must be started, if not as usual."""
        # Its threads are not there in a forked child, which waits for them for ever or crashes.
        return "forkserver" if self.images.format_name == "Lance" else None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_read": None}

    def __len__(self) -> int:
        return len(self._labels)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        if self._read is None or self._pid != os.getpid():
            self._read = self._open()
            self._pid = os.getpid()
        pixels = self._read(index).astype(np.float32)
        return torch.from_numpy(pixels), self._labels[index]

    def _open(self) -> Read:
        path, paths = self.images.path, self._paths
        if paths:
            return _FOLDERS[self.images.format_name](paths)
        return _TABLES[self.images.format_name](path, self.images.image_column)


def _read_labels(images: Images) -> tuple[list[str], list[Path]]:
    """Return the label of each image, and the path of each where it has one of its own."""
    if images.format_name in {"TIFF", "OME-Zarr"}:
        paths = sorted(images.path.glob("*/*"))
        return [one.parent.name for one in paths], paths
    return _LABEL_READERS[images.format_name](images.path), []


def _as_image(value: Mapping[str, Any]) -> npt.NDArray[np.uint16]:
    """Return the pixels of an OME-Arrow value that has become Python objects."""
    size = value["pixels_meta"]
    image = np.empty((size["size_c"], size["size_y"], size["size_x"]), np.uint16)
    for chunk in value["chunks"]:
        content = chunk.get("pixels")
        if content is None:
            pixels = np.frombuffer(chunk["pixel_bytes"], np.uint16)
        else:
            pixels = np.array(content, np.uint16)
        height, width = chunk["shape_y"], chunk["shape_x"]
        y, x = chunk["y"], chunk["x"]
        image[chunk["c"], y : y + height, x : x + width] = pixels.reshape(height, width)
    return image


def _open_parquet(path: Path, name: str) -> Read:
    column = pq.read_table(path, columns=[name])[name].combine_chunks()
    return lambda index: _as_image(column[index].as_py())


def _open_ipc(path: Path, name: str) -> Read:
    column = pa.ipc.open_file(pa.memory_map(str(path))).read_all()[name]
    return lambda index: _as_image(column[index].as_py())


def _open_lance(path: Path, name: str) -> Read:
    dataset = importlib.import_module("lance").dataset(path)
    return lambda index: _as_image(dataset.take([index], columns=[name])[name][0].as_py())


def _open_duckdb(path: Path, name: str) -> Read:
    connection = importlib.import_module("duckdb").connect(str(path), read_only=True)

    def read(index: int) -> npt.NDArray[np.uint16]:
        query = f'select "{name}" from images where rowid = ?'
        return _as_image(connection.execute(query, [index]).fetchone()[0])

    return read


def _open_vortex(path: Path, name: str) -> Read:
    vortex = importlib.import_module("vortex")
    file = vortex.open(str(path))

    def read(index: int) -> npt.NDArray[np.uint16]:
        row = vortex.array(pa.array([index], pa.uint64()))
        table = file.to_arrow([name], indices=row).read_all()
        return _as_image(table[name][0].as_py())

    return read


def _open_tiff(paths: list[Path]) -> Read:
    return lambda index: np.asarray(tifffile.imread(paths[index]))


def _open_ome_zarr(paths: list[Path]) -> Read:
    return lambda index: np.asarray(zarr.open_array(str(paths[index] / "0"), mode="r")[...])


_TABLES: Mapping[str, Callable[[Path, str], Read]] = {
    "Parquet": _open_parquet,
    "Arrow IPC": _open_ipc,
    "Lance": _open_lance,
    "DuckDB": _open_duckdb,
    "Vortex": _open_vortex,
}
_FOLDERS: Mapping[str, Callable[[list[Path]], Read]] = {
    "TIFF": _open_tiff,
    "OME-Zarr": _open_ome_zarr,
}


def _labels_of_parquet(path: Path) -> list[str]:
    labels: list[str] = pq.read_table(path, columns=["label"])["label"].to_pylist()
    return labels


def _labels_of_ipc(path: Path) -> list[str]:
    labels: list[str] = (
        pa.ipc.open_file(pa.memory_map(str(path))).read_all()["label"].to_pylist()
    )
    return labels


def _labels_of_lance(path: Path) -> list[str]:
    table = importlib.import_module("lance").dataset(path).to_table(columns=["label"])
    labels: list[str] = table["label"].to_pylist()
    return labels


def _labels_of_duckdb(path: Path) -> list[str]:
    with importlib.import_module("duckdb").connect(str(path), read_only=True) as connection:
        return [row[0] for row in connection.sql("select label from images").fetchall()]


def _labels_of_vortex(path: Path) -> list[str]:
    file = importlib.import_module("vortex").open(str(path))
    labels: list[str] = file.to_arrow(["label"]).read_all()["label"].to_pylist()
    return labels


_LABEL_READERS: Mapping[str, Callable[[Path], list[str]]] = {
    "Parquet": _labels_of_parquet,
    "Arrow IPC": _labels_of_ipc,
    "Lance": _labels_of_lance,
    "DuckDB": _labels_of_duckdb,
    "Vortex": _labels_of_vortex,
}
