"""Where functions of compression libraries are in memory, for C to call them, or Python by ctypes.

Each is in a module that is there in any case, so that no header need be there to build with, and no
library comes twice.
"""

import ctypes
import zlib
from functools import cache
from importlib.machinery import PathFinder
from importlib.util import find_spec

__all__ = ["address_in_numcodecs", "address_of_zlib", "codec_addresses"]


@cache
def address_of_zlib() -> int:
    """Return where zlib's ``uncompress`` is, which Python's own module has; 0 if it cannot be found."""
    return _address(getattr(zlib, "__file__", None), "uncompress")  # it may be a part of Python


@cache
def codec_addresses() -> tuple[int, int, int, int]:
    """Return where the functions are by which zlib, Blosc, LZ4 and Zstandard decompress.

    The last three are in modules of numcodecs, which comes with zarr. Its package, which imports all codecs
    there are, is not imported.

    Returns:
        ``uncompress``, ``blosc_decompress_ctx``, ``LZ4_decompress_safe`` and ``ZSTD_decompress``; 0
        for what cannot be found.
    """
    return (
        address_of_zlib(),
        address_in_numcodecs("blosc", "blosc_decompress_ctx"),
        address_in_numcodecs("lz4", "LZ4_decompress_safe"),
        address_in_numcodecs("zstd", "ZSTD_decompress"),
    )


def address_in_numcodecs(module: str, function: str) -> int:
    """Return where a function is in a module of numcodecs; 0 if it cannot be found.

    Args:
        module: Its name in the package.
        function: Of the library that is compiled into it.
    """
    package = find_spec("numcodecs")
    folders = None if package is None else package.submodule_search_locations
    found = None if folders is None else PathFinder.find_spec(f"numcodecs.{module}", folders)
    return 0 if found is None or found.origin is None else _address(found.origin, function)


def _address(library: str | None, function: str) -> int:
    """Return where a function of a library is; 0 if it is not to be found.

    Args:
        library: Path; None for this program.
        function: Its name.
    """
    try:
        found = getattr(ctypes.CDLL(library), function)
    except (OSError, AttributeError):
        return 0
    return ctypes.cast(found, ctypes.c_void_p).value or 0
