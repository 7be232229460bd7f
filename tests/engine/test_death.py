"""What is said of a worker that has ended by itself."""

import signal

import psutil
import pytest

from fastloader.engine._death import describe_death


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="needs signals")
@pytest.mark.parametrize("has_proc", [True, False])
def test_a_killed_worker_is_told_with_the_memory_there_is(monkeypatch, has_proc):
    def unknown():
        raise FileNotFoundError("/proc/meminfo")

    if not has_proc:
        monkeypatch.setattr(psutil, "virtual_memory", unknown)

    told = describe_death(1, -signal.SIGKILL, [])

    assert "memory ran out" in told
    assert " GB can be had now, of " in told


def test_a_worker_that_never_started_is_told_with_what_scripts_forget():
    told = describe_death(1, 1, None)

    assert "had not started" in told
    assert 'if __name__ == "__main__"' in told
