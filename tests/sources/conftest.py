"""What tests of sources have in common."""

import pytest

from fastloader.sources._raw_pixels import raw_reader


@pytest.fixture
def way(monkeypatch, is_compiled):
    """Read in C or not; notes how often C was called."""
    calls = []
    reader = raw_reader()
    if is_compiled and reader is None:
        pytest.skip("was not compiled")

    def noted(function):
        def read(*arguments):
            num_read = function(*arguments)
            calls.append((function.__name__, num_read))
            return num_read

        return staticmethod(read)

    names = ("read", "read_segments", "read_chunks")
    functions = {name: noted(getattr(reader, name)) for name in names} if is_compiled else {}
    found = type("Reader", (), functions) if is_compiled else None
    monkeypatch.setattr("fastloader.sources._compiled_job.raw_reader", lambda: found)
    return calls
