"""Errors of the libraries that read files, as ours, with the name of the file."""

from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa

from fastloader.errors import FastLoaderError, SourceError

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
    expected = (pa.ArrowException, OSError, UnicodeDecodeError, *errors)
    try:
        yield
    except BaseException as error:
        # A panic of a library in Rust is no Exception, and its type cannot be imported.
        is_panic = type(error).__name__ == "PanicException"
        if isinstance(error, FastLoaderError) or not (is_panic or isinstance(error, expected)):
            raise
        raise SourceError(
            f"{path} cannot be read ({error}): check that it is there, complete and {kind}."
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
