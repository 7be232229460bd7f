"""What a dataset holds that goes wrong in workers: said before they start."""

import io
import sys
import warnings
from collections import deque
from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from itertools import islice
from typing import Any

import numpy as np

from fastloader.inspection._attributes import walk_attributes
from fastloader.machine._machine import detect_fork_hazard

__all__ = ["warn_of_hazards"]

LARGE_BYTES = 16e6
PROBED = 100  # elements whose size is taken for that of all
_FILE_TYPES = {
    "builtins": {"Environment"},  # lmdb's, written in C, which names no module
    "h5py": {"File", "Group", "Dataset"},
    "lmdb": {"Environment"},
    "netCDF4": {"Dataset", "Variable"},
    "openslide": {"OpenSlide"},
    "rasterio": {"DatasetReader"},
    "sqlite3": {"Connection"},
    "tables": {"File", "Group", "Leaf"},
    "tarfile": {"TarFile"},
    "tifffile": {"TiffFile"},
    "zipfile": {"ZipFile"},
}
"""Classes over open files or connections, by their package."""


def warn_of_hazards(dataset: object, *, forks: bool) -> None:
    """Warn of what forked workers share or lack, and of Python objects that workers copy.

    Args:
        dataset: Is about to be given to workers.
        forks: Whether workers inherit the memory and the open files of this process.
    """
    hazard = detect_fork_hazard() if forks else None
    if hazard is not None:
        warnings.warn(
            f"{hazard}, whose threads a forked worker lacks: it hangs for ever at the first "
            "array of several chunks. Leave multiprocessing_context out, or set it to "
            "'forkserver' or 'spawn' and set the pipeline in worker_init_fn again.",
            stacklevel=2,
        )
    for path, value, _ in walk_attributes(dataset, "dataset"):
        if forks and _is_open_file(value):
            warnings.warn(
                f"{path} is an open file ({type(value).__name__}): forked workers share its "
                "position or locks, and read wrong data without an error. Keep the path and open "
                "it on first use in each worker, or set multiprocessing_context='spawn'.",
                stacklevel=2,
            )
        num_objects, objects = _objects_in(value)
        if num_objects <= PROBED:
            continue
        size_bytes = num_objects * sum(map(_size_of, islice(objects, PROBED))) / PROBED
        if size_bytes > LARGE_BYTES:
            warnings.warn(
                f"{path} is a {type(value).__name__} of {num_objects:,} Python objects, some "
                f"{size_bytes / 1e6:.0f} MB: reading them copies their memory into every "
                "worker. Keep them in a NumPy array or a torch tensor, which workers share.",
                stacklevel=2,
            )


def _is_open_file(value: Any) -> bool:
    if isinstance(value, io.IOBase):
        # Logs and pipes are shared as well, but nobody seeks in them.
        return (
            not value.closed
            and value.readable()
            and value.seekable()
            and _has_descriptor(value)
        )
    kinds = type(value).__mro__
    is_file = any(
        kind.__name__ in _FILE_TYPES.get(kind.__module__.split(".")[0], ()) for kind in kinds
    )
    return is_file and not _is_closed(value)


def _is_closed(file: Any) -> bool:
    # As most of these classes tell it, and as zipfile's does.
    return getattr(file, "closed", False) is True or getattr(file, "fp", file) is None


def _has_descriptor(file: io.IOBase) -> bool:
    try:
        file.fileno()
    except (OSError, ValueError):
        return False
    return True


def _objects_in(value: Any) -> tuple[int, Iterable[Any]]:
    """Return how many Python objects a container or array holds, and these."""
    if isinstance(value, np.ndarray):
        return (value.size if value.dtype.hasobject else 0), value.flat
    if isinstance(value, Mapping):
        return len(value), value.values()
    if isinstance(value, list | tuple | deque | AbstractSet):
        return len(value), value
    return 0, ()


def _size_of(element: Any, depth: int = 2) -> float:
    """Count what reference counts lie in: not the contents of arrays."""
    size = float(sys.getsizeof(element, 64))
    if hasattr(element, "dtype"):
        return 100.0
    if depth and isinstance(element, Mapping):
        size += sum(_size_of(part, depth - 1) for part in element.values())
    elif depth and isinstance(element, list | tuple):
        size += sum(_size_of(part, depth - 1) for part in element)
    return size
