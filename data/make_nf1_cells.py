"""Cut `nf1_cells.parquet` out of one NF1 Cell Painting field and its masks.

    python data/make_nf1_cells.py FIELD_FOLDER [--output data/nf1_cells.parquet]

FIELD_FOLDER is ``tests/data/cytotable/NF1_cellpainting_data_shrunken/`` of
https://github.com/cytomining/CytoDataFrame. The same input gives the same table. What the
columns mean stands in ``data/README.md``.
"""

import argparse
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import tifffile

from fastloader.sources import ome_arrow_type

CHANNELS = {
    "DAPI": "B7_01_1_3_DAPI_001.tif",
    "GFP": "B7_01_2_3_GFP_001.tif",
    "RFP": "B7_01_3_3_RFP_001.tif",
}
NUCLEI_MASK = "B7_01_1_3_DAPI_001_MaskNuclei.tiff"
CELLS_MASK = "B7_01_3_3_RFP_001_MaskCells.tiff"

SIDE_PX = 80
ROWS_PER_LABEL = {"train": 84, "test": 28}
ROWS_PER_GROUP = 32
SPLIT_X_PX = 860
"""Crops left of this column train, crops right of it test; crops across it are not used."""
MARGIN_PX = 8
"""Distance from the edge of a mask, within which a centre could count as either side."""

BACKGROUND_GFP = 4500
"""Above this a pixel belongs to some cell; the median of the empty parts is about 3300."""

Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Field:
    """One field of view."""

    image: npt.NDArray[np.uint16]
    """Pixel values, shape ``(C, H, W)``."""
    nuclei: Mask
    """Where a nucleus is, shape ``(H, W)``; nuclei at the border of the field are left out."""
    cells: Mask
    """Where a cell is, shape ``(H, W)``; cells at the border of the field are left out."""


def main() -> None:
    """Read the field, choose crops and write them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("field_folder", type=Path)
    parser.add_argument(
        "--output", type=Path, default=Path(__file__).with_name("nf1_cells.parquet")
    )
    arguments = parser.parse_args()
    table = make_table(read_field(arguments.field_folder))
    pq.write_table(
        table,
        arguments.output,
        row_group_size=ROWS_PER_GROUP,
        compression="zstd",
        compression_level=12,
    )
    print(
        f"{arguments.output}: {table.num_rows} rows, {arguments.output.stat().st_size:,} bytes"
    )


def read_field(folder: Path) -> Field:
    """Read the three channels and two masks."""
    return Field(
        image=np.stack([tifffile.imread(folder / name) for name in CHANNELS.values()]),
        nuclei=tifffile.imread(folder / NUCLEI_MASK) > 0,
        cells=tifffile.imread(folder / CELLS_MASK) > 0,
    )


def make_table(field: Field) -> pa.Table:
    """Choose centres for each label and cut a crop around each."""
    rng = np.random.default_rng(20240501)
    objects = label_objects(field.nuclei)
    places = []
    for label, allowed in centres_by_label(field).items():
        for split, inside in centres_by_split(allowed.shape).items():
            centres = np.argwhere(allowed & inside)
            chosen = centres[rng.choice(len(centres), ROWS_PER_LABEL[split], replace=False)]
            places += [(label, int(y), int(x)) for y, x in chosen]
    order = rng.permutation(len(places))
    return to_table(field, objects, [places[i] for i in order])


def centres_by_label(field: Field) -> dict[str, Mask]:
    """Return where the centre of a crop may lie for each label, clear of the mask's edges."""
    near_nucleus = grown(field.nuclei, MARGIN_PX)
    near_cell = grown(field.cells | field.nuclei, MARGIN_PX)
    # The masks leave out cells at the border of the field: what is bright there is no background.
    gfp = field.image[list(CHANNELS).index("GFP")]
    dark = ~grown(gfp > BACKGROUND_GFP, MARGIN_PX)
    return {
        "nucleus": ~grown(~field.nuclei, MARGIN_PX),
        "cytoplasm": ~grown(~field.cells, MARGIN_PX) & ~near_nucleus,
        "background": dark & ~near_cell,
    }


def centres_by_split(shape: tuple[int, ...]) -> dict[str, Mask]:
    """Return the centres whose whole crop lies in the field and left or right of the split."""
    half = SIDE_PX // 2
    y, x = np.ogrid[: shape[0], : shape[1]]
    inside = (y >= half) & (y <= shape[0] - half) & (x >= half) & (x <= shape[1] - half)
    return {
        "train": inside & (x + half <= SPLIT_X_PX),
        "test": inside & (x - half >= SPLIT_X_PX),
    }


