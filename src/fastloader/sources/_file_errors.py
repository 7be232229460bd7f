"""Errors of the libraries that read files, as ours, with the name of the file."""

from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa

from fastloader.errors import FastLoaderError, SourceError
from fastloader.sources._paths import is_url

__all__ = ["check_unchanged", "naming"]


@contextmanager
def naming(path: str, kind: str, *errors: type[BaseException]) -> Iterator[None]:
    """Say which file it was when reading fails.

    Args:
        path: File or table.
        kind: What it should be, for instance ``"Parquet"``.
        errors: What its library raises, beside the errors of Arrow and of the system.

    Raises:
        SourceError: If what runs inside raises one of them.
    """
    expected = (pa.ArrowException, OSError, UnicodeError, *errors)
    try:
        yield
    except BaseException as error:
        # A panic of a library in Rust is no Exception, and its type cannot be imported.
        is_panic = type(error).__name__ == "PanicException"
        is_known = is_panic or isinstance(error, expected) or _is_of_network(path, error)
        if isinstance(error, FastLoaderError) or not is_known:
            raise
        raise SourceError(
            f"{path} cannot be read ({str(error) or type(error).__name__}): check that it is there, "
            f"complete and {kind}."
        ) from error


def check_unchanged(path: str, fingerprint: str, expected: str) -> None:
    """Check that a file is the one that was looked at first.

    Args:
        path: File or table.
        fingerprint: Of what is there now.
        expected: Of what was there then.

    Raises:
        SourceError: If they differ.
    """
    if fingerprint != expected:
        raise SourceError(
            f"{path} was replaced since it was first opened: make the dataset anew."
        )


def _is_of_network(path: str, error: BaseException) -> bool:
    """Return whether an error is of a library behind file systems, which have some of their own."""
    return (
        is_url(path) and isinstance(error, Exception) and type(error).__module__ != "builtins"
    )
