"""Tell what workers find in `__main__`: a started process imports the script, if it can."""

import ast
import functools
import sys
import types
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

__all__ = ["is_in_main", "is_in_main_of_workers", "main_without_file_hidden"]


def is_in_main(obj: object) -> bool:
    """Tell whether `obj` is a class or function of this process's main script or session."""
    return isinstance(obj, type | types.FunctionType) and obj.__module__ == "__main__"


def is_in_main_of_workers(obj: Any) -> bool:
    """Tell whether a worker that imports this process's main script finds `obj` in it.

    The answer is no in a notebook and under ``python -`` or ``python -c``, whose main module
    has no file to import, for ``python -m package``, which `multiprocessing` does not import
    again, and for what stands under ``if __name__ == "__main__":``.

    Args:
        obj: Anything; what is not of the main script is not in it.
    """
    if not is_in_main(obj):
        return False
    main = sys.modules.get("__main__")
    path = getattr(main, "__file__", None)
    name = getattr(getattr(main, "__spec__", None), "name", None) or ""
    if path is None or name.split(".")[-1] == "__main__" or Path(path).stem == "ipython":
        return False
    names = obj.__qualname__.split(".")
    if "<locals>" in names or _look_up(main, names) is not obj:
        return False
    return names[0] in _names_defined_by(path)


@contextmanager
def main_without_file_hidden() -> Iterator[None]:
    """Let `multiprocessing` start processes in the block although `__main__` is not a file.

    Under ``python - < script`` the main module claims to be the file ``<stdin>``, and each
    process started by spawn or forkserver, or the fork server itself, dies trying to run it.
    """
    main = sys.modules["__main__"]
    path = getattr(main, "__file__", None)
    if path is None or Path(path).exists():
        yield
        return
    del main.__file__
    try:
        yield
    finally:
        main.__file__ = path


def _look_up(obj: object, names: Iterable[str]) -> object:
    for name in names:
        obj = getattr(obj, name, None)
    return obj


@functools.cache
def _names_defined_by(path: str) -> frozenset[str]:
    try:
        source = Path(path).read_bytes()
        return frozenset(_defined_names(ast.parse(source).body))
    except (OSError, SyntaxError, ValueError):  # not a file, or not Python
        return frozenset()


def _defined_names(statements: Iterable[ast.stmt]) -> Iterator[str]:
    """Yield the names that importing these statements, not running them, would define."""
    for statement in statements:
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield statement.name
        elif isinstance(statement, ast.Assign | ast.AnnAssign):
            names = (node.id for node in ast.walk(statement) if isinstance(node, ast.Name))
            yield from names
        elif isinstance(statement, ast.If) and _asks_for_name(statement.test):
            yield from _defined_names(statement.orelse)
        else:
            for field in ("body", "orelse", "finalbody"):
                yield from _defined_names(getattr(statement, field, ()))
            for handler in getattr(statement, "handlers", ()):
                yield from _defined_names(handler.body)


def _asks_for_name(test: ast.expr) -> bool:
    return any(isinstance(node, ast.Name) and node.id == "__name__" for node in ast.walk(test))
