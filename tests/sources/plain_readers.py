"""The image column of a file of any format, read by the format's own library."""

import importlib

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import ipc


def read_plain(path):
    """Return the column `image`, checked by Arrow."""
    column = _READERS[path.suffix[1:]](path)
    column.validate(full=True)
    return column


def _read_duckdb(path):
    duckdb = importlib.import_module("duckdb")
    with duckdb.connect(path, read_only=True) as connection:
        return connection.sql("select image from images").to_arrow_table()["image"]


def _read_ipc(path):
    with pa.memory_map(str(path)) as file:
        return ipc.open_file(file).read_all()["image"]


_READERS = {
    "parquet": lambda path: pq.ParquetFile(path).read()["image"],
    "lance": lambda path: importlib.import_module("lance").dataset(path).to_table()["image"],
    "duckdb": _read_duckdb,
    "vortex": lambda path: (
        importlib.import_module("vortex").open(str(path)).to_arrow().read_all()["image"]
    ),
    "arrow": _read_ipc,
    "feather": _read_ipc,
}
