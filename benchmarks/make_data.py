"""Make the images that the benchmarks read, in every format; what is there and whole stays.

    python benchmarks/make_data.py [--contents generated cells] [--formats Parquet TIFF ...]

``generated`` are 512 images of 3 x 128 x 128 uint16: smooth structures under the noise of photons.
``cells`` are the 336 real crops of data/nf1_cells.parquet (CC-BY-4.0, see data/README.md). Both
have one of three labels. Tables hold cells as lists of numbers, as ome-arrow writes them, and
generated images as bytes, as `fastloader.write_images` does; TIFF files are deflated, one folder a
label; OME-Zarr 0.5 has a chunk for each plane, Zstandard.

They lie in ``$FASTLOADER_BENCHMARK_DATA`` or the user's cache folder.
"""

import argparse
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import tifffile
import zarr
import zarr.codecs

from _data import FORMATS, Images, add_arguments, find_problem, write_manifest
from fastloader import OMEArrowDataset, write_images
from fastloader.errors import MissingExtraError
from fastloader.sources import ome_arrow_type
from fastloader.writing._table_formats import choose_format

__all__: list[str] = []

CELLS = Path(__file__).parents[1] / "data" / "nf1_cells.parquet"
LABELS = ("background", "cytoplasm", "nucleus")
_ROWS_PER_BATCH = 32
_CODEC = "zstd"


def generate(num_images: int) -> tuple[npt.NDArray[np.uint16], list[str]]:
    """Return images of shape ``(num_images, 3, 128, 128)`` and their labels."""
    rng = np.random.default_rng(20261128)
    coarse = rng.gamma(0.6, 400.0, (num_images, 3, 16, 16))
    smooth = coarse.repeat(8, axis=2).repeat(8, axis=3)
    for axis in (2, 3):
        smooth = np.mean([np.roll(smooth, shift, axis) for shift in range(-4, 5)], axis=0)
    labels = rng.integers(0, len(LABELS), num_images)
    smooth[np.arange(num_images), labels] *= 2  # what there is to learn
    noisy = rng.poisson(100 + smooth)
    return noisy.astype(np.uint16), [LABELS[label] for label in labels]


def read_cells(num_images: int) -> tuple[npt.NDArray[np.uint16], list[str]]:
    """Return real crops of shape ``(num_images, 3, 80, 80)`` and their labels."""
    dataset = OMEArrowDataset(CELLS, dtype=None, label_column="label", progress=False)
    pixels, labels = dataset.get_batch(range(num_images))
    return pixels.numpy(), [dataset.classes[label] for label in labels]


def read_rows(num_images: int) -> Iterator[pa.RecordBatch]:
    """Yield cells as rows with lists of numbers; Lance cannot write slices of larger arrays."""
    table = pq.read_table(CELLS, columns=["label", "image"])[:num_images]
    for start in range(0, num_images, _ROWS_PER_BATCH):
        rows = table[start : start + _ROWS_PER_BATCH].to_pydict()
        column = pa.array(rows["image"], ome_arrow_type(encoding="list"))
        yield pa.record_batch({"label": pa.array(rows["label"]), "image": column})


def write_table(images: Images) -> None:
    """Write one of the formats of tables."""
    if images.content == "cells":
        batches = list(read_rows(images.num_images))
        kind = choose_format(images.path, None, _CODEC)
        kind.write(images.path, batches[0].schema, iter(batches), _CODEC)
        return
    pixels, labels = generate(images.num_images)
    write_images(pixels, images.path, columns={"label": labels}, progress=False)


def write_folder(images: Images) -> None:
    """Write TIFF or OME-Zarr images, a folder for each label."""
    make = generate if images.content == "generated" else read_cells
    for number, (image, label) in enumerate(zip(*make(images.num_images), strict=True)):
        folder = images.path / label
        folder.mkdir(parents=True, exist_ok=True)
        if images.format_name == "TIFF":
            tifffile.imwrite(
                folder / f"{number:04}.tif",
                image,
                photometric="minisblack",
                metadata={"axes": "CYX"},
                compression="zlib",
                predictor=True,
            )
        else:
            write_ome_zarr(folder / f"{number:04}.ome.zarr", image)


def write_ome_zarr(path: Path, image: npt.NDArray[Any]) -> None:
    """Write an OME-Zarr image of one level, version 0.5."""
    group = zarr.open_group(str(path), mode="w", zarr_format=3)
    multiscale = {"axes": [{"name": name} for name in "cyx"], "datasets": [{"path": "0"}]}
    group.attrs.update({"ome": {"version": "0.5", "multiscales": [multiscale]}})
    array = group.create_array(
        "0", shape=image.shape, dtype=image.dtype, chunks=(1, *image.shape[1:]),
        compressors=zarr.codecs.ZstdCodec(level=3),
    )  # fmt: skip
    array[...] = image


def make(images: Images) -> str:
    """Make images, and return why that is not possible, or nothing."""
    for leftover in (images.path, *images.path.parent.glob(f"{images.path.name}.wal")):
        if leftover.is_dir():
            shutil.rmtree(leftover)
        leftover.unlink(missing_ok=True)
    images.path.parent.mkdir(parents=True, exist_ok=True)
    try:
        (write_folder if FORMATS[images.format_name].startswith("-") else write_table)(images)
    except MissingExtraError as error:
        return f"a package is missing: {error}"
    except Exception as error:  # noqa: BLE001 - every library has its own; the tables show it
        return f"it does not take these images: {type(error).__name__}: {error}"
    return ""


def main() -> None:
    """Make what is missing or damaged."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_arguments(parser)
    parser.add_argument("--smoke", action="store_true", help="a few images of each")
    arguments = parser.parse_args()
    for content in arguments.contents:
        for format_name in arguments.formats:
            images = Images.of(content, format_name, smoke=arguments.smoke)
            problem = find_problem(images.path)
            if not problem:
                continue
            print(f"{images.path.name}: {problem}; making it", flush=True)
            write_manifest(images.path, make(images))


if __name__ == "__main__":
    main()
