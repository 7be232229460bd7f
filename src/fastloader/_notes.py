"""Notes on exceptions of users' classes, which may let nobody set an attribute."""

__all__ = ["add_note"]


def add_note(error: BaseException, note: str) -> None:
    """Add a note to an exception, as `BaseException.add_note` does where the class is ordinary.

    That sets an attribute, which raises for a frozen dataclass, and would hide what went wrong.

    Args:
        error: Of any class.
        note: The text.
    """
    error.__dict__.setdefault("__notes__", []).append(note)
