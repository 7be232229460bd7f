"""Which rows meet a condition, read from as few columns and row groups as possible."""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from fastloader.errors import SettingsError
from fastloader.sources._computable import computable_table

if TYPE_CHECKING:
    import pyarrow.dataset as ds

__all__ = ["columns_of", "explaining", "matching_rows", "scan_condition", "statistics_suffice"]

Integers: TypeAlias = npt.NDArray[np.int64]

_TOLD_BY_STATISTICS = re.compile(
    r"""\([^()!]*\ (?:[<>]=?|==)\ [^()!]*\)
    |is_null\([^()!{}]*,\ {nan_is_null=false}\)
    |is_valid\([^()!{}]*\)
    |is_in\([^()!{}]*,\ {value_set=(?:large_)?string:[^()!{}]*}\)""",
    re.VERBOSE,
)
_ALL_OR_ANY = re.compile(r"(?:[()]| and | or )*")


def columns_of(condition: pc.Expression, names: Sequence[str]) -> list[str]:
    """Return the columns that a condition may refer to: at least those that it does.

    Args:
        condition: Any expression.
        names: All columns there are.
    """
    # Arrow does not tell what an expression refers to, but writes names as they are.
    text = str(condition)
    return [name for name in names if name in text]


def statistics_suffice(condition: pc.Expression) -> bool:
    """Return whether least, greatest and missing values tell where a condition is met by none.

    They do not tell of NaN, the float that is no number.

    Args:
        condition: Any expression.

    Returns:
        True only if it is made of ``<``, ``<=``, ``>``, ``>=``, ``==``, ``is_null``, ``is_valid``
        and ``isin`` of texts, each applied to columns and values, joined by ``&`` and ``|``. What
        negates (``~``, ``!=``, ``(...) == False``) may be met by NaN alone, and so may any other
        function; for ``isin`` of numbers Arrow tells 0 from the -0 that is the least of some zeros.
    """
    # Calls and what is nested have parentheses, of which the pattern takes the innermost: an
    # operator or a function beside one remains. So text in names and values can only hide a test.
    return _ALL_OR_ANY.fullmatch(_TOLD_BY_STATISTICS.sub("", str(condition))) is not None


def matching_rows(table: pa.Table, condition: pc.Expression, where: str) -> Integers:
    """Return the numbers of the rows of a table that meet a condition, ascending.

    Args:
        table: Columns that the condition refers to.
        condition: What must be true; null is not.
        where: File, for error messages.

    Raises:
        SettingsError: If the condition does not fit the columns.
    """
    import pyarrow.dataset as ds  # noqa: PLC0415 - imports pandas where it is installed

    with explaining(condition, where):
        dataset = ds.dataset(computable_table(table))
        return np.flatnonzero(scan_condition(dataset, condition))


def scan_condition(
    dataset: "ds.Dataset | ds.Fragment",
    condition: pc.Expression,
    schema: pa.Schema | None = None,
) -> npt.NDArray[np.bool_]:
    """Return whether each row of an Arrow dataset meets a condition.

    Args:
        dataset: Dataset or fragment.
        condition: What must be true; null is not.
        schema: Of the columns; that of the dataset if left out.
    """
    options = {} if schema is None else {"schema": schema}
    scanner = dataset.scanner(columns={"is_met": condition}, use_threads=False, **options)
    is_met = pc.fill_null(scanner.to_table().column(0), fill_value=False)
    found = [np.from_dlpack(pc.cast(chunk, pa.uint8())) for chunk in is_met.chunks]
    return np.concatenate([np.zeros(0, np.uint8), *found]).astype(np.bool_)


@contextmanager
def explaining(condition: pc.Expression, where: str) -> Iterator[None]:
    """Say which condition it was that Arrow refuses.

    Args:
        condition: What is applied inside.
        where: File, for error messages.

    Raises:
        SettingsError: If what runs inside raises an error of Arrow.
    """
    try:
        yield
    except pa.ArrowException as error:
        reason = str(error).partition(" in ")[0]
        raise SettingsError(
            f"{where}: the condition {condition} cannot be applied ({reason}): expected an "
            f"expression that is true or false, over columns that hold no images."
        ) from error
