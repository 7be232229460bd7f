"""Says what to do when the system gives no more open files."""

import errno
import resource

from fastloader._notes import add_note

__all__ = ["note_file_limit"]

_CODES = {errno.EMFILE, errno.ENFILE}


def note_file_limit(error: BaseException) -> None:
    """Add a note to an error that means that no more files can be opened."""
    if not isinstance(error, OSError) or error.errno not in _CODES:
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    add_note(
        error,
        f"No more files can be opened: the limit of open files is {soft:,} for this process, and "
        f"can be raised to {hard:,} (ulimit -n, or resource.setrlimit). Raise it, lower "
        "num_workers, or close the files that the dataset opens.",
    )
