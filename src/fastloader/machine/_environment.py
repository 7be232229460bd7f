"""The environment variables of this process, of which a new loader asks for many that are not set."""

import os
from collections.abc import Iterator, Mapping

__all__ = ["PROCESS_ENVIRONMENT"]


class _ProcessEnvironment(Mapping[str, str]):
    """`os.environ` to look things up in, whose names are ASCII.

    It raises and catches two errors for a name that is not there: a dozen of these were a tenth of what
    making a loader takes. What it looks up in is a dictionary of encoded names.
    """

    def __init__(self) -> None:
        self._encoded: Mapping[bytes, bytes] | None = None
        if os.name == "posix":
            self._encoded = getattr(os.environ, "_data", None)

    def get(self, name: str, default: str = "") -> str:  # type: ignore[override]  # text alone
        """Return the value of a variable."""
        if self._encoded is None:
            return os.environ.get(name, default)
        value = self._encoded.get(name.encode())
        return default if value is None else os.fsdecode(value)

    def those_set(self, names: tuple[str, ...]) -> Mapping[str, str]:
        """Return the variables that are set, of some: as a rule none, which is told at once."""
        if self._encoded is not None and self._encoded.keys().isdisjoint(
            map(str.encode, names)
        ):
            return {}
        return {name: value for name in names if (value := os.environ.get(name)) is not None}

    def __contains__(self, name: object) -> bool:
        return self.get(str(name), _MISSING) is not _MISSING

    def __getitem__(self, name: str) -> str:
        return os.environ[name]

    def __iter__(self) -> Iterator[str]:
        return iter(os.environ)

    def __len__(self) -> int:
        return len(os.environ)


_MISSING = "not set"

PROCESS_ENVIRONMENT = _ProcessEnvironment()
