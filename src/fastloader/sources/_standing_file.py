"""A file that may be replaced while it is read, but not written to."""

import os
import stat
from collections.abc import Callable
from typing import ParamSpec

from fastloader.errors import SourceError

__all__ = ["StandingFile"]

P = ParamSpec("P")


class StandingFile:
    """Notices that a file of this machine was written to in place.

    Whoever has a file open goes on to read the old one when another takes its name. Where the same
    file is written over, as by ``cp``, the rest would come from the new one.

    **Processes:** a pickle holds what was noted.
    """

    __slots__ = ("_noted", "_path")

    def __init__(self, path: str) -> None:
        """Note what the file is like.

        Args:
            path: The file; folders and URLs are not looked at.
        """
        self._path = path
        self._noted = self._look()

    def check(self) -> None:
        """Check that nobody has written to it since.

        Raises:
            SourceError: If somebody has.
        """
        if self._noted is None or (now := self._look()) is None:
            return
        if now != self._noted and now[:2] == self._noted[:2]:
            raise SourceError(
                f"{self._path} was written to since it was first opened: make the dataset anew, and "
                f"let a new file take the place of one that is being read."
            )

    def guard(self, write: Callable[P, None]) -> Callable[P, None]:
        """Return a function that writes what was read, and checks the file before and after.

        Args:
            write: May itself read what it writes.
        """

        def check_and_write(*arguments: P.args, **options: P.kwargs) -> None:
            self.check()
            write(*arguments, **options)
            self.check()

        return check_and_write

    def _look(self) -> tuple[int, int, int, int] | None:
        """Return which file is at the path, its size and when it was last written to."""
        try:
            state = os.stat(self._path)  # noqa: PTH116 - asked for with each batch
        except OSError:
            return None
        if not stat.S_ISREG(state.st_mode):
            return None
        return state.st_dev, state.st_ino, state.st_size, state.st_mtime_ns
