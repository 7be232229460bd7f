"""A StopIteration that the user's code lets out would end the epoch as if the data had ended."""

__all__ = ["false_end"]


def false_end(error: StopIteration, where: str) -> RuntimeError:
    """Return what to raise in place of it.

    Args:
        error: From code that is no iterator.
        where: Names that code.
    """
    told = RuntimeError(
        f"{where} raised StopIteration, which would have ended the epoch in silence: raise "
        "another exception, or IndexError past the end."
    )
    told.__cause__ = error
    return told