def grown(mask: Mask, radius_px: int) -> Mask:
    """Return the mask widened by `radius_px` along rows and columns."""
    for axis in (0, 1):
        padded = np.pad(mask, [(radius_px, radius_px) if a == axis else (0, 0) for a in (0, 1)])
        windows = np.lib.stride_tricks.sliding_window_view(padded, 2 * radius_px + 1, axis=axis)
        mask = windows.any(axis=-1)
    return mask


def label_objects(mask: Mask) -> npt.NDArray[np.int32]:
    """Number the connected objects of a mask from 1, background 0."""
    labels = np.where(mask, np.arange(1, mask.size + 1).reshape(mask.shape), 0)
    while True:  # the largest number floods each object, one pixel further a round
        flooded = labels
        for axis in (0, 1):
            for step in (1, -1):
                flooded = np.maximum(flooded, np.roll(flooded, step, axis))
        flooded = np.where(mask, flooded, 0)
        if np.array_equal(flooded, labels):
            break
        labels = flooded
    return np.searchsorted(np.unique(labels), labels).astype(np.int32)


def to_table(
    field: Field, objects: npt.NDArray[np.int32], places: list[tuple[str, int, int]]
) -> pa.Table:
    """Make one row for each (label, centre y, centre x)."""
    half = SIDE_PX // 2
    images, columns = [], {name: [] for name in TABLE_COLUMNS}
    for row, (label, y, x) in enumerate(places):
        crop = np.s_[y - half : y + half, x - half : x + half]
        pixels = field.image[:, *crop]
        nucleus = int(objects[y, x])
        images.append(to_ome_arrow(f"nf1-{row:03d}", pixels))
        values = {
            "crop_id": f"nf1-{row:03d}",
            "label": label,
            "split": "train" if x < SPLIT_X_PX else "test",
            "centre_y_px": y,
            "centre_x_px": x,
            "nucleus_id": nucleus or None,
            "nucleus_area_px": int((objects == nucleus).sum()) if nucleus else None,
            "cell_share": float((field.cells | field.nuclei)[crop].mean()),
            "mean_dapi": float(pixels[0].mean()),
        }
        for name, value in values.items():
            columns[name].append(value)
    arrays = {name: pa.array(columns[name], kind) for name, kind in TABLE_COLUMNS.items()}
    return pa.table({**arrays, "image": pa.array(images, ome_arrow_type())})


TABLE_COLUMNS = {
    "crop_id": pa.string(),
    "label": pa.string(),
    "split": pa.string(),
    "centre_y_px": pa.int32(),
    "centre_x_px": pa.int32(),
    "nucleus_id": pa.int32(),
    "nucleus_area_px": pa.int32(),
    "cell_share": pa.float32(),
    "mean_dapi": pa.float32(),
}


def to_ome_arrow(name: str, pixels: npt.NDArray[np.uint16]) -> dict[str, object]:
    """Return one image of shape ``(C, H, W)`` as an OME-Arrow value, one chunk a channel."""
    num_channels, height, width = pixels.shape
    origin = {"t": 0, "z": 0, "y": 0, "x": 0}
    shape = {"shape_z": 1, "shape_y": height, "shape_x": width}
    return {
        "type": "ome.arrow",
        "version": "0.1.0",
        "id": name,
        "name": name,
        "image_type": "image",
        "pixels_meta": {
            "dimension_order": "XYCT",
            "type": pixels.dtype.name,
            "size_x": width,
            "size_y": height,
            "size_z": 1,
            "size_c": num_channels,
            "size_t": 1,
            "channels": [
                {"id": f"ch-{c}", "name": channel} for c, channel in enumerate(CHANNELS)
            ],
        },
        "chunk_grid": {
            "order": "TCZYX",
            "chunk_t": 1,
            "chunk_c": 1,
            "chunk_z": 1,
            "chunk_y": height,
            "chunk_x": width,
            "chunk_order": "ZYX",
        },
        "chunks": [
            {**origin, "c": c, **shape, "pixels": plane.ravel()}
            for c, plane in enumerate(pixels)
        ],
        "planes": [],
    }


if __name__ == "__main__":
    main()
